"""The forecast against a made-up device, and what counts as out of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_deba.memory import (
    SAFETY_SHARE,
    MemoryWatch,
    OutOfMemory,
    is_out_of_memory,
    largest_micro_batch_size,
    reader_for,
)

sizes = st.integers(1, 4096)
nbytes = st.integers(1, 10**9)


class Device:
    """Uses `fixed + per_sample x micro-batch` bytes of `total`; others may hold some."""

    def __init__(self, fixed=1_000, per_sample=100, total=20_000):
        self.fixed, self.per_sample, self.total, self.held = fixed, per_sample, total, 0
        self.seen = 0

    def train(self, micro):
        self.seen = max(self.seen, self.fixed + self.per_sample * micro)

    def reset_peak(self):
        self.seen = 0

    def peak(self):
        return self.seen

    def available(self):
        return self.total - self.held


@given(fixed=nbytes, per_sample=st.integers(1, 10**6), one=sizes, other=sizes, total=nbytes)
def test_from_two_sizes_it_is_the_largest_that_fits(fixed, per_sample, one, other, total):
    def peak(size):
        return fixed + per_sample * size

    assume(one != other)
    found = largest_micro_batch_size({one: peak(one), other: peak(other)}, total)
    budget = int(SAFETY_SHARE * total)
    assert found == 1 or peak(found) <= budget
    assert peak(found + 1) > budget


@given(fixed=nbytes, per_sample=st.integers(1, 10**6), size=sizes, room=st.floats(1.2, 10))
def test_from_one_size_it_errs_on_the_safe_side(fixed, per_sample, size, room):
    peak = fixed + per_sample * size
    total = int(room * peak)
    found = largest_micro_batch_size({size: peak}, total)
    assert size <= found
    assert fixed + per_sample * found <= SAFETY_SHARE * total + 1


@pytest.mark.parametrize("peaks", [{}, {32: 0}, {32: 500, 64: 500}, {32: 500, 64: 400}])
def test_where_nothing_can_be_told_nothing_is(peaks):
    assert largest_micro_batch_size(peaks, 10_000) is None


def test_the_watch_forecasts_after_each_growth():
    device = Device()
    watch = MemoryWatch(device)
    watch.start()
    device.train(32)
    first = watch.forecast(32)
    assert first == int(0.9 * 20_000 * 32 / 4_200)
    watch.start()
    device.train(64)
    assert watch.forecast(64) == (0.9 * 20_000 - 1_000) / 100


def test_what_another_process_takes_lowers_the_next_micro_batch_and_it_grows_back():
    device = Device()
    watch = MemoryWatch(device)
    for micro in (32, 64):
        watch.start()
        device.train(micro)
        free = watch.forecast(micro)
    device.held = 10_000
    assert watch.forecast(64) == (0.9 * 10_000 - 1_000) / 100 < free
    device.held = 0
    assert watch.forecast(64) == free


def test_a_validation_is_not_looked_at():
    device = Device()
    watch = MemoryWatch(device)
    watch.start()
    device.train(32)
    watch.pause()
    device.train(500)
    watch.start()
    device.train(32)
    watch.forecast(32)
    assert watch.peaks == {32: 4_200}


def test_the_cpu_has_no_forecast():
    assert reader_for(torch.device("cpu")) is None


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=lambda error: str(error)[:30],
)
def test_out_of_memory_has_many_texts(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("HIP out of memory"), KeyError("x")])
def test_other_errors_are_none(error):
    assert not is_out_of_memory(error)


def test_the_advice_can_be_copied():
    advice = OutOfMemory(16, Path("logs/out_of_memory.ckpt")).advice
    assert "`BatchSizeScheduler(max_micro_batch_size=16)`" in advice
    assert "--trainer.callbacks.max_micro_batch_size 16 --ckpt_path logs/out_of_memory.ckpt" in advice
    assert "your last checkpoint" in OutOfMemory(16, None).advice

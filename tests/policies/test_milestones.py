"""Milestones, by epoch and by samples, and the strings and mappings they are read from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_deba.policies import Milestones
from lightning_deba.records import EpochRecord
from tests.policies.runs import World, flat

THOUSAND = World(samples=1000)
steps = st.dictionaries(st.integers(0, 30), st.sampled_from([8, 16, 32, 64]), min_size=1, max_size=5)


def in_force(milestones, now, start):
    """The size that stands, by the definition."""
    passed = [at for at in milestones if at <= now]
    return milestones[max(passed)] if passed else start


@given(steps)
def test_by_epoch(milestones):
    sizes = THOUSAND.sizes(Milestones(epochs=milestones), 35, start=24)
    assert sizes == [24] + [in_force(milestones, epoch, 24) for epoch in range(1, 35)]


@given(steps)
def test_by_samples(milestones):
    milestones = {500 * at: size for at, size in milestones.items()}
    sizes = THOUSAND.sizes(Milestones(samples=milestones), 20, start=24)
    assert sizes == [24] + [in_force(milestones, 1000 * epoch, 24) for epoch in range(1, 20)]


def test_on_its_way():
    assert flat(THOUSAND.sizes(Milestones(epochs={0: 8, 10: 16}), 12)) == [(32, 1), (8, 9), (16, 2)]
    assert flat(THOUSAND.sizes(Milestones(samples={3000: 64, 4500: 128}), 8)) == [(32, 3), (64, 2), (128, 3)]


def test_the_order_is_that_of_the_milestones():
    assert list(Milestones(epochs={10: 16, 0: 8}).epochs.items()) == [(0, 8), (10, 16)]


def test_the_mapping_is_copied():
    mine = {0: 8}
    policy = Milestones(epochs=mine)
    mine[5] = 16
    assert policy.epochs == {0: 8}


def test_a_size_is_proposed_once():
    """Where the bounds grant another size, asking again every epoch would make it go to and fro."""
    policy = Milestones(epochs={2: 100})
    granted = [EpochRecord(epoch, size, size) for epoch, size in enumerate([32, 32, 96, 96])]
    assert [policy(granted[:end]).batch_size for end in (1, 2, 3, 4)] == [32, 100, 96, 96]


def test_a_run_that_is_joined_late_catches_up():
    assert Milestones(epochs={0: 8, 10: 16})([EpochRecord(50, 32, 32)]).batch_size == 16


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (1, "hold until epoch 2"),
        (2, "increase: 64 from epoch 2 on"),
        (3, "decrease: 32 from epoch 3 on"),
        (4, "hold: 32 from epoch 4 on"),
        (5, "hold: no milestone is left"),
    ],
)
def test_the_reason(end, reason):
    history, _ = THOUSAND.run(Milestones(epochs={2: 64, 3: 32, 4: 32}), 5)
    assert Milestones(epochs={2: 64, 3: 32, 4: 32})(history[:end]).reason == reason
    samples = Milestones(samples={2000: 64, 3000: 32, 4000: 32})(history[:end]).reason
    assert samples == reason.replace("epoch 2", "2000 samples").replace("epoch 3", "3000 samples").replace(
        "epoch 4", "4000 samples"
    )


# Megatron's string ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "samples"),
    [
        ("0:768 250B:1536 500B:3072", {0: 768, 250 * 10**9: 1536, 500 * 10**9: 3072}),
        ("0:768 61035156250:1536", {0: 768, 61035156250: 1536}),
        ("10K:1 1.5M:2 2t:3", {10_000: 1, 1_500_000: 2, 2 * 10**12: 3}),
        ("123456789012345678:8", {123456789012345678: 8}),
        ("  0:8\n5k:16 ", {0: 8, 5000: 16}),
    ],
)
def test_the_string(schedule, samples):
    assert Milestones.from_string(schedule) == Milestones(samples=samples)


@given(st.dictionaries(st.integers(0, 10**6), st.integers(1, 10**5), min_size=1), st.sampled_from("KMBT"))
def test_the_string_there_and_back(milestones, suffix):
    unit = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}[suffix]
    written = " ".join(f"{at}{suffix}:{size}" for at, size in milestones.items())
    assert Milestones.from_string(written).samples == {at * unit: size for at, size in milestones.items()}


@pytest.mark.parametrize(
    "schedule", ["", "768", "0:", ":768", "0:768,10:8", "0:768 1G:8", "-1:8", "0:8.5", "0:8 0:16", "1K:8 1000:16"]
)
def test_a_string_that_is_none_is_refused(schedule):
    with pytest.raises(ValueError, match=r"^`schedule` must be pairs of different numbers of samples and a batch size"):
        Milestones.from_string(schedule)


def test_a_batch_size_of_nothing_in_a_string_is_refused():
    with pytest.raises(ValueError, match=r"^`samples` of Milestones must be "):
        Milestones.from_string("0:0")


# Lightning's mapping -------------------------------------------------------------------------------------------


def test_the_mapping_of_the_accumulation_scheduler():
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    scheduling = {0: 1, 3: 2, 5: 4}
    policy, lightning = Milestones.from_accumulation(scheduling, 16), GradientAccumulationScheduler(scheduling)
    sizes = THOUSAND.sizes(policy, 8, start=16)
    assert sizes == [16 * lightning.get_accumulate_grad_batches(epoch) for epoch in range(8)]


# What is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"epochs": {0: 8}, "samples": {0: 8}}])
def test_either_epochs_or_samples(arguments):
    with pytest.raises(ValueError, match=r"^Milestones takes either `epochs` or `samples`, got "):
        Milestones(**arguments)

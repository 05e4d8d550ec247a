"""Schedules against bs-scheduler's own examples, and against NumPy."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_deba import policies
from lightning_deba.policies import (
    CosineGrowth,
    Cyclic,
    ExponentialGrowth,
    LinearGrowth,
    OneCycle,
    PolynomialGrowth,
    StepGrowth,
    schedules,
)
from lightning_deba.records import EpochRecord
from tests.policies.runs import World, flat

WORLD = World()
BS_SCHEDULER = [  # the classes of version 1.0.2, in the order of its file
    "LambdaBS",
    "MultiplicativeBS",
    "StepBS",
    "MultiStepBS",
    "ConstantBS",
    "LinearBS",
    "ExponentialBS",
    "SequentialBS",
    "PolynomialBS",
    "CosineAnnealingBS",
    "ChainedBSScheduler",
    "IncreaseBSOnPlateau",
    "CyclicBS",
    "CosineAnnealingBSWithWarmRestarts",
    "OneCycleBS",
]


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        # These four are in the docstrings of bs-scheduler 1.0.2.
        (StepGrowth(every=30, factor=2.0), [10] * 30 + [20] * 30 + [40] * 30),
        (ExponentialGrowth(factor=1.1), [10, 11, 12, 13]),
        (CosineGrowth(epochs=5, factor=10.0), [10, 19, 41, 69, 91, 100, 100, 100]),
        (CosineGrowth(epochs=5, factor=10.0, restart=True), [10, 19, 41, 69, 91, 100, 10, 19, 41]),
        (LinearGrowth(epochs=5, factor=6.0), [10, 20, 30, 40, 50, 60, 60]),
        (PolynomialGrowth(epochs=4, factor=17.0, power=2.0), [10, 20, 50, 100, 170, 170]),
        (Cyclic(epochs=2, factor=3.0), [10, 20, 30, 20, 10, 20, 30]),
        (Cyclic(epochs=2, factor=0.2), [10, 6, 2, 6, 10]),
        (OneCycle(epochs=8, lowest=0.2, highest=4.2, turn=0.25), [10, 6, 2, 5, 12, 22, 32, 39, 42, 42]),
    ],
)
def test_its_way(policy, sizes):
    assert WORLD.sizes(policy, len(sizes), start=10) == sizes


GRIDS = {
    "linear": (
        lambda epochs, k: LinearGrowth(epochs=epochs, factor=k),
        lambda epochs, k: np.linspace(1, k, epochs + 1),
    ),
    "polynomial": (
        lambda epochs, k: PolynomialGrowth(epochs=epochs, factor=k, power=3.0),
        lambda epochs, k: 1 + (k - 1) * np.linspace(0, 1, epochs + 1) ** 3,
    ),
    "cosine": (
        lambda epochs, k: CosineGrowth(epochs=epochs, factor=k),
        lambda epochs, k: (1 + k) / 2 + (1 - k) / 2 * np.cos(np.linspace(0, np.pi, epochs + 1)),
    ),
    "exponential": (
        lambda epochs, k: ExponentialGrowth(factor=k ** (1 / epochs), largest=k),
        lambda epochs, k: np.geomspace(1, k, epochs + 1),
    ),
}


@pytest.mark.parametrize("name", GRIDS)
@given(st.integers(1, 40), st.floats(1.5, 50), st.integers(1, 300))
def test_a_schedule_is_its_curve(name, epochs, factor, start):
    policy, curve = GRIDS[name]
    sizes = WORLD.sizes(policy(epochs, factor), epochs + 3, start)
    expected = start * curve(epochs, factor)
    np.testing.assert_allclose(sizes[: epochs + 1], expected, atol=0.501)
    assert sizes[-1] == sizes[-2]  # at its end it stays


def test_a_schedule_has_a_largest_size():
    assert flat(WORLD.sizes(StepGrowth(every=1, largest=8.0), 6)) == [(32, 1), (64, 1), (128, 1), (256, 3)]
    late = [EpochRecord(0, 32, 32), EpochRecord(10**6, 32, 32)]
    assert ExponentialGrowth()(late).batch_size == 32  # it has long come to its end, and does not move
    assert ExponentialGrowth(largest=2.0)([*late[:1], EpochRecord(14, 62, 62)]).batch_size == 64


def test_the_epochs_count_from_the_first_record():
    joined = [EpochRecord(37, 10, 10)]
    assert LinearGrowth(epochs=5, factor=6.0)(joined).batch_size == 20


def test_a_rising_schedule_waits_where_more_was_granted():
    policy = LinearGrowth(epochs=32, factor=3.0)  # 32, 34, 36, ...
    sizes = [32, 64, 64, 64]  # with `multiple_of=32` the 34 of the first decision is granted as 64
    history = [EpochRecord(epoch, size, size) for epoch, size in enumerate(sizes)]
    decided = [policy(history[:end]) for end in (1, 2, 3, 4)]
    assert [decision.batch_size for decision in decided] == [34, 64, 64, 64]
    assert decided[1].reason == "hold: the schedule goes from 34 to 36 in epoch 2"
    assert policy([*history, EpochRecord(16, 64, 64)]).batch_size == 66


def test_a_schedule_at_its_end_does_not_ask_again():
    history = [EpochRecord(0, 32, 32), *(EpochRecord(epoch, 96, 96) for epoch in range(1, 9))]
    assert LinearGrowth(epochs=2, factor=100 / 32)(history).batch_size == 96


def test_the_table_names_each_class_of_bs_scheduler_once():
    rows = [line.split("  ", 1) for line in schedules.__doc__.split("=\n", 3)[2].splitlines()[:-1]]
    assert [name for name, _ in rows] == BS_SCHEDULER
    named = {name for _, here in rows for name in re.findall(r"`([A-Z]\w+)`", here.replace("``", ""))}
    assert named <= set(policies.list_policies())

"""Policies that grow the batch where a rate would decay, and the plateau that decides when."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_deba.policies import AdaBatch, IncreaseInsteadOfDecay, Plateau, Seesaw
from lightning_deba.records import EpochRecord
from tests.policies.runs import World, flat

WORLD = World()


def test_adabatch_doubles_every_20_epochs():
    assert flat(WORLD.sizes(AdaBatch(), 70)) == [(32, 20), (64, 20), (128, 20), (256, 10)]
    assert flat(WORLD.sizes(AdaBatch(every=3, factor=1.5), 8, start=10)) == [(10, 3), (15, 3), (22, 2)]
    assert AdaBatch()([EpochRecord(20, 32, 32)]).reason == "hold until epoch 40"


def test_adabatch_with_its_rate_keeps_what_a_sample_moves():
    # The baseline decays by 0.375 an interval at a fixed batch size, AdaBatch by 0.75 with the batch doubled.
    sizes = WORLD.sizes(AdaBatch(), 80)
    for epoch, size in enumerate(sizes):
        rate = 0.1 * 0.75 ** (epoch // 20)
        assert rate / size == pytest.approx(0.1 * 0.375 ** (epoch // 20) / 32)


def test_seesaw_doubles_at_its_milestones():
    policy = Seesaw(epochs=[5, 2])
    assert flat(WORLD.sizes(policy, 8)) == [(32, 2), (64, 3), (128, 3)]
    assert policy.epochs == (5, 2)


def test_seesaw_with_its_rate_keeps_the_rate_over_the_root_of_the_batch():
    # For Adam, rate / sqrt(B) counts. The cosine schedule would halve the rate, and so that, at each milestone.
    halvings = [round(100 / math.pi * math.acos(2 ** (1 - j) - 1)) for j in (1, 2, 3)]
    sizes = WORLD.sizes(Seesaw(epochs=halvings), 100)
    for epoch, size in enumerate(sizes):
        passed = sum(halving <= epoch for halving in halvings)
        assert 2 ** (-passed / 2) / math.sqrt(size) == pytest.approx(2**-passed / math.sqrt(32))


def test_increase_instead_of_decay_stops_at_a_tenth_of_the_samples():
    history, decisions = WORLD.run(IncreaseInsteadOfDecay(), 200, start=128)
    assert flat([record.batch_size for record in history]) == [(128, 60), (640, 60), (3200, 80)]
    advice = "hold: 3200 x 5 would pass 0.1 of the 50000 samples; decay the learning rate at the milestones from here"
    assert {decision.reason for decision in decisions[120:]} == {f"{advice} on"}
    assert decisions[59].reason == "increase: epoch 60 is a milestone, x5"
    assert decisions[60].reason == "hold: epoch 61 is no milestone"


def test_increase_instead_of_decay_keeps_the_noise_of_a_decaying_rate():
    # g = rate (N/B - 1), arXiv 1711.00489, with N far above B
    sizes = World(samples=10**7).sizes(IncreaseInsteadOfDecay(epochs=[3, 6, 9]), 12)
    for epoch, size in enumerate(sizes):
        noise = 0.1 * (10**7 / size - 1)
        assert noise == pytest.approx(0.1 / 5 ** (epoch // 3) * (10**7 / 32 - 1), rel=1e-3)


def test_increase_instead_of_decay_needs_the_number_of_samples():
    decided = IncreaseInsteadOfDecay(epochs=[1])([EpochRecord(0, 32, 32)])
    assert decided.batch_size == 32
    assert decided.reason.endswith("the samples of an epoch are not known")


# Plateau -------------------------------------------------------------------------------------------------------


class SlowPlateau:
    """bs-scheduler's account of it: a best, and a count of bad epochs that a change of the size sets back."""

    def __init__(self, min_delta, patience):
        self.min_delta, self.patience, self.best, self.bad = min_delta, patience, math.inf, 0

    def step(self, loss):
        if loss < self.best - self.min_delta:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        if self.bad < self.patience:
            return 1
        self.bad = 0
        return 2


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.floats(0, 2), st.integers(1, 5))
def test_plateau_is_that_with_counters(losses, min_delta, patience):
    policy, slow = Plateau(min_delta=min_delta, patience=patience), SlowPlateau(min_delta, patience)
    history, size = [], 1
    for epoch, loss in enumerate(losses):
        history.append(EpochRecord(epoch, size, size, loss=float(loss)))
        factor = slow.step(loss)
        assert policy(history).batch_size == factor * size
        size *= factor


def test_plateau_on_its_way():
    losses = [3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.9995, 0.5, 0.5, 0.5]
    history, size = [], 32
    for epoch, loss in enumerate(losses):
        history.append(EpochRecord(epoch, size, size, loss=loss))
        size = Plateau(patience=2)(history).batch_size
    assert [record.batch_size for record in history] == [32, 32, 32, 32, 32, 64, 64, 128, 128, 128]
    assert size == 256
    assert Plateau(patience=2)(history).reason == "increase: loss 0.5, best 0.5, 2 of 2 epochs at 128 without a better"


def test_plateau_of_the_most():
    history = [EpochRecord(t, 32, 32, gradient_norm=norm) for t, norm in enumerate([1.0, 2.0, 2.0, 1.5])]
    policy = Plateau(monitor="gradient_norm", mode="max", patience=2)
    assert [policy(history[:end]).batch_size for end in (1, 2, 3, 4)] == [32, 32, 32, 64]
    assert policy(history).reason.startswith("increase: gradient norm 1.5, best 2, ")


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_plateau_does_not_count_what_was_not_measured(missing):
    history = [EpochRecord(t, 32, 32, loss=loss) for t, loss in enumerate([1.0, 1.0, missing, missing, 1.0])]
    policy = Plateau(patience=2)
    assert [policy(history[:end]).batch_size for end in range(1, 6)] == [32, 32, 32, 32, 64]
    assert policy(history[:4]).reason.startswith("hold: the loss of epoch 3 ")


@given(st.integers(1, 6))
def test_plateau_changes_are_its_patience_apart(patience):
    sizes = WORLD.sizes(Plateau(patience=patience), 30)
    changes = [epoch for epoch, (last, now) in enumerate(pairwise(sizes), 1) if now != last]
    assert all(later - earlier == patience for earlier, later in pairwise(changes))
    assert changes[0] == patience + 1  # the first epoch is the best

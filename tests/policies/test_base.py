"""A policy is a function of the history, and replaying one against its own run gives the run's decisions."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_deba.policies import DEBA, BatchSizePolicy, Hold, replay
from lightning_deba.policies.base import epochs_at_batch_size
from lightning_deba.records import Decision, EpochRecord
from tests.policies import CONSTANT, live

numbers = st.none() | st.sampled_from([float("nan"), float("inf")]) | st.floats(1e-3, 1e3)
measurements = st.lists(st.tuples(numbers, numbers, numbers) | st.just(CONSTANT), min_size=1, max_size=40)


def half_when_the_loss_rises(history):
    """A policy of somebody's own; it looks back over the whole run."""
    losses = [record.loss for record in history if record.loss is not None]
    now = history[-1].batch_size
    if losses and losses[-1] > min(losses):
        return Decision(max(1, now // 2), f"the loss rose to {losses[-1]}")
    return Decision(now + len(history), f"the loss is as low as ever after {len(history)} epochs")


POLICIES = [
    DEBA(),
    DEBA(cooldown=0, window=None),
    DEBA(rule="noise", cooldown=1, window=3, confidence_threshold=0.9, stability_threshold=2.0),
    Hold(),
    half_when_the_loss_rises,
]


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=50)
@given(measurements)
def test_replay_of_its_own_run_is_the_identity(policy, measurements):
    history, decisions = live(policy, measurements)
    again = replay(policy, history)
    assert again == decisions
    assert repr([decision.signals for decision in again]) == repr([decision.signals for decision in decisions])


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20)
@given(measurements, st.data())
def test_replay_sees_no_epoch_to_come(policy, measurements, data):
    history, _ = live(Hold(), measurements)
    end = data.draw(st.integers(0, len(history)))
    assert replay(policy, history)[:end] == replay(policy, history[:end])


def test_replay_of_a_long_run_under_another_policy():
    history, decisions = live(Hold(), [CONSTANT] * 300)
    assert {decision.batch_size for decision in decisions} == {32}
    assert [decision.batch_size for decision in replay(DEBA(), history)] == [32] * 4 + [48] * 296


def test_replay_of_no_epoch_is_no_decision():
    assert replay(DEBA(), []) == []


@pytest.mark.parametrize("size", [1, 32, 2048])
def test_hold_holds(size):
    assert Hold()([EpochRecord(0, 8, 8), EpochRecord(1, size, size)]) == Decision(size, "fixed batch size")


@given(st.lists(st.sampled_from([16, 32, 64]), min_size=1))
def test_the_epochs_at_a_batch_size_are_the_last_group(sizes):
    history = [EpochRecord(epoch, size, size) for epoch, size in enumerate(sizes)]
    groups = [list(group) for _, group in groupby(sizes)]
    assert epochs_at_batch_size(history) == len(groups[-1])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_is_any_callable(policy):
    assert isinstance(policy, BatchSizePolicy)
    assert not isinstance(Decision(32, "no callable"), BatchSizePolicy)

"""What holds for every policy: it is a pure function, and it does nothing rash."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_deba.policies import (
    CABS,
    DEBA,
    AdaBatch,
    Chain,
    CosineGrowth,
    Cyclic,
    DiveBatch,
    ExponentialGrowth,
    Goodput,
    Hold,
    IncreaseInsteadOfDecay,
    LinearGrowth,
    Milestones,
    NoiseScale,
    NormTest,
    OneCycle,
    Plateau,
    PolynomialGrowth,
    Seesaw,
    SimiGrad,
    StepGrowth,
    list_policies,
    replay,
)
from lightning_deba.records import Decision, EpochRecord
from tests.policies.runs import World

ON_THE_NOISE_SCALE = [
    NoiseScale(cooldown=1),
    NormTest(),
    SimiGrad(),
    DiveBatch(every=2),
    Goodput(),
    Goodput(throughput={16: 100.0, 512: 800.0}),
]
ON_MEASUREMENTS = [*ON_THE_NOISE_SCALE, CABS(), DEBA(cooldown=1), Plateau(patience=2)]
POLICIES = [
    *ON_MEASUREMENTS,
    Hold(),
    AdaBatch(every=3),
    IncreaseInsteadOfDecay(epochs=[2, 5]),
    Seesaw(epochs=[2, 5]),
    Milestones(epochs={0: 8, 4: 64}),
    Milestones(samples={3000: 64, 9000: 8}),
    StepGrowth(every=2),
    ExponentialGrowth(factor=1.3),
    LinearGrowth(epochs=6),
    PolynomialGrowth(epochs=6),
    CosineGrowth(epochs=3, restart=True),
    Cyclic(epochs=3),
    OneCycle(epochs=8),
    Chain([Milestones(epochs={3: 48}), Plateau(patience=2), NoiseScale()]),
]
by_name = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
measuring = pytest.mark.parametrize("policy", ON_MEASUREMENTS, ids=lambda policy: type(policy).__name__)
on_noise = pytest.mark.parametrize("policy", ON_THE_NOISE_SCALE, ids=lambda policy: type(policy).__name__)

OPTIONAL = [field.name for field in fields(EpochRecord) if "None" in str(field.type)]
numbers = st.none() | st.sampled_from([float("nan"), float("inf"), -1.0, 0.0]) | st.floats(1e-3, 1e3)
epochs = st.fixed_dictionaries(
    {
        **dict.fromkeys(OPTIONAL, numbers),
        "samples": st.sampled_from([0, 1000]),
        "optimizer_steps": st.integers(0, 50),
        "seconds": st.sampled_from([0.0, 1.0, 2.5]),
    }
)


def live(policy, measurements, start=32):
    """A run of which the epochs are measured anyhow, and 4096 is the largest batch size."""
    history, decisions, size = [], [], start
    for epoch, measured in enumerate(measurements):
        history.append(EpochRecord(epoch, size, size, **measured))
        decisions.append(policy(tuple(history)))
        size = min(decisions[-1].batch_size, 4096)
    return history, decisions


def test_all_are_here():
    assert {type(policy).__name__ for policy in POLICIES} == set(list_policies())


@by_name
@settings(max_examples=12)
@given(st.lists(epochs, min_size=1, max_size=10), st.integers(1, 200))
def test_whatever_is_measured_it_decides_and_says_why(policy, measurements, start):
    _, decisions = live(policy, measurements, start)
    for decision in decisions:
        assert isinstance(decision, Decision)
        assert isinstance(decision.batch_size, int)
        assert decision.batch_size >= 1
        assert decision.reason
        finite = all(abs(value) < float("inf") for value in decision.signals.values())
        assert finite or isinstance(policy, DEBA)  # whose ratio to a norm of nothing is infinite


@by_name
@settings(max_examples=10)
@given(st.lists(epochs, min_size=1, max_size=10))
def test_the_same_history_gives_the_same_decision(policy, measurements):
    history, decisions = live(policy, measurements)
    before = copy.deepcopy(history)
    again = replay(copy.deepcopy(policy), history)
    assert again == decisions
    assert [decision.signals for decision in again] == [decision.signals for decision in decisions]
    assert repr(history) == repr(before)
    assert list(reversed([policy(history[:end]) for end in range(len(history), 0, -1)])) == decisions


@measuring
@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), float("-inf")])
def test_where_nothing_was_measured_it_holds(policy, missing):
    history = [replace(World(error=0.1).epoch(epoch, 32), **dict.fromkeys(OPTIONAL, missing)) for epoch in range(6)]
    decisions = replay(policy, history)
    assert {decision.batch_size for decision in decisions} == {32}
    assert all("hold" in decision.reason for decision in decisions)


@measuring
@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_where_the_last_epoch_was_not_measured_it_holds(policy, missing):
    history, _ = World(error=0.1).run(policy, 6, start=40)
    history[-1] = replace(history[-1], **dict.fromkeys(OPTIONAL, missing))
    assert policy(history).batch_size == history[-1].batch_size


@on_noise
@pytest.mark.parametrize("square", [0.0, -1.0, -1e300])
def test_where_the_noise_scale_is_undetermined_it_holds(policy, square):
    measured = {"gradient_squared": square, "gradient_covariance": 100.0, "noise_scale_error": 0.1}
    history, decisions = live(policy, [measured] * 8)
    assert {record.batch_size for record in history} == {32}
    assert decisions[-1].reason.startswith("hold: the noise scale is undetermined")


@on_noise
@given(st.floats(0.5, 5000), st.integers(1, 512))
@settings(max_examples=30)
def test_on_constant_statistics_it_does_not_run_away(policy, noise, start):
    world = World(covariance=noise, error=0.05)
    sizes = world.sizes(policy, 120, start)
    assert len(set(sizes[-10:])) == 1
    goal = 64 * start if isinstance(policy, Goodput) else 4 * noise  # the largest of what their arguments ask for
    assert max(sizes) <= max(start, goal + 1, 2)


@on_noise
@given(
    st.lists(st.tuples(st.floats(0.5, 2), st.floats(10, 1000)), min_size=2, max_size=10),
    st.integers(-20, 20),
    st.integers(1, 100),
)
@settings(max_examples=30)
def test_scaling_all_gradients_changes_no_decision(policy, pairs, power, start):
    def measured(k):
        return [
            {"gradient_squared": k * g, "gradient_covariance": k * s, "optimizer_steps": 10, "seconds": 1.0}
            for g, s in pairs
        ]

    _, decisions = live(policy, measured(1.0), start)
    _, scaled = live(policy, measured(4.0**power), start)
    assert [decision.batch_size for decision in scaled] == [decision.batch_size for decision in decisions]
    determined = [(one, other) for one, other in zip(decisions, scaled, strict=True) if one.signals]
    assert all(one == other for one, other in determined)

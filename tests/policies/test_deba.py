"""DEBA against a slow account of the paper's formulas, and what follows from them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightning_deba.policies import DEBA, Signals, signals
from lightning_deba.records import EpochRecord
from tests.policies import CONSTANT, live

FIELDS = ["component_variance", "gradient_norm", "loss"]
NOT_FINITE = [None, float("nan"), float("inf"), float("-inf")]
FACTORS = {
    # rule: {(noisy, stable): factor}
    "calm": {(False, True): 1.5, (True, False): 0.8, (True, True): 1.0, (False, False): 1.0},
    "noise": {(True, True): 1.5, (False, False): 0.8, (True, False): 1.0, (False, True): 1.0},
}


def history_of(rows, first_epoch=0):
    return [
        EpochRecord(epoch, size, size, loss=loss, gradient_norm=norm, component_variance=variance)
        for epoch, (size, loss, norm, variance) in enumerate(rows, first_epoch)
    ]


def histories(min_size=2, max_size=30):
    positive = st.floats(1e-6, 1e6)
    sizes = st.sampled_from([32, 48])
    losses = positive | st.floats(-1e6, -1e-6)
    rows = st.tuples(sizes, losses, positive, positive)
    return st.lists(rows, min_size=min_size, max_size=max_size).map(history_of)


def steady(epochs=6, size=32):
    return history_of([(size, *CONSTANT)] * epochs)


def upset(epochs=6, size=32):
    """Noisy and unstable at the end."""
    history = steady(epochs, size)
    return [*history[:-1], replace(history[-1], loss=5.0, gradient_norm=9.0, component_variance=1e-6)]


def slow_signals(history, window):
    """The paper's formulas, eps being nothing, in NumPy."""
    s2, norms, losses = (np.array([getattr(record, name) for record in history], dtype=float) for name in FIELDS)
    lately = s2 if window is None else s2[max(0, len(s2) - window) :]
    lately = np.sort(lately[np.isfinite(lately)])
    middle = (lately[(len(lately) - 1) // 2] + lately[len(lately) // 2]) / 2
    tiny = np.finfo(float).tiny
    return (
        s2[-1] / middle,
        abs(np.diff(norms)[-1]) / max(norms[-2], tiny),
        abs(np.diff(losses)[-1]) / max(abs(losses[-2]), tiny),
    )


# Signals -------------------------------------------------------------------------------------------------------


@given(histories(), st.none() | st.integers(2, 20))
def test_the_signals_are_those_of_the_formulas(history, window):
    assert signals(history, window) == pytest.approx(slow_signals(history, window), rel=1e-12)


def scaled_by(k, history):
    return [
        replace(r, gradient_norm=k * r.gradient_norm, component_variance=k**2 * r.component_variance) for r in history
    ]


@given(histories(), st.floats(1e-6, 1e6))
def test_scaling_all_gradients_changes_neither_signals_nor_size(history, k):
    scaled, found = scaled_by(k, history), signals(history)
    assert signals(scaled) == pytest.approx(found, rel=1e-9, abs=1e-9)
    policy = DEBA(confidence_threshold=1.05, cooldown=2)
    assume(abs(found.confidence - 1.05) > 1e-6)
    assume(abs(found.gradient_norm_variation - 0.3) > 1e-6)
    decided, expected = policy(scaled), policy(history)
    assert decided.batch_size == expected.batch_size
    assert decided.reason.split(":")[0] == expected.reason.split(":")[0]


@given(histories(), st.integers(-20, 20))
def test_scaling_without_rounding_changes_no_digit_of_the_reason(history, power):
    policy = DEBA(confidence_threshold=1.05, cooldown=2)
    assert policy(scaled_by(2.0**power, history)) == policy(history)


@given(histories(min_size=3))
def test_without_a_window_the_median_is_over_the_full_history(history):
    assert signals(history, None) == signals(history, len(history))


def test_the_window_is_that_of_the_last_records():
    history = history_of([(32, 1.0, 1.0, variance) for variance in [100.0, 100.0, 100.0, 4.0, 8.0]])
    assert [signals(history, window).confidence for window in (2, 3, None)] == [8 / 6, 1.0, 8 / 100]


@pytest.mark.parametrize("missing", NOT_FINITE)
@given(history=histories(min_size=4))
def test_a_variance_that_is_not_finite_is_left_out_of_the_median(history, missing):
    holed = [history[0], replace(history[1], component_variance=missing), *history[2:]]
    assert signals(holed, None) == signals([history[0], *history[2:]], None)


def test_a_denominator_of_zero_is_no_error():
    assert signals(history_of([(32, 0.0, 0.0, 0.0)] * 2)) == Signals(0.0, 0.0, 0.0)
    assert signals(history_of([(32, 0.0, 0.0, 0.0), (32, 1.0, 1.0, 1.0)])).loss_variation > 1e300


@pytest.mark.parametrize("epoch", [4, 5])
@pytest.mark.parametrize("missing", NOT_FINITE)
@pytest.mark.parametrize("name", FIELDS)
def test_a_measurement_that_is_not_finite_holds_and_is_named(name, missing, epoch):
    history = steady(epochs=6)
    history[epoch] = replace(history[epoch], **{name: missing})
    decision = DEBA()(history)
    assert decision.batch_size == 32
    assert f"the {name.replace('_', ' ')} of epoch {epoch}" in decision.reason
    assert not decision.signals


def test_one_epoch_has_no_variation():
    decision = DEBA(cooldown=0)(steady(epochs=1))
    assert (decision.batch_size, decision.reason) == (32, "hold: a variation needs two epochs, and there is one")


# The decision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", FACTORS)
@given(history=histories(), theta_conf=st.floats(0.5, 2), theta_stab=st.floats(0.1, 10))
def test_the_decision_is_that_of_the_table(rule, history, theta_conf, theta_stab):
    confidence, *variations = slow_signals(history, 15)
    assume(abs(confidence - theta_conf) > 1e-9)
    assume(all(abs(variation - theta_stab) > 1e-9 for variation in variations))
    factor = FACTORS[rule][confidence > theta_conf, all(variation < theta_stab for variation in variations)]
    policy = DEBA(rule=rule, confidence_threshold=theta_conf, stability_threshold=theta_stab, cooldown=0)
    assert policy(history).batch_size == round(factor * history[-1].batch_size)


@pytest.mark.parametrize("rule", FACTORS)
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("noisy", [True, False])
def test_each_cell_of_the_table(rule, noisy, stable):
    last = (100, 1.0, 1.0 if stable else 2.0, 3.0 if noisy else 1.0)
    history = history_of([(100, 1.0, 1.0, 2.0)] * 5 + [last])
    assert DEBA(rule=rule)(history).batch_size == 100 * FACTORS[rule][noisy, stable]


@pytest.mark.parametrize("unstable", ["loss", "gradient_norm"])
def test_one_unstable_flag_is_enough(unstable):
    history = steady(epochs=6)
    history[-1] = replace(history[-1], **{unstable: 100.0})
    assert DEBA(rule="noise")(history).batch_size == 26
    assert DEBA(rule="calm")(history).batch_size == 32


@pytest.mark.parametrize(("loss", "norm"), [(1.5, 1.0), (1.0, 1.5)])
def test_on_the_threshold_is_neither_noisy_nor_stable(loss, norm):
    history = history_of([(32, 1.0, 1.0, 1.0)] * 5 + [(32, loss, norm, 1.0)])
    assert signals(history) == Signals(1.0, norm - 1, loss - 1)
    assert DEBA(rule="noise", confidence_threshold=1.0, stability_threshold=0.5)(history).batch_size == 26


@given(histories(max_size=10), histories(max_size=10), histories(min_size=5, max_size=12), st.integers(0, 5))
def test_what_was_before_the_window_and_the_cooldown_is_forgotten(one, other, recent, cooldown):
    policy = DEBA(window=5, cooldown=cooldown)
    decision = policy(one + recent)
    assert decision == policy(other + recent) == policy(recent)
    assert decision.signals == policy(other + recent).signals == policy(recent).signals


@given(histories(), st.integers(1, 8))
def test_inside_the_cooldown_it_holds(history, cooldown):
    lately = [record.batch_size for record in history[-cooldown:]]
    decision = DEBA(cooldown=cooldown)(history)
    if len(lately) < cooldown or len(set(lately)) > 1:
        assert decision.batch_size == history[-1].batch_size
        assert decision.reason.startswith("hold in the cooldown")
    else:
        assert "cooldown" not in decision.reason


@pytest.mark.parametrize("rule", FACTORS)
@settings(max_examples=50)
@given(
    measurements=st.lists(st.tuples(st.floats(0.5, 1.5), st.floats(0.5, 1.5), st.floats(0.5, 1.5)), max_size=60),
    cooldown=st.integers(2, 6),
)
def test_changes_are_at_least_a_cooldown_apart(rule, measurements, cooldown):
    history, _ = live(DEBA(rule=rule, cooldown=cooldown), measurements)
    changes = [0] + [now.epoch for last, now in pairwise(history) if now.batch_size != last.batch_size]
    assert all(later - earlier >= cooldown for earlier, later in pairwise(changes))


def test_on_constant_statistics_it_grows_by_half_every_cooldown():
    history, _ = live(DEBA(), [CONSTANT] * 300)
    sizes = [32, 48, 72, 108, 162, 243, 364, 546, 819, 1228, 1842]
    assert [record.batch_size for record in history] == np.repeat(sizes, 5).tolist() + [2048] * 245


def test_on_constant_statistics_the_noise_rule_holds():
    history, decisions = live(DEBA(rule="noise"), [CONSTANT] * 300)
    assert {record.batch_size for record in history} == {32}
    assert decisions[-1].reason.startswith("hold, the evidence disagrees: confidence 1.000 <= 1,")


@given(st.integers(1, 4096), st.floats(1, 4, exclude_min=True))
def test_an_increase_increases(size, growth):
    assert DEBA(growth=growth)(steady(size=size)).batch_size > size


@given(st.integers(2, 4096), st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_rollback_rolls_back(size, rollback):
    assert 1 <= DEBA(rollback=rollback)(upset(size=size)).batch_size < size


def test_below_one_sample_there_is_nothing():
    assert DEBA()(upset(size=1)).batch_size == 1


# What it says --------------------------------------------------------------------------------------------------


def test_the_reason_has_the_numbers():
    history = history_of([(32, 2.0, 4.0, 1.0)] * 5 + [(32, 1.5, 5.0, 1.25)])
    decision = DEBA(confidence_threshold=1.3, stability_threshold=0.26)(history)
    assert decision.reason == (
        "increase: confidence 1.250 <= 1.3, gradient-norm variation 0.250 < 0.26, loss variation 0.250 < 0.26"
    )
    assert decision.signals == {"confidence": 1.25, "gradient_norm_variation": 0.25, "loss_variation": 0.25}


@pytest.mark.parametrize(
    ("history", "begin"),
    [
        (steady(), "increase: confidence 1.000 <= 1, gradient-norm variation 0.000 < 0.3"),
        (upset(), "rollback: confidence 100.000 > 1, gradient-norm variation 3.500 >= 0.3, loss variation 9.000 >="),
        (steady(epochs=3), "hold in the cooldown (3 of 5 epochs at 32): confidence 1.000"),
        (upset(epochs=3), "hold in the cooldown (3 of 5 epochs at 32): confidence 100.000"),
    ],
)
def test_the_reason_begins_with_what_is_done(history, begin):
    assert DEBA()(history).reason.startswith(begin)


BAD_ARGUMENTS = {
    "confidence_threshold": [0, -1.0, float("nan")],
    "stability_threshold": [0, -0.3, float("nan")],
    "growth": [1, 0.5, -1.5, float("nan"), float("inf")],
    "rollback": [1, 1.2, 0, -0.8, float("nan")],
    "window": [1, 0, -15, 15.0],
    "cooldown": [-1, float("nan")],
    "rule": ["Calm", "noisy", "", None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, bad in BAD_ARGUMENTS.items() for value in bad])
def test_an_argument_that_makes_no_rule_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^`{name}` of DEBA must be .*, got {value!r}"):
        DEBA(**{name: value})


def test_what_is_allowed_at_the_edge():
    DEBA(confidence_threshold=1e-9, stability_threshold=1e-9, growth=1.0001, rollback=0.9999, window=2, cooldown=0)

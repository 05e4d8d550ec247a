"""The noise scale against NumPy and against gradients of which all is known, and the policy that goes to it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_deba.policies import NoiseEstimate, NoiseScale, noise_scale
from lightning_deba.records import EpochRecord
from tests.policies.runs import World, flat

NOT_FINITE = [None, float("nan"), float("inf"), float("-inf")]
any_float = st.floats(allow_nan=True, allow_infinity=True)


def history_of(pairs, errors=None, size=32):
    errors = errors or [None] * len(pairs)
    return [
        EpochRecord(epoch, size, size, gradient_squared=g, gradient_covariance=s, noise_scale_error=error)
        for epoch, ((g, s), error) in enumerate(zip(pairs, errors, strict=True))
    ]


def slow_noise_scale(pairs, size=32):
    """Means of the shares apart, their ratio, and the error of a ratio of means by its textbook formula."""
    g, s = np.array(pairs, dtype=float).T
    g, s = g / (g + s / size), s / (g + s / size)
    ratio = s.mean() / g.mean()
    variance = s.var(ddof=1) + ratio**2 * g.var(ddof=1) - 2 * ratio * np.cov(g, s)[0, 1]
    return ratio, math.sqrt(max(0.0, variance) / len(g)) / g.mean()


near = st.tuples(st.floats(0.9, 1.1), st.floats(50, 200))


# The estimate --------------------------------------------------------------------------------------------------


@given(st.lists(near, min_size=2, max_size=8))
def test_the_estimate_is_that_of_the_formulas(pairs):
    found = noise_scale(history_of(pairs), window=None)
    value, error = slow_noise_scale(pairs)
    assert found.value == pytest.approx(value)
    assert found.error == pytest.approx(error, abs=1e-5)
    assert found.epochs == len(pairs)


def test_numerator_and_denominator_are_averaged_apart():
    # Of a squared norm of 1, 0.25 and 0.75 are the signal's; the noise has 0.75 and 0.25, times 32 samples.
    assert noise_scale(history_of([(1.0, 96.0), (3.0, 32.0)])).value == 32.0  # the mean of the ratios is 53


@given(st.lists(near, min_size=2, max_size=8), st.integers(0, 7), st.integers(-30, 30))
def test_an_epoch_counts_as_much_whatever_the_size_of_its_gradients(pairs, which, power):
    """Those of the first epochs are often ten times as large."""
    which, k = which % len(pairs), 4.0**power
    other = [(k * g, k * s) if epoch == which else (g, s) for epoch, (g, s) in enumerate(pairs)]
    assert noise_scale(history_of(other)) == noise_scale(history_of(pairs))


def test_the_interval_is_that_of_the_signals_share():
    found = NoiseEstimate(value=96.0, error=38.4, epochs=3, batch_size=32.0)
    # The share is 32 / 128, and its error 32 / 128^2 * 38.4: 0.25 +- 0.075.
    assert found.interval(1) == pytest.approx((32 / 0.325 - 32, 32 / 0.175 - 32))
    assert (found.lower, found.upper) == pytest.approx((32 / 0.4 - 32, 32 / 0.1 - 32))
    assert found.interval(4) == (pytest.approx(32 / 0.55 - 32), math.inf)
    # Where there is hardly any noise, that is as much on both sides.
    little = NoiseEstimate(value=1.0, error=0.1, epochs=3, batch_size=1000.0)
    assert (little.lower, little.upper) == pytest.approx((0.8, 1.2), abs=1e-3)


def test_an_epoch_whose_gradient_is_lost_in_noise_does_not_blank_the_window():
    pairs, errors = [(1.0, 100.0)] * 4 + [(0.002, 100.0)], [0.1] * 4 + [60.0]  # 0.002 +- 0.12
    found = noise_scale(history_of(pairs, errors))
    share, lost = 1 / (1 + 100 / 32), 0.002 / (0.002 + 100 / 32)
    whole = 4 * share + lost
    assert found.value == pytest.approx(32 * (5 - whole) / whole)
    within = found.value * math.sqrt(4 * (0.1 * share) ** 2 + (60 * lost) ** 2) / whole  # they add up in quadrature
    between = 0.2 * (share - lost) / (whole / 5) * (32 + found.value)  # the noise has what the signal has not
    assert found.error == pytest.approx(max(between, within), rel=1e-6)


def test_it_finds_the_noise_scale_of_known_gradients():
    rng = np.random.default_rng(0)
    dimensions, small, big, steps = 400, 8, 64, 50
    gradient = rng.normal(size=dimensions) / 20
    deviation = rng.uniform(0.5, 1.5, size=dimensions)
    true = (deviation**2).sum() / (gradient**2).sum()
    pairs = []
    for _ in range(12):
        samples = gradient + deviation * rng.normal(size=(steps, big // small, small, dimensions)) / 1.0
        smalls = samples.mean(axis=2)
        g_small, g_big = (smalls**2).sum(-1).mean(), (smalls.mean(axis=1) ** 2).sum(-1).mean()
        # arXiv 1812.06162, appendix A.1
        square = (big * g_big - small * g_small) / (big - small)
        pairs.append((square, (g_small - g_big) / (1 / small - 1 / big)))
    found = noise_scale(history_of(pairs), window=None)
    assert found.value == pytest.approx(true, rel=0.05)
    assert abs(found.value - true) < 3 * found.error
    assert found.lower < true < found.upper


@given(st.lists(near, min_size=2, max_size=12), st.integers(1, 6))
def test_the_window_is_that_of_the_last_records(pairs, window):
    errors = [0.1] * len(pairs)
    assert noise_scale(history_of(pairs, errors), window) == noise_scale(
        history_of(pairs[-window:], errors[-window:]), None
    )


@pytest.mark.parametrize("name", ["gradient_squared", "gradient_covariance"])
@pytest.mark.parametrize("missing", NOT_FINITE)
def test_a_record_without_both_numbers_is_left_out(name, missing):
    history = history_of([(1.0, 100.0), (1.1, 130.0), (0.9, 90.0)])
    holed = [history[0], replace(history[1], **{name: missing}), history[2]]
    assert noise_scale(holed) == noise_scale([history[0], history[2]])


@pytest.mark.parametrize("name", ["gradient_squared", "gradient_covariance"])
@pytest.mark.parametrize("missing", NOT_FINITE)
def test_without_a_measurement_of_the_last_epoch_there_is_no_estimate(name, missing):
    history = history_of([(1.0, 100.0)] * 4)
    history[-1] = replace(history[-1], **{name: missing})
    assert noise_scale(history).startswith(f"the {name.replace('_', ' ')} of epoch 3")


@pytest.mark.parametrize(
    "squares",
    [[-1.0, -1.0], [0.0, 0.0], [1.0, -1.0], [3.0, -1.0], [5.0, -1.0, -1.0]],
)
def test_where_the_gradient_is_not_above_its_error_it_is_undetermined(squares):
    found = noise_scale(history_of([(square, 100.0) for square in squares]))
    assert found.startswith("the noise scale is undetermined: |G|^2 is ")


def test_a_gradient_just_above_its_error_is_enough():
    # The standard error of the mean of two numbers is half their distance.
    assert isinstance(noise_scale(history_of([(1.0, 5.0), (0.001, 5.0)])), NoiseEstimate)
    assert isinstance(noise_scale(history_of([(1.0, 5.0), (-0.001, 5.0)])), str)


@pytest.mark.parametrize("error", [None, float("nan"), float("inf"), -0.1])
def test_a_single_epoch_needs_an_error_of_its_own(error):
    found = noise_scale(history_of([(1.0, 100.0)], [error]))
    assert found == "the noise scale of a single epoch has no error, without which it cannot be trusted"


def test_the_error_of_a_single_epoch_is_the_measured_one():
    found = noise_scale(history_of([(2.0, 200.0)], [0.25]))
    assert found == NoiseEstimate(value=100.0, error=pytest.approx(25.0), epochs=1, batch_size=32.0)
    assert str(found) == "noise scale 100 +- 25 (1 epoch)"
    lost = noise_scale(history_of([(2.0, 200.0)], [1.5]))
    assert lost.startswith("the noise scale is undetermined: |G|^2 is 24.2% +- 27.5% of the squared gradient norm")


def test_the_larger_error_counts():
    pairs = [(1.0, 100.0)] * 4
    assert noise_scale(history_of(pairs)).error == 0.0
    assert noise_scale(history_of(pairs, [0.2] * 4)).error == pytest.approx(100 * 0.2 / 2)  # 4 epochs halve it
    assert noise_scale(history_of(pairs, [0.2] * 3 + [None])).error == 0.0
    apart = [(1.0, 50.0), (1.0, 150.0)]
    assert noise_scale(history_of(apart, [0.01, 0.01])).error == noise_scale(history_of(apart)).error > 40


def test_a_negative_covariance_counts_as_none():
    found = noise_scale(history_of([(1.0, -3.0), (1.0, 1.0)]))
    assert (found.value, found.error, found.lower) == (0.0, pytest.approx(2.0, rel=0.05), 0.0)


def test_what_no_squares_add_up_to_is_undetermined():
    found = noise_scale(history_of([(1.0, 100.0), (-4.0, 96.0)]))
    assert found.endswith("|G|^2 + tr(Sigma) / B, the mean of a squared norm, is -1 in epoch 1")


@given(st.lists(st.tuples(any_float, any_float, st.none() | any_float), min_size=1, max_size=6))
def test_it_is_finite_or_a_sentence_whatever_was_measured(rows):
    found = noise_scale(history_of([(g, s) for g, s, _ in rows], [error for *_, error in rows]))
    if isinstance(found, str):
        assert found
    else:
        assert 0 <= found.value < math.inf
        assert 0 <= found.error < math.inf


@given(st.lists(near, min_size=2, max_size=8), st.integers(-30, 30))
def test_scaling_all_gradients_changes_nothing(pairs, power):
    k = 4.0**power
    assert noise_scale(history_of([(k * g, k * s) for g, s in pairs])) == noise_scale(history_of(pairs))


# The policy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("square", "covariance", "size", "expected"),
    [
        (1.0, 500.0, 32, 64),  # a step
        (1.0, 50.0, 32, 50),  # all the way
        (1.0, 38.0, 32, 32),  # within the dead band
        (1.0, 39.0, 32, 39),
        (1.0, 27.0, 32, 32),
        (1.0, 26.0, 32, 26),
        (1.0, 1.0, 32, 16),
        (4.0, 0.0, 1, 1),
        (1.0, 1.4, 1, 1),  # rounds to what it is
    ],
)
def test_the_decision(square, covariance, size, expected):
    assert NoiseScale()(history_of([(square, covariance)] * 2, size=size)).batch_size == expected


@given(st.floats(1.0, 1e5), st.integers(1, 4096), st.floats(0.25, 4), st.floats(1.1, 8), st.floats(0, 1))
def test_on_constant_statistics_it_comes_to_rest_near_the_target(covariance, start, target, step, band):
    policy = NoiseScale(target=target, step=step, dead_band=band, cooldown=1)
    sizes = World(covariance=covariance).sizes(policy, 160, start)
    wanted = min(max(target * covariance, 1), max(start, 50_000 / 8))  # an epoch has 50,000 samples
    assert sizes[-1] == sizes[-2]
    assert abs(sizes[-1] - wanted) <= band * wanted + 0.5
    assert max(sizes) <= max(start, round(wanted))


@given(st.integers(1, 500), st.floats(0.1, 1e6), st.floats(1.1, 8))
def test_a_change_is_at_most_a_step(size, covariance, step):
    decided = NoiseScale(step=step)(history_of([(1.0, covariance)] * 2, size=size)).batch_size
    assert size / step - 1 <= decided <= size * step + 1
    assume(decided != size)
    assert (decided > size) == (covariance > size)


def test_an_epoch_keeps_the_steps_that_its_noise_scale_is_measured_on():
    few = World(covariance=1e5, samples=800)
    assert max(few.sizes(NoiseScale(), 12, start=16)) == 100
    assert set(few.sizes(NoiseScale(), 6, start=400)) == {400}  # it was begun with more
    reason = NoiseScale()([few.epoch(t, 64) for t in range(2)]).reason
    assert reason.endswith("asks for 1e+05, of which 100 leave an epoch 8 steps to measure it on")


def test_the_last_of_these_steps_is_whole():
    run = [EpochRecord(t, 100, 100, samples=1294, gradient_squared=1.0, gradient_covariance=1e4) for t in range(2)]
    assert NoiseScale(cooldown=0)(run).batch_size == 161


def test_its_way_on_constant_statistics():
    sizes = World(covariance=1000.0).sizes(NoiseScale(), 16)
    assert flat(sizes) == [(32, 2), (64, 2), (128, 2), (256, 2), (512, 2), (1000, 6)]


def test_its_way_where_the_noise_grows():
    sizes = World(covariance=40.0, growth=1.1).sizes(NoiseScale(), 30)
    by_a_fifth = [(size, 2) for size in (53, 65, 79, 95, 115, 139, 169, 204, 247, 299, 361, 437)]
    assert flat(sizes) == [(32, 2), (42, 4), *by_a_fifth]


def test_the_reason_has_the_numbers():
    history = history_of([(1.0, 50.0)] * 2, errors=[0.1 * 2**0.5] * 2)
    found = NoiseScale()(history)
    assert found.reason == "increase: noise scale 50 +- 5 (2 epochs) asks for 50"
    assert found.signals == pytest.approx({"noise_scale": 50.0, "noise_scale_error": 5.0})
    assert NoiseScale(cooldown=3)(history).reason == (
        "hold in the cooldown (2 of 3 epochs at 32): noise scale 50 +- 5 (2 epochs) asks for 50"
    )
    assert NoiseScale(dead_band=1.0)(history).reason == (
        "hold: noise scale 50 +- 5 (2 epochs) asks for 50, within 100% of 32"
    )

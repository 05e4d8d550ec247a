"""Profile, calibration, throughput curve and verdict, against slow and obvious computations."""

from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import replace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_deba import DEBA, EpochRecord, Hold, replay, signals
from lightning_deba.characterization import (
    Characterization,
    StabilityProfile,
    ThroughputCurve,
    calibrate,
    simulate,
    threshold_intervals,
    verdict,
)
from lightning_deba.characterization.profile import correlation_time, end_of_descent, quantile, stability_score


def run(epochs=40, seed=0, noise=0.1, batch_size=16, fall=0.97):
    """A training with a falling loss, and norms that jump about by a relative `noise`."""
    rng = random.Random(seed)
    records = []
    for t in range(epochs):
        norm = fall**t * math.exp(noise * rng.gauss(0, 1))
        loss = 2.0 * fall ** (2 * t) * math.exp(0.3 * noise * rng.gauss(0, 1))
        records.append(
            EpochRecord(
                t,
                batch_size,
                batch_size,
                samples=800,
                seconds=4.0,
                loss=loss,
                gradient_norm=norm,
                component_variance=1e-8 * norm**2,
            )
        )
    return records


FLAT = ThroughputCurve({16: 0.016, 64: 0.064, 256: 0.256})
STEEP = ThroughputCurve({16: 0.02, 32: 0.024, 64: 0.032, 128: 0.05, 256: 0.09})

histories = st.builds(
    run, epochs=st.integers(8, 60), seed=st.integers(0, 50), noise=st.floats(0, 1), fall=st.floats(0.8, 1.0)
)


# The profile ---------------------------------------------------------------------------------------------------


@given(histories)
def test_the_score_is_a_share_and_as_its_formula_says(history):
    values = [r.component_variance for r in history]
    variations = []
    for end in range(5, len(values) + 1):
        window = values[max(0, end - 15) : end]
        middle = statistics.median(window)
        variations.append(1.4826 * statistics.median([abs(v - middle) for v in window]) / middle)
    score = stability_score(history)
    assert score == pytest.approx(1 / (1 + statistics.median(variations)))
    assert 0 < score <= 1


@given(histories, st.floats(1e-3, 1e3))
def test_the_profile_does_not_change_when_all_gradients_are_scaled(history, factor):
    scaled = [
        replace(r, gradient_norm=factor * r.gradient_norm, component_variance=factor**2 * r.component_variance)
        for r in history
    ]
    one, other = StabilityProfile.from_history(history), StabilityProfile.from_history(scaled)
    assert other.score == pytest.approx(one.score)
    assert other.descent == one.descent
    assert calibrate(other).stability_threshold == pytest.approx(calibrate(one).stability_threshold, rel=0.02)


@pytest.mark.parametrize("losses", [[float(8 - t) ** 0.1 for t in range(8)], [1.6, 2.1, 1.3, 1.6, 1.6, 1.8, 2.3, 0.8]])
def test_a_descent_takes_half_of_the_run_at_most(losses):
    history = [replace(r, loss=loss) for r, loss in zip(run(8), losses, strict=True)]
    profile = StabilityProfile.from_history(history)
    assert end_of_descent(history) == 4
    assert len(profile.signals) == 4
    assert calibrate(profile).stability_threshold > 0


def test_noise_lowers_the_score():
    scores = [stability_score(run(noise=noise, fall=1.0, seed=1)) for noise in (0.0, 0.1, 0.3, 1.0)]
    assert scores == sorted(scores, reverse=True)


def test_a_constant_run_scores_one():
    assert stability_score(run(noise=0, fall=1.0)) == 1.0


def test_the_descent_ends_where_half_of_the_fall_is_done():
    losses = [4.0, 3.9, 3.0, 2.4, 1.9, 1.0, 1.0, 1.2, 0.0]
    history = [replace(r, loss=loss) for r, loss in zip(run(9), losses, strict=True)]
    assert end_of_descent(history) == 5
    assert len(StabilityProfile.from_history(history).signals) == 9 - 5


def test_the_signals_are_those_of_the_policy():
    history = run(20)
    profile = StabilityProfile.from_history(history)
    (descent,) = profile.descent
    assert profile.signals == [signals(history[: end + 1]) for end in range(descent, 20)]


def test_a_slow_signal_has_a_longer_correlation_time_than_a_quick_one():
    rng, slow, level = random.Random(0), [], 0.0
    for _ in range(400):
        level = 0.9 * level + rng.gauss(0, 0.1)
        slow.append(math.exp(level))
    history = run(400, noise=0, fall=1.0)
    quick = [math.exp(rng.gauss(0, 0.2)) for _ in range(400)]
    times = [
        correlation_time([replace(r, component_variance=v) for r, v in zip(history, values, strict=True)])
        for values in (slow, quick)
    ]
    assert 6 < times[0] < 30  # (1 + 0.9) / (1 - 0.9) = 19 without the trend taken off, and in the long run
    assert times[1] < 2


@given(st.lists(st.floats(-100, 100), min_size=1), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values, share):
    assert quantile(values, share) == pytest.approx(float(numpy.quantile(values, share)), abs=1e-9)


def test_several_seeds_are_one_profile():
    runs = [run(seed=seed) for seed in range(3)]
    profile = StabilityProfile.from_histories(runs, "toy")
    assert profile.score == statistics.median(map(stability_score, runs))
    assert len(profile.signals) == sum(len(StabilityProfile.from_history(one).signals) for one in runs)


def test_the_noise_scale_is_averaged_above_and_below():
    history = [
        replace(r, gradient_squared=1.0 + t % 2, gradient_covariance=100.0 + t % 2) for t, r in enumerate(run(30))
    ]
    profile = StabilityProfile.from_history(history)
    late = history[profile.descent[0] :]
    expected = sum(r.gradient_covariance for r in late) / sum(r.gradient_squared for r in late)
    assert profile.noise_scale == pytest.approx(expected)
    assert StabilityProfile.from_history(run()).noise_scale is None


def test_a_profile_survives_its_file(tmp_path):
    found = Characterization(StabilityProfile.from_histories([run(), run(seed=1)], "toy"), STEEP, {"seeds": [0, 1]})
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(found.to_dict()))
    again = Characterization.read(path)
    assert again == found
    assert (again.policy, again.verdict, again.intervals) == (found.policy, found.verdict, found.intervals)


# Bad input -----------------------------------------------------------------------------------------------------


def test_a_short_history_says_nothing():
    with pytest.raises(ValueError, match="`history` must have at least 8 epochs to say anything, got 7"):
        StabilityProfile.from_history(run(7))


def test_a_run_in_which_the_size_changed_is_refused():
    changed = [replace(r, batch_size=32 if r.epoch > 10 else 16) for r in run(20)]
    with pytest.raises(ValueError, match="one fixed batch size, got 16, 32"):
        StabilityProfile.from_history(changed)


def test_epochs_without_numbers_are_left_out_and_counted():
    history = run(20)
    for t, value in ((3, math.nan), (5, math.inf), (7, None)):
        history[t] = replace(history[t], loss=value)
    assert len(StabilityProfile.from_history(history).histories[0]) == 17
    with pytest.raises(ValueError, match="got 0, and 20 without a finite loss"):
        StabilityProfile.from_history([replace(r, loss=math.nan) for r in run(20)])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2, "histories": []}', '{"version": 1, "histories": [3]}', "[" * 2000]
)
def test_a_file_that_is_no_profile_is_refused(text, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not the profile of a characterization"):
        Characterization.read(path)


@pytest.mark.parametrize("seconds", [{}, {16: 1.0}, {16: 1.0, 32: 0.0}, {16: 1.0, 32: math.nan}, {0: 1.0, 32: 1.0}])
def test_a_curve_needs_two_sizes_and_positive_seconds(seconds):
    with pytest.raises(ValueError, match="`seconds` must"):
        ThroughputCurve(seconds)


# Calibration ---------------------------------------------------------------------------------------------------


@given(histories, st.floats(0.1, 0.9))
def test_it_finds_calm_in_the_stated_share_of_the_epochs(history, share):
    profile = StabilityProfile.from_history(history)
    policy = calibrate(profile, share)
    calm = [
        s.confidence <= policy.confidence_threshold
        and max(s.gradient_norm_variation, s.loss_variation) < policy.stability_threshold
        for s in profile.signals
    ]
    assert sum(calm) / len(calm) >= share - 1e-9


def test_it_is_not_more_generous_than_it_need_be():
    profile = StabilityProfile.from_history(run(200, noise=0.3, fall=1.0))
    policy = calibrate(profile)
    grows = [
        decision.batch_size > 16 for decision in replay(replace(policy, cooldown=0), run(200, noise=0.3, fall=1.0))
    ]
    assert 0.45 <= sum(grows) / len(grows) <= 0.6


def test_the_cooldown_is_the_papers_at_least():
    assert calibrate(StabilityProfile.from_history(run())).cooldown == 5
    slow = replace(StabilityProfile.from_history(run()), correlation_time=4.2)
    assert calibrate(slow).cooldown == 9


def test_intervals_hold_the_thresholds_and_narrow_with_more_epochs():
    widths = []
    for epochs in (30, 300):
        profile = StabilityProfile.from_history(run(epochs, noise=0.3, fall=1.0))
        intervals, policy = threshold_intervals(profile), calibrate(profile)
        for name, (low, high) in intervals.items():
            assert low <= getattr(policy, name) <= high * 1.02
        widths.append(intervals["stability_threshold"][1] - intervals["stability_threshold"][0])
    assert widths[1] < widths[0] / 2


def test_a_simulation_lets_the_decisions_add_up():
    calm = run(24, noise=0, fall=1.0)
    policy = DEBA(confidence_threshold=1.05, stability_threshold=0.1)
    assert simulate(policy, calm) == [16] * 5 + [24] * 5 + [36] * 5 + [54] * 5 + [81] * 4
    assert simulate(policy, calm, bounds=(16, 40))[-1] == 40
    assert simulate(Hold(), calm) == [16] * 24


# Throughput and verdict ----------------------------------------------------------------------------------------


@given(a=st.floats(0, 1), b=st.floats(1e-5, 1e-2))
def test_the_fit_finds_a_straight_line(a, b):
    found = ThroughputCurve({size: a + b * size for size in (8, 32, 128, 512)}).fit()
    assert found[0] == pytest.approx(a, abs=1e-6 + 1e-6 * a)
    assert found[1] == pytest.approx(b, rel=1e-4)
    assert found[2] < 1e-6


@given(st.dictionaries(st.integers(1, 2048), st.floats(1e-4, 10), min_size=2))
def test_the_fit_never_goes_below_zero_and_a_measured_size_is_as_measured(seconds):
    curve = ThroughputCurve(seconds)
    a, b, residual = curve.fit()
    assert min(a, b, residual) >= 0
    for size, value in seconds.items():
        assert curve.seconds_per_sample(size) == pytest.approx(value / size)
    assert curve.seconds_per_sample(1e5) == curve.seconds_per_sample(max(seconds))


def test_a_flat_curve_says_no_and_why():
    found = verdict(StabilityProfile.from_history(run(noise=0.02, fall=0.99)), FLAT)
    assert (found.word, round(found.saving, 6)) == ("don't adapt", 0)
    assert "curve is flat" in found.reason


def test_a_steep_curve_and_calm_signals_say_yes_with_the_predicted_share():
    profile = StabilityProfile.from_history(run(noise=0.02, fall=0.99))
    found = verdict(profile, STEEP)
    assert found.word == "adapt"
    sizes = simulate(calibrate(profile), run(noise=0.02, fall=0.99), (16, 2048))
    expected = 1 - sum(map(STEEP.seconds_per_sample, sizes)) / (len(sizes) * 0.02 / 16)
    assert found.saving == pytest.approx(expected)
    assert found.saving < found.attainable == pytest.approx(1 - (0.09 / 256) / (0.02 / 16))


def test_the_verdict_tells_what_doubling_by_the_clock_would_save():
    profile = StabilityProfile.from_history(run(noise=0.02, fall=0.99)[:12])
    found = verdict(profile, STEEP)
    sizes = [16] * 5 + [32] * 5 + [64] * 2
    assert found.by_clock == pytest.approx(1 - sum(map(STEEP.seconds_per_sample, sizes)) / (12 * 0.02 / 16))
    assert f"with no eye on the gradient, {found.by_clock:.0%}" in found.reason


def test_signals_that_are_mostly_noise_are_marginal_at_best():
    noisy = StabilityProfile.from_history(run(noise=1.5, fall=1.0))
    assert noisy.score < 0.5
    assert verdict(noisy, STEEP).word != "adapt"
    assert verdict(noisy, STEEP).risk.startswith("High")


def test_a_ceiling_bounds_the_sizes():
    profile = StabilityProfile.from_history(run(noise=0.02, fall=0.99))
    assert max(verdict(profile, replace(STEEP, ceiling=32)).sizes) <= 31

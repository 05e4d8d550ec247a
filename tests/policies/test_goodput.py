"""Goodput against a search from first principles, and the step time against NumPy."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_deba.policies import Goodput, noise_scale
from lightning_deba.policies.goodput import StepTime, fit_step_time, step_times
from lightning_deba.policies.noise import noise_scale_above
from lightning_deba.records import EpochRecord
from tests.policies.runs import World, flat

overheads, per_samples = st.floats(1e-4, 1.0), st.floats(1e-6, 1e-2)
worlds = st.builds(
    World,
    covariance=st.floats(1, 1e5),
    overhead=overheads,
    per_sample=per_samples,
    error=st.sampled_from([0.01, 0.1, 0.3]),
)


def goodput(world, size, noise):
    """Samples a second times what a sample is worth, up to a factor."""
    steps = world.samples / size
    seconds = steps * world.overhead + world.samples * world.per_sample
    steps_needed = 1 + noise / size  # of arXiv 1812.06162, in units of the fewest
    return steps / seconds / steps_needed  # epochs' worth of progress a second


# Step time -----------------------------------------------------------------------------------------------------


@given(overheads, per_samples, st.sets(st.integers(1, 5000), min_size=2, max_size=6))
def test_a_step_time_that_is_a_line_is_found(overhead, per_sample, sizes):
    assume(max(sizes) > 1.2 * min(sizes))
    found = fit_step_time([(size, overhead + per_sample * size) for size in sizes])
    for size in (1, 100, 10_000):
        assert found.throughput(size) == pytest.approx(size / (overhead + per_sample * size), rel=1e-3)


@given(st.dictionaries(st.integers(1, 5000), st.floats(0.01, 1.0), min_size=2, max_size=6))
def test_the_fit_is_that_of_least_squares(points):
    assume(max(points) >= 1.5 * min(points))
    sizes, seconds = np.array(list(points)), np.array(list(points.values()))
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    expected = np.linalg.lstsq(columns, np.ones(len(points)), rcond=None)[0]
    found = fit_step_time(list(points.items()))
    if (expected > 1e-9).all():
        assert found == pytest.approx(expected, rel=1e-4)
    else:  # on the edge, where it is no worse than any other point of the edge
        assert min(found) == pytest.approx(0, abs=1e-8)
        lost = ((columns @ found - 1) ** 2).sum()
        for edge in (columns[:, 0], columns[:, 1]):
            others = [((edge * value - 1) ** 2).sum() for value in np.geomspace(1e-8, 10, 300)]
            if (expected[0] > 0) == (edge is columns[:, 0]):
                assert lost <= min(others) + 1e-9


@pytest.mark.parametrize("points", [[], [(32, 0.1)], [(32, 0.1), (38, 0.2)]])
def test_sizes_that_are_too_few_or_too_near_have_no_slope(points):
    assert fit_step_time(points) is None


def test_a_flat_curve_is_all_samples_and_a_steep_one_all_overhead():
    assert fit_step_time([(10, 0.1), (20, 0.2), (40, 0.41)]).overhead == 0
    assert fit_step_time([(10, 0.1), (20, 0.1), (40, 0.09)]).per_sample == 0
    assert StepTime(0.0, 0.01).throughput(10) == StepTime(0.0, 0.01).throughput(1000) == pytest.approx(100)


def test_step_times_are_medians_without_the_first_epoch():
    def timed(epoch, size, seconds):
        return EpochRecord(epoch, size, size, optimizer_steps=10, samples=10 * size - 5, seconds=seconds)

    history = [timed(0, 32, 9.0), timed(1, 32, 1.0), timed(2, 32, 5.0), timed(3, 32, 1.2), timed(4, 64, 2.0)]
    assert step_times(history) == [(31.5, 0.12), (63.5, 0.2)]
    untimed = [EpochRecord(0, 32, 32), EpochRecord(1, 32, 32, optimizer_steps=5, seconds=float("nan"))]
    assert step_times(untimed) == []
    assert step_times([EpochRecord(0, 32, 32, optimizer_steps=4, seconds=1.0)]) == [(32.0, 0.25)]


# The decision --------------------------------------------------------------------------------------------------


def with_sizes(world, *sizes):
    return [world.epoch(epoch, size) for epoch, size in enumerate(sizes)]


@given(worlds, st.integers(8, 64), st.sampled_from([2, 3, 8]), st.sampled_from([2.0, 4.0, 16.0]))
def test_the_decision_is_that_of_a_search(world, first, multiple, jump):
    world = replace(world, samples=first * multiple * 1000)  # every step is full
    history, size = with_sizes(world, first, first * multiple), first * multiple
    low, high = noise_scale(history).interval()
    gains = {}
    for rung in range(-20, 21):
        factor = 2 ** (rung / 2)
        candidate = round(size * factor)
        if first <= candidate <= 64 * first and 1 / jump - 1e-9 <= factor <= jump + 1e-9:
            scale = low if candidate > size else high
            gains[candidate] = goodput(world, candidate, scale) / goodput(world, size, scale) - 1
    best = max(gains, key=gains.get)
    others = [gain for candidate, gain in gains.items() if candidate != best]
    assume(abs(gains[best] - 0.05) > 1e-6)
    assume(not others or gains[best] - max(others) > 1e-6)
    expected = best if gains[best] >= 0.05 else size
    if expected <= size and low >= 8 * size:
        expected = 2 * size  # which was never timed
    assert Goodput(max_jump=jump)(history).batch_size == expected


@given(worlds, st.integers(8, 64))
def test_on_constant_statistics_it_comes_to_rest_near_the_optimum(world, first):
    policy = Goodput()
    sizes = world.sizes(policy, 40, first)
    assert len(set(sizes[-20:])) == 1
    assert first <= min(sizes)
    assert max(sizes) <= 64 * first
    if len(set(sizes)) == 1:
        return  # it never left the first size: the test below
    spread = 2 * noise_scale(world.run(policy, 40, first)[0]).error
    scales = (world.covariance - spread, world.covariance + spread)
    best = [max(goodput(world, size, scale) for size in range(first, 64 * first + 1, 1)) for scale in scales]
    # It is near the best at one end of the interval at least; steps are of sqrt(2), and gains below 5 % not worth it.
    assert any(goodput(world, sizes[-1], scale) > 0.9 * most for scale, most in zip(scales, best, strict=True))


def test_its_way():
    world = World(covariance=1000.0, overhead=0.02, per_sample=0.0001, error=0.1)
    # The optimum is at sqrt(0.02 / 0.0001 * 1000) = 447, between two candidates.
    history, decisions = world.run(Goodput(), 8)
    assert flat([record.batch_size for record in history]) == [(32, 1), (64, 1), (256, 2), (362, 4)]
    assert decisions[0].reason == (
        "increase to explore: 64 was never timed, and costs 4% at most at 832.5, the lower end of noise scale 1000 +- "
        "1e+02 (1 epoch)"
    )
    assert decisions[1].reason.startswith("increase: 256 gains ")
    assert decisions[-1].reason.startswith("hold: 512 gains -0.1% at 916.1, the lower end of noise scale 1000 +- 45")
    assert decisions[-1].signals["step_overhead"] == pytest.approx(0.02)
    assert decisions[-1].signals["seconds_per_sample"] == pytest.approx(0.0001)
    assert decisions[-1].signals["efficiency"] == pytest.approx(1032 / 1362)


def test_where_the_curve_is_flat_it_looks_once_and_goes_back():
    world = World(covariance=200.0, overhead=0.0, per_sample=0.001, error=0.1)
    assert flat(world.sizes(Goodput(), 10, start=64)) == [(64, 1), (128, 1), (64, 8)]


def test_it_follows_a_growing_noise_scale_and_never_goes_below_the_first_size():
    world = World(covariance=20.0, growth=1.3, error=0.05)
    sizes = world.sizes(Goodput(), 25, start=16)
    assert sizes == sorted(sizes)
    assert sizes[-1] > 400
    falling = World(covariance=20000.0, growth=0.6, error=0.05).sizes(Goodput(), 27, start=16)
    assert max(falling) > 400
    assert falling[-1] == 16


@pytest.mark.parametrize(
    ("noise", "error", "expected"), [(39.0, 0.1, 32), (40.0, 0.1, 64), (66.0, 0.4, 32), (67.0, 0.4, 64)]
)
def test_one_size_is_left_only_where_the_lower_end_of_the_noise_scale_carries_it(noise, error, expected):
    assert Goodput()(with_sizes(World(covariance=noise, error=error), 32)).batch_size == expected


def test_exploring_costs_a_third_at_most_and_can_gain_a_third_at_least():
    noise = 32.0  # the least for which it explores from 32
    flat_curve, all_overhead = World(overhead=0.0, per_sample=0.1), World(overhead=0.1, per_sample=0.0)
    assert goodput(flat_curve, 64, noise) / goodput(flat_curve, 32, noise) == pytest.approx(2 / 3)
    assert goodput(all_overhead, 64, noise) / goodput(all_overhead, 32, noise) == pytest.approx(4 / 3)


def test_the_less_is_known_of_the_noise_the_shorter_the_jump():
    decided = [
        Goodput()(with_sizes(World(covariance=300.0, error=error), 32, 64)).batch_size for error in (0.01, 0.5, 2.5)
    ]
    assert decided == [256, 181, 64]


def test_sizes_that_do_not_differ_in_speed_are_not_the_end_where_the_noise_scale_is_far_above():
    """On a machine with other work, two sizes may happen to take as long for a sample, or even the larger longer."""
    world = World(covariance=1000.0, overhead=0.05, per_sample=0.001, error=0.1)
    busy = [world.epoch(0, 16), replace(world.epoch(1, 32), seconds=1.1 * world.epoch(0, 16).seconds)]
    assert Goodput()(busy).reason.startswith("increase to explore: 64 was never timed, and costs 3% at most at ")
    assert Goodput()([*busy, world.epoch(2, 64), world.epoch(3, 32)]).batch_size == 128  # now the fit decides
    assert Goodput()([replace(record, gradient_covariance=250.0) for record in busy]).batch_size == 16


def test_an_epoch_keeps_the_steps_that_its_noise_scale_is_measured_on():
    few = World(covariance=1e5, error=0.01, samples=800)
    assert max(few.sizes(Goodput(), 12, start=16)) <= 100
    assert Goodput()(with_sizes(few, 16, 400)).batch_size <= 400  # it was begun with more


def test_it_does_not_go_beyond_the_largest():
    world = World(covariance=1e5, error=0.01)
    assert max(world.sizes(Goodput(largest=4.0), 12)) <= 128
    assert max(world.sizes(Goodput(largest=1.9), 12)) == 32


def test_one_slow_epoch_changes_no_decision():
    world = World(covariance=1000.0, error=0.1)
    history = with_sizes(world, 32, 32, 32, 32, 64, 64, 64, 64)
    slow = [replace(record, seconds=5 * record.seconds) if record.epoch in (2, 6) else record for record in history]
    assert Goodput()(slow) == Goodput()(history)


@given(st.floats(0.1, 10.0))
def test_a_machine_that_is_faster_throughout_decides_alike(speed):
    history = with_sizes(World(covariance=1000.0, error=0.1), 32, 64)
    faster = [replace(record, seconds=record.seconds / speed) for record in history]
    assert Goodput()(faster).batch_size == Goodput()(history).batch_size


def test_a_given_curve_replaces_the_clock():
    history = [replace(record, seconds=0.0) for record in with_sizes(World(covariance=1000.0, error=0.1), 32)]
    assert Goodput()(history).reason == "hold: no epoch was timed, noise scale 1000 +- 1e+02 (1 epoch)"
    world = World()
    curve = {size: size / (world.overhead + world.per_sample * size) for size in (32, 1024)}
    assert Goodput(throughput=curve)(history).batch_size == 128
    measured = with_sizes(World(covariance=1000.0, error=0.1), 32, 64)[1:]
    assert Goodput(throughput={32: 1000.0, 1024: 1000.0})(measured).batch_size == 64


def test_the_cooldown():
    history = with_sizes(World(covariance=1000.0, error=0.1), 32, 64)
    assert Goodput(cooldown=2)(history).reason.startswith("hold in the cooldown (1 of 2 epochs at 64): noise scale")


def test_without_a_noise_scale_it_holds():
    history = [replace(record, gradient_squared=None) for record in with_sizes(World(error=0.1), 32, 64)]
    assert Goodput()(history).reason == "hold: the gradient squared of epoch 1 was not measured"


# Where the noise scale is only known from below


def lost(squares, size=16, covariance=400.0, seconds=1.0):
    return [
        EpochRecord(
            t,
            size,
            size,
            optimizer_steps=50,
            samples=50 * size,
            seconds=seconds,
            gradient_squared=square,
            gradient_covariance=covariance,
        )
        for t, square in enumerate(squares)
    ]


def test_a_batch_far_below_the_noise_scale_grows_though_that_is_undetermined():
    run = lost([-1.0, 1.5, 0.3])
    assert isinstance(noise_scale(run), str)
    above = noise_scale_above(run)
    shares = [square / (square + 400 / 16) for square in (-1.0, 1.5, 0.3)]
    mean, error = statistics.mean(shares), statistics.stdev(shares) / 3**0.5
    assert above.value == pytest.approx(16 * (1 - mean - 2 * error) / (mean + 2 * error))
    assert above.upper == math.inf
    decision = Goodput(throughput={16: 300.0, 64: 600.0, 256: 700.0})(run)
    assert decision.batch_size > 16
    assert "noise scale above" in decision.reason


def test_known_from_below_alone_it_does_not_shrink_for_the_sake_of_efficiency():
    run = [*lost([0.1] * 3, size=16), *lost([-1.0, 1.5, 0.3], size=128)]
    run = [replace(record, epoch=t) for t, record in enumerate(run)]
    flat = {16: 500.0, 128: 500.0}
    assert Goodput(throughput=flat, window=3)(run).batch_size == 128


@pytest.mark.parametrize(
    "run", [lost([0.1]), lost([-5.0, -4.0]), lost([-1.0, 1.5], covariance=-3.0), lost([-1.0, math.nan])]
)
def test_what_is_known_from_no_side_holds(run):
    assert noise_scale_above(run) is None
    assert Goodput()(run).batch_size == 16

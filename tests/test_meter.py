"""The meters against an account kept step by step in NumPy, with no mock but the clock."""

from __future__ import annotations

import json
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_deba.meter import EpochMeasurement, EpochMeter, GradientMeans, GradientMeter

NAN, INF = float("nan"), float("inf")


def step_gradients(step, scale=1.0, mean=0.3):
    """The gradients of one optimizer step, which grow from step to step."""
    chance = torch.Generator().manual_seed(step)
    return [scale * (1 + step) * (torch.randn(shape, generator=chance) + mean) for shape in [(20, 10), (10,), ()]]


def account(steps, scale=1.0):
    """The means over the steps, by NumPy."""
    flat = [np.concatenate([g.double().numpy().ravel() for g in gradients]) / scale for gradients in steps]
    return np.mean([np.linalg.norm(g) for g in flat]), np.mean([g.var() for g in flat])


def fed(steps, meter=None, scale=1.0):
    meter = meter or GradientMeter()
    for gradients in steps:
        meter.update(gradients, scale)
    return meter


def close(means, other):
    return means == pytest.approx(other, rel=1e-6)


# Gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_the_means_are_those_of_numpy(steps):
    gradients = [step_gradients(step) for step in range(steps)]
    assert close(fed(gradients).compute(), (*account(gradients), steps, 0))


@settings(max_examples=50)
@given(mean=st.floats(-2, 2), steps=st.integers(1, 40), mean_every=st.integers(1, 20))
def test_a_mean_read_now_and_then_errs_by_no_more_than_its_square(mean, steps, mean_every):
    gradients = [step_gradients(step, mean=mean) for step in range(steps)]
    found = fed(gradients, GradientMeter(mean_every)).compute()
    norm, variance = account(gradients)
    largest = max(np.concatenate([g.numpy().ravel() for g in step]).mean() ** 2 for step in gradients)
    assert found.gradient_norm == pytest.approx(norm, rel=1e-6)
    assert abs(found.component_variance - variance) <= largest + 1e-6 * variance


@pytest.mark.parametrize(("mean_every", "variance"), [(1, 0.0), (2, 7.5 - (1 + 4) / 2), (4, 7.5 - 1)])
def test_the_mean_is_read_at_each_step_of_so_many(mean_every, variance):
    """Equal components have no variance, but for the steps at which their mean is not read."""
    steps = [[torch.full((4,), value)] for value in (1.0, 3.0, 2.0, 4.0)]
    assert fed(steps, GradientMeter(mean_every)).compute().component_variance == pytest.approx(variance)


def test_a_variance_is_never_negative():
    steps = [[torch.full((4,), value)] for value in (2.0, 1.0)]
    assert fed(steps, GradientMeter(2)).compute().component_variance == 0


@pytest.mark.parametrize("scale", [65536.0, torch.tensor(65536.0), 0.25, 3.0])
def test_scaled_gradients_are_measured_unscaled(scale):
    scaled = [step_gradients(step, float(scale)) for step in range(5)]
    assert close(fed(scaled, scale=scale).compute(), (*account(scaled, float(scale)), 5, 0))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_step_that_is_not_finite_is_only_counted(bad):
    good = [step_gradients(step) for step in range(6)]
    broken = [torch.randn(20, 10), torch.full((10,), bad), torch.tensor(1.0)]
    found = fed([good[0], broken, *good[1:4], broken, broken, *good[4:]])
    assert close(found.compute(), (*account(good), 6, 3))


@pytest.mark.parametrize("mean_every", [1, 16])
def test_of_steps_that_are_all_not_finite_there_is_no_mean(mean_every):
    meter = fed([[torch.tensor([1.0, NAN])]] * 5, GradientMeter(mean_every))
    assert meter.compute() == GradientMeans(None, None, 0, 5)


def test_where_no_mean_was_read_it_is_taken_for_nothing():
    meter = fed([[torch.tensor([INF, 1.0])], [torch.tensor([3.0, 4.0])]], GradientMeter(16))
    assert meter.compute() == GradientMeans(5.0, 12.5, 1, 1)


def test_squares_beyond_the_range_of_half_precision_are_no_skipped_step():
    assert close(fed([[torch.full((4,), 6e4).half()]]).compute(), (1.2e5, 0.0, 1, 0))


def test_no_gradient_is_no_step():
    steps = [step_gradients(step) for step in range(4)]
    assert fed([[], steps[0], [], *steps[1:], []], GradientMeter(2)).compute() == fed(steps, GradientMeter(2)).compute()
    assert GradientMeter().compute() == fed([[], []]).compute() == GradientMeans(None, None, 0, 0)


def test_sums_add_up_over_ranks():
    steps = [step_gradients(step) for step in range(7)] + [[torch.tensor([NAN])]]
    one, other = fed(steps[:3]), fed(steps[3:])
    assert close(GradientMeter.means((one.sums + other.sums).tolist()), fed(steps).compute())
    assert GradientMeter.means((one.sums + GradientMeter().sums).tolist()) == one.compute()


def test_reset_forgets_all():
    steps = [step_gradients(step) for step in range(5)]
    meter = fed(steps[:3], GradientMeter(4))
    meter.reset()
    assert meter.compute() == GradientMeans(None, None, 0, 0)
    assert fed(steps[3:], meter).compute() == fed(steps[3:], GradientMeter(4)).compute()


@given(stop=st.integers(0, 9), mean_every=st.integers(1, 5))
@settings(max_examples=20)
def test_a_restored_meter_goes_on_as_an_unbroken_one(stop, mean_every):
    steps = [step_gradients(step) for step in range(9)]
    restored = GradientMeter(mean_every)
    restored.load_state_dict(json.loads(json.dumps(fed(steps[:stop], GradientMeter(mean_every)).state_dict())))
    assert fed(steps[stop:], restored).compute() == fed(steps, GradientMeter(mean_every)).compute()


def test_compute_changes_nothing():
    meter = fed([step_gradients(0)])
    assert meter.compute() == meter.compute()


def test_an_update_does_not_wait_for_the_device():
    """A meta tensor has no number to wait for: whoever asks for one raises, as `compute` does."""
    gradients = [torch.ones(3, 4, device="meta"), torch.ones(5, device="meta", dtype=torch.float16)]
    meter = fed([gradients] * 3, scale=torch.ones((), device="meta"))
    with pytest.raises(NotImplementedError):
        meter.compute()


def test_what_is_kept_does_not_grow_with_the_model_or_the_epoch():
    small, large = fed([[torch.ones(2)]]), fed([[torch.ones(500, 500)] * 10] * 20)
    assert [type(value) for value in vars(small).values()] == [type(value) for value in vars(large).values()]
    assert small.sums.shape == large.sums.shape == (6,)


def test_the_gradients_are_left_as_they_are():
    gradients = step_gradients(0)
    before = [gradient.clone() for gradient in gradients]
    fed([gradients], scale=4.0)
    assert all(torch.equal(now, then) for now, then in zip(gradients, before, strict=True))


@pytest.mark.parametrize("mean_every", [0, -1])
def test_a_mean_that_is_never_read_is_refused(mean_every):
    with pytest.raises(ValueError, match=f"^`mean_every` must be at least 1, got {mean_every}"):
        GradientMeter(mean_every)


# Epochs --------------------------------------------------------------------------------------------------------


def ticking(*ticks):
    """A clock that shows these seconds, one a look."""
    return iter(ticks).__next__


def train(meter, batches, full_step, accumulation=1):
    """An epoch: a batch is its size, its loss and its gradients; the last step may have fewer batches."""
    meter.start()
    for index, (samples, loss, gradients) in enumerate(batches, start=1):
        meter.count(samples)
        if index % accumulation == 0 or index == len(batches):
            meter.step(gradients, full_step, learning_rate=0.1 / index)
        meter.loss(torch.tensor(loss), samples)


def batches_of(*sizes):
    return [(size, 1.0 / (1 + step), step_gradients(step)) for step, size in enumerate(sizes)]


def of_all_ranks(*meters):
    """What each rank measures, after their sums were added up."""
    sums = []
    for meter in meters:
        meter.compute(lambda of_one: sums.append(of_one) or of_one)
    return [meter.compute(lambda _: torch.stack(sums).sum(0)) for meter in meters]


def test_an_epoch_is_measured():
    meter = EpochMeter(mean_every=1, clock=count(0.0, 2.5).__next__)
    batches = batches_of(8, 8, 8)
    train(meter, batches, full_step=8)
    norm, variance = account([gradients for _, _, gradients in batches])
    assert meter.compute() == EpochMeasurement(
        optimizer_steps=3,
        skipped_steps=0,
        samples=24,
        seconds=2.5,
        loss=pytest.approx((1 + 1 / 2 + 1 / 3) / 3),
        gradient_norm=pytest.approx(norm),
        component_variance=pytest.approx(variance),
        learning_rate=pytest.approx(0.1 / 3),
    )


def test_an_epoch_without_a_step_has_no_number():
    assert EpochMeter().compute() == EpochMeasurement(0, 0, 0, 0.0, None, None, None, None)


def test_the_partial_last_step_stays_out_of_the_means_and_in_the_counts():
    whole, with_rest = EpochMeter(), EpochMeter()
    train(whole, batches_of(8, 8), full_step=8)
    train(with_rest, batches_of(8, 8, 3), full_step=8)
    expected, found = whole.compute(), with_rest.compute()
    assert (found.gradient_norm, found.component_variance) == (expected.gradient_norm, expected.component_variance)
    assert (found.optimizer_steps, found.samples, found.skipped_steps) == (3, 19, 0)
    assert found.loss == pytest.approx((8 * 1 + 8 / 2 + 3 / 3) / 19)


def test_accumulated_micro_batches_are_one_step():
    batches = batches_of(4, 4, 4, 4, 4, 1)
    meter = EpochMeter(mean_every=1)
    train(meter, batches, full_step=8, accumulation=2)
    found = meter.compute()
    assert (found.optimizer_steps, found.samples) == (3, 21)
    norm, variance = account([batches[1][2], batches[3][2]])  # the last step has 5 samples of 8
    assert (found.gradient_norm, found.component_variance) == pytest.approx((norm, variance))


def test_skipped_steps_are_counted():
    broken = [torch.tensor([NAN, 1.0])]
    meter = EpochMeter()
    train(meter, [(8, 1.0, broken), *batches_of(8, 8), (8, INF, broken)], full_step=8)
    found = meter.compute()
    assert (found.optimizer_steps, found.skipped_steps, found.loss) == (4, 2, INF)
    assert found.gradient_norm == pytest.approx(account([step_gradients(0), step_gradients(1)])[0])


@pytest.mark.parametrize("samples", [2**24, 2**24 + 1])
def test_every_sample_counts(samples):
    meter = EpochMeter()
    meter.count(samples)
    assert meter.compute().samples == samples


def test_only_training_takes_time():
    meter = EpochMeter(clock=ticking(10.0, 14.0, 20.0, 21.0, 25.0))
    meter.start()
    meter.pause()  # 4 seconds
    assert meter.seconds == 4
    meter.start()
    meter.start()  # is no look at the clock
    assert meter.seconds == 5
    assert meter.compute().seconds == 9


def test_a_pause_of_what_does_not_run_is_none():
    meter = EpochMeter(clock=ticking())
    meter.pause()
    assert meter.seconds == 0


def test_reset_forgets_the_epoch():
    meter = EpochMeter()
    train(meter, batches_of(8, 8, 3), full_step=8)
    meter.count(5)
    meter.reset()
    assert meter.compute() == EpochMeter().compute()


def test_the_ranks_measure_one_epoch():
    """Equal shares of the samples, and gradients that are already all-reduced, hence the same."""
    batches = batches_of(4, 4, 4)
    one, other, alone = (EpochMeter(clock=lambda: 0.0) for _ in range(3))
    train(one, [(4, 1.0, gradients) for _, _, gradients in batches], full_step=4)
    train(other, [(4, 3.0, gradients) for _, _, gradients in batches], full_step=4)
    train(alone, [(8, 2.0, gradients) for _, _, gradients in batches], full_step=8)
    assert of_all_ranks(one, other) == [alone.compute()] * 2


def test_a_step_that_all_ranks_skip_is_one_step():
    ranks = [EpochMeter(clock=lambda: 0.0) for _ in range(3)]
    for rank in ranks:
        train(rank, [*batches_of(4), (4, 1.0, [torch.tensor([NAN])])], full_step=4)
    assert [(m.optimizer_steps, m.skipped_steps, m.samples) for m in of_all_ranks(*ranks)] == [(2, 1, 24)] * 3


@pytest.mark.parametrize("stop", range(7))
def test_an_epoch_cut_off_in_the_middle_is_measured_as_a_whole(stop):
    """Micro-batches are accumulated by two, so that every other cut is in the middle of a step."""
    batches = batches_of(4, 4, 4, 4, 4, 4)

    def feed(meter, part):
        for index in part:
            samples, loss, gradients = batches[index]
            meter.count(samples)
            if index % 2:
                meter.step(gradients, full_step=8, learning_rate=torch.tensor(0.5))
            meter.loss(torch.tensor(loss), samples)
        return meter

    def new():
        return EpochMeter(mean_every=2, clock=lambda: 0.0)

    restored = new()
    restored.load_state_dict(json.loads(json.dumps(feed(new(), range(stop)).state_dict())))
    assert feed(restored, range(stop, 6)).compute() == feed(new(), range(6)).compute()


def test_a_restored_meter_keeps_its_seconds_and_does_not_run():
    before = EpochMeter(clock=ticking(0.0, 7.0))
    before.start()
    state = before.state_dict()
    after = EpochMeter(clock=ticking(100.0, 103.0, 105.0))
    after.start()
    after.load_state_dict(state)
    assert after.seconds == 7
    after.start()
    assert after.seconds == 7 + 2


def test_feeding_does_not_wait_for_the_device():
    meter = EpochMeter()
    for _ in range(3):
        meter.count(8)
        meter.step([torch.ones(3, device="meta")], full_step=8, learning_rate=torch.ones((), device="meta"))
        meter.loss(torch.ones((), device="meta"), 8)
    with pytest.raises(NotImplementedError):
        meter.compute()

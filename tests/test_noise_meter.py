"""The noise scale's meter on a problem whose gradient G and covariance Sigma are known."""

from __future__ import annotations

import copy
import io
import math
import statistics
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_deba.noise_meter import BLOCKS, NoiseMeans, NoiseScaleMeter
from lightning_deba.statistics import two_batch_estimates

NAN, INF = float("nan"), float("inf")
MODES = ["ranks", "micro_batches", "consecutive"]
PARTS = {"ranks": 4, "micro_batches": 3, "consecutive": 1}  # of a step; an odd number has unequal halves


class Problem:
    """Gradients of single samples are ``G + Sigma^(1/2) z`` in 1000 dimensions, in three tensors; B_s is 100."""

    SHAPES = ((20, 40), (150,), (5, 2, 5))

    def __init__(self, seed=0, noise_scale=100.0):
        self.chance = torch.Generator().manual_seed(seed)
        truth = torch.Generator().manual_seed(99)
        self.mean = torch.randn(1000, generator=truth, dtype=torch.float64)
        self.mean /= self.mean.norm()
        variances = torch.rand(1000, generator=truth, dtype=torch.float64) + 0.1
        self.deviations = (variances * noise_scale / variances.sum()).sqrt()

    def flat(self, samples):
        """A mean over so many samples, drawn at once."""
        z = torch.randn(1000, generator=self.chance, dtype=torch.float64)
        return self.mean + self.deviations * z / math.sqrt(samples)

    def draw(self, samples):
        return tensors(self.flat(samples))


def tensors(flat, kind=torch.float32):
    parts = flat.to(kind).split([math.prod(shape) for shape in Problem.SHAPES])
    return [part.view(shape) for part, shape in zip(parts, Problem.SHAPES, strict=True)]


def of_ranks(mode, steps, every=1, ranks=PARTS["ranks"]):
    """The meters of all ranks, after these steps: each is the gradients of its equal parts, and the samples of one."""
    meters = [NoiseScaleMeter(mode, every) for _ in range(ranks if mode == "ranks" else 1)]
    for parts, samples in steps:
        feed(meters, parts, samples)
    return meters


def feed(meters, parts, samples, **step):
    """One step. A part's gradient is one flat vector."""
    total, mean = samples * len(parts), torch.stack(parts).mean(0)
    if meters[0].mode == "ranks":
        for meter, part in zip(meters, parts, strict=True):
            *bucket, last = tensors(part)
            meter.local(bucket, samples)
            meter.local([last], samples)
    for meter in meters:
        for done in range(1, len(parts) + 1):
            meter.accumulated(tensors(torch.stack(parts)[:done].sum(0) / len(parts)), done, len(parts))
        meter.step(tensors(mean), total, **step)


def measured(meters):
    """What all ranks know, after their sums were added."""
    return NoiseScaleMeter.means(torch.stack([meter.sums for meter in meters]).sum(0).tolist())


def steps_of(mode, count, seed=0, samples=16, noise_scale=100.0):
    problem = Problem(seed, noise_scale)
    return [([problem.flat(samples) for _ in range(PARTS[mode])], samples) for _ in range(count)]


def noise_scale(found):
    return found.gradient_covariance / found.gradient_squared


def alone(meter, gradients, samples=16, **step):
    """Steps of one device, of which each gradient is a list of tensors."""
    for gradient in gradients:
        meter.step(gradient, samples, **step)
    return meter


# The truth -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_mode_finds_the_noise_scale(mode, seed):
    found = measured(of_ranks(mode, steps_of(mode, 800, seed)))
    assert noise_scale(found) == pytest.approx(100, rel=0.05)
    assert found.gradient_squared == pytest.approx(1, rel=0.05)
    assert found.gradient_covariance == pytest.approx(100, rel=0.05)
    assert abs(noise_scale(found) - 100) < 100 * 4 * found.noise_scale_error


@pytest.mark.parametrize("mode", MODES)
def test_it_is_what_the_formula_says(mode):
    """All numbers of one measurement, by the vectors themselves."""
    (parts, samples), (after, _) = steps_of(mode, 2)
    if mode == "ranks":
        groups = [(part, samples) for part in parts]
        found = measured(of_ranks(mode, [(parts, samples)]))
    elif mode == "micro_batches":
        groups = [(torch.stack(parts[:2]).mean(0), 2 * samples), (parts[2], samples)]
        found = measured(of_ranks(mode, [(parts, samples)]))
    else:
        groups = [(parts[0], samples), (after[0], samples)]
        found = measured(of_ranks(mode, [(parts, samples), (after, samples)]))
    total = sum(n for _, n in groups)
    whole = sum(n * vector for vector, n in groups) / total
    small = statistics.mean(vector.square().sum().item() for vector, _ in groups)
    expected = two_batch_estimates(
        small, whole.square().sum().item(), statistics.harmonic_mean(n for _, n in groups), total
    )
    assert found[:2] == pytest.approx(expected, rel=1e-5)
    assert found.samples == (len(parts) if mode == "ranks" else 1)


@pytest.mark.parametrize("micro_batches", [2, 3, 4, 7])
def test_any_number_of_micro_batches_will_do(micro_batches):
    problem = Problem()
    steps = [([problem.flat(16) for _ in range(micro_batches)], 16) for _ in range(2000)]
    assert noise_scale(measured(of_ranks("micro_batches", steps))) == pytest.approx(100, rel=0.08)


def test_steps_in_succession_are_biased_by_the_step_between_them():
    """The documented size: ``lr (G'HG + tr(H Sigma)/B)``, here with ``H = 2 I`` and a rate that makes it a half."""
    problem, samples, hessian = Problem(), 100, 2.0
    curved = hessian * (1 + 100 / samples)  # G'HG + tr(H Sigma)/B
    rate = 0.5 / curved
    meter = NoiseScaleMeter("consecutive", every=2)
    for _ in range(2000):
        first = problem.flat(samples)
        second = problem.flat(samples) - rate * hessian * first
        alone(meter, [tensors(first), tensors(second)], samples)
    assert meter.compute().gradient_squared == pytest.approx(1 - 0.5, abs=0.02)


def test_it_is_the_ratio_of_means_and_not_the_mean_of_ratios():
    """So much noise that a single denominator is now and then near nothing, or below."""
    steps = steps_of("consecutive", 2000, samples=12)
    found = measured(of_ranks("consecutive", steps, every=2))
    single = [measured(of_ranks("consecutive", steps[i : i + 2])) for i in range(0, 2000, 2)]
    assert noise_scale(found) == pytest.approx(100, rel=0.05)
    assert statistics.mean(map(noise_scale, single)) > 110
    assert min(one.gradient_squared for one in single) < 0  # and is not cut off
    assert found.gradient_squared == pytest.approx(statistics.mean(one.gradient_squared for one in single))


@pytest.mark.parametrize("mode", MODES)
def test_a_numerator_may_be_negative(mode):
    """Equal parts, and steps, that are as one: rounding decides."""
    parts = [torch.ones(1000, dtype=torch.float64)] * PARTS[mode]
    found = measured(of_ranks(mode, [(parts, 16)] * 20))
    assert found.gradient_squared == pytest.approx(1000)
    assert found.gradient_covariance == pytest.approx(0, abs=1e-2)
    meter = NoiseScaleMeter("ranks", every=1)
    meter.local([torch.tensor([1.0])], 8)
    meter.step([torch.tensor([2.0])], 16)
    assert meter.compute()[:2] == (7, -48)


# The error -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "count"), [("ranks", 50), ("micro_batches", 64), ("consecutive", 75)])
def test_the_error_is_the_scatter_of_repeated_runs(mode, count):
    """The last block is partly filled, or none is."""
    runs = [measured(of_ranks(mode, steps_of(mode, count, seed, samples=64), every=1)) for seed in range(40)]
    scales = [noise_scale(run) for run in runs]
    scatter = statistics.stdev(scales) / statistics.mean(scales)
    told = math.sqrt(statistics.mean(run.noise_scale_error**2 for run in runs))
    assert scatter / 2 < told < scatter * 2


def test_blocks_of_more_or_fewer_measurements_weigh_accordingly():
    """Where a block is one measurement, and where there are many in it, the error falls as the root of the number."""

    def error(count):
        runs = [
            measured(of_ranks("consecutive", steps_of("consecutive", 2 * count, seed, 64), 2)) for seed in range(25)
        ]
        return math.sqrt(statistics.mean(run.noise_scale_error**2 for run in runs))

    assert error(12) / error(192) == pytest.approx(4, rel=0.3)


@given(seed=st.integers(0, 1000), blocks=st.integers(4, 16), level=st.sampled_from([0.0, 2.0, -50.0]))
@settings(max_examples=50)
def test_of_equal_blocks_it_is_the_jackknife_of_the_textbook(seed, blocks, level):
    chance = torch.Generator().manual_seed(seed)
    rows = [[*row, 7.0] for row in (torch.randn(blocks, 2, generator=chance).double() + level).tolist()]
    found = NoiseScaleMeter.means([number for row in rows for number in row])

    def ratio(rows):
        return sum(row[0] for row in rows) / sum(row[1] for row in rows)

    without = [ratio(rows[:i] + rows[i + 1 :]) for i in range(blocks)]
    variance = (blocks - 1) * statistics.pvariance(without)
    assert found.noise_scale_error == pytest.approx(math.sqrt(variance) / abs(ratio(rows)), rel=1e-6)


@pytest.mark.parametrize(
    ("count", "has_error"), [(0, False), (1, False), (3, False), (4, True), (16, True), (17, True)]
)
def test_there_is_no_error_of_less_than_four_blocks(count, has_error):
    found = measured(of_ranks("ranks", steps_of("ranks", count)))
    assert found.samples == 4 * count
    assert (found.noise_scale_error is not None) == has_error
    if not count:
        assert found == NoiseMeans(None, None, None, 0)


def test_an_error_that_has_no_number_is_none():
    assert NoiseScaleMeter.means([1.0, 0.0, 1.0] * 16).noise_scale_error is None  # no noise to be relative to
    assert NoiseScaleMeter.means([0.0, 1.0, 1.0] * 16).noise_scale_error is None
    assert NoiseScaleMeter.means([1.0, 5.0, 1.0] * 16).noise_scale_error == 0


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 32, 33, 100, 1000])
def test_blocks_are_joined_without_losing_a_measurement(count):
    meter = NoiseScaleMeter("ranks", every=1)
    for index in range(count):
        meter.local([torch.tensor([2.0])], 8)
        meter.step([torch.tensor([1.0 + index])], 16)
    blocks = meter.sums.view(-1, 3)
    assert blocks[:, 2].sum() == count
    squares = [2 * (1 + index) ** 2 - 4 for index in range(count)]
    length = round(blocks[0, 2].item()) if count > 1 else 1
    assert blocks[:, 0].tolist() == [sum(squares[i * length : (i + 1) * length]) for i in range(2 * BLOCKS)]
    assert count < BLOCKS or BLOCKS <= (blocks[:, 2] > 0).sum() <= 2 * BLOCKS


# What is told --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1024.0, torch.tensor(65536.0), 0.25])
@pytest.mark.parametrize("mode", MODES)
def test_scaled_gradients_are_measured_unscaled(mode, scale):
    def tell(factor, **scaled):
        meter, other = NoiseScaleMeter(mode, every=1), NoiseScaleMeter(mode, every=1)
        problem = Problem()
        for _ in range(20):
            first, second = problem.draw(16), problem.draw(16)
            meter.local([factor * part for part in first], 16, **scaled)
            meter.accumulated([factor * part / 2 for part in first], 1, 2, **scaled)
            mean = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
            meter.step([factor * part for part in mean], 32, **scaled)
            # What was scaled on its way may be unscaled when the step is due.
            other.local([factor * part for part in first], 16, **scaled)
            other.accumulated([factor * part / 2 for part in first], 1, 2, **scaled)
            other.step(mean, 32)
        return meter.compute(), other.compute()

    for now, expected in zip(tell(scale, scale=scale), tell(1.0), strict=True):
        assert now == pytest.approx(expected, rel=1e-4)


def test_the_scale_may_change_in_place_between_two_steps():
    problem, scale = Problem(), torch.tensor(1024.0)
    first, second = problem.draw(16), problem.draw(16)
    meter = NoiseScaleMeter("consecutive", every=2)
    meter.step([1024 * part for part in first], 16, scale)
    scale *= 2
    meter.step([2048 * part for part in second], 16, scale)
    assert meter.compute() == pytest.approx(
        alone(NoiseScaleMeter("consecutive"), [first, second]).compute(), nan_ok=True
    )


@pytest.mark.parametrize("factor", [1e-3, 7.0])
@pytest.mark.parametrize("mode", MODES)
def test_the_noise_scale_does_not_depend_on_the_size_of_the_gradient(mode, factor):
    steps = steps_of(mode, 40)
    scaled = [([factor * part for part in parts], samples) for parts, samples in steps]
    found, expected = measured(of_ranks(mode, scaled)), measured(of_ranks(mode, steps))
    assert noise_scale(found) == pytest.approx(noise_scale(expected), rel=1e-3)
    assert found.noise_scale_error == pytest.approx(expected.noise_scale_error, rel=1e-3)
    assert found.gradient_squared == pytest.approx(factor**2 * expected.gradient_squared, rel=1e-3)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_is_not_finite_is_left_out(mode, bad):
    good, broken = steps_of(mode, 30), [torch.full((1000,), bad, dtype=torch.float64)] * PARTS[mode]
    # Of steps that are taken in pairs, a broken one takes another with it.
    pair = 2 if mode == "consecutive" else 1
    mixed = [*good[:4], (broken, 16), *good[: pair - 1], *good[4:]]
    found, expected = measured(of_ranks(mode, mixed, pair)), measured(of_ranks(mode, good, pair))
    assert found.samples == expected.samples
    assert found[:2] == pytest.approx(expected[:2])
    assert math.isfinite(found.noise_scale_error)


@pytest.mark.parametrize("mode", MODES)
def test_of_steps_that_are_all_not_finite_there_is_nothing(mode):
    broken = [torch.full((1000,), NAN, dtype=torch.float64)] * PARTS[mode]
    assert measured(of_ranks(mode, [(broken, 16)] * 20)) == NoiseMeans(None, None, None, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_of_fewer_samples_stays_out_of_the_means(mode):
    steps = steps_of(mode, 21)
    expected = measured(of_ranks(mode, steps[:20], every=2))
    meters = of_ranks(mode, steps[:20], every=2)
    for _ in range(2):  # one that would be kept, and one that would be compared
        feed(meters, steps[20][0], 5, counts=False)
    assert measured(meters) == expected
    for parts, samples in steps[:2]:
        feed(meters, parts, samples)
    assert measured(meters).samples > expected.samples


@pytest.mark.parametrize("mode", MODES)
def test_it_is_measured_every_so_many_steps(mode):
    meters = of_ranks(mode, [], every=3)
    asked, counts = [], []
    for parts, samples in steps_of(mode, 8):
        asked.append(meters[0].measuring)
        feed(meters, parts, samples)
        counts.append(measured(meters).samples // len(meters))
    expected = {
        "consecutive": ([1, 1, 0, 1, 1, 0, 1, 1], [0, 1, 1, 1, 2, 2, 2, 3]),
        "ranks": ([1, 0, 0, 1, 0, 0, 1, 0], [1, 1, 1, 2, 2, 2, 3, 3]),
    }
    assert (asked, counts) == expected["consecutive" if mode == "consecutive" else "ranks"]


@pytest.mark.parametrize(("mode", "every"), [("ranks", 8), ("micro_batches", 8), ("consecutive", 16)])
def test_by_default_it_is_measured_now_and_then(mode, every):
    assert NoiseScaleMeter(mode).every == every


def test_what_another_mode_needs_is_not_looked_at():
    for mode, count in [("ranks", 1), ("micro_batches", 1), ("consecutive", 0)]:
        meter = NoiseScaleMeter(mode)
        meter.local([torch.ones(3)], 4)
        meter.accumulated([torch.ones(3)], 1, 2)
        meter.step([torch.ones(3)], 8)
        assert meter.compute().samples == count


def test_without_accumulation_and_without_ranks_nothing_is_measured():
    halves, ranks = NoiseScaleMeter("micro_batches"), NoiseScaleMeter("ranks")
    for meter in (halves, ranks):
        meter.accumulated([torch.ones(3)], 1, 1)
        meter.step([torch.ones(3)], 8)
        assert meter.compute() == NoiseMeans(None, None, None, 0)


def test_no_gradient_is_no_step():
    problem = Problem()
    first, second = problem.draw(16), problem.draw(16)
    meter = NoiseScaleMeter("consecutive")
    for gradients in ([], [None, None, None], first, second):
        meter.step(gradients, 16)
    assert meter.compute() == alone(NoiseScaleMeter("consecutive"), [first, second]).compute()
    halves = NoiseScaleMeter("micro_batches", every=1)
    halves.accumulated(first, 1, 2)
    halves.step([None, None, None], 16)  # what was begun is not gone on with
    halves.step(second, 16)
    assert halves.compute().samples == 0


@pytest.mark.parametrize("missing", [0, 1])
def test_a_gradient_that_is_none_is_zero(missing):
    problem = Problem()
    pair = [problem.draw(16), problem.draw(16)]
    with_none, with_zero = copy.deepcopy(pair), copy.deepcopy(pair)
    with_none[missing][1] = None
    with_zero[missing][1].zero_()
    for _ in range(2):  # the second time into memory that holds something else
        found = [alone(NoiseScaleMeter("consecutive"), steps) for steps in (with_none, with_zero)]
        assert found[0].compute() == found[1].compute()
    meter = alone(NoiseScaleMeter("consecutive", every=2), [*pair, *with_none])
    assert meter.compute() == alone(NoiseScaleMeter("consecutive", every=2), [*pair, *with_zero]).compute()


def test_gradients_that_have_nothing_in_common_have_no_product():
    meter = alone(NoiseScaleMeter("consecutive"), [[torch.tensor([3.0]), None], [None, torch.tensor([4.0])]], samples=2)
    assert meter.compute()[:2] == (0, 25)


def test_other_parameters_are_no_second_sample():
    one, two = [torch.ones(3)], [torch.ones(3), torch.ones(2)]
    for before, now in [(one, two), (two, one), (one, [torch.ones(4)])]:
        meter = alone(NoiseScaleMeter("consecutive", every=1), [before, now, now])
        assert meter.compute()[:2] == pytest.approx((sum(gradient.numel() for gradient in now), 0), abs=1e-4)
        assert meter.compute().samples == 1


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_of_half_precision_it_is_as_good(mode, kind):
    steps = steps_of(mode, 40)

    def found(kind):
        meter = NoiseScaleMeter(mode, every=1)
        for parts, samples in steps:
            total = torch.stack([*parts, parts[0]])
            meter.local(tensors(parts[0], kind), samples)
            meter.accumulated(tensors(total[:1].sum(0) / 2, kind), 1, 2)
            meter.step(tensors(total[:2].mean(0), kind), 2 * samples)
        return meter.compute()

    half, whole = found(kind), found(torch.float64)
    assert half.gradient_covariance == pytest.approx(whole.gradient_covariance, rel=0.02)
    assert half.gradient_squared == pytest.approx(whole.gradient_squared, rel=0.02, abs=0.02)


def test_squares_beyond_the_range_of_half_precision_are_measured():
    steps = [[torch.full((4,), value).half()] for value in (6e4, 5e4)]
    assert alone(NoiseScaleMeter("consecutive"), steps).compute().gradient_squared == pytest.approx(4 * 3e9, rel=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_sparse_gradients_are_measured_as_dense_ones(mode):
    embedding = torch.nn.Embedding(50, 8, sparse=True)
    chance = torch.Generator().manual_seed(0)

    def gradient():
        embedding.weight.grad = None
        (
            embedding(torch.randint(0, 50, (20,), generator=chance)) * torch.randn(20, 8, generator=chance)
        ).sum().backward()
        return embedding.weight.grad

    sparse, dense = NoiseScaleMeter(mode, every=1), NoiseScaleMeter(mode, every=1)
    for _ in range(6):
        first, second = gradient(), gradient()
        for meter, dress in [(sparse, lambda g: g), (dense, torch.Tensor.to_dense)]:
            meter.local([dress(first)], 8)
            meter.accumulated([dress(first * 0.5)], 1, 2)
            meter.step([dress((first + second) * 0.5)], 16)
    assert sparse.compute() == pytest.approx(dense.compute(), rel=1e-5)
    mixed = alone(NoiseScaleMeter("consecutive"), [[gradient()], [gradient().to_dense()]])
    assert mixed.compute().samples == 1


# State ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stop", [0, 6, 30, 50])
def test_a_restored_meter_goes_on_as_an_unbroken_one(mode, stop):
    steps = steps_of(mode, 60)
    [unbroken, *_], [meter, *_] = of_ranks(mode, steps, 2), of_ranks(mode, steps[:stop], 2)
    file = io.BytesIO()
    torch.save(meter.state_dict(), file)
    file.seek(0)
    restored = of_ranks(mode, [], 2)
    for one in restored:
        one.load_state_dict(torch.load(file, weights_only=True))
        file.seek(0)
    for parts, samples in steps[stop:]:
        feed(restored, parts, samples)
    assert restored[0].compute() == pytest.approx(unbroken.compute())
    found, expected = restored[0].state_dict(), unbroken.state_dict()
    assert found.pop("sums") == pytest.approx(expected.pop("sums"))
    assert found == expected


def test_a_gradient_that_waits_for_its_second_is_not_saved():
    problem = Problem()
    meter = alone(NoiseScaleMeter("consecutive", every=2), [problem.draw(16) for _ in range(5)])
    restored = NoiseScaleMeter("consecutive", every=2)
    restored.load_state_dict(meter.state_dict())
    alone(restored, [problem.draw(16)])
    assert (restored.compute().samples, alone(meter, [problem.draw(16)]).compute().samples) == (2, 3)
    assert alone(restored, [problem.draw(16), problem.draw(16)]).compute().samples == 3


def test_a_state_may_be_of_another_mode():
    meters = of_ranks("ranks", steps_of("ranks", 6))
    other = NoiseScaleMeter("consecutive", every=2)
    other.load_state_dict(meters[0].state_dict())
    alone(other, [Problem().draw(64), Problem().draw(64)])
    assert other.compute().samples == 7


@pytest.mark.parametrize("mode", MODES)
def test_reset_forgets_all(mode):
    steps = steps_of(mode, 6)
    meters = of_ranks(mode, steps[:5], every=2)
    for meter in meters:
        meter.reset()
    assert measured(meters) == NoiseMeans(None, None, None, 0)
    for parts, samples in steps:
        feed(meters, parts, samples)
    assert measured(meters) == measured(of_ranks(mode, steps, every=2))


def test_sums_add_up_over_ranks():
    """Two ranks: the small norm is the mean of theirs, the rest they have in common."""
    steps = [(parts[:2], samples) for parts, samples in steps_of("ranks", 40)]
    meters = of_ranks("ranks", steps, ranks=2)
    pairs = [[part.square().sum().item() for part in (*parts, torch.stack(parts).mean(0))] for parts, _ in steps]
    estimates = [two_batch_estimates((one + other) / 2, big, 16, 32) for one, other, big in pairs]
    found = measured(meters)
    assert found[:2] == pytest.approx([statistics.mean(column) for column in zip(*estimates, strict=True)], rel=1e-4)
    assert found.samples == 80
    assert meters[0].compute()[:2] != pytest.approx(found[:2], rel=1e-4)


def test_ranks_that_hold_the_same_gradients_measure_what_one_does():
    [meter] = of_ranks("consecutive", steps_of("consecutive", 40))
    both = NoiseScaleMeter.means((2 * meter.sums).tolist())
    assert both[:3] == pytest.approx(meter.compute()[:3])
    assert both.samples == 2 * meter.compute().samples


# Cost ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_nothing_waits_for_the_device(mode):
    """A meta tensor has no number to wait for: whoever asks for one raises, as `compute` does."""
    gradients = [torch.ones(3, 4, device="meta"), torch.ones(5, device="meta", dtype=torch.float16)]
    scale = torch.ones((), device="meta")
    meter = NoiseScaleMeter(mode, every=1)
    for _ in range(40):
        meter.local(gradients, 4, scale)
        meter.accumulated(gradients, 1, 2, scale)
        meter.step(gradients, 8, scale)
    assert meter.measuring
    with pytest.raises(NotImplementedError):
        meter.compute()


@pytest.mark.parametrize("mode", MODES)
def test_the_gradients_are_left_as_they_are(mode):
    steps = [Problem(seed).draw(16) for seed in range(6)]
    before = copy.deepcopy(steps)
    meter = NoiseScaleMeter(mode, every=1)
    for gradients in steps:
        meter.local(gradients, 8, 4.0)
        meter.accumulated(gradients, 1, 2, 4.0)
        meter.step(gradients, 16, 4.0)
    assert all(
        torch.equal(a, b) for now, then in zip(steps, before, strict=True) for a, b in zip(now, then, strict=True)
    )


def test_what_is_kept_is_a_copy():
    """Clipping and `zero_grad` change gradients in place."""
    problem = Problem()
    first, second = problem.draw(16), problem.draw(16)
    expected = alone(NoiseScaleMeter("consecutive"), [first, second]).compute()
    meter = alone(NoiseScaleMeter("consecutive"), [first])
    for gradient in first:
        gradient.zero_()
    assert alone(meter, [second]).compute() == expected


@pytest.mark.parametrize(("mode", "copies"), [("ranks", 0), ("micro_batches", 1), ("consecutive", 1)])
def test_at_most_one_copy_of_the_gradient_is_kept(mode, copies):
    meters = of_ranks(mode, steps_of(mode, 20))
    assert sum(kept.numel() for kept in meters[0]._copies) == copies * 1000
    memory = [kept.data_ptr() for kept in meters[0]._copies]
    for parts, samples in steps_of(mode, 4):
        feed(meters, parts, samples)
    assert [kept.data_ptr() for kept in meters[0]._copies] == memory  # and used again
    meters[0].reset()
    assert not meters[0]._copies


# Refusals ------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"^`mode` must be one of 'ranks', 'micro_batches', 'consecutive', got 'rank'"):
        NoiseScaleMeter("rank")
    with pytest.raises(ValueError, match=r"^`every` must be at least 1, got 0"):
        NoiseScaleMeter("ranks", 0)
    with pytest.raises(ValueError, match=r"^`samples` must be at least 1, got 0"):
        NoiseScaleMeter("ranks").step([torch.ones(1)], 0)
    meter = NoiseScaleMeter("ranks")
    meter.local([torch.ones(1)], 8)
    with pytest.raises(ValueError, match=r"^`b_small` must be positive and below `b_big`, got 8 and 8"):
        meter.step([torch.ones(1)], 8)


def test_a_copy_fits_what_comes_next():
    """Memory that was for another type or shape is not written to."""
    steps = [[torch.ones(4)], [torch.ones(4)], [torch.ones(4).double()], [torch.ones(2, 2).half()], [torch.ones(2, 2)]]
    meter = NoiseScaleMeter("consecutive", every=1)
    for now, then in pairwise(steps):
        alone(meter, [now, then])
    assert meter.compute()[:2] == (4, 0)

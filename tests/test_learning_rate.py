"""The learning rate and its schedule under batch sizes that change, without a Trainer.

The oracle is the fixed-size run that the schedule was sized for, stepped by torch alone.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import timm.optim
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import SGD, Adam
from torch.optim import lr_scheduler as schedulers

from lightning_deba import EpochRecord, steps_at
from lightning_deba.coupling import Coupling
from lightning_deba.learning_rate import ScaledSteps, adascale_gain, scaling_rule
from lightning_deba.schedule_clock import SampleClock, ticks_due

SAMPLES, SIZE, EPOCHS = 60, 8, 6  # the last step of an epoch is a partial one
TICKS = math.ceil(SAMPLES / SIZE)
TOTAL = TICKS * EPOCHS

SCHEDULES = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.95),
    "StepLR": lambda o: schedulers.StepLR(o, 10, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [5, 20, 33], 0.5),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 10),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.1, 1.0, 10),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.95),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, TOTAL, 2.0),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, TOTAL, 1e-4),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 7),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 5, cycle_momentum=False),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, TOTAL, cycle_momentum=False),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 10), schedulers.CosineAnnealingLR(o, TOTAL - 10)], [10]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.1, 4), schedulers.ExponentialLR(o, 0.9)]
    ),
}
SIZES = {"grow": [8, 8, 16, 24, 32, 60], "shrink": [8, 4, 4, 2, 1, 1], "both": [8, 16, 4, 12, 3, 8]}


class Module:
    """What `SampleClock` needs of a LightningModule."""

    @staticmethod
    def lr_scheduler_step(scheduler, metric):
        scheduler.step()


def new_optimizer(kind=SGD):
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return kind([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.02}], lr=0.05)


def rates_of(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def reference_rates(schedule):
    """The rates of the fixed-size run, step by step, and after its last step."""
    optimizer = new_optimizer()
    scheduler = schedule(optimizer)
    rates = [rates_of(optimizer)]
    for _ in range(TOTAL):
        optimizer.step()
        scheduler.step()
        rates.append(rates_of(optimizer))
    return rates


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_as_a_function_of_samples_is_that_of_the_fixed_size(name, sizes):
    reference = reference_rates(SCHEDULES[name])
    optimizer = new_optimizer()
    scheduler = SCHEDULES[name](optimizer)
    clock = SampleClock([LRSchedulerConfig(scheduler, interval="step")], SIZE, TICKS)
    for epoch, size in enumerate(SIZES[sizes]):
        done = 0
        while done < SAMPLES:
            assert rates_of(optimizer) == pytest.approx(reference[epoch * TICKS + done // SIZE], rel=1e-6)
            optimizer.step()
            done = min(done + size, SAMPLES)
            clock.advance(Module, done, epoch_is_over=done == SAMPLES)
    assert rates_of(optimizer) == pytest.approx(reference[-1], rel=1e-6)


@pytest.mark.parametrize("rule", ["none", "linear", "sqrt", lambda ratio: 1 + ratio])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_factor_holds_at_every_step_and_no_scheduler_sees_it(name, rule):
    reference = reference_rates(SCHEDULES[name])
    optimizer = new_optimizer()
    scheduler = SCHEDULES[name](optimizer)
    steps = ScaledSteps([optimizer], scaling_rule(rule))
    first = [group["params"][0] for group in optimizer.param_groups]
    for tick in range(TOTAL):
        steps.ratio = float(1 + tick % 5)
        before = [parameter.detach().clone() for parameter in first]
        assert rates_of(optimizer) == pytest.approx(reference[tick], rel=1e-9)
        optimizer.step()
        scheduler.step()
        for parameter, old, rate in zip(first, before, reference[tick], strict=True):
            moved = (old - parameter.detach())[0].item()
            assert moved == pytest.approx(rate * scaling_rule(rule)(steps.ratio), rel=1e-3, abs=1e-6)


def test_beta2_keeps_its_half_life_in_samples_for_the_step_alone():
    optimizer, seen = new_optimizer(Adam), []
    steps = ScaledSteps([optimizer], scaling_rule("sqrt"), scale_beta2=True)
    optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["betas"]))
    steps.ratio = 4.0
    optimizer.step()
    assert seen == [(0.9, 0.999**4)]
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_a_rate_that_the_closure_sets_stands():
    optimizer = new_optimizer()
    steps = ScaledSteps([optimizer], scaling_rule("linear"))
    steps.ratio = 2.0

    def closure():
        optimizer.param_groups[0]["lr"] = 0.5

    optimizer.step(closure)
    assert rates_of(optimizer) == [0.5, 0.02]


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_of_a_step_that_fails_nothing_stays(kind):
    optimizer = new_optimizer(kind)
    steps = ScaledSteps([optimizer], scaling_rule("linear"), scale_beta2=True)
    steps.ratio, own, saved = 2.0, [dict(group) for group in optimizer.param_groups], []

    def out_of_memory():
        saved.append(optimizer.state_dict()["param_groups"])
        raise MemoryError

    for _ in range(2):  # the next step does not find the factor put on already
        with pytest.raises(MemoryError):
            optimizer.step(out_of_memory)
        assert rates_of(optimizer) == [0.1, 0.04]
    for groups in [*saved, optimizer.state_dict()["param_groups"]]:
        assert [(group["lr"], group.get("betas")) for group in groups] == [
            (group["lr"], group.get("betas")) for group in own
        ]
    steps.remove()
    assert optimizer.param_groups == own
    assert optimizer.state_dict()["param_groups"] == groups


def test_removed_it_leaves_the_optimizer_alone():
    optimizer = new_optimizer()
    steps = ScaledSteps([optimizer], scaling_rule("linear"))
    steps.ratio = 100.0
    steps.remove()
    optimizer.step()
    assert optimizer.param_groups[0]["params"][0][0].item() == pytest.approx(0.95)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="`lr_scaling` must be"):
        scaling_rule("cubic")


def test_plateau_and_epoch_schedulers_are_left_to_lightning():
    optimizer = new_optimizer()
    plateau = LRSchedulerConfig(schedulers.ReduceLROnPlateau(optimizer), interval="step", reduce_on_plateau=True)
    by_epoch = LRSchedulerConfig(schedulers.StepLR(optimizer, 1), interval="epoch")
    by_step = LRSchedulerConfig(schedulers.StepLR(optimizer, 1), interval="step")
    clock = SampleClock([plateau, by_epoch, by_step], SIZE, TICKS)
    assert [config.frequency for config in (plateau, by_epoch, by_step)] == [1, 1, math.inf]
    clock.remove()
    assert by_step.frequency == 1


def test_a_scheduler_that_was_taken_out_of_the_list_is_stepped_no_more():
    optimizer = new_optimizer()
    configs = [LRSchedulerConfig(schedulers.StepLR(optimizer, 1), interval="step")]
    clock, taken_out = SampleClock(configs, SIZE, TICKS), configs[0].scheduler
    clock.advance(LightningModule(), SIZE, epoch_is_over=False)
    configs[0] = LRSchedulerConfig(schedulers.StepLR(optimizer, 1), interval="epoch")  # as SWA does
    clock.advance(LightningModule(), 2 * SIZE, epoch_is_over=False)
    assert taken_out.last_epoch == 1


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30), st.integers(1, 64))
def test_ticks_never_go_back_and_an_epoch_has_all_of_them(sizes, reference):
    total = sum(sizes)
    per_epoch = math.ceil(total / reference)
    done, ticks = 0, 0
    for size in sizes:
        done += size
        due = ticks_due(done, reference, per_epoch, done == total)
        assert due >= ticks
        assert due <= per_epoch
        ticks = due
    assert ticks == per_epoch == ticks_due(total, reference, None, epoch_is_over=True)


@given(st.lists(st.tuples(st.floats(0.05, 3), st.integers(1, 12)), min_size=1, max_size=12))
def test_a_clock_of_another_pace_loses_no_part_of_a_tick(epochs):
    optimizer = new_optimizer()
    scheduler = schedulers.StepLR(optimizer, 1)
    clock = SampleClock([LRSchedulerConfig(scheduler, interval="step")], SIZE, ticks_per_epoch=None)
    progress = 0.0
    for pace, steps in epochs:
        clock.pace = pace
        for step in range(1, steps + 1):
            clock.advance(Module, step * SIZE, epoch_is_over=step == steps)
            progress += pace
            assert progress - 1 - 1e-5 <= scheduler.last_epoch <= progress + 1e-5
        clock.end_epoch()  # the callback's own end of the epoch, which finds it ended
        clock = resumed(clock, scheduler)


def resumed(clock, scheduler):
    found = SampleClock([LRSchedulerConfig(scheduler, interval="step")], SIZE, None)
    found.load_state_dict(json.loads(json.dumps(clock.state_dict())))
    return found


def steps_by_counting(samples, batch_size, samples_per_epoch):
    steps = in_step = in_epoch = 0
    for _ in range(samples):
        in_step, in_epoch = in_step + 1, in_epoch + 1
        if in_step == batch_size or in_epoch == samples_per_epoch:
            steps, in_step = steps + 1, 0
        if in_epoch == samples_per_epoch:
            in_epoch = 0
    return steps


@given(st.integers(0, 2000), st.integers(1, 64), st.integers(1, 300))
def test_steps_at_a_sample_are_those_of_a_run_that_is_counted(samples, batch_size, samples_per_epoch):
    assert steps_at(samples, batch_size, samples_per_epoch) == steps_by_counting(samples, batch_size, samples_per_epoch)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((-1, 8, 60), "`samples`"), ((100, 0, 60), "`batch_size`"), ((100, 8, 0), "`samples_per_epoch`")],
)
def test_what_is_no_number_of_samples_is_refused(arguments, named):
    with pytest.raises(ValueError, match=f"^{named} must be"):
        steps_at(*arguments)


# By the gain ---------------------------------------------------------------------------------------------------


def test_an_epoch_that_measures_nothing_leaves_the_rate_to_what_was_known():
    history = [EpochRecord(t, 16, 16, gradient_squared=1.0, gradient_covariance=400.0) for t in range(3)]
    coupling = Coupling("adascale", scale_beta2=False, schedule_by="steps")
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    coupling.begin(SimpleNamespace(optimizers=[optimizer]), LightningModule(), 16, history[:0], resumed=False)
    coupling.follow(512, history)
    known = coupling.factor
    coupling.follow(512, [*history, EpochRecord(3, 512, 512, samples=800)])
    assert coupling.factor == known == pytest.approx(adascale_gain(32.0, 400.0, 16))


@pytest.mark.parametrize("settings", [("sqrt", False), ("none", True)])
def test_an_optimizer_that_only_wraps_another_is_refused_with_the_reason(settings):
    lookahead = timm.optim.Lookahead(SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
    with pytest.raises(MisconfigurationException, match="which Lookahead does not have, as it wraps another one"):
        ScaledSteps([lookahead], scaling_rule(settings[0]), settings[1])


@pytest.mark.parametrize(
    ("squares", "noise"),
    [([1.0, 1.0], 400.0), ([-1.0, 1.5], 135.3), ([-5.0, -4.0], None)],
    ids=["known", "known from below", "not known"],
)
def test_the_rate_goes_by_what_is_known_of_the_noise_scale(squares, noise):
    history = [
        EpochRecord(t, 16, 16, gradient_squared=square, gradient_covariance=400.0) for t, square in enumerate(squares)
    ]
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    coupling = Coupling("adascale", scale_beta2=False, schedule_by="steps")
    coupling.begin(SimpleNamespace(optimizers=[optimizer]), LightningModule(), 16, history[:0], resumed=False)
    assert coupling.factor == 1.0
    coupling.follow(64, history)
    assert coupling.factor == pytest.approx(adascale_gain(4.0, noise, 16), rel=1e-4)
    assert coupling.rate(optimizer) == pytest.approx(0.1 * coupling.factor)
    coupling.remove()
    assert coupling.rate(optimizer) == 0.1

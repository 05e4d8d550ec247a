"""What it costs, as ratios of medians measured alternately in one run: `pytest tests/benchmarks --benchmark-enable`.

The ordinary suite runs each once, without a bound.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest
import timm
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from lightning_deba.meter import EpochMeter
from lightning_deba.noise_meter import NoiseScaleMeter
from tests.runs import Linear, Samples, Sizes, trainer_of


@pytest.fixture
def enabled(benchmark):
    """Whether times are to be taken and bounds to be kept."""
    return benchmark.enabled


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_100"])
def test_gradient_statistics_cost_at_most_one_percent_of_a_step(name, benchmark, enabled):
    model = timm.create_model(name, num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    gradients = [parameter.grad for parameter in model.parameters()]
    meter = EpochMeter()

    def step():
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    def measure():
        meter.count(64)
        meter.step(gradients, full_step=64)

    steps, measures = [], []
    for _ in range(48 if enabled else 1):
        steps.append(_seconds(step))
        gradients = [parameter.grad for parameter in model.parameters()]
        measures.append(_seconds(measure))
    share = statistics.median(measures) / statistics.median(steps)
    benchmark.extra_info["share of a step"] = f"{share:.2%}"
    benchmark.pedantic(measure, rounds=5 if enabled else 1)
    if enabled:
        assert share <= 0.010


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_100"])
def test_coupling_the_learning_rate_costs_at_most_two_thousandths_of_a_step(name, benchmark, enabled):
    """At twice the first batch size, where a step makes two ticks, those of the schedule itself included."""
    from lightning.pytorch.utilities.types import LRSchedulerConfig

    from lightning_deba.learning_rate import ScaledSteps, scaling_rule
    from lightning_deba.schedule_clock import SampleClock

    model = timm.create_model(name, num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))

    def step():
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    # An optimizer of the same parameters, which are copies without a gradient: its step does little but run hooks.
    idle = torch.optim.SGD([parameter.detach().clone() for parameter in model.parameters()], lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(idle, 0.1, total_steps=10_000)
    clock = SampleClock([LRSchedulerConfig(schedule, interval="step")], reference=32, ticks_per_epoch=10_000)
    ScaledSteps([idle], scaling_rule("sqrt")).ratio = 2.0
    module, samples = Linear(), 0

    def couple():
        nonlocal samples
        samples += 64
        idle.step()
        clock.advance(module, samples, epoch_is_over=False)

    steps, couplings = [], []
    for _ in range(48 if enabled else 1):
        steps.append(_seconds(step))
        couplings.append(_seconds(couple))
    share = statistics.median(couplings) / statistics.median(steps)
    benchmark.extra_info["share of a step"] = f"{share:.3%}"
    benchmark.pedantic(couple, rounds=5 if enabled else 1)
    assert clock.ticks == samples // 32
    if enabled:
        assert share <= 0.002


@pytest.mark.parametrize("mode", ["consecutive", "micro_batches", "ranks"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_100"])
def test_the_noise_scale_costs_at_most_one_and_a_half_percent(name, mode, benchmark, enabled):
    """On the average over the steps, of which one in each `every` measures, or two in a row."""
    model = timm.create_model(name, num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    meter = NoiseScaleMeter(mode)

    def step():
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    def measure():
        if meter.measuring:
            meter.accumulated(gradients, done=1, of=2)
            for gradient in gradients:  # as the hooks of the parameters do
                meter.local([gradient], samples=32)
        meter.step(gradients, samples=64)

    steps, measures = [], [[] for _ in range(meter.every)]
    for index in range(6 * meter.every if enabled else 2):
        steps.append(_seconds(step))
        gradients = [parameter.grad for parameter in model.parameters()]
        measures[index % meter.every].append(_seconds(measure))
    each = [statistics.median(seconds) for seconds in measures if seconds]
    share = statistics.mean(each) / statistics.median(steps)
    benchmark.extra_info["share of a step"] = f"{share:.2%}"
    benchmark.extra_info["a measurement"] = f"{sum(each[:2]) * 1e3:.1f} ms"
    benchmark.pedantic(measure, rounds=meter.every if enabled else 1)
    assert meter.compute().samples > 0
    if enabled:
        assert share <= 0.015


def test_an_in_place_change_costs_less_than_a_step_and_restarts_no_worker(benchmark, enabled, tmp_path):
    from lightning_deba import BatchSizeScheduler, InPlaceActuator

    class Timed(InPlaceActuator):
        seconds: list[float] = []  # noqa: RUF012

        def request(self, trainer, batch_size):
            self.seconds.append(_seconds(lambda: InPlaceActuator.request(self, trainer, batch_size)))

    class Workers(Linear):
        pids: set[int] = set()  # noqa: RUF012
        steps: list[float] = []  # noqa: RUF012

        def on_train_batch_start(self, batch, batch_idx):
            self.started = time.perf_counter()

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.steps.append(time.perf_counter() - self.started)
            iterator = self.trainer.fit_loop._combined_loader.flattened[0]._iterator
            self.pids |= {worker.pid for worker in iterator._workers}

    loader = DataLoader(Samples(), batch_size=8, num_workers=2, persistent_workers=True)
    scheduler = BatchSizeScheduler(Sizes({0: 16, 1: 8, 2: 32, 3: 4}), actuator=Timed(), min_batch_size=1)
    model = Workers()
    benchmark.pedantic(lambda: trainer_of([scheduler], tmp_path, max_epochs=5).fit(model, loader), rounds=1)
    assert len(Timed.seconds) == 4
    assert len(model.pids) == 2
    benchmark.extra_info["change"] = f"{statistics.median(Timed.seconds) * 1e3:.2f} ms"
    benchmark.extra_info["step of one linear layer"] = f"{statistics.median(model.steps) * 1e3:.2f} ms"
    if enabled:
        # A step of one linear layer is the shortest there is.
        assert statistics.median(Timed.seconds) < statistics.median(model.steps)


def test_importing_adds_little_to_importing_lightning(benchmark, enabled):
    code = (
        "import time, lightning.pytorch; t = time.perf_counter(); import lightning_deba; print(time.perf_counter() - t)"
    )

    def added() -> float:
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)

    seconds = [added() for _ in range(5 if enabled else 1)]
    benchmark.extra_info["added"] = f"{statistics.median(seconds) * 1e3:.0f} ms"
    benchmark.pedantic(added, rounds=1)
    if enabled:
        assert statistics.median(seconds) < 0.050


def _seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def test_a_profile_and_its_calibration_take_less_than_50_milliseconds(benchmark, enabled):
    from lightning_deba.characterization import StabilityProfile, calibrate
    from tests.test_characterization import run

    history = run(100)
    seconds = [_seconds(lambda: calibrate(StabilityProfile.from_history(history))) for _ in range(9 if enabled else 1)]
    benchmark.pedantic(lambda: calibrate(StabilityProfile.from_history(history)), rounds=3 if enabled else 1)
    if enabled:
        assert statistics.median(seconds) < 0.05

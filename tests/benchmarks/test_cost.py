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

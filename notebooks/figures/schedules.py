"""Draws what a growing batch does to a learning-rate schedule: ``python notebooks/figures/schedules.py``.

Six real fits on the CPU, seconds in all, written to ``schedules.svg`` beside this file. The same packages write the
same bytes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR
from torch.utils.data import DataLoader

from lightning_deba import BatchSizePolicy, BatchSizeScheduler, Hold
from lightning_deba.policies import Milestones

SAMPLES, EPOCHS, PEAK = 512, 8, 0.1
GROWTH = {0: 8, 2: 16, 4: 32, 6: 64}  # batch sizes by the epoch that they begin with

Schedule = Callable[[Optimizer, int], LRScheduler]
Rates = tuple[list[int], list[float]]  # samples seen before each step, and after the last; the rate there

SCHEDULES: dict[str, Schedule] = {
    "OneCycleLR": lambda optimizer, steps: OneCycleLR(optimizer, PEAK, steps, cycle_momentum=False),
    "CosineAnnealingLR": lambda optimizer, steps: CosineAnnealingLR(optimizer, steps),
}
RUNS: dict[str, tuple[BatchSizePolicy, Literal["samples", "steps"]]] = {
    "fixed": (Hold(), "steps"),
    "stock": (Milestones(epochs=GROWTH), "steps"),
    "ours": (Milestones(epochs=GROWTH), "samples"),
}

INK, MUTED, GRID, BAND = "#24292f", "#5d6773", "#dfe3e8", "#f1f3f6"
STYLES: dict[str, dict[str, Any]] = {
    "fixed": {"color": "#b3bbc4", "linewidth": 5.5, "solid_capstyle": "butt"},
    "stock": {"color": "#d55e00", "linewidth": 1.8},
    "ours": {"color": "#0072b2", "linewidth": 1.8},
}


class Noting(LightningModule):
    """One linear layer, and a schedule sized as Lightning's documentation has it. Notes the rate of each step."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.schedule = schedule
        self.samples, self.rates = [0], [0.0]

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.rates[-1] = self.rate()
        self.samples.append(self.samples[-1] + len(batch))
        self.rates.append(0.0)
        return self.layer(batch).square().mean()

    def on_train_end(self) -> None:
        self.rates[-1] = self.rate()

    def rate(self) -> float:
        return float(self.trainer.optimizers[0].param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=PEAK)
        schedule = self.schedule(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def rates(schedule: Schedule, policy: BatchSizePolicy, schedule_by: Literal["samples", "steps"]) -> Rates:
    """Trains once, and returns the learning rate as a function of the samples seen."""
    scheduler = BatchSizeScheduler(policy, min_batch_size=1, schedule_by=schedule_by)
    model = Noting(schedule)
    with TemporaryDirectory() as directory:
        trainer = Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            devices=1,
            callbacks=[scheduler],
            logger=False,
            default_root_dir=directory,  # for the history
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, DataLoader(torch.ones(SAMPLES, 2), batch_size=GROWTH[0]))
    return model.samples, model.rates


def measure() -> dict[str, dict[str, Rates]]:
    """Runs every schedule in every way."""
    return {name: {way: rates(schedule, *run) for way, run in RUNS.items()} for name, schedule in SCHEDULES.items()}


def draw(measured: dict[str, dict[str, Rates]]) -> Figure:
    """Draws a panel for each schedule."""
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06, wspace=0.03)
    figure.suptitle(
        "As the batch grows, a schedule counted in steps ends too high; in samples, where it should",
        x=0.008, ha="left", fontsize=11, color=INK,
    )  # fmt: skip
    panels = figure.subplots(1, len(measured), sharey=True)
    for ax, (name, runs) in zip(panels, measured.items(), strict=True):
        _dress(ax, name)
        _batch_sizes(ax)
        for way, (samples, values) in runs.items():
            ax.plot(samples, values, gid=f"{name}-{way}", clip_on=False, zorder=2, **STYLES[way])
        for way in ("stock", "ours"):
            _end(ax, STYLES[way]["color"], runs[way])
    _names(panels[0])
    panels[0].set_ylabel("learning rate")
    return figure


def _dress(ax: Axes, name: str) -> None:
    ax.set_title(name, loc="left", fontsize=10, color=INK)
    ax.set_xlabel("samples seen")
    ax.set_xlim(0, SAMPLES * EPOCHS)
    ax.set_xticks(range(0, SAMPLES * EPOCHS + 1, 1000))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_ylim(-0.003, 1.22 * PEAK)
    ax.set_yticks([0, PEAK / 2, PEAK])
    ax.grid(axis="y", color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[:].set_visible(False)
    ax.tick_params(colors=MUTED, labelsize=9, length=0)
    ax.xaxis.label.set_color(INK)
    ax.yaxis.label.set_color(INK)


def _batch_sizes(ax: Axes) -> None:
    """Shades every other stretch of one batch size, and names the sizes."""
    begins = [epoch * SAMPLES for epoch in GROWTH]
    ends = [*begins[1:], EPOCHS * SAMPLES]
    for number, (begin, end, size) in enumerate(zip(begins, ends, GROWTH.values(), strict=True)):
        if number % 2:
            ax.axvspan(begin, end, color=BAND, linewidth=0, zorder=0)
        text = f"batch of {size}" if not number else str(size)
        ax.text((begin + end) / 2, 1.2 * PEAK, text, ha="center", va="top", fontsize=9, color=MUTED)


def _end(ax: Axes, color: str, run: Rates) -> None:
    """Marks where a run ends, with the rate there."""
    at = run[0][-1], run[1][-1]
    ax.plot(*at, "o", color=color, markersize=5, clip_on=False, zorder=3)
    ax.annotate(f"{at[1]:.3f}", at, (7, 0), textcoords="offset points", va="center", fontsize=9, color=color)


def _names(ax: Axes) -> None:
    """Writes beside each line of the OneCycle schedule what it is."""
    style = {"fontsize": 9.5, "ha": "right"}
    ax.text(4060, 0.101, "in steps: Lightning", va="bottom", color=STYLES["stock"]["color"], **style)
    ax.text(2560, 0.048, "in samples:\nlightning_deba", va="top", color=STYLES["ours"]["color"], **style)
    ax.text(3010, 0.021, "a fixed batch of 8", va="top", color=MUTED, **style)


def write(output: Path | str) -> Figure:
    """Draws the figure into a file."""
    measured = measure()
    with rc_context({"svg.hashsalt": "lightning_deba", "path.simplify_threshold": 0.15}):
        figure = draw(measured)
        figure.savefig(output, metadata={"Date": None})
    return figure


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "The 'train_dataloader' does not have many workers")
    write(Path(__file__).with_suffix(".svg"))

"""Adaptive batch sizes for PyTorch Lightning.

A callback measures the gradient while a model is trained; at each epoch's end a policy decides the batch size of the
next one, and says why::

    from lightning.pytorch import Trainer
    from lightning_deba import BatchSizeScheduler

    scheduler = BatchSizeScheduler()  # or preset="generic", or policy=DEBA(cooldown=10)
    Trainer(callbacks=[scheduler]).fit(model, datamodule=data)
    scheduler.history  # what was measured
    scheduler.decisions  # what was decided, and why

The batch size is the number of samples per optimizer step, over all devices and accumulated micro-batches.

The names here, by what they are for:

- To train: `BatchSizeScheduler`, the callback. `steps_at` turns a milestone of a schedule from samples into steps.
- To decide: `DEBA`, `Hold`, or any function from a `History` to a `Decision`, as `BatchSizePolicy` says. More policies
  are in `lightning_deba.policies`, and thresholds for families of architectures in `lightning_deba.presets`.
- To look back: `read_history` reads a run into a `HistoryFile`, an `EpochRecord` and a `Grant` an epoch; `replay` asks
  another policy about it, and `signals` derives the `Signals` that DEBA sees. Figures and pages are in
  `lightning_deba.report`.
- To know beforehand: `characterize` tells which thresholds suit a model and whether to adapt at all, a
  `Characterization` of a `StabilityProfile` and of what `measure_throughput` finds; `calibrate` makes the policy.
- For a loader of your own: a `BatchSizeAdapter` for `InPlaceActuator`, `ReloadActuator` with another attribute, or a
  `BatchSizeActuator`.
- To measure elsewhere: `GradientMeter`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightning_deba.policies import DEBA, BatchSizePolicy, Hold, Signals, replay, signals
from lightning_deba.records import Decision, EpochRecord, Grant, History, HistoryFile, read_history

if TYPE_CHECKING:
    from lightning_deba.actuators import BatchSizeActuator, BatchSizeAdapter, InPlaceActuator, ReloadActuator
    from lightning_deba.baseline import characterize
    from lightning_deba.callback import BatchSizeScheduler
    from lightning_deba.characterization import Characterization, StabilityProfile, calibrate
    from lightning_deba.meter import GradientMeter
    from lightning_deba.schedule_clock import steps_at
    from lightning_deba.throughput import measure_throughput

__version__ = "0.1.0"

__all__ = [
    "DEBA",
    "BatchSizeActuator",
    "BatchSizeAdapter",
    "BatchSizePolicy",
    "BatchSizeScheduler",
    "Characterization",
    "Decision",
    "EpochRecord",
    "GradientMeter",
    "Grant",
    "History",
    "HistoryFile",
    "Hold",
    "InPlaceActuator",
    "ReloadActuator",
    "Signals",
    "StabilityProfile",
    "calibrate",
    "characterize",
    "measure_throughput",
    "read_history",
    "replay",
    "signals",
    "steps_at",
]

# What needs torch and Lightning is imported when it is asked for: histories are read and replayed without them.
_LATER = {
    "BatchSizeActuator": "actuators",
    "BatchSizeAdapter": "actuators",
    "BatchSizeScheduler": "callback",
    "Characterization": "characterization",
    "GradientMeter": "meter",
    "InPlaceActuator": "actuators",
    "ReloadActuator": "actuators",
    "StabilityProfile": "characterization",
    "calibrate": "characterization",
    "characterize": "baseline",
    "measure_throughput": "throughput",
    "steps_at": "schedule_clock",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch, when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Lists the names to come as well: help and completion show them."""
    return sorted({*globals(), *__all__})

"""Adaptive batch sizes for PyTorch Lightning.

Add `BatchSizeScheduler` to a Trainer's callbacks. At each epoch's end it asks a policy, such as `DEBA`, for the
batch size of the next one; `replay` asks another policy about a recorded run, which `read_history` reads.
`characterize` tells beforehand which thresholds suit a model, and whether to adapt at all. More policies are in
`lightning_deba.policies`.
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
    from lightning_deba.learning_rate import steps_at
    from lightning_deba.meter import GradientMeter
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
    "steps_at": "learning_rate",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return value

"""Adaptive batch sizes for PyTorch Lightning."""

from lightning_deba.actuators import BatchSizeActuator, BatchSizeAdapter, InPlaceActuator, ReloadActuator
from lightning_deba.callback import BatchSizeScheduler
from lightning_deba.meter import GradientMeter
from lightning_deba.policies import DEBA, BatchSizePolicy, Hold, Signals, replay, signals
from lightning_deba.records import Decision, EpochRecord, Grant, History, HistoryFile, read_history

__version__ = "0.1.0"

__all__ = [
    "DEBA",
    "BatchSizeActuator",
    "BatchSizeAdapter",
    "BatchSizePolicy",
    "BatchSizeScheduler",
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
    "read_history",
    "replay",
    "signals",
]

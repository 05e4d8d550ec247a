"""Adaptive batch sizes for PyTorch Lightning."""

from lightning_deba.policies import DEBA, BatchSizePolicy, Hold, Signals, replay, signals
from lightning_deba.records import Decision, EpochRecord, Grant, History, HistoryFile, read_history

__version__ = "0.1.0"

__all__ = [
    "DEBA",
    "BatchSizePolicy",
    "Decision",
    "EpochRecord",
    "Grant",
    "History",
    "HistoryFile",
    "Hold",
    "Signals",
    "read_history",
    "replay",
    "signals",
]

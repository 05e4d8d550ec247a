"""What a job notes while it trains: accuracies, processor seconds, the overhead, and the last epoch's checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import Profiler

from lightning_deba.callback import BatchSizeScheduler

__all__ = ["HookClock", "Watch", "metric_of"]


class HookClock(Profiler):
    """Adds up the processor seconds in the hooks of one callback: Lightning tells its profiler of each of them.

    Args:
        callback: Name of the callback's class.

    Attributes:
        seconds: The sum.
    """

    def __init__(self, callback: str) -> None:
        super().__init__()
        self._prefix = f"[Callback]{callback}."
        self._since = 0.0
        self.seconds = 0.0

    def start(self, action_name: str) -> None:
        """Starts at one of the hooks."""
        if action_name.startswith(self._prefix):
            self._since = time.process_time()

    def stop(self, action_name: str) -> None:
        """Stops after it."""
        if action_name.startswith(self._prefix):
            self.seconds += time.process_time() - self._since


class Watch(Callback):
    """Notes of each epoch the accuracy, and the processor seconds of training, which no other process adds to.

    Args:
        metric: Name of the accuracy among the metrics of the Trainer.

    Attributes:
        accuracies: The accuracy at each epoch's end.
        processor_seconds: Processor seconds of training in each epoch, validation not counted.
        hooks: To be the Trainer's profiler, so that the next is noted.
        callback_seconds: How many of all those seconds were spent in the hooks of `BatchSizeScheduler`.
    """

    CHECKPOINTS: ClassVar = ("last.ckpt", "trained.ckpt")
    """Names in the Trainer's directory: the checkpoint of the last whole epoch, and of the last of all."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.accuracies: list[float] = []
        self.processor_seconds: list[float] = []
        self.hooks = HookClock(BatchSizeScheduler.__qualname__)
        self.callback_seconds = 0.0
        self._hooks_before = 0.0
        self._spent = 0.0
        self._since = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._hooks_before = self.hooks.seconds
        self._spent, self._since = 0.0, time.process_time()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the clock."""
        self._spent += time.process_time() - self._since

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets the clock run again."""
        self._since = time.process_time()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes the epoch, before it is saved."""
        if len(self.accuracies) > trainer.current_epoch:
            return  # a resumed run comes through the end of a finished epoch once more
        self.processor_seconds.append(self._spent + time.process_time() - self._since)
        self.callback_seconds += self.hooks.seconds - self._hooks_before
        self.accuracies.append(metric_of(trainer.callback_metrics, self.metric))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Puts the last checkpoint aside: a test that is stopped needs no second training."""
        last, trained = (Path(trainer.default_root_dir) / name for name in self.CHECKPOINTS)
        if trainer.is_global_zero and last.exists():
            last.replace(trained)

    def state_dict(self) -> dict[str, Any]:
        """Returns what was noted."""
        names = ("accuracies", "processor_seconds", "callback_seconds")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what was noted."""
        self.accuracies = list(state_dict["accuracies"])
        self.processor_seconds = list(state_dict["processor_seconds"])
        self.callback_seconds = state_dict["callback_seconds"]


def metric_of(metrics: Mapping[str, Any], name: str) -> float:
    """Returns a logged metric as a plain number.

    Raises:
        ValueError: If it is not there.

    Example:
        >>> metric_of({"val/accuracy": 0.75}, "val/accuracy")
        0.75
    """
    if name not in metrics:
        raise ValueError(f"`metric`: the module logs no '{name}'; it logs {', '.join(sorted(metrics)) or 'nothing'}.")
    return round(float(metrics[name]), 6)  # 0.89 as a float of 32 bits would miss a target of 0.89

"""Plateau: a larger batch where a number has stopped improving."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from lightning_deba.policies.base import check, epochs_at_batch_size, is_whole, measured, scaled
from lightning_deba.records import Decision, EpochRecord, History


@dataclass(frozen=True, kw_only=True)
class Plateau:
    """Grows the batch when a measured number has stopped improving.

    What ``ReduceLROnPlateau`` is for the rate, and ``IncreaseBSOnPlateau`` of bs-scheduler for the batch size: after
    `patience` epochs in a row at one batch size without a new best, it grows by `factor`. The best is that of
    the whole run; the epochs are counted anew at each batch size.

    Args:
        monitor: Which number of a record to look at, such as "loss" or "gradient_norm".
        mode: Whether "min" or "max" is better.
        min_delta: Least change from the best that counts as an improvement, in the number's own unit.
        patience: Epochs without an improvement before an increase.
        factor: Factor of an increase.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Note:
        Records hold numbers of the training, so it looks at the training loss, not at the validation loss. An
        epoch whose number is missing or not finite is no evidence: it is not counted, and not acted on.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 32, 32, loss=loss) for t, loss in enumerate([2.0, 1.0, 1.0, 1.1])]
        >>> Plateau(patience=2)(run).batch_size, Plateau(patience=3)(run).batch_size
        (64, 32)
    """

    monitor: str = "loss"
    mode: Literal["min", "max"] = "min"
    min_delta: float = 1e-3
    patience: int = 5
    factor: float = 2.0

    def __post_init__(self) -> None:
        names = [field.name for field in fields(EpochRecord)]
        check(self, "monitor", self.monitor in names, f"one of the numbers of a record ({', '.join(names)})")
        check(self, "mode", self.mode in ("min", "max"), '"min" or "max"')
        check(self, "min_delta", 0 <= self.min_delta < math.inf, "0 or more, such as 0.001")
        check(self, "patience", is_whole(self.patience, 1), "at least 1 epoch")
        check(self, "factor", 1 < self.factor < math.inf, "above 1, such as 2")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size = history[-1].batch_size
        now = measured(history[-1], self.monitor)
        if isinstance(now, str):
            return Decision(size, f"hold: {now}")
        best, waited = self._best(history)
        word = self.monitor.replace("_", " ")
        evidence = (
            f"{word} {now[0]:.4g}, best {best:.4g}, {waited} of {self.patience} epochs at {size} without a better"
        )
        if waited < self.patience:
            return Decision(size, f"hold: {evidence}")
        return Decision(scaled(size, self.factor), f"increase: {evidence}")

    def _best(self, history: History) -> tuple[float, int]:
        """Returns the best number of the run, and how many epochs at the present batch size brought no better."""
        sign = 1 if self.mode == "min" else -1
        since = len(history) - epochs_at_batch_size(history)
        best, waited = math.inf, 0
        for index, record in enumerate(history):
            numbers = measured(record, self.monitor)
            if isinstance(numbers, str):
                continue
            if sign * numbers[0] < best - self.min_delta:
                best, waited = sign * numbers[0], 0
            elif index >= since:
                waited += 1
        return sign * best, waited

"""Another package's schedules as policies, to be compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_deba.policies.base import check
from lightning_deba.records import Decision, History

__all__ = ["BSScheduler"]


@dataclass(frozen=True, kw_only=True)
class BSScheduler:
    """Any scheduler of the package bs-scheduler: it decides, and this library changes the batch size.

    The scheduler itself is built and stepped over the whole history at each decision, so that it is a function of
    the history as every policy is, and resumes as they do.

    Args:
        kind: Name of a class of bs-scheduler, such as "StepBS" or "IncreaseBSOnPlateau".
        arguments: Its arguments after the loader. There is no data set to bound the size by, so `max_batch_size` is
            2048 where it is not given.

    Raises:
        ValueError: If there is no such class, before any training.
        ImportError: If bs-scheduler is not installed.

    Note:
        A scheduler that watches a metric is given the training loss, as records hold no other.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> policy = BSScheduler(kind="StepBS", arguments={"step_size": 2, "gamma": 2.0})
        >>> policy([EpochRecord(0, 32, 32)]).batch_size, policy([EpochRecord(t, 32, 32) for t in range(2)]).batch_size
        (32, 64)
    """

    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        package = _package()
        kinds = [name for name in dir(package) if name.endswith(("BS", "BSOnPlateau"))]
        check(self, "kind", self.kind in kinds, f"one of {', '.join(kinds)}")
        object.__setattr__(self, "arguments", dict(self.arguments))
        self._scheduler(16)  # its own complaints come now

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size, scheduler = history[-1].batch_size, self._scheduler(history[0].batch_size)
        for record in history:
            scheduler.step(metrics=math.nan if record.loss is None else record.loss)
        decided = int(scheduler.batch_size)
        word = "hold" if decided == size else "increase" if decided > size else "decrease"
        return Decision(decided, f"{word}: {self.kind} says {decided} after {len(history)} epochs")

    def _scheduler(self, first: int) -> Any:
        package = _package()

        class Manager(package.BatchSizeManager):  # type: ignore[name-defined,misc]
            """Holds the number that the scheduler changes."""

            batch_size = first

            def get_current_batch_size(self) -> int:
                return self.batch_size

            def set_batch_size(self, new_bs: int) -> None:
                self.batch_size = new_bs

        given = {"max_batch_size": 2048, **self.arguments}
        return getattr(package, self.kind)(None, batch_size_manager=Manager(), **given)


def _package() -> Any:
    try:
        import bs_scheduler  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("`BSScheduler` needs the package it is named after: pip install bs-scheduler") from error
    return bs_scheduler

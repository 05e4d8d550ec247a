"""Milestones: batch sizes by epoch or by samples seen, as one would write them down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from lightning_deba.policies.base import check, is_whole
from lightning_deba.records import Decision, History

_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_STEP = re.compile(r"(\d+(?:\.\d+)?)([KMBT]?):(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Milestones:
    """Goes to given batch sizes at given epochs, or after given numbers of samples.

    A milestone stands from its epoch, or its number of samples, until the next one. Batch sizes change
    between epochs, so one in samples comes into force at the first epoch that begins at or above it. The first
    epoch has the loader's own batch size, whatever a milestone at 0 says; that is gone to afterwards.

    It proposes a size once, when its milestone comes into force: where the bounds grant another one, that
    stays. `from_string` reads Megatron-LM's ``--step-batch-size-schedule``, and `from_accumulation` the mapping
    of Lightning's ``GradientAccumulationScheduler``. It looks at nothing measured but the number of samples.

    Args:
        epochs: Batch sizes by the epoch that they begin with.
        samples: Instead, batch sizes by the number of samples seen.

    Raises:
        ValueError: If there are both or neither, or a milestone makes no sense.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> policy = Milestones(epochs={0: 8, 10: 16})
        >>> policy([EpochRecord(8, 8, 8), EpochRecord(9, 8, 8)])
        Decision(batch_size=16, reason='increase: 16 from epoch 10 on', signals={})
        >>> Milestones.from_string("0:768 250B:1536").samples
        {0: 768, 250000000000: 1536}
        >>> Milestones.from_accumulation({0: 1, 4: 8}, batch_size=32).epochs
        {0: 32, 4: 256}
    """

    epochs: Mapping[int, int] | None = None
    samples: Mapping[int, int] | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.samples is None):
            raise ValueError(
                "Milestones takes either `epochs` or `samples`, "
                f"got {'neither' if self.epochs is None else 'both'}. Write Milestones(epochs={{0: 8, 10: 16}})."
            )
        name, steps = ("epochs", self.epochs) if self.samples is None else ("samples", self.samples)
        holds = isinstance(steps, Mapping) and bool(steps)
        holds = holds and all(is_whole(at, 0) and is_whole(size, 1) for at, size in (steps or {}).items())
        check(self, name, holds, "a mapping of whole numbers to batch sizes, such as {0: 8, 10: 16}")
        object.__setattr__(self, name, dict(sorted((steps or {}).items())))

    @classmethod
    def from_string(cls, schedule: str) -> Milestones:
        """Reads ``"0:768 250B:1536"``: batch sizes by samples seen; K, M, B and T stand for 1e3 to 1e12.

        Megatron-LM takes the numbers for tokens where it is told a sequence length; here they are samples.

        Raises:
            ValueError: If it cannot be read.
        """
        steps = [_STEP.fullmatch(step) for step in schedule.split()]
        samples = {int(Decimal(s[1]) * _SUFFIXES[s[2].upper()]): int(s[3]) for s in steps if s is not None}
        if not steps or len(samples) < len(steps):
            raise ValueError(
                f"`schedule` must be pairs of different numbers of samples and a batch size, got {schedule!r}. "
                'Write them as in "0:768 250B:1536".'
            )
        return cls(samples=samples)

    @classmethod
    def from_accumulation(cls, scheduling: Mapping[int, int], batch_size: int) -> Milestones:
        """Turns ``{epoch: micro-batches per step}`` into batch sizes.

        Args:
            scheduling: As in Lightning's ``GradientAccumulationScheduler``, which is not to run beside it.
            batch_size: Batch size without accumulation.

        Raises:
            ValueError: If a batch size is below 1.
        """
        return cls(epochs={epoch: batch_size * factor for epoch, factor in scheduling.items()})

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size, epoch = history[-1].batch_size, history[-1].epoch
        seen = sum(record.samples for record in history)
        if self.samples is None:
            steps, before, now, unit = self.epochs or {}, epoch, epoch + 1, "epoch {}"
        else:
            steps, before, now, unit = self.samples, seen - history[-1].samples, seen, "{} samples"
        begun = [at for at in steps if at <= now]
        coming = [at for at in steps if at > now]
        if not begun or (begun[-1] <= before and len(history) > 1):
            return Decision(size, f"hold until {unit.format(coming[0])}" if coming else "hold: no milestone is left")
        wanted = steps[begun[-1]]
        verb = "increase" if wanted > size else "decrease" if wanted < size else "hold"
        return Decision(wanted, f"{verb}: {wanted} from {unit.format(begun[-1])} on")

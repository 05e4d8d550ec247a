"""Where on its learning-rate schedule a run is: by samples, or by the gain of its steps, and not by their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig

__all__ = ["SampleClock", "ends_by_steps", "steps_at", "ticks_due"]

_ROUNDING = 1e-6  # of a tick, that many parts of one make it whole


def ends_by_steps(max_steps: int, max_epochs: int | None, steps_per_epoch: int | None) -> bool:
    """Tells whether a run ends by its number of steps, before it would by its epochs.

    Then a schedule in steps was sized for these, and not for samples.

    Args:
        max_steps: The Trainer's; -1 for no bound.
        max_epochs: The Trainer's; -1 or ``None`` for no bound.
        steps_per_epoch: Optimizer steps of an epoch at the first batch size; ``None`` where it is not known.

    Example:
        >>> ends_by_steps(20, 3, 8), ends_by_steps(24, 3, 8), ends_by_steps(-1, 3, 8)
        (True, False, False)
    """
    if max_steps == -1:
        return False
    by_epochs = (
        math.inf if max_epochs is None or max_epochs == -1 or steps_per_epoch is None else max_epochs * steps_per_epoch
    )
    return max_steps < by_epochs


def ticks_due(samples: int, reference: int, ticks_per_epoch: int | None, epoch_is_over: bool) -> int:
    """Counts the steps that the fixed-size run would have taken of an epoch by so many samples.

    Args:
        samples: Samples of this epoch up to now, over all ranks.
        reference: The batch size that the schedule was sized for.
        ticks_per_epoch: Steps of a whole epoch at that size; ``None`` where the loader has no length.
        epoch_is_over: Whether these are all samples of the epoch. Its last, partial step counts as a step.

    Example:
        >>> [ticks_due(samples, 8, 8, samples == 60) for samples in (16, 32, 48, 60)]
        [2, 4, 6, 8]
    """
    if ticks_per_epoch is None:
        return math.ceil(samples / reference) if epoch_is_over else samples // reference
    return ticks_per_epoch if epoch_is_over else min(samples // reference, ticks_per_epoch)


def steps_at(samples: int, batch_size: int, samples_per_epoch: int) -> int:
    """Turns a milestone, or the length of a warm-up, from samples into steps of a schedule.

    A schedule wants to be told in steps of the batch size that the run begins with; `SampleClock` sees to it that
    they come by samples. With N samples an epoch and the batch size B, n samples are

        floor(n / N) * ceil(N / B) + floor((n mod N) / B)

    steps: each epoch's last, partial step counts as a step, and a step that n falls into does not.

    Args:
        samples: Samples n from the beginning of the run, over all ranks.
        batch_size: The batch size B that the run begins with, in samples per optimizer step.
        samples_per_epoch: Samples N that an epoch draws, over all ranks; with ``drop_last``, those that it keeps.

    Raises:
        ValueError: If `samples` is negative, or one of the others below 1.

    Example:
        Of 60 samples at a batch size of 8, an epoch has 8 steps. So a warm-up over 100 samples, and a milestone
        after five epochs:

        >>> steps_at(100, batch_size=8, samples_per_epoch=60)
        13
        >>> steps_at(5 * 60, batch_size=8, samples_per_epoch=60)
        40
    """
    if samples < 0:
        raise ValueError(f"`samples` must be 0 or more, counted from the beginning of the run, got {samples}.")
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1 sample, got {batch_size}.")
    if samples_per_epoch < 1:
        raise ValueError(f"`samples_per_epoch` must be at least 1, got {samples_per_epoch}.")
    epochs, rest = divmod(samples, samples_per_epoch)
    return epochs * math.ceil(samples_per_epoch / batch_size) + rest // batch_size


class SampleClock:
    """Steps the learning-rate schedulers that count steps by samples instead.

    A schedule in steps was sized for one batch size. Here its step is a tick: `reference` samples. A step with
    twice the samples makes two ticks, one with half of them makes a tick every other time, and so the rate, as a
    function of samples, is that of the run with the fixed size, whatever the batch size does.

    Lightning steps a scheduler whose interval is "step" at every multiple of its frequency; here that is infinite, for
    as long as this clock runs. `ReduceLROnPlateau` and schedulers with "epoch" are right already, and left alone; so
    is one that another callback has taken out of the Trainer's list, as StochasticWeightAveraging does.

    A schedule is sized when the run begins, as by ``trainer.estimated_stepping_batches`` in
    ``configure_optimizers`` or by `steps_at`. That estimate is all epochs at the batch size of the present one: after
    a change it tells neither how many steps the run takes, nor how many ticks the schedule has. It is not asked here:
    the steps of an epoch are counted once, at the start, and kept in checkpoints.

    AdaScale's clock goes slower: a step with a batch k times as large makes not k ticks but its gain r of them, so the
    `pace` is r / k. A schedule by that clock ends later, after as many steps' worth of progress as it was sized for.

    Attributes:
        pace: Ticks for `reference` samples: 1 by samples, r / k by AdaScale's gain.

    Args:
        configs: The Trainer's ``lr_scheduler_configs``, its own list.
        reference: Samples of a tick: the batch size at which the run began.
        ticks_per_epoch: Optimizer steps of a whole epoch at that size; ``None`` where it is not known.
    """

    def __init__(self, configs: Sequence[LRSchedulerConfig], reference: int, ticks_per_epoch: int | None) -> None:
        self.reference = reference
        self.ticks_per_epoch = ticks_per_epoch
        self.pace = 1.0
        self.ticks = 0  # of the running epoch
        self._due = 0.0  # of the running epoch; what is more than `ticks` is a part of a tick
        self._left = 0.0  # of a tick, from the epoch before
        self._there = configs
        ours = [c for c in configs if c.interval == "step" and not c.reduce_on_plateau]
        self._configs = [(config, config.frequency) for config in ours]
        for config in ours:
            config.frequency = math.inf  # type: ignore[assignment]  # of which nothing but 0 is a multiple

    @property
    def schedulers(self) -> int:
        """How many schedulers it steps."""
        return len(self._configs)

    def advance(self, module: LightningModule, samples: int, epoch_is_over: bool) -> None:
        """Makes the ticks that are due after an optimizer step.

        Args:
            module: Its ``lr_scheduler_step`` is called, as Lightning does.
            samples: Samples of this epoch up to now, over all ranks.
            epoch_is_over: Whether the epoch's last batch is done.
        """
        self._due = self._left + self.pace * ticks_due(samples, self.reference, self.ticks_per_epoch, epoch_is_over)
        while self.ticks + 1 <= self._due + _ROUNDING:
            self.ticks += 1
            for config, frequency in self._configs:
                if self.ticks % frequency == 0 and any(config is other for other in self._there):
                    module.lr_scheduler_step(config.scheduler, None)
        if epoch_is_over:
            self.end_epoch()

    def end_epoch(self) -> None:
        """Begins to count anew; a part of a tick is kept."""
        self._due = self._left = max(0.0, self._due - self.ticks)
        self.ticks = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns plain numbers."""
        kept = {"reference": self.reference, "ticks_per_epoch": self.ticks_per_epoch, "ticks": self.ticks}
        return {**kept, "due": self._due, "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a `state_dict`: the schedule was sized when the run began."""
        self.reference, self.ticks_per_epoch = state["reference"], state["ticks_per_epoch"]
        self.ticks = state["ticks"]
        self._due, self._left = state.get("due", float(self.ticks)), state.get("left", 0.0)

    def remove(self) -> None:
        """Gives the schedulers back to Lightning."""
        for config, frequency in self._configs:
            config.frequency = frequency

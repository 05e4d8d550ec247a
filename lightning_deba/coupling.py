"""The learning rate and its schedules, as they follow the batch size through a fit."""

from __future__ import annotations

import math
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lightning_deba.learning_rate import BY_GAIN, LRScaling, ScaledSteps, adascale_gain, scaling_rule
from lightning_deba.policies.noise import noise_scale, noise_scale_above
from lightning_deba.records import History
from lightning_deba.schedule_clock import SampleClock, ends_by_steps

__all__ = ["Coupling", "ScheduleBy"]

ScheduleBy = Literal["samples", "gain", "steps"]
"""What a schedule in steps goes by."""


class Coupling:
    """Couples the optimizers of a fit, and their schedules, to the batch size.

    Between `begin` and `remove` the steps have the rate by `lr_scaling`, and the schedules go by `schedule_by`. Its
    state is that of the clock alone: the factor follows from the history.

    Args:
        lr_scaling: As of `BatchSizeScheduler`.
        scale_beta2: Likewise.
        schedule_by: Likewise.

    Raises:
        ValueError: If there is no such rule.
    """

    def __init__(self, lr_scaling: LRScaling, scale_beta2: bool, schedule_by: ScheduleBy) -> None:
        self._rule = self._by_gain if lr_scaling in BY_GAIN else scaling_rule(lr_scaling)
        self._scales = lr_scaling != "none" or scale_beta2
        self._lr_scaling, self._scale_beta2, self._schedule_by = lr_scaling, scale_beta2, schedule_by
        self._first = 1  # batch size of the run
        self._noise_scale: float | None = None
        self._steps: ScaledSteps | None = None
        self._clock: SampleClock | None = None
        self._clock_state: dict[str, Any] | None = None  # of a checkpoint, or of a fit that has ended

    def begin(
        self, trainer: Trainer, pl_module: LightningModule, batch_size: int, history: History, *, resumed: bool
    ) -> None:
        """Takes hold of the optimizers and the schedules.

        Args:
            trainer: A Trainer that is about to train.
            pl_module: Its module.
            batch_size: Of the epoch that begins, or goes on.
            history: The records of the epochs before it.
            resumed: Whether anything has been trained before.
        """
        self._first = history[0].batch_size if history else batch_size
        if self._scales:
            self._steps = ScaledSteps(trainer.optimizers, self._rule, self._scale_beta2)
        if self._schedule_by != "steps" and pl_module.automatic_optimization:
            self._clock = self._clock_for(trainer, resumed)
        self.follow(batch_size, history)

    def _clock_for(self, trainer: Trainer, resumed: bool) -> SampleClock | None:
        """Returns the clock for the schedules; none where the run began without, or its horizon is one of steps."""
        batches = trainer.num_training_batches
        steps = None if batches == float("inf") else math.ceil(batches / trainer.accumulate_grad_batches)
        if self._clock_state is None and (resumed or ends_by_steps(trainer.max_steps, trainer.max_epochs, steps)):
            return None
        clock = SampleClock(trainer.lr_scheduler_configs, self._first, steps)
        if self._clock_state is not None:
            clock.load_state_dict(self._clock_state)
        return clock

    def follow(self, batch_size: int, history: History) -> None:
        """Sets the factor and the clock's pace for an epoch.

        Args:
            batch_size: Of the epoch.
            history: The records of the epochs before it.
        """
        # The latest that is known holds on: an epoch of few steps measures nothing.
        last = next((t for t in range(len(history), 0, -1) if history[t - 1].gradient_covariance is not None), 0)
        found = noise_scale(history[:last]) if last else None
        if isinstance(found, str):
            found = noise_scale_above(history[:last])  # the gain is then that at least
        self._noise_scale = None if found is None else found.value
        ratio = batch_size / self._first
        if self._steps is not None:
            self._steps.ratio = ratio
        if self._clock is not None and self._schedule_by == "gain":
            self._clock.pace = self._gain(ratio) / ratio

    def _by_gain(self, ratio: float) -> float:
        return BY_GAIN[self._lr_scaling](self._gain(ratio))

    def _gain(self, ratio: float) -> float:
        return adascale_gain(ratio, self._noise_scale, self._first)

    @property
    def factor(self) -> float | None:
        """The factor of the learning rate; ``None`` where it has none."""
        return None if self._steps is None else self._steps.factor

    def rate(self, optimizer: Optimizer) -> float | Tensor:
        """Returns the learning rate that an optimizer steps with."""
        if self._steps is not None:
            return self._steps.effective(optimizer)
        rate: float | Tensor = optimizer.param_groups[0]["lr"]
        return rate

    def advance(self, pl_module: LightningModule, samples: int, epoch_is_over: bool) -> None:
        """Steps the schedules that are due, see `SampleClock.advance`."""
        if self._clock is not None:
            self._clock.advance(pl_module, samples, epoch_is_over)

    def end_epoch(self) -> None:
        """Begins a new epoch on the clock."""
        if self._clock is not None:
            self._clock.end_epoch()

    def remove(self) -> None:
        """Leaves optimizers and schedules as they were."""
        self._clock_state = self.state_dict()
        if self._steps is not None:
            self._steps.remove()
        if self._clock is not None:
            self._clock.remove()
        self._steps = self._clock = None

    def state_dict(self) -> dict[str, Any] | None:
        """Returns the clock's plain numbers, if there is one."""
        return self._clock_state if self._clock is None else self._clock.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Goes on from a `state_dict`, once it begins."""
        self._clock_state = state

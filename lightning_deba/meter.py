"""Meters: fed step by step, asked once an epoch. Their sums lie on the device; feeding never waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_deba.statistics import component_count, component_sum, squared_norm, total_type

__all__ = ["EpochMeasurement", "EpochMeter", "GradientMeans", "GradientMeter"]


class GradientMeans(NamedTuple):
    """Means over the optimizer steps that a `GradientMeter` has seen.

    Attributes:
        gradient_norm: Mean of ``||g||``; ``None`` where no step was measured.
        component_variance: Mean of the component variance; ``None`` where no step was measured.
        steps: Steps measured.
        skipped: Steps left out, since their gradient was not finite.
    """

    gradient_norm: float | None
    component_variance: float | None
    steps: int
    skipped: int


class GradientMeter:
    """Means of the gradient statistics over optimizer steps.

    `update` adds one step's numbers to six sums on the device, and neither copies the gradient nor waits for
    the device. A step whose gradient is not finite adds nothing but to the count of skipped steps.

    Args:
        mean_every: The mean of the components is read at each step of this many. It needs a second pass over
            the gradient, and in a real network it moves the component variance by about one part in a
            million: `statistics.component_variance` says why. 1 reads it at each step.

    Raises:
        ValueError: If `mean_every` is below 1.

    Example:
        >>> meter = GradientMeter()
        >>> meter.update([torch.tensor([3.0, 4.0])])
        >>> meter.update([torch.tensor([float("nan"), 0.0])])
        >>> meter.compute()
        GradientMeans(gradient_norm=5.0, component_variance=0.25, steps=1, skipped=1)
    """

    _SUMS = 6  # norms, mean squares, squared means, steps, steps whose mean was read, steps skipped

    def __init__(self, mean_every: int = 1) -> None:
        if mean_every < 1:
            raise ValueError(f"`mean_every` must be at least 1, got {mean_every}.")
        self.mean_every = mean_every
        self.reset()

    def reset(self) -> None:
        """Forgets all steps."""
        self._sums: Tensor | None = None
        self._updates = 0

    def update(self, gradients: Sequence[Tensor], scale: float | Tensor = 1.0, counts: bool = True) -> None:
        """Adds one optimizer step.

        Args:
            gradients: The gradient tensors of the step. None at all is no step.
            scale: What the gradients were multiplied by, such as the loss scale of mixed precision.
            counts: Whether the step enters the means. One that does not is read all the same: of a sharded
                gradient each rank reads a part, and they need not agree on which step is a whole one.
        """
        if not gradients:
            return
        n = component_count(gradients)
        squares = squared_norm(gradients) / scale**2
        one, zero = torch.ones_like(squares), torch.zeros_like(squares)
        mean, read = zero, zero
        if self._updates % self.mean_every == 0:
            mean, read = component_sum(gradients) / scale / n, one
        row = torch.stack([squares.sqrt(), squares / n, mean.square(), one, read, zero])
        skip = torch.stack([zero, zero, zero, zero, zero, one])
        self._updates += 1
        if counts:
            row = torch.where(row.isfinite().all(), row, skip)
            self._sums = row if self._sums is None else self._sums.to(row) + row

    @property
    def sums(self) -> Tensor:
        """The six sums, on the device; they may be added over ranks and handed to `means`."""
        return torch.zeros(self._SUMS, dtype=torch.float64) if self._sums is None else self._sums

    def compute(self) -> GradientMeans:
        """Returns the means since `reset`. This waits for the device, once."""
        return self.means(self.sums.tolist())

    @staticmethod
    def means(sums: Sequence[float]) -> GradientMeans:
        """Turns `sums`, of one rank or added over ranks, into means."""
        norms, mean_squares, squared_means, steps, read, skipped = sums
        if not steps:
            return GradientMeans(None, None, 0, int(skipped))
        # The first measured step may not be one whose mean was read.
        variance = mean_squares / steps - (squared_means / read if read else 0.0)
        return GradientMeans(norms / steps, max(0.0, variance), int(steps), int(skipped))

    def state_dict(self) -> dict[str, Any]:
        """Returns plain numbers."""
        return {"sums": self.sums.tolist(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a `state_dict`."""
        self._sums = torch.tensor(state["sums"], dtype=torch.float64)
        self._updates = state["updates"]


class EpochMeasurement(NamedTuple):
    """What an `EpochMeter` measured, over all ranks. The fields are those of `EpochRecord`."""

    optimizer_steps: int
    skipped_steps: int
    samples: int
    seconds: float
    loss: float | None
    gradient_norm: float | None
    component_variance: float | None
    learning_rate: float | None


class EpochMeter:
    """All that is measured in one training epoch: gradients, loss, samples, steps and time.

    Call `start`, then for each batch `count`, for each optimizer step `step` before it and, once the batch is
    done, `loss`; around what is not training, `pause` and `start`. `compute` reads it all at once.

    Args:
        mean_every: See `GradientMeter`.
        clock: Returns seconds; a parameter for tests.

    Example:
        >>> meter = EpochMeter()
        >>> for samples, loss in [(2, 1.0), (1, 4.0)]:
        ...     meter.count(samples)
        ...     meter.step([torch.ones(4)], full_step=2, learning_rate=0.1)
        ...     meter.loss(torch.tensor(loss), samples)
        >>> measured = meter.compute()
        >>> measured.samples, measured.loss, measured.optimizer_steps, measured.gradient_norm
        (3, 2.0, 2, 2.0)

    Attributes:
        whole: Whether the last step was one of as many samples as it should be.
    """

    def __init__(self, mean_every: int = 16, clock: Callable[[], float] = time.perf_counter) -> None:
        self.gradients = GradientMeter(mean_every)
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forgets the epoch."""
        self.gradients.reset()
        self.optimizer_steps = 0
        self.samples = 0
        self._samples_of_step = 0
        self.whole = True  # the last step; another one on the same samples is as whole
        self._losses: Tensor | None = None  # the sum of loss x samples, and the samples behind it
        self._learning_rate: float | Tensor | None = None
        self._seconds = 0.0
        self._started: float | None = None

    def start(self) -> None:
        """Lets the time run."""
        if self._started is None:
            self._started = self._clock()

    def pause(self) -> None:
        """Stops the time, as for a validation."""
        self._seconds = self.seconds
        self._started = None

    @property
    def seconds(self) -> float:
        """Seconds of training up to now."""
        return self._seconds + (0.0 if self._started is None else self._clock() - self._started)

    def count(self, samples: int) -> None:
        """Counts the samples of a micro-batch."""
        self.samples += samples
        self._samples_of_step += samples

    def step(
        self,
        gradients: Sequence[Tensor],
        full_step: int,
        scale: float | Tensor = 1.0,
        learning_rate: float | Tensor | None = None,
    ) -> None:
        """Measures an optimizer step, unless it is a partial one.

        Args:
            gradients: The gradient tensors of the step.
            full_step: Samples of a full step on this rank. The last step of an epoch may have fewer; its
                noisier gradient stays out of the means.
            scale: See `GradientMeter.update`.
            learning_rate: That of the step.
        """
        self.optimizer_steps += 1
        # One that is a tensor is changed in place by its schedule.
        self._learning_rate = learning_rate.clone() if isinstance(learning_rate, Tensor) else learning_rate
        if self._samples_of_step:
            self.whole = self._samples_of_step >= full_step
        self.gradients.update(gradients, scale, counts=self.whole)
        self._samples_of_step = 0

    def begin_step_again(self) -> None:
        """Takes back the samples of a step that was not completed, since they will come again."""
        self.samples -= self._samples_of_step
        self._samples_of_step = 0

    def go_on_with_ranks(self, before: int, now: int) -> None:
        """Takes this rank's share of what `before` ranks have measured, now that there are others."""
        self.samples = round(self.samples * before / now)
        if self._losses is not None:
            self._losses = self._losses * before / now

    def loss(self, loss: Tensor, samples: int) -> None:
        """Adds the mean loss of a micro-batch of so many samples; one of a single element may have any shape."""
        loss = loss.detach().to(total_type(loss.device)).mean()
        pair = torch.stack([loss * samples, torch.full_like(loss, samples)])
        self._losses = pair if self._losses is None else self._losses.to(pair) + pair

    def compute(self, add_over_ranks: Callable[[Tensor], Tensor] = lambda sums: sums) -> EpochMeasurement:
        """Reads the epoch. This waits for the device, once.

        Args:
            add_over_ranks: Adds up a vector over all ranks.
        """
        gradients = self.gradients.sums
        losses = torch.zeros(2) if self._losses is None else self._losses
        here = torch.tensor([self.samples, 1.0], dtype=gradients.dtype)
        sums = torch.cat([part.to(gradients) for part in (gradients, losses, here)])
        *of_gradients, loss, loss_samples, samples, ranks = add_over_ranks(sums).tolist()
        means = GradientMeter.means(of_gradients)
        return EpochMeasurement(
            optimizer_steps=self.optimizer_steps,
            skipped_steps=round(means.skipped / ranks),
            samples=int(samples),
            seconds=self.seconds,
            loss=loss / loss_samples if loss_samples else None,
            gradient_norm=means.gradient_norm,
            component_variance=means.component_variance,
            learning_rate=None if self._learning_rate is None else float(self._learning_rate),
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns plain numbers, so that an epoch cut off in the middle is measured as a whole."""
        return {
            "gradients": self.gradients.state_dict(),
            "optimizer_steps": self.optimizer_steps,
            "samples": self.samples,
            "samples_of_step": self._samples_of_step,
            "losses": None if self._losses is None else self._losses.tolist(),
            "learning_rate": None if self._learning_rate is None else float(self._learning_rate),
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a `state_dict`."""
        self.reset()
        self.gradients.load_state_dict(state["gradients"])
        self.optimizer_steps = state["optimizer_steps"]
        self.samples = state["samples"]
        self._samples_of_step = state["samples_of_step"]
        losses = state["losses"]
        self._losses = None if losses is None else torch.tensor(losses, dtype=torch.float64)
        self._learning_rate = state["learning_rate"]
        self._seconds = state["seconds"]

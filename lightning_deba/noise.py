"""Feeds the meter of the noise scale from a running fit: which gradients there are, and when."""

from __future__ import annotations

import math
from typing import Literal

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightning_deba import actuators
from lightning_deba.noise_meter import NoiseMode, NoiseScaleMeter

__all__ = ["NoiseScaleMode", "NoiseWatch", "mode_for"]

MEASUREMENTS = 16
"""How many an epoch should have, where it has the steps for it."""

NoiseScaleMode = Literal["auto"] | NoiseMode


def mode_for(trainer: Trainer) -> NoiseMode:
    """Chooses where two mean gradients over different numbers of samples come from, the least biased first.

    Ranks of DDP have gradients of their own before the all-reduce; those of sharded strategies have not. Micro-batches
    that are accumulated on one device do as well. Otherwise two consecutive steps are compared.
    """
    if isinstance(trainer.strategy, DDPStrategy) and actuators.data_ranks(trainer) > 1:
        return "ranks"
    if trainer.accumulate_grad_batches > 1 and trainer.world_size == 1:
        return "micro_batches"
    return "consecutive"


class NoiseWatch:
    """Feeds a `NoiseScaleMeter`, epoch by epoch, from one optimizer's gradients.

    Args:
        wanted: A mode, or "auto" for what `mode_for` chooses at each epoch's start.
        every: See `NoiseScaleMeter`. Left out, it is lower where an epoch has few steps.

    Attributes:
        meter: The running epoch's meter.
    """

    def __init__(self, wanted: NoiseScaleMode, every: int | None = None) -> None:
        self._wanted, self._every = wanted, every
        self.meter = NoiseScaleMeter("consecutive" if wanted == "auto" else wanted, every)
        self._handles: list[RemovableHandle] = []
        self._parameters: list[Tensor] = []
        self._local_samples = 0
        self._scale: float | Tensor = 1.0
        self._completes_step = False

    def begin(self, trainer: Trainer, optimizer: Optimizer, batch_size: int) -> None:
        """Prepares for an epoch; what an epoch that is gone on with has measured is kept."""
        mode = mode_for(trainer) if self._wanted == "auto" else self._wanted
        if mode == "ranks" and actuators.data_ranks(trainer) == 1:
            raise MisconfigurationException(
                '`noise_scale="ranks"` compares the gradients of several ranks, and there is one. Take "auto".'
            )
        if mode != self.meter.mode:
            before, self.meter = self.meter, NoiseScaleMeter(mode, self._every)
            self.meter.load_state_dict(before.state_dict())
        self._measure_often_enough(trainer)
        self.remove()
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._local_samples = batch_size // actuators.data_ranks(trainer)
        if mode == "ranks":
            for parameter in self._parameters:
                if parameter.requires_grad:
                    register = parameter.register_post_accumulate_grad_hook
                    self._handles.append(register(self._own_gradient))  # type: ignore[no-untyped-call]

    def _measure_often_enough(self, trainer: Trainer) -> None:
        """Measures more often in an epoch of few steps, or the estimate would have no error by its end."""
        if self._every is None:
            usual, batches = NoiseScaleMeter(self.meter.mode).every, trainer.num_training_batches
            steps = batches / trainer.accumulate_grad_batches
            self.meter.every = usual if math.isinf(batches) else max(2, min(usual, int(steps / MEASUREMENTS)))

    def before_backward(self, trainer: Trainer, batch_idx: int, scale: float | Tensor) -> None:
        """Notes what the gradients that are about to come are multiplied by, and whether they complete a step."""
        self._scale = scale
        self._completes_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch

    def _own_gradient(self, parameter: Tensor) -> None:
        """Tells a part of this rank's gradient, before it is averaged over ranks."""
        if self._completes_step and self.meter.measuring and parameter.grad is not None:
            self.meter.local([parameter.grad], self._local_samples, self._scale)

    def after_backward(self, trainer: Trainer, batch_idx: int) -> None:
        """Tells the sum of the accumulated micro-batches."""
        micro_batches = trainer.accumulate_grad_batches
        if micro_batches > 1 and self.meter.measuring:
            done = batch_idx % micro_batches + 1
            self.meter.accumulated(self._gradients, done, micro_batches, self._scale)

    def step(self, batch_size: int, scale: float | Tensor, counts: bool) -> None:
        """Tells the gradient of a step, before it is clipped."""
        self.meter.step(self._gradients, batch_size, scale, counts)

    @property
    def _gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self._parameters]

    def remove(self) -> None:
        """Leaves the parameters as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

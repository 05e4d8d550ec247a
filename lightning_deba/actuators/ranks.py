"""Ranks that hold different loaders are refused."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer

from lightning_deba.actuators.faces import BatchSizeActuator
from lightning_deba.actuators.internals import micro_batches_per_step


def check_ranks_agree(trainer: Trainer, actuator: BatchSizeActuator) -> None:
    """Refuses ranks whose loaders differ. Every rank has to call this.

    Gradients are averaged over ranks, not over samples, so ranks with other batch sizes would weigh their samples
    differently; and a rank with more batches than the others would wait for them forever.

    Args:
        trainer: A Trainer whose loaders are set up.
        actuator: The one that changes them.

    Raises:
        MisconfigurationException: If they differ, with the remedy.
    """
    if trainer.world_size == 1:
        return
    micro = actuator.batch_size(trainer) / micro_batches_per_step(trainer)
    here = [micro, trainer.num_training_batches, actuator.limits(trainer)[0].samples or 0]
    sizes, batches, samples = zip(*_gathered(trainer, here), strict=True)
    if len(set(sizes)) > 1:
        raise MisconfigurationException(
            f"The ranks' training loaders have different batch sizes: {_listed(sizes)}, from rank 0 on. Give every "
            "rank the same one: gradients are averaged over ranks, and samples would weigh differently."
        )
    if len(set(batches)) > 1 or len(set(samples)) > 1:
        raise MisconfigurationException(
            f"The ranks' training loaders have {_listed(batches)} batches and {_listed(samples)} samples, from rank 0 "
            "on. Give every rank as many samples as the others, as Lightning's `use_distributed_sampler=True` does: "
            "after a change of the batch size one rank would have a batch more, and wait for the others forever."
        )


def smallest_over_ranks(trainer: Trainer, number: float) -> float:
    """Returns the smallest of the ranks' numbers. Every rank has to call this.

    Args:
        trainer: A Trainer that runs.
        number: This rank's.
    """
    return number if trainer.world_size == 1 else min(_gathered(trainer, [number]))[0]


def mean_over_ranks(trainer: Trainer, number: float) -> float:
    """Returns the mean of the ranks' numbers. Every rank has to call this.

    Args:
        trainer: A Trainer that runs.
        number: This rank's.
    """
    if trainer.world_size == 1:
        return number
    return sum(there for (there,) in _gathered(trainer, [number])) / trainer.world_size


def _gathered(trainer: Trainer, here: list[float]) -> list[list[float]]:
    """Returns the numbers of every rank. A sum of rows is what every strategy can do."""
    device = trainer.strategy.root_device
    exact = torch.float32 if device.type == "mps" else torch.float64  # which that device does not have
    rows = torch.zeros(trainer.world_size, len(here), device=device, dtype=exact)
    rows[trainer.global_rank] = torch.tensor(here, dtype=exact)
    there = trainer.strategy.reduce(rows, reduce_op="sum")
    assert isinstance(there, torch.Tensor)
    gathered: list[list[float]] = there.tolist()
    return gathered


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)

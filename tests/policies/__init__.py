"""A run without a Trainer: measurements go in, and the batch size follows the decisions."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_deba.policies import BatchSizePolicy
from lightning_deba.records import Decision, EpochRecord

CONSTANT = (0.5, 2.0, 1e-8)
"""Loss, gradient norm and component variance of an epoch in which nothing changes."""


def live(
    policy: BatchSizePolicy, measurements: Iterable[tuple[float | None, float | None, float | None]], start: int = 32
) -> tuple[list[EpochRecord], list[Decision]]:
    """Returns the records and decisions of a run, of which 2048 is the largest batch size."""
    history: list[EpochRecord] = []
    decisions: list[Decision] = []
    for epoch, (loss, norm, variance) in enumerate(measurements):
        size = min(decisions[-1].batch_size, 2048) if decisions else start
        history.append(
            EpochRecord(epoch, size, size, loss=loss, gradient_norm=norm, component_variance=variance),
        )
        decisions.append(policy(tuple(history)))
    return history, decisions

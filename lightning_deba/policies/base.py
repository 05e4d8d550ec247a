"""What a policy is, the policy that never moves, and the replay of any policy against a history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lightning_deba.records import Decision, History


@runtime_checkable
class BatchSizePolicy(Protocol):
    """Any callable ``history -> Decision``.

    A policy is a pure function: the same history gives the same decision, whoever asks and how often. It
    keeps no counters; what it needs to remember is in the history (the window is ``history[-15:]``, the
    cooldown is how many trailing epochs have the present batch size). So a resumed run decides as an
    unbroken one, all ranks decide alike, and `replay` is exact.

    A policy proposes. Bounds, rounding and feasibility describe a machine and a data set, and belong to
    `lightning_deba.BatchSizeScheduler`.

    Example:
        >>> def double_every_third_epoch(history):
        ...     size = history[-1].batch_size
        ...     if len(history) % 3:
        ...         return Decision(size, "waiting for a third epoch")
        ...     return Decision(2 * size, "a third epoch is over")
        >>> isinstance(double_every_third_epoch, BatchSizePolicy)
        True
    """

    def __call__(self, history: History, /) -> Decision:
        """Decides the next epoch's batch size from the records up to now, of which there is at least one."""
        ...


@dataclass(frozen=True)
class Hold:
    """Never changes the batch size: the baseline, and the policy of a characterization pass.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> Hold()([EpochRecord(epoch=0, batch_size=64, micro_batch_size=64)]).batch_size
        64
    """

    def __call__(self, history: History, /) -> Decision:
        """Returns the present batch size."""
        return Decision(history[-1].batch_size, "fixed batch size")


def replay(policy: BatchSizePolicy, history: History) -> list[Decision]:
    """Tells what `policy` would have decided at the end of every epoch of a recorded run.

    The measurements are those of the recorded run, under the batch sizes it really had: a replay answers
    "when would other thresholds have moved?", not "what would training with them have given?". For the
    policy of the run itself it returns the run's own decisions.

    Args:
        policy: Any policy.
        history: The records of a run, in order.

    Returns:
        One decision an epoch.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(epoch=epoch, batch_size=64, micro_batch_size=64) for epoch in range(3)]
        >>> [decision.batch_size for decision in replay(Hold(), run)]
        [64, 64, 64]
    """
    return [policy(history[: end + 1]) for end in range(len(history))]


def epochs_at_batch_size(history: History) -> int:
    """Counts the trailing epochs that have the last record's batch size.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> epochs_at_batch_size([EpochRecord(t, size, size) for t, size in enumerate([32, 64, 32, 32])])
        2
    """
    batch_size = history[-1].batch_size
    count = 0
    for record in reversed(history):
        if record.batch_size != batch_size:
            break
        count += 1
    return count

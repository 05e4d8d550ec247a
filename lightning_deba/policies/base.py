"""What a policy is, the policy that never moves, and the replay of any policy against a history."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lightning_deba.records import Decision, EpochRecord, History


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


def needs_noise_scale(policy: BatchSizePolicy) -> bool:
    """Whether a policy decides by the noise scale, which is only measured where somebody needs it.

    A policy says so by an attribute ``needs_noise_scale`` that is true.

    Example:
        >>> needs_noise_scale(Hold())
        False
    """
    return bool(getattr(policy, "needs_noise_scale", False))


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


def cooling(history: History, cooldown: int) -> str:
    """Says that the present batch size has not been kept for long enough; empty where it has.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> cooling([EpochRecord(0, 32, 32), EpochRecord(1, 48, 48)], cooldown=2)
        'hold in the cooldown (1 of 2 epochs at 48)'
    """
    waited = epochs_at_batch_size(history)
    if waited >= cooldown:
        return ""
    return f"hold in the cooldown ({waited} of {cooldown} epochs at {history[-1].batch_size})"


def scaled(batch_size: int, factor: float) -> int:
    """Multiplies a batch size: a factor other than 1 moves it by a sample at least, and never below 1.

    Example:
        >>> scaled(2, 1.1), scaled(100, 1.1), scaled(2, 0.9), scaled(1, 0.9)
        (3, 110, 1, 1)
    """
    if factor > 1:
        return max(batch_size + 1, round(batch_size * factor))
    return max(1, min(batch_size - 1, round(batch_size * factor))) if factor < 1 else batch_size


def measured(record: EpochRecord, *names: str) -> tuple[float, ...] | str:
    """Returns what was measured under these names, or a sentence on the first that is no finite number.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> measured(EpochRecord(3, 32, 32, loss=0.5), "loss"), measured(EpochRecord(3, 32, 32), "gradient_norm")
        ((0.5,), 'the gradient norm of epoch 3 was not measured')
    """
    values = tuple(getattr(record, name) for name in names)
    for name, value in zip(names, values, strict=True):
        if value is None:
            return f"the {name.replace('_', ' ')} of epoch {record.epoch} was not measured"
        if not math.isfinite(value):
            return f"the {name.replace('_', ' ')} of epoch {record.epoch} is {value}"
    return values


def within_band(ratio: float, band: float) -> bool:
    """Tells whether a ratio is so near to 1, up or down, that it calls for no change."""
    return 1 / (1 + band) <= ratio <= 1 + band


def check(policy: object, name: str, holds: bool, expected: str) -> None:
    """Refuses an argument that makes no rule.

    Raises:
        ValueError: If `holds` is false: names the argument, what was expected and what came.
    """
    if not holds:
        raise ValueError(f"`{name}` of {type(policy).__name__} must be {expected}, got {getattr(policy, name)!r}.")


def is_whole(value: object, least: int) -> bool:
    """Tells whether a value is a whole number of at least `least`."""
    return isinstance(value, int) and value >= least

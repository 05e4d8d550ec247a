"""Schedules: the batch size as a function of the epoch, whatever is measured.

Each is a factor on the first batch size of the run, by the number of epochs since its first record. The learning
rate is the user's affair. A size moves only when its schedule does, and the way that it does: where the bounds have
granted more than a rising schedule asks for, it waits for the schedule to catch up.

For whoever comes from bs-scheduler 1.0.2, whose sizes are those of one loader and whose limits are given to each
schedule (here ``min_batch_size`` and ``max_batch_size`` of the scheduler):

=================================  ==============================================================
bs-scheduler                       here
=================================  ==============================================================
LambdaBS                           any function ``history -> Decision`` is a policy
MultiplicativeBS                   likewise
StepBS                             `StepGrowth`
MultiStepBS                        `Milestones`, or `Seesaw` with the rate left as it is
ConstantBS                         `Milestones`
LinearBS                           `LinearGrowth`; downwards, `Milestones`
ExponentialBS                      `ExponentialGrowth`
SequentialBS                       a function that asks one policy or another
PolynomialBS                       `PolynomialGrowth`, a polynomial of the epoch
CosineAnnealingBS                  `CosineGrowth`, which stays at the end of its first half wave
ChainedBSScheduler                 `Chain`, whose factors are not multiplied
IncreaseBSOnPlateau                `Plateau`
CyclicBS                           `Cyclic`
CosineAnnealingBSWithWarmRestarts  `CosineGrowth` with ``restart=True``
OneCycleBS                         `OneCycle`
=================================  ==============================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lightning_deba.policies.base import check, is_whole
from lightning_deba.records import Decision, History


@dataclass(frozen=True, kw_only=True)
class StepGrowth:
    """Multiplies the batch size by `factor` every `every` epochs: ``factor ** floor(t / every)``.

    Args:
        every: Epochs between two increases.
        factor: Factor of an increase.
        largest: Largest batch size, in multiples of the first.

    Raises:
        ValueError: If an argument makes no schedule.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> StepGrowth(every=10)([EpochRecord(0, 32, 32), EpochRecord(9, 32, 32)]).batch_size
        64
    """

    every: int = 30
    factor: float = 2.0
    largest: float = 1024.0

    def __post_init__(self) -> None:
        check(self, "every", is_whole(self.every, 1), "a whole number of epochs, such as 30")
        _check_factor(self, "factor", self.factor)
        _check_factor(self, "largest", self.largest)

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        return _follow(history, lambda t: _power(self.factor, t // self.every, self.largest))


@dataclass(frozen=True, kw_only=True)
class ExponentialGrowth:
    """Multiplies the batch size by `factor` every epoch: ``factor ** t``.

    Args:
        factor: Factor of an epoch.
        largest: Largest batch size, in multiples of the first.

    Raises:
        ValueError: If an argument makes no schedule.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> ExponentialGrowth(factor=1.1)([EpochRecord(0, 10, 10)]).batch_size
        11
    """

    factor: float = 1.05
    largest: float = 1024.0

    def __post_init__(self) -> None:
        _check_factor(self, "factor", self.factor)
        _check_factor(self, "largest", self.largest)

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        return _follow(history, lambda t: _power(self.factor, t, self.largest))


@dataclass(frozen=True, kw_only=True)
class LinearGrowth:
    """Grows by equal amounts to `factor` times the first batch size: ``1 + (factor - 1) t / epochs``.

    Args:
        epochs: Epochs that the growth takes.
        factor: Batch size at its end, in multiples of the first.

    Raises:
        ValueError: If an argument makes no schedule.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> LinearGrowth(epochs=10, factor=6.0)([EpochRecord(0, 10, 10)]).batch_size
        15
    """

    epochs: int
    factor: float = 4.0

    def __post_init__(self) -> None:
        _check_epochs(self, self.epochs)
        _check_factor(self, "factor", self.factor)

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        return _follow(history, lambda t: _between(1, self.factor, min(1, t / self.epochs)))


@dataclass(frozen=True, kw_only=True)
class PolynomialGrowth:
    """Grows with a power of the epoch: ``1 + (factor - 1) (t / epochs) ** power``.

    Args:
        epochs: Epochs that the growth takes.
        factor: Batch size at its end, in multiples of the first.
        power: The power; above 1 it grows late, below 1 early.

    Raises:
        ValueError: If an argument makes no schedule.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> PolynomialGrowth(epochs=2, factor=5.0)([EpochRecord(0, 10, 10)]).batch_size
        20
    """

    epochs: int
    factor: float = 4.0
    power: float = 2.0

    def __post_init__(self) -> None:
        _check_epochs(self, self.epochs)
        _check_factor(self, "factor", self.factor)
        check(self, "power", 0 < self.power < math.inf, "positive, such as 2")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        return _follow(history, lambda t: _between(1, self.factor, min(1, t / self.epochs) ** self.power))


@dataclass(frozen=True, kw_only=True)
class CosineGrowth:
    """Grows along half a cosine: ``1 + (factor - 1) (1 - cos(pi t / epochs)) / 2``.

    The rising mirror of cosine annealing (SGDR, arXiv 1608.03983, equation 5).

    Args:
        epochs: Epochs that the growth takes.
        factor: Batch size at its end, in multiples of the first.
        restart: Whether it begins again with the first batch size afterwards.

    Raises:
        ValueError: If an argument makes no schedule.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> CosineGrowth(epochs=2, factor=3.0)([EpochRecord(0, 10, 10)]).batch_size
        20
    """

    epochs: int
    factor: float = 4.0
    restart: bool = False

    def __post_init__(self) -> None:
        _check_epochs(self, self.epochs)
        _check_factor(self, "factor", self.factor)

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        return _follow(history, self._factor)

    def _factor(self, t: int) -> float:
        done = t % (self.epochs + 1) if self.restart else min(t, self.epochs)
        return _between(1, self.factor, _half_wave(done / self.epochs))


@dataclass(frozen=True, kw_only=True)
class Cyclic:
    """Goes to `factor` times the first batch size and back, again and again, by equal amounts.

    The triangle of cyclical learning rates (Smith, arXiv 1506.01186), upside down where `factor` is below 1.

    Args:
        epochs: Epochs from one end to the other.
        factor: Batch size at the other end, in multiples of the first.

    Raises:
        ValueError: If an argument makes no schedule.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> Cyclic(epochs=2, factor=0.5)([EpochRecord(0, 40, 40)]).batch_size
        30
    """

    epochs: int
    factor: float = 4.0

    def __post_init__(self) -> None:
        _check_epochs(self, self.epochs)
        check(self, "factor", 0 < self.factor < math.inf and self.factor != 1, "positive and other than 1, such as 4")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        return _follow(history, self._factor)

    def _factor(self, t: int) -> float:
        phase = t % (2 * self.epochs) / self.epochs
        return _between(1, self.factor, min(phase, 2 - phase))


@dataclass(frozen=True, kw_only=True)
class OneCycle:
    """Shrinks the batch along half a cosine, then grows it along another.

    The one-cycle policy of learning rates (Smith and Topin, arXiv 1708.07120) for the batch size: where the
    rate would rise, the batch shrinks.

    Args:
        epochs: Epochs of the whole cycle.
        lowest: Batch size at the turn, in multiples of the first.
        highest: Batch size at the end, in multiples of the first.
        turn: Share of the epochs that the first part takes.

    Raises:
        ValueError: If an argument makes no schedule.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> policy = OneCycle(epochs=10, lowest=0.5, highest=4.0)
        >>> [policy([EpochRecord(0, 64, 64), EpochRecord(t, 64, 64)]).batch_size for t in (2, 9)]
        [32, 256]
    """

    epochs: int
    lowest: float = 0.5
    highest: float = 4.0
    turn: float = 0.3

    def __post_init__(self) -> None:
        _check_epochs(self, self.epochs)
        check(self, "lowest", 0 < self.lowest < 1, "between 0 and 1, such as 0.5")
        _check_factor(self, "highest", self.highest)
        check(self, "turn", 0 < self.turn < 1, "between 0 and 1, such as 0.3")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        return _follow(history, self._factor)

    def _factor(self, t: int) -> float:
        turn = self.turn * self.epochs
        if t <= turn:
            return _between(1, self.lowest, _half_wave(t / turn))
        return _between(self.lowest, self.highest, _half_wave(min(1, (t - turn) / (self.epochs - turn))))


def _follow(history: History, factor: Callable[[int], float]) -> Decision:
    """Moves from the present size towards that of the schedule, if the schedule moves that way."""
    first, now = history[0], history[-1]
    before, after = (
        max(1, round(first.batch_size * factor(epoch - first.epoch))) for epoch in (now.epoch, now.epoch + 1)
    )
    evidence = f"the schedule goes from {before} to {after} in epoch {now.epoch + 1}"
    if after > max(before, now.batch_size):
        return Decision(after, f"increase: {evidence}")
    if after < min(before, now.batch_size):
        return Decision(after, f"decrease: {evidence}")
    return Decision(now.batch_size, f"hold: {evidence}")


def _between(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


def _half_wave(share: float) -> float:
    """Rises from 0 to 1 along half a cosine."""
    return (1 - math.cos(math.pi * share)) / 2


def _power(factor: float, exponent: int, largest: float) -> float:
    """Returns the power, or `largest` where it is larger, without ever computing a number too large for a float."""
    return largest if exponent * math.log(factor) >= math.log(largest) else factor**exponent


def _check_epochs(policy: object, epochs: int) -> None:
    check(policy, "epochs", is_whole(epochs, 1), "a whole number of epochs, such as 50")


def _check_factor(policy: object, name: str, factor: float) -> None:
    check(policy, name, 1 < factor < math.inf, "above 1, such as 2")

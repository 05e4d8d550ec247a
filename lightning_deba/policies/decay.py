"""Policies that grow the batch where a learning-rate schedule would decay the rate, or along with it.

They change the batch size alone. What the rate does meanwhile is the user's schedule, and part of each method:
every docstring says which one to pair it with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_deba.policies.base import check, is_whole, scaled
from lightning_deba.records import Decision, History


@dataclass(frozen=True, kw_only=True)
class AdaBatch:
    """Doubles the batch every so many epochs (Devarakonda, Naumov and Garland, arXiv 1712.02029).

    The paper's rate decays at the same epochs by 0.75, where its fixed-batch baseline decays by 0.375 =
    0.75/2: the rate *per sample* falls alike. Pair it with ``StepLR(step_size=every, gamma=0.75)`` and no
    `lr_scaling`. It looks at nothing measured.

    Args:
        every: Epochs between two increases, which begin with the multiples of it.
        factor: Factor of an increase.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> AdaBatch()([EpochRecord(19, 128, 128)]).batch_size, AdaBatch()([EpochRecord(20, 256, 256)]).batch_size
        (256, 256)
    """

    every: int = 20
    factor: float = 2.0

    def __post_init__(self) -> None:
        check(self, "every", is_whole(self.every, 1), "a whole number of epochs, such as 20")
        check(self, "factor", 1 < self.factor < math.inf, "above 1, such as 2")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size, coming = history[-1].batch_size, history[-1].epoch + 1
        if coming % self.every:
            return Decision(size, f"hold until epoch {coming + self.every - coming % self.every}")
        return _grown(size, self.factor, f"epoch {coming} is a multiple of {self.every}")


@dataclass(frozen=True, kw_only=True)
class IncreaseInsteadOfDecay:
    """Grows the batch where the rate would decay (Smith, Kindermans, Ying and Le, arXiv 1711.00489).

    Where the rate would fall by `factor`, the batch grows by `factor`: the noise of training, ``g = rate
    (N/B - 1)`` for N samples an epoch, falls alike as long as B is far below N. So it grows until the next
    step would pass ``N/10``. From then on it holds and says so: the *rate* should decay at the milestones
    that are left, which is for the user's schedule to do.

    Args:
        epochs: The milestones: epochs that an increase begins with. The default is that of the paper's
            Wide ResNet on CIFAR-10.
        factor: Factor by which the rate would decay.
        largest_share: Largest batch size, as a share of an epoch's samples.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Note:
        It looks at nothing measured but the number of samples, and holds where there is none.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> policy = IncreaseInsteadOfDecay()
        >>> policy([EpochRecord(59, 128, 128, samples=50_000)]).batch_size
        640
        >>> policy([EpochRecord(159, 3200, 3200, samples=50_000)]).reason
        'hold: 3200 x 5 would pass 0.1 of the 50000 samples; decay the learning rate at the milestones from here on'
    """

    epochs: Sequence[int] = (60, 120, 160)
    factor: float = 5.0
    largest_share: float = 0.1

    def __post_init__(self) -> None:
        _check_milestones(self, self.epochs)
        check(self, "factor", 1 < self.factor < math.inf, "above 1, such as 5")
        check(self, "largest_share", 0 < self.largest_share <= 1, "above 0 and at most 1, such as 0.1")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size, coming = history[-1].batch_size, history[-1].epoch + 1
        samples = max(record.samples for record in history)
        if samples > 0 and size * self.factor > self.largest_share * samples:
            limit = f"{size} x {self.factor:g} would pass {self.largest_share:g} of the {samples} samples"
            return Decision(size, f"hold: {limit}; decay the learning rate at the milestones from here on")
        if coming not in self.epochs:
            return Decision(size, f"hold: epoch {coming} is no milestone")
        if not samples:
            return Decision(size, f"hold: epoch {coming} is a milestone, but the samples of an epoch are not known")
        return _grown(size, self.factor, f"epoch {coming} is a milestone")


@dataclass(frozen=True, kw_only=True)
class Seesaw:
    """Doubles the batch where a schedule would halve the rate (Meterez et al., arXiv 2510.14717).

    Where a cosine or step schedule would multiply the rate by 1/2, Seesaw multiplies it by ``1/sqrt(2)`` and
    doubles the batch; in general by ``1/sqrt(factor)`` and `factor`. It is made for Adam, and meant for batches
    below the critical size. Pair it with ``MultiStepLR(milestones=epochs, gamma=factor**-0.5)`` and no
    `lr_scaling`: with the rate left as it is, it is no Seesaw. It looks at nothing measured.

    Args:
        epochs: The milestones: epochs that an increase begins with.
        factor: Factor of an increase, by which the rate would decay.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> policy = Seesaw(epochs=(30, 45))
        >>> [policy([EpochRecord(epoch, 64, 64)]).batch_size for epoch in (28, 29, 30, 44)]
        [64, 128, 64, 128]
    """

    epochs: Sequence[int]
    factor: float = 2.0

    def __post_init__(self) -> None:
        _check_milestones(self, self.epochs)
        check(self, "factor", 1 < self.factor < math.inf, "above 1, such as 2")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size, coming = history[-1].batch_size, history[-1].epoch + 1
        if coming not in self.epochs:
            return Decision(size, f"hold: epoch {coming} is no milestone")
        return _grown(size, self.factor, f"epoch {coming} is a milestone")


def _grown(size: int, factor: float, why: str) -> Decision:
    return Decision(scaled(size, factor), f"increase: {why}, x{factor:g}")


def _check_milestones(policy: object, epochs: Sequence[int]) -> None:
    """Refuses milestones that are none, and keeps a copy of the others."""
    holds = isinstance(epochs, Sequence) and bool(epochs) and all(is_whole(epoch, 1) for epoch in epochs)
    check(policy, "epochs", holds, "one epoch or more after the first, such as [60, 120]")
    object.__setattr__(policy, "epochs", tuple(epochs))

"""CABS (Balles, Romero and Hennig, arXiv 1612.05086): the batch size coupled to the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lightning_deba.policies.base import check, cooling, measured, within_band
from lightning_deba.policies.noise import FEWEST_STEPS, largest_measured
from lightning_deba.records import Decision, History

_NEEDS = ("learning_rate", "loss", "gradient_covariance")


@dataclass(frozen=True, kw_only=True)
class CABS:
    """Couples the batch size to the learning rate (Balles, Romero and Hennig, arXiv 1612.05086).

    ::

        B = rate * tr(Sigma) / L

    Covariance and loss are averaged apart with exponentially decaying weights, as in the authors' code, but
    over epochs, and from the first epoch on. The bounds of the paper, 16 and 2048, are the scheduler's defaults.
    An epoch is left 8 steps, without which the covariance could not be measured, and the way back not be found.

    Args:
        decay: Weight of an epoch relative to the next one. The paper's 0.95 is per step.
        dead_band: Where the rule asks for less than this share more or less, the batch size is kept: a
            loader is not reloaded for a sample. The paper has none.
        cooldown: Epochs that a batch size is kept before the next decision.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Note:
        It is derived for plain SGD, and takes 0 for the least loss there is. A rate that follows the
        batch size (``lr_scaling`` other than "none") would feed it: leave the rate alone. It is not a
        noise-scale rule: it does not look at ``|G|^2``.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(0, 32, 32, loss=0.5, learning_rate=0.1, gradient_covariance=400.0)]
        >>> CABS()(run).batch_size
        80
    """

    needs_noise_scale: ClassVar[bool] = True

    decay: float = 0.95
    dead_band: float = 0.1
    cooldown: int = 1

    def __post_init__(self) -> None:
        check(self, "decay", 0 <= self.decay < 1, "at least 0 and below 1, such as 0.95")
        check(self, "dead_band", 0 <= self.dead_band < math.inf, "0 or more, such as 0.1")
        check(self, "cooldown", self.cooldown >= 0, "0 or more epochs")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size = history[-1].batch_size
        now = measured(history[-1], *_NEEDS)
        if isinstance(now, str):
            return Decision(size, f"hold: {now}")
        rate, loss, covariance = now[0], 0.0, 0.0
        for record in history:
            numbers = measured(record, *_NEEDS)
            if not isinstance(numbers, str):  # that the weights add up to 1 cancels in the ratio
                loss = self.decay * loss + numbers[1]
                covariance = self.decay * covariance + numbers[2]
        if not 0 < loss < math.inf:
            return Decision(size, "hold: the rule divides by the mean loss, which is not positive")
        wanted = rate * covariance / loss
        if not math.isfinite(wanted):
            return Decision(size, "hold: rate times covariance over loss is no finite number")
        signals = {"cabs_batch_size": wanted}
        evidence = f"rate {rate:.3g} x covariance over loss {covariance / loss:.4g} asks for {wanted:.4g}"
        if wanted > (most := max(size, largest_measured(history))):
            wanted = most
            evidence += (
                f", and more than {most:.4g} would leave an epoch less than {FEWEST_STEPS} steps to measure it on"
            )
        if waiting := cooling(history, self.cooldown):
            return Decision(size, f"{waiting}: {evidence}", signals)
        if within_band(wanted / size, self.dead_band):
            return Decision(size, f"hold: {evidence}, within {self.dead_band:.0%} of {size}", signals)
        proposed = max(1, round(wanted))
        verb = "increase" if proposed > size else "decrease" if proposed < size else "hold"
        return Decision(proposed, f"{verb}: {evidence}", signals)

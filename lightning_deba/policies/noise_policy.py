"""The policy that goes to the gradient noise scale (arXiv 1812.06162)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lightning_deba.policies.base import check, cooling, scaled, within_band
from lightning_deba.policies.noise import FEWEST_STEPS, WINDOW, check_window, largest_measured, noise_scale
from lightning_deba.records import Decision, History


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """Goes to a multiple of the noise scale (McCandlish et al., arXiv 1812.06162).

    ::

        B = target * B_s

    By the paper's equations in section 2.3, training takes ``1 + B_s/B`` times the fewest steps and
    ``1 + B/B_s`` times the fewest samples: at ``B = B_s``, twice both. A larger `target` saves steps, a
    smaller one samples. The paper only recommends the size; how to get there is ours: by `step` at most at a
    time, not at all within the dead band, and never so far that an epoch has less than 8 steps, without which the
    noise scale could not be measured, and the way back not be found.

    Args:
        target: The batch size to go to, in multiples of the noise scale.
        step: Largest factor of a change, up or down.
        dead_band: Where the target is less than this share above or below the batch size, it is kept.
        window: Number of records that the noise scale is averaged over; ``None`` for all of them.
        cooldown: Epochs that a batch size is kept before the next decision.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Note:
        B_s does not depend on the batch size, so the rule does not feed itself: on constant statistics it
        comes to rest. In most trainings B_s grows as the loss falls.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 32, 32, gradient_squared=1.0, gradient_covariance=500.0) for t in range(2)]
        >>> NoiseScale()(run).batch_size, NoiseScale(target=0.1)(run).batch_size
        (64, 50)
    """

    needs_noise_scale: ClassVar[bool] = True

    target: float = 1.0
    step: float = 2.0
    dead_band: float = 0.2
    window: int | None = WINDOW
    cooldown: int = 2

    def __post_init__(self) -> None:
        check(self, "target", 0 < self.target < math.inf, "positive, such as 1")
        check(self, "step", 1 < self.step < math.inf, "above 1, such as 2")
        check(self, "dead_band", 0 <= self.dead_band < math.inf, "0 or more, such as 0.2")
        check_window(self, self.window)
        check(self, "cooldown", self.cooldown >= 0, "0 or more epochs")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size = history[-1].batch_size
        found = noise_scale(history, self.window)
        if isinstance(found, str):
            return Decision(size, f"hold: {found}")
        wanted = self.target * found.value
        evidence = f"{found} asks for {wanted:.4g}"
        if wanted > (most := max(size, largest_measured(history))):
            wanted = most
            evidence += f", of which {most:.4g} leave an epoch {FEWEST_STEPS} steps to measure it on"
        if waiting := cooling(history, self.cooldown):
            return Decision(size, f"{waiting}: {evidence}", found.signals())
        if within_band(wanted / size, self.dead_band):
            return Decision(size, f"hold: {evidence}, within {self.dead_band:.0%} of {size}", found.signals())
        limit = scaled(size, self.step if wanted > size else 1 / self.step)
        proposed = limit if abs(wanted - size) >= abs(limit - size) else max(1, round(wanted))
        verb = "increase" if proposed > size else "decrease" if proposed < size else "hold"
        return Decision(proposed, f"{verb}: {evidence}", found.signals())

"""SimiGrad (Qin et al., NeurIPS 2021): how alike are the gradients of two halves of a batch?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lightning_deba.policies.base import check, cooling, scaled
from lightning_deba.policies.noise import FEWEST_STEPS, WINDOW, check_window, largest_measured, noise_scale
from lightning_deba.records import Decision, History


@dataclass(frozen=True, kw_only=True)
class SimiGrad:
    """Keeps the cosine between the gradients of two halves of a batch at a target (Qin et al., NeurIPS 2021).

    ::

        below the target: B x growth,   above it: B x shrink
        E cos = 1 / (1 + 2 B_s / B)     for two halves of B/2 samples each

    The paper compares the halves of each mini-batch and averages the last cosines. Here the expected
    cosine is computed from the noise scale, which needs no halves. It is at the target where
    ``B = 2 B_s target / (1 - target)``. An epoch is left 8 steps, without which there would be no noise scale, and no
    way back.

    Args:
        target: Cosine to keep. The default is that of the authors' script for CIFAR-10.
        growth: Factor of an increase.
        shrink: Factor of a decrease.
        window: Number of records that the noise scale is averaged over; ``None`` for all of them.
        cooldown: Epochs that a batch size is kept before the next decision.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Note:
        The paper moves at every decision, to and fro about the target. Here a change that would carry the
        cosine past the target is not made, so on constant statistics the batch size comes to rest within one
        step of it. The paper decides between steps, and scales the rate with ``sqrt(B/B_0)``: pair it with
        ``lr_scaling="sqrt"``.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 100, 100, gradient_squared=1.0, gradient_covariance=400.0) for t in range(2)]
        >>> SimiGrad(target=0.2)(run).batch_size, SimiGrad(target=0.05)(run).batch_size
        (110, 90)
    """

    needs_noise_scale: ClassVar[bool] = True

    target: float = 0.2
    growth: float = 1.1
    shrink: float = 0.9
    window: int | None = WINDOW
    cooldown: int = 1

    def __post_init__(self) -> None:
        check(self, "target", 0 < self.target < 1, "between 0 and 1, such as 0.2")
        check(self, "growth", 1 < self.growth < math.inf, "above 1, such as 1.1")
        check(self, "shrink", 0 < self.shrink < 1, "between 0 and 1, such as 0.9")
        check_window(self, self.window)
        check(self, "cooldown", self.cooldown >= 0, "0 or more epochs")

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size = history[-1].batch_size
        found = noise_scale(history, self.window)
        if isinstance(found, str):
            return Decision(size, f"hold: {found}")
        now = expected_cosine(size, found.value)
        signals = {**found.signals(), "cosine": now}
        evidence = f"the cosine of two halves is {now:.3f}, the target {self.target:g}, {found}"
        if waiting := cooling(history, self.cooldown):
            return Decision(size, f"{waiting}: {evidence}", signals)
        larger, smaller = scaled(size, self.growth), scaled(size, self.shrink)
        if expected_cosine(larger, found.value) <= self.target:
            if larger > largest_measured(history):
                evidence += f", and {larger} would leave an epoch less than {FEWEST_STEPS} steps to measure it on"
                return Decision(size, f"hold: {evidence}", signals)
            return Decision(larger, f"increase: {evidence}", signals)
        if smaller < size and expected_cosine(smaller, found.value) >= self.target:
            return Decision(smaller, f"decrease: {evidence}", signals)
        return Decision(size, f"hold, a step would pass the target: {evidence}", signals)


def expected_cosine(batch_size: int, noise_scale: float) -> float:
    """Returns the expected cosine between the gradients of two halves of a batch: ``1 / (1 + 2 B_s / B)``.

    It is the ratio of the expectations ``|G|^2`` and ``|G|^2 + 2 tr(Sigma)/B``, which the expectation of the
    ratio comes near to where there are many parameters.

    Example:
        >>> expected_cosine(100, noise_scale=50.0)
        0.5
    """
    return 1 / (1 + 2 * noise_scale / batch_size)

"""DiveBatch (arXiv 2509.16173): the more diverse the gradients, the larger the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lightning_deba.policies.base import check, is_whole
from lightning_deba.policies.noise import WINDOW, check_window, noise_scale
from lightning_deba.records import Decision, History


@dataclass(frozen=True, kw_only=True)
class DiveBatch:
    """Grows the batch with the diversity of the gradients (Chen, Wang and Sundaram, arXiv 2509.16173).

    ::

        every `every` epochs:  B <- max(B, delta n Delta)
        Delta = sum_i |g_i|^2 / |sum_i g_i|^2 = (1 + B_s) / n    over the n samples of an epoch

    The number of samples cancels: ``B <- max(B, delta (1 + B_s))``. The paper adds up per-sample gradients,
    while the parameters move; here the diversity comes from the noise scale. It grows only, and where the
    noise scale is undetermined it holds: no number that is not finite can carry it to the largest size.

    Args:
        delta: Share of the diversity that becomes the batch size.
        every: Epochs between two decisions, which fall on the multiples of it.
        window: Number of records that the noise scale is averaged over; ``None`` for all of them.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Note:
        The paper scales the rate with the batch size: pair it with ``lr_scaling="linear"``.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 32, 32, gradient_squared=1.0, gradient_covariance=999.0) for t in range(20)]
        >>> DiveBatch()(run).batch_size, DiveBatch()(run[:-1]).batch_size
        (100, 32)
    """

    needs_noise_scale: ClassVar[bool] = True

    delta: float = 0.1
    every: int = 20
    window: int | None = WINDOW

    def __post_init__(self) -> None:
        check(self, "delta", 0 < self.delta < math.inf, "positive, such as 0.1")
        check(self, "every", is_whole(self.every, 1), "a whole number of epochs, such as 20")
        check_window(self, self.window)

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        now = history[-1]
        size, coming = now.batch_size, now.epoch + 1
        if coming % self.every:
            return Decision(size, f"hold until epoch {coming + self.every - coming % self.every}")
        found = noise_scale(history, self.window)
        if isinstance(found, str):
            return Decision(size, f"hold: {found}")
        signals = found.signals()
        if now.samples > 0:
            signals["gradient_diversity"] = (1 + found.value) / now.samples
        wanted = self.delta * (1 + found.value)
        if not math.isfinite(wanted):
            return Decision(size, f"hold: {found}, of which {self.delta:g} is no finite number", signals)
        proposed = max(size, round(wanted))
        verb = "increase" if proposed > size else "hold"
        return Decision(proposed, f"{verb}: {found}, of which {self.delta:g} asks for {wanted:.4g}", signals)

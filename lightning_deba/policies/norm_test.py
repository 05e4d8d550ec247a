"""The norm test (Byrd et al., 2012; AdAdaGrad, arXiv 2402.11215): is the gradient good enough for a step?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lightning_deba.policies.base import check
from lightning_deba.policies.noise import WINDOW, check_window, noise_scale
from lightning_deba.records import Decision, History


@dataclass(frozen=True, kw_only=True)
class NormTest:
    """Grows the batch until the gradient's error is a given share of its norm.

    Byrd, Chin, Nocedal and Wu, "Sample size selection in optimization methods for machine learning", 2012,
    equation 3.9; with adaptive rates, AdAdaGrad (arXiv 2402.11215); with sharding, FSDP-Norm (arXiv 2412.21124)::

        if tr(Sigma) / b > eta^2 |G|^2:  b <- ceil(tr(Sigma) / (eta^2 |G|^2)),   that is B_s / eta^2

    It grows only, and in one step: so, where the noise scale has an error, to the lower end of its interval. Too small
    a batch is found out in the next epoch, and too large a one never.

    Args:
        eta: Largest error of the gradient as a share of its norm. The default is ours.
        window: Number of records that the noise scale is averaged over; ``None`` for all of them.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Note:
        In practice the papers put the gradient ``g_b`` of the batch for the true one. Its squared norm is too
        large by ``tr(Sigma)/b``, so they stop at ``B_s (1/eta^2 - 1)``. The estimate of ``|G|^2`` in the
        records has no such bias, and makes this the exact test. It is not the inner-product test.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 32, 32, gradient_squared=1.0, gradient_covariance=100.0) for t in range(2)]
        >>> NormTest(eta=0.5)(run).batch_size
        400
    """

    needs_noise_scale: ClassVar[bool] = True

    eta: float = 0.5
    window: int | None = WINDOW

    def __post_init__(self) -> None:
        check(self, "eta", 0 < self.eta < math.inf, "positive, such as 0.5")
        check_window(self, self.window)

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size = history[-1].batch_size
        found = noise_scale(history, self.window)
        if isinstance(found, str):
            return Decision(size, f"hold: {found}")
        error = math.sqrt(found.value / size)
        signals = {**found.signals(), "gradient_error": error}
        evidence = f"the gradient's error is {error:.3g} of its norm, {found}"
        wanted = found.lower / self.eta / self.eta
        if not math.isfinite(wanted):
            return Decision(size, f"hold: {evidence}, and no batch is large enough for {self.eta:g}", signals)
        if error <= self.eta:
            return Decision(size, f"hold: {evidence}, and {self.eta:g} is allowed", signals)
        if wanted <= size:
            return Decision(size, f"hold: {evidence}, above {self.eta:g}, though not for certain", signals)
        return Decision(math.ceil(wanted), f"increase: {evidence}, above {self.eta:g}", signals)

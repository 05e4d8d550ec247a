"""The gradient noise scale (arXiv 1812.06162): its estimate from the history, and the policy that goes to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from lightning_deba.policies.base import check, cooling, is_whole, measured, scaled
from lightning_deba.records import Decision, History

WINDOW = 5
"""Epochs that the noise scale is averaged over by default."""

_NEEDS = ("gradient_squared", "gradient_covariance")


class NoiseEstimate(NamedTuple):
    """The simple noise scale B_s over a window of epochs.

    Attributes:
        value: ``B_s = tr(Sigma) / |G|^2``, in samples.
        error: Its standard error, in samples.
        epochs: Number of epochs that it is from.
        bounded: Whether it is known from above; if not, `value` is only what it exceeds.
    """

    value: float
    error: float
    epochs: int
    bounded: bool = True

    @property
    def lower(self) -> float:
        """The lower end of the interval of two standard errors about B_s; at least 0."""
        return max(0.0, self.value - 2 * self.error)

    @property
    def upper(self) -> float:
        """The upper end of that interval; infinite where it is not known from above."""
        return self.value + 2 * self.error if self.bounded else math.inf

    def __str__(self) -> str:
        epochs = f"{self.epochs} epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        if not self.bounded:
            return f"noise scale above {self.value:.4g} ({epochs})"
        return f"noise scale {self.value:.4g} +- {self.error:.2g} ({epochs})"

    def signals(self) -> dict[str, float]:
        """Returns the estimate by name, for the `signals` of a decision."""
        if not self.bounded:
            return {"noise_scale_above": self.value}
        return {"noise_scale": self.value, "noise_scale_error": self.error}


def noise_scale(history: History, window: int | None = WINDOW) -> NoiseEstimate | str:
    """Estimates the simple noise scale (McCandlish et al., arXiv 1812.06162, section 2.2 and appendix A.1).

    ::

        B_s = mean(tr(Sigma)) / mean(|G|^2)

    Numerator and denominator are averaged apart over the last `window` records, of which those without both
    numbers are left out. Only then they are divided, and a numerator below 0, as chance gives where there
    is hardly any noise, counts as 0. The mean of the ratios would be biased, and infinite before long.

    Its standard error is that of a ratio of means over the window's records, or the one that their
    `noise_scale_error` gives where that is larger. Of a single record there is only the latter.

    It is *undetermined* where the mean of ``|G|^2`` is not above its own standard error, or where the error
    measured within the epochs is as large as the noise scale. No number would be right then, least of all
    infinity. The same holds where the epoch that has just ended was not measured: a decision needs
    something new.

    Args:
        history: The records up to the epoch that has just ended.
        window: Number of records; ``None`` for all of them.

    Returns:
        The estimate, or a sentence that says why there is none.

    Note:
        It is not the critical batch size, of which it is a proxy that leaves out the curvature, and it says
        nothing about momentum or about Adam.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 32, 32, gradient_squared=g, gradient_covariance=s)
        ...        for t, (g, s) in enumerate([(1.0, 90.0), (3.0, 310.0)])]
        >>> print(noise_scale(run))
        noise scale 100 +- 5 (2 epochs)
        >>> noise_scale(run[:1])
        'the noise scale of a single epoch has no error, without which it cannot be trusted'
    """
    now = measured(history[-1], *_NEEDS)
    if isinstance(now, str):
        return now
    recent = history if window is None else history[-window:]
    known = [(found, r.noise_scale_error) for r in recent if not isinstance(found := measured(r, *_NEEDS), str)]
    squares, covariances = [found[0] for found, _ in known], [found[1] for found, _ in known]
    count, within = len(known), _error_within(squares, [error for _, error in known])
    if count == 1 and within is None:
        return "the noise scale of a single epoch has no error, without which it cannot be trusted"

    square, covariance = sum(squares) / count, sum(covariances) / count
    spread = _standard_error([g - square for g in squares])
    if not spread < square < math.inf:
        return f"the noise scale is undetermined: |G|^2 is {square:.3g} +- {spread:.2g} over {count} epochs"
    if within is not None and within >= 1:
        return f"the noise scale is undetermined: its relative error is {within:.2g} over {count} epochs"
    value = max(0.0, covariance) / square
    residuals = [s - covariance - value * (g - square) for g, s in zip(squares, covariances, strict=True)]
    between = _standard_error(residuals) / square
    error = max(between, value * (within or 0.0))
    if not math.isfinite(value + error):
        return f"the noise scale is undetermined: tr(Sigma) is {covariance:.3g}, and |G|^2 {square:.3g}"
    return NoiseEstimate(value, error, count)


def noise_scale_above(history: History, window: int | None = WINDOW) -> NoiseEstimate | None:
    """Tells what the noise scale exceeds, where `noise_scale` finds it undetermined.

    ``|G|^2`` may be lost in its error, and yet be known from above: then the noise scale is known from below::

        B_s > (mean(tr(Sigma)) - 2 error) / (mean(|G|^2) + 2 error)

    So a batch far below the noise scale, which is where ``|G|^2`` is hardest to tell, can be seen to be that.

    Args:
        history: The records up to the epoch that has just ended.
        window: Number of records; ``None`` for all of them.

    Returns:
        An estimate that is not `bounded`; ``None`` of less than two epochs, or where nothing is known from below.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 16, 16, gradient_squared=g, gradient_covariance=400.0)
        ...        for t, g in enumerate([-1.0, 1.5])]
        >>> noise_scale(run)
        'the noise scale is undetermined: |G|^2 is 0.25 +- 1.2 over 2 epochs'
        >>> print(noise_scale_above(run))
        noise scale above 145.5 (2 epochs)
    """
    recent = history if window is None else history[-window:]
    known = [found for r in recent if not isinstance(found := measured(r, *_NEEDS), str)]
    if len(known) < 2 or isinstance(measured(history[-1], *_NEEDS), str):
        return None
    ends = []
    for column, sign in zip(zip(*known, strict=True), (1, -1), strict=True):
        mean = sum(column) / len(column)
        ends.append(mean + sign * 2 * _standard_error([value - mean for value in column]))
    above, below = ends
    if not 0 < above < math.inf or not 0 < below < math.inf:
        return None
    return NoiseEstimate(below / above, 0.0, len(known), bounded=False)


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """Goes to a multiple of the noise scale (McCandlish et al., arXiv 1812.06162).

    ::

        B = target * B_s

    By the paper's equations in section 2.3, training takes ``1 + B_s/B`` times the fewest steps and
    ``1 + B/B_s`` times the fewest samples: at ``B = B_s``, twice both. A larger `target` saves steps, a
    smaller one samples. The paper only recommends the size; how to get there is ours: by `step` at most at a
    time, and not at all within the dead band.

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
        if waiting := cooling(history, self.cooldown):
            return Decision(size, f"{waiting}: {evidence}", found.signals())
        if within_band(wanted / size, self.dead_band):
            return Decision(size, f"hold: {evidence}, within {self.dead_band:.0%} of {size}", found.signals())
        limit = scaled(size, self.step if wanted > size else 1 / self.step)
        proposed = limit if abs(wanted - size) >= abs(limit - size) else max(1, round(wanted))
        verb = "increase" if proposed > size else "decrease" if proposed < size else "hold"
        return Decision(proposed, f"{verb}: {evidence}", found.signals())


def within_band(ratio: float, band: float) -> bool:
    """Tells whether a ratio is so near to 1, up or down, that it calls for no change."""
    return 1 / (1 + band) <= ratio <= 1 + band


def check_window(policy: object, window: int | None) -> None:
    """Refuses a `window` of a policy that makes no rule."""
    check(policy, "window", window is None or is_whole(window, 1), "at least 1 epoch, or None for all epochs")


def _standard_error(deviations: list[float]) -> float:
    """Returns the standard error of a mean from the deviations about it; 0 for a single one."""
    count = len(deviations)
    return math.hypot(*deviations) / math.sqrt(count * (count - 1)) if count > 1 else 0.0


def _error_within(squares: list[float], errors: list[float | None]) -> float | None:
    """Returns the relative error that records measured within their epochs give to a mean, if all have one.

    It is nearly all that of ``|G|^2``, whose relative error is boundless where it is near 0 by chance, and whose
    absolute one is not: so each counts by its ``|G|^2``, ``hypot(e_i g_i) / |sum g_i|``.
    """
    known = [error for error in errors if error is not None and 0 <= error < math.inf]
    whole = abs(sum(squares))
    if len(known) < len(errors) or not whole:
        return None
    return math.hypot(*(error * square for error, square in zip(known, squares, strict=True))) / whole

"""The gradient noise scale (arXiv 1812.06162): its estimate from the history, and how well that is known."""

from __future__ import annotations

import math
from typing import NamedTuple

from lightning_deba.policies.base import check, is_whole, measured
from lightning_deba.records import EpochRecord, History

WINDOW = 5
"""Epochs that the noise scale is averaged over by default."""

FEWEST_STEPS = 8
"""Optimizer steps of an epoch that make four pairs: of fewer the noise scale has no error, and soon there is none."""

_NEEDS = ("gradient_squared", "gradient_covariance")


class NoiseEstimate(NamedTuple):
    """The simple noise scale B_s over a window of epochs.

    Attributes:
        value: ``B_s = tr(Sigma) / |G|^2``, in samples.
        error: Its standard error, in samples.
        epochs: Number of epochs that it is from.
        batch_size: Batch size at which it was measured, the mean over these.
        bounded: Whether it is known from above; if not, `value` is only what it exceeds.
    """

    value: float
    error: float
    epochs: int
    batch_size: float
    bounded: bool = True

    def interval(self, errors: float = 2.0) -> tuple[float, float]:
        """Returns the ends of the interval about B_s, in samples.

        What is measured is the share of the signal, ``B / (B_s + B)``: as a mean of many numbers it is its errors
        that lie evenly about it, and not those of B_s. So the interval is taken there::

            (B_s + B) / (1 +- errors * error / (B_s + B)) - B

        Far below the noise scale it reaches further up than down, and up to infinity where the share may be 0.

        Args:
            errors: Its half width, in standard errors.

        Example:
            >>> low, high = NoiseEstimate(value=1000.0, error=400.0, epochs=5, batch_size=16.0).interval()
            >>> round(low), round(high)
            (552, 4763)
        """
        if not self.bounded:
            return self.value, math.inf
        total = self.value + self.batch_size
        width = errors * self.error / total if total > 0 else 0.0
        low = total / (1 + width) - self.batch_size
        high = total / (1 - width) - self.batch_size if width < 1 else math.inf
        return max(0.0, low), high

    @property
    def lower(self) -> float:
        """The lower end of the interval of two standard errors."""
        return self.interval()[0]

    @property
    def upper(self) -> float:
        """The upper end of that interval; infinite where B_s is not known from above."""
        return self.interval()[1]

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


class _Epoch(NamedTuple):
    """What an epoch says: its mean squared gradient norm, |G|^2 + tr(Sigma) / B, parted in two.

    Attributes:
        signal: The share that is |G|^2.
        noise: The other share, times B: in samples, as tr(Sigma) / |G|^2 is.
        batch_size: B.
        error: The relative error of ``|G|^2 / tr(Sigma)``, if it was measured.
    """

    signal: float
    noise: float
    batch_size: int
    error: float | None


def noise_scale(history: History, window: int | None = WINDOW) -> NoiseEstimate | str:
    """Estimates the simple noise scale (McCandlish et al., arXiv 1812.06162, section 2.2 and appendix A.1).

    ::

        B_s = mean(tr(Sigma) / q) / mean(|G|^2 / q),    q = |G|^2 + tr(Sigma) / B

    Numerator and denominator are averaged apart over the last `window` records, of which those without both
    numbers are left out. Only then they are divided, and a numerator below 0, as chance gives where there
    is hardly any noise, counts as 0. The mean of the ratios would be biased, and infinite before long.

    Each epoch is taken in shares of its own mean squared gradient norm q, which is ours: the gradients of a first
    epoch are often ten times those of the next ones, and would else speak for all of the window.

    Its standard error is that of a ratio of means over the window's records, or the one that their
    `noise_scale_error` gives where that is larger. Of a single record there is only the latter.

    It is *undetermined* where the mean share of ``|G|^2`` is not above its own standard error. No number would be
    right then, least of all infinity. The same holds where the epoch that has just ended was not measured: a
    decision needs something new.

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
        ...        for t, (g, s) in enumerate([(10.0, 900.0), (0.3, 31.0)])]
        >>> print(noise_scale(run))
        noise scale 96.32 +- 6.6 (2 epochs)
        >>> noise_scale(run[:1])
        'the noise scale of a single epoch has no error, without which it cannot be trusted'
    """
    epochs = _epochs(history, window)
    if isinstance(epochs, str):
        return epochs
    count, within = len(epochs), _error_within(epochs)
    if count == 1 and within is None:
        return "the noise scale of a single epoch has no error, without which it cannot be trusted"

    signal, noise, batch_size, spread = _means(epochs)
    if not spread < signal < math.inf:
        found = f"{signal:.1%} +- {spread:.1%}"
        return f"the noise scale is undetermined: |G|^2 is {found} of the squared gradient norm over {count} epochs"
    value = max(0.0, noise) / signal
    between = _standard_error([epoch.noise - noise - value * (epoch.signal - signal) for epoch in epochs])
    error = max(between, (value + batch_size) * (within or 0.0)) / signal
    if not math.isfinite(value + error):
        return f"the noise scale is undetermined: tr(Sigma) is {noise:.3g}, and |G|^2 {signal:.3g} of the squared norm"
    return NoiseEstimate(value, error, count, batch_size)


def noise_scale_above(history: History, window: int | None = WINDOW) -> NoiseEstimate | None:
    """Tells what the noise scale exceeds, where `noise_scale` finds it undetermined.

    The share of ``|G|^2`` may be lost in its error, and yet be known from above: then the noise scale is known from
    below. With `noise` and `signal` the two means that `noise_scale` divides::

        B_s > (noise - 2 error) / (signal + 2 error)

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
        'the noise scale is undetermined: |G|^2 is 0.7% +- 4.9% of the squared gradient norm over 2 epochs'
        >>> print(noise_scale_above(run))
        noise scale above 135.3 (2 epochs)
    """
    epochs = _epochs(history, window)
    if isinstance(epochs, str) or len(epochs) < 2:
        return None
    signal, noise, batch_size, spread = _means(epochs)
    highest, least = signal + 2 * spread, noise - 2 * _standard_error([epoch.noise - noise for epoch in epochs])
    if not 0 < highest < math.inf or not 0 < least < math.inf:
        return None
    return NoiseEstimate(least / highest, 0.0, len(epochs), batch_size, bounded=False)


def _epochs(history: History, window: int | None) -> list[_Epoch] | str:
    """Returns what the records of the window say, or a sentence on why the last one says nothing."""
    recent = history if window is None else history[-window:]
    found = [_epoch(record) for record in recent]
    if isinstance(found[-1], str):
        return found[-1]
    return [epoch for epoch in found if not isinstance(epoch, str)]


def _epoch(record: EpochRecord) -> _Epoch | str:
    known = measured(record, *_NEEDS)
    if isinstance(known, str):
        return known
    square, covariance = known
    whole = square + covariance / record.batch_size
    signal, noise = (square / whole, covariance / whole) if whole > 0 else (math.nan, math.nan)
    if not math.isfinite(signal + noise):
        return (
            "the noise scale is undetermined: |G|^2 + tr(Sigma) / B, the mean of a squared norm, is "
            f"{whole:.3g} in epoch {record.epoch}"
        )
    return _Epoch(signal, noise, record.batch_size, record.noise_scale_error)


def largest_measured(history: History) -> float:
    """Returns the largest batch size that leaves an epoch the whole steps that its noise scale is measured on.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> largest_measured([EpochRecord(0, 16, 16, samples=810)])
        101
    """
    samples = history[-1].samples
    return samples // FEWEST_STEPS if samples > 0 else math.inf


def check_window(policy: object, window: int | None) -> None:
    """Refuses a `window` of a policy that makes no rule."""
    check(policy, "window", window is None or is_whole(window, 1), "at least 1 epoch, or None for all epochs")


def _means(epochs: list[_Epoch]) -> tuple[float, float, float, float]:
    """Returns the means of signal, noise and batch size, and the standard error of the first."""
    signal, noise, batch_size = (sum(column) / len(epochs) for column in list(zip(*epochs, strict=True))[:3])
    between = _standard_error([epoch.signal - signal for epoch in epochs])
    return signal, noise, batch_size, max(between, _error_within(epochs) or 0.0)


def _standard_error(deviations: list[float]) -> float:
    """Returns the standard error of a mean from the deviations about it; 0 for a single one."""
    count = len(deviations)
    return math.hypot(*deviations) / math.sqrt(count * (count - 1)) if count > 1 else 0.0


def _error_within(epochs: list[_Epoch]) -> float | None:
    """Returns the standard error that records measured within their epochs give to the mean share, if all have one.

    A share of ``f = 1 / (1 + tr(Sigma) / (|G|^2 B))`` is off by ``f (1 - f)`` times the relative error of the ratio.
    """
    errors = [
        error * epoch.signal * (1 - epoch.signal)
        for epoch in epochs
        if (error := epoch.error) is not None and 0 <= error < math.inf
    ]
    return math.hypot(*errors) / len(epochs) if len(errors) == len(epochs) else None

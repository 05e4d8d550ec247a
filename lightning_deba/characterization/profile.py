"""The stability profile: what the signals of training are like while the batch size is fixed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_deba.policies import Signals, signals
from lightning_deba.records import EpochRecord, History, from_columns, to_columns

__all__ = ["StabilityProfile", "correlation_time", "end_of_descent", "stability_score"]

WINDOW = 15
SHORTEST = 8
"""Epochs that a history must have: a few beyond the initial descent, or the quantiles are of nothing."""


@dataclass(frozen=True)
class StabilityProfile:
    """What one architecture is like under a fixed batch size, over one run or several seeds.

    Attributes:
        architecture: Name of the model, or empty.
        batch_size: The fixed batch size, in samples.
        histories: The records of each run.
        score: Stability score in (0, 1], the median over the runs; see `stability_score`.
        descent: Epochs of each run's initial descent, which the numbers below leave out; see `end_of_descent`.
        correlation_time: Epochs over which the component variance is correlated with itself, the median over the
            runs; see `correlation_time`.

    Note:
        It says how steady the signals of DEBA are, not how well the model learns, nor whether a larger batch is
        faster: for that there is the `ThroughputCurve`.

    Example:
        >>> run = [EpochRecord(t, 32, 32, loss=2 * 0.8**t, gradient_norm=0.9**t, component_variance=0.81**t)
        ...        for t in range(20)]
        >>> profile = StabilityProfile.from_history(run, architecture="toy")
        >>> round(profile.score, 2), profile.descent, len(profile.signals)
        (0.54, (5,), 15)
    """

    architecture: str
    batch_size: int
    histories: tuple[tuple[EpochRecord, ...], ...]
    score: float
    descent: tuple[int, ...]
    correlation_time: float

    @classmethod
    def from_history(cls, history: History, architecture: str = "") -> StabilityProfile:
        """Makes the profile of one run.

        Raises:
            ValueError: If the run is too short, its batch size changed, or too little of it was measured.
        """
        return cls.from_histories([history], architecture)

    @classmethod
    def from_histories(cls, histories: Sequence[History], architecture: str = "") -> StabilityProfile:
        """Makes the profile of several runs, such as those of several seeds. Epochs without numbers are left out.

        Raises:
            ValueError: If there is no run, a run is too short, a batch size changed, or too little was measured.
        """
        if not histories:
            raise ValueError("`histories` must hold at least one run, got none.")
        sizes = sorted({record.batch_size for history in histories for record in history})
        if len(sizes) > 1:
            raise ValueError(
                f"`histories` must be of one fixed batch size, got {', '.join(map(str, sizes))}. Characterize with the "
                "policy `Hold`."
            )
        measured = [_measured(history) for history in histories]
        return cls(
            architecture=architecture,
            batch_size=sizes[0],
            histories=tuple(measured),
            score=statistics.median(map(stability_score, measured)),
            descent=tuple(map(end_of_descent, measured)),
            correlation_time=statistics.median(map(correlation_time, measured)),
        )

    @property
    def signals(self) -> list[Signals]:
        """The signals of all epochs after the initial descent, of all runs."""
        return [found for run in self.signals_of_runs for found in run]

    @property
    def signals_of_runs(self) -> list[list[Signals]]:
        """The signals of all epochs after the initial descent, one list a run."""
        return [
            [found for end in range(max(descent, 1), len(run)) if isinstance(found := signals(run[: end + 1]), Signals)]
            for run, descent in zip(self.histories, self.descent, strict=True)
        ]

    @property
    def noise_scale(self) -> float | None:
        """The simple noise scale in samples, means over all epochs after the descent; ``None`` if not measured."""
        pairs = [
            (r.gradient_covariance, r.gradient_squared)
            for run, descent in zip(self.histories, self.descent, strict=True)
            for r in run[descent:]
            if r.gradient_covariance is not None and r.gradient_squared is not None
        ]
        below = sum(square for _, square in pairs)
        return sum(covariance for covariance, _ in pairs) / below if below > 0 else None

    def quantiles(self, *shares: float) -> dict[str, list[float]]:
        """Returns quantiles of each signal after the initial descent.

        Example:
            >>> run = [EpochRecord(t, 32, 32, loss=1.0, gradient_norm=1.0, component_variance=1.0) for t in range(9)]
            >>> StabilityProfile.from_history(run).quantiles(0.5)["confidence"]
            [1.0]
        """
        return {
            name: [quantile([getattr(found, name) for found in self.signals], share) for share in shares]
            for name in Signals._fields
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data, from which `from_dict` makes the profile anew."""
        return {
            "version": 1,
            "architecture": self.architecture,
            "histories": [to_columns(run) for run in self.histories],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StabilityProfile:
        """Reads what `to_dict` wrote; all that is derived is computed again.

        Raises:
            ValueError: If it is not a profile.
        """
        if data.get("version") != 1 or not isinstance(data.get("histories"), list):
            raise ValueError(f"a profile must have `version` 1 and `histories`, got {sorted(data)}")
        histories = [from_columns(EpochRecord, columns) for columns in data["histories"]]
        return cls.from_histories(histories, str(data.get("architecture", "")))


def stability_score(history: History, window: int = WINDOW) -> float:
    """Returns how steady the component variance is, in (0, 1].

    ``score = 1 / (1 + median over t of cv_t)``, ``cv_t`` being the robust coefficient of variation of the component
    variance inside the sliding window of `window` epochs that ends at t: ``1.4826 x median |s2 - m| / m`` with ``m``
    its median, which is the standard deviation over the mean where the numbers are normal. Windows of less than
    five epochs are left out. Of a signal that never moves the score is 1; where it varies by its own size, 1/2.

    Source: this project. The paper has a stability score, and its formula is not public.

    Note:
        The component variance is the squared norm but for a constant, so a norm that falls steadily lowers the
        score just as one that jumps about.

    Example:
        >>> stability_score([EpochRecord(t, 32, 32, component_variance=1e-8) for t in range(9)])
        1.0
    """
    variances = [r.component_variance for r in history if r.component_variance is not None]
    windows = [variances[max(0, end - window) : end] for end in range(min(5, len(variances)), len(variances) + 1)]
    return 1 / (1 + statistics.median(map(_robust_variation, windows)))


def end_of_descent(history: History) -> int:
    """Returns how many epochs the initial descent takes: until half of the loss's whole fall is done.

    The signals of these epochs are those of a network that finds its feet, and not of one that trains. At least 2,
    since a variation needs two epochs, and at most half of the run: a loss that falls to the very end, or not at
    all, has no descent that could be told from the rest.

    Example:
        >>> end_of_descent([EpochRecord(t, 32, 32, loss=loss) for t, loss in enumerate([4.0, 3.0, 1.5, 1.0, 0.0])])
        3
    """
    losses = [math.inf if r.loss is None else r.loss for r in history]
    halfway = (losses[0] + min(losses)) / 2
    reached = 1 + next(t for t, loss in enumerate(losses) if loss <= halfway)
    return max(2, min(reached, math.ceil(len(losses) / 2)))


def correlation_time(history: History) -> float:
    """Returns over how many epochs the component variance is correlated with itself.

    ``tau = 1 + 2 sum_k rho_k`` over the lags k before the first negative one, ``rho_k`` being the autocorrelation
    of the logarithm of the component variance after the descent, its straight-line trend taken off. 1 is no
    correlation.

    Example:
        >>> correlation_time([EpochRecord(t, 32, 32, loss=1.0, component_variance=1.0 + t % 2) for t in range(12)])
        1.0
    """
    values = [math.log(v) for r in history[end_of_descent(history) - 1 :] if (v := r.component_variance)]
    rest = _without_trend(values)
    power = sum(value * value for value in rest)
    if power < 1e-12 * max(1, len(rest)):
        return 1.0
    tau = 1.0
    for lag in range(1, len(rest) // 2):
        correlation = sum(one * other for one, other in zip(rest, rest[lag:], strict=False)) / power
        if correlation <= 0:
            break
        tau += 2 * correlation
    return tau


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the value below which a share of `values` lies, between neighbours by a straight line.

    Example:
        >>> quantile([4.0, 1.0, 2.0, 3.0], 0.5)
        2.5
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = ordered[math.floor(place)]
    return below + (place - math.floor(place)) * (ordered[math.ceil(place)] - below)


def _measured(history: History) -> tuple[EpochRecord, ...]:
    """Returns the epochs of a run in which everything was measured, once there are enough of them."""
    run = tuple(record for record in history if _is_measured(record))
    if len(run) < SHORTEST:
        lost = len(history) - len(run)
        why = f", and {lost} without a finite loss and gradient" if lost else ""
        raise ValueError(
            f"`history` must have at least {SHORTEST} epochs to say anything, got {len(run)}{why}. Train longer under "
            "the policy `Hold`."
        )
    return run


def _is_measured(record: EpochRecord) -> bool:
    values = (record.loss, record.gradient_norm, record.component_variance)
    return all(value is not None and math.isfinite(value) for value in values)


def _robust_variation(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return spread / middle if middle > 0 else 0.0


def _without_trend(values: Sequence[float]) -> list[float]:
    if len(values) < 3:
        return [0.0] * len(values)
    slope, intercept = statistics.linear_regression(range(len(values)), values)
    return [value - (intercept + slope * t) for t, value in enumerate(values)]

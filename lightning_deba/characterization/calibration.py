"""From a profile to the parameters of DEBA."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from lightning_deba.characterization.profile import StabilityProfile, quantile
from lightning_deba.policies import DEBA, BatchSizePolicy, Signals
from lightning_deba.records import History

__all__ = ["calibrate", "simulate", "threshold_intervals"]

SHARE = 0.5
"""Share of the epochs after the descent in which a calibrated rule finds calm under the fixed batch."""

_Thresholds = tuple[float, float]


def calibrate(profile: StabilityProfile, share: float = SHARE) -> DEBA:
    """Chooses DEBA's parameters so that it would grow in a stated share of the baseline's ordinary epochs.

    Both thresholds are the same quantile q of the signals after the initial descent: the confidence threshold that
    of the confidence, the stability threshold that of the larger of the two variations. q is the smallest at which
    at least `share` of these epochs lie at or below both thresholds. So ordinary noise up to q is held through,
    growth needs an epoch that is calm by both kinds of evidence, and a rollback one that is beyond q by both.

    The cooldown is twice the correlation time, at least the paper's 5 epochs: a decision should rest on signals that
    have forgotten the last one. The window is the paper's 15.

    Args:
        profile: Of a fixed batch size.
        share: Share of the epochs in which the rule grows, between 0 and 1.

    Returns:
        The policy. Its thresholds are rounded to three digits.

    Raises:
        ValueError: If `share` is no share.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 32, 32, loss=1.0 + 0.1 * (t % 2), gradient_norm=1.0 + 0.1 * (t % 3),
        ...                    component_variance=(1.0 + 0.1 * (t % 3)) ** 2) for t in range(30)]
        >>> calibrate(StabilityProfile.from_history(run)).cooldown
        5
    """
    if not 0 < share < 1:
        raise ValueError(f"`share` must be between 0 and 1, got {share}.")
    confidence, stability = _thresholds(profile.signals, share)
    return DEBA(
        confidence_threshold=_rounded_up(confidence),
        stability_threshold=_rounded_up(stability),
        cooldown=max(5, math.ceil(2 * profile.correlation_time)),
    )


def threshold_intervals(
    profile: StabilityProfile, share: float = SHARE, level: float = 0.9, resamples: int = 200
) -> dict[str, tuple[float, float]]:
    """Returns an interval for each threshold, by a bootstrap over runs, and over epochs within each.

    Args:
        profile: Of a fixed batch size.
        share: As in `calibrate`.
        level: Share of the resamples inside the interval.
        resamples: How many; the same ones each time.

    Returns:
        The lower and the upper end, by the threshold's name.

    Example:
        >>> from lightning_deba.presets import evidence
        >>> profile = evidence("resnet18").profile
        >>> low, high = threshold_intervals(profile, resamples=20)["confidence_threshold"]
        >>> low <= calibrate(profile).confidence_threshold <= high
        True
    """
    generator = random.Random(0)
    runs = profile.signals_of_runs
    found = []
    for _ in range(resamples):
        drawn = [generator.choice(runs) for _ in runs]
        found.append(_thresholds([signal for run in drawn for signal in generator.choices(run, k=len(run))], share))
    ends = (1 - level) / 2, (1 + level) / 2
    confidences, stabilities = zip(*found, strict=True)
    return {
        "confidence_threshold": (quantile(confidences, ends[0]), quantile(confidences, ends[1])),
        "stability_threshold": (quantile(stabilities, ends[0]), quantile(stabilities, ends[1])),
    }


def simulate(policy: BatchSizePolicy, history: History, bounds: tuple[int, int] = (1, 2048)) -> list[int]:
    """Tells which batch sizes a policy would go through, were the signals those of the fixed-batch run.

    Unlike `replay` it lets the decisions add up: each epoch has the size decided at the end of the one before, so
    that the cooldown runs. The measurements stay those of the recorded run, though a larger batch would have
    lowered the gradient norm.

    Args:
        policy: Any policy.
        history: The records of a run with a fixed batch size.
        bounds: Smallest and largest batch size.

    Returns:
        The batch size of each epoch.

    Example:
        >>> from lightning_deba import DEBA, EpochRecord
        >>> calm = [EpochRecord(t, 32, 32, loss=1.0, gradient_norm=1.0, component_variance=1.0) for t in range(6)]
        >>> simulate(DEBA(cooldown=2), calm)
        [32, 32, 48, 48, 72, 72]
    """
    lived: list[int] = []
    size = history[0].batch_size
    records = list(history)
    for end in range(len(records)):
        lived.append(size)
        records[end] = replace(records[end], batch_size=size, micro_batch_size=size)
        size = min(max(policy(records[: end + 1]).batch_size, bounds[0]), bounds[1])
    return lived


def _thresholds(found: Sequence[Signals], share: float) -> _Thresholds:
    """Returns the smallest quantiles, of one share for both, that `share` of the epochs lie below together."""
    pairs = [(s.confidence, max(s.gradient_norm_variation, s.loss_variation)) for s in found]
    confidences, variations = (sorted(column) for column in zip(*pairs, strict=True))
    # Ranks turn both signals into shares: the epoch whose larger rank is the one sought decides.
    larger = sorted(max(bisect_left(confidences, c), bisect_left(variations, v)) for c, v in pairs)
    place = larger[math.ceil(share * len(larger)) - 1]
    return confidences[place], variations[place]


def _rounded_up(value: float) -> float:
    """Rounds to three digits upwards: the epoch that sets a threshold must stay at or below it."""
    if value <= 0:
        return 1e-3
    scale = 10 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / scale + 1e-9) * scale:.6g}")

"""The verdict: is an adaptive batch size worth it here?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from lightning_deba.characterization.calibration import calibrate, simulate
from lightning_deba.characterization.profile import StabilityProfile
from lightning_deba.characterization.throughput import ThroughputCurve
from lightning_deba.policies import AdaBatch, BatchSizePolicy

__all__ = ["Verdict", "verdict"]

WORTH_IT = 0.10
"""Predicted share of time saved from which it is worth it."""
HARDLY = 0.05
"""And below which it is not: a measurement hardly tells it from nothing, and a point of accuracy outweighs it."""
STEADY = 0.5
"""Score below which the component variance varies by more than its own size, so that signals are mostly noise."""
BY_CLOCK = AdaBatch(every=5)
"""What a policy should be worth more than: it takes as long to grow as DEBA's cooldown, and looks at nothing."""


@dataclass(frozen=True)
class Verdict:
    """Whether to adapt the batch size, and why.

    Attributes:
        word: "adapt", "marginal" or "don't adapt".
        saving: Predicted share of the training time saved, at the same number of epochs.
        attainable: Share that the throughput curve makes attainable: the fastest size from the first epoch on.
        by_clock: Share that doubling the batch every 5 epochs would save, which needs no measurement.
        sizes: The batch sizes that the calibrated policy would go through, of the run with the median saving.
        reason: What is gained, in a sentence with numbers.
        risk: What may go wrong, likewise.
    """

    word: Literal["adapt", "marginal", "don't adapt"]
    saving: float
    attainable: float
    by_clock: float
    sizes: tuple[int, ...]
    reason: str
    risk: str


def verdict(
    profile: StabilityProfile,
    curve: ThroughputCurve,
    policy: BatchSizePolicy | None = None,
    bounds: tuple[int, int] = (16, 2048),
) -> Verdict:
    """Predicts what a policy would save, and says whether that is worth it.

    ``saving = 1 - sum_t s(B_t) / sum_t s(B_0)``, with ``B_t`` the sizes that the policy goes through on the profile's
    signals (`simulate`) and ``s(B)`` the seconds per sample of the throughput curve: all epochs have the same
    samples. The median over the profile's runs.

    Args:
        profile: Of a fixed batch size.
        curve: On the machine that will train.
        policy: By default the one calibrated from the profile.
        bounds: Smallest and largest batch size that the scheduler allows.

    Returns:
        "adapt" from a saving of 10 % on, "don't adapt" below 5 %, and "marginal" between them, and where the signals
        vary by more than their own size (a score below 0.5).

    Example:
        >>> from lightning_deba.presets import evidence
        >>> found = evidence("vit_tiny_patch16_224")
        >>> verdict(found.profile, found.curve).word
        "don't adapt"
    """
    policy = calibrate(profile) if policy is None else policy
    ceiling = min(bounds[1], (curve.ceiling or bounds[1] + 1) - 1)
    low, high = min(bounds[0], profile.batch_size), max(ceiling, profile.batch_size)
    runs = [simulate(policy, run, (low, high)) for run in profile.histories]
    savings = [_saving(sizes, curve) for sizes in runs]
    saving = statistics.median_low(savings)
    sizes = runs[savings.index(saving)]
    by_clock = _saving(simulate(BY_CLOCK, profile.histories[0], (low, high)), curve)
    fastest = min((*curve.seconds, profile.batch_size), key=curve.seconds_per_sample)
    attainable = 1 - 1 / curve.speedup(profile.batch_size, fastest)
    word: Literal["adapt", "marginal", "don't adapt"] = "marginal"
    if saving < HARDLY:
        word = "don't adapt"
    elif saving >= WORTH_IT and profile.score >= STEADY:
        word = "adapt"
    return Verdict(
        word=word,
        saving=saving,
        attainable=attainable,
        by_clock=by_clock,
        sizes=tuple(sizes),
        reason=_reason(profile, curve, saving, attainable, by_clock, sizes, fastest),
        risk=_risk(profile, savings),
    )


def _saving(sizes: list[int], curve: ThroughputCurve) -> float:
    return 1 - sum(map(curve.seconds_per_sample, sizes)) / (len(sizes) * curve.seconds_per_sample(sizes[0]))


def _reason(
    profile: StabilityProfile,
    curve: ThroughputCurve,
    saving: float,
    attainable: float,
    by_clock: float,
    sizes: list[int],
    fastest: int,
) -> str:
    if attainable < WORTH_IT:
        return (
            f"The throughput curve is {'' if attainable < HARDLY else 'nearly '}flat: no batch size from "
            f"{min(curve.seconds)} to {max(curve.seconds)} saves more than {max(attainable, 0):.0%} of an epoch's time "
            f"at {profile.batch_size}, so there is hardly any to gain; the calibrated policy would save {saving:.0%}."
        )
    back = f" and back to {sizes[-1]}" if sizes[-1] < max(sizes) else ""
    return (
        f"In {len(sizes)} epochs the calibrated policy would go from {sizes[0]} up to {max(sizes)}{back} and save "
        f"{saving:.0%} of the training time; a batch of {fastest} from the start would save {attainable:.0%}, and "
        f"one that doubles every {BY_CLOCK.every} epochs, with no eye on the gradient, {by_clock:.0%}."
    )


def _risk(profile: StabilityProfile, savings: list[float]) -> str:
    spread = f", and the saving is from {min(savings):.0%} to {max(savings):.0%} over its runs" if savings[1:] else ""
    if profile.score < STEADY:
        return (
            f"High: with a score of {profile.score:.2f} the gradient varies by more than its own size from epoch to "
            f"epoch, and what a threshold sees is mostly noise{spread}. Watch the accuracy."
        )
    return (
        f"Moderate: the score is {profile.score:.2f}{spread}. A larger batch takes fewer steps, and a learning rate "
        "that suits the small batch may then be too low."
    )

"""DEBA (arXiv 2511.03809): from three signals of an epoch to the batch size of the next."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

from lightning_deba.policies.base import check, cooling, is_whole, measured, scaled
from lightning_deba.records import Decision, History


class Signals(NamedTuple):
    """What DEBA derives from the history at the end of epoch t.

    Attributes:
        confidence: ``c_t = s2_t / median(s2 over the window, t included)``, s2 being the component
            variance. Above 1, the gradients are larger than lately; the paper reads it as noise.
        gradient_norm_variation: ``dN_t = |N_t - N_{t-1}| / N_{t-1}``, N being the gradient norm.
        loss_variation: ``dL_t = |L_t - L_{t-1}| / |L_{t-1}|``, L being the mean training loss.
    """

    confidence: float
    gradient_norm_variation: float
    loss_variation: float


def signals(history: History, window: int | None = 15) -> Signals | str:
    """Derives DEBA's three signals (arXiv 2511.03809) from the last `window` records.

    The paper adds eps = 1e-8 to each denominator. The component variance of a real network is itself 1e-7
    to 1e-8, so there it would pull the confidence down, and the more the larger the network. Here a
    denominator is only kept from being zero, and the signals do not change when all gradients are scaled.

    Records without a finite component variance are left out of the median.

    Args:
        history: The records up to epoch t.
        window: Number of records that the median is taken over; ``None`` for all of them.

    Returns:
        The signals, or a sentence that says why there are none.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(0, 32, 32, loss=2.0, gradient_norm=1.0, component_variance=1.0),
        ...        EpochRecord(1, 32, 32, loss=1.5, gradient_norm=2.0, component_variance=4.0)]
        >>> signals(run)
        Signals(confidence=1.6, gradient_norm_variation=1.0, loss_variation=0.25)
        >>> signals(run[:1])
        'a variation needs two epochs, and there is one'
    """
    if len(history) < 2:
        return "a variation needs two epochs, and there is one"
    names = ("component_variance", "gradient_norm", "loss")
    before, now = measured(history[-2], *names), measured(history[-1], *names)
    if isinstance(before, str):
        return before
    if isinstance(now, str):
        return now
    variance, norm, loss = now
    _, last_norm, last_loss = before
    recent = history if window is None else history[-window:]
    variances = [v for r in recent if (v := r.component_variance) is not None and math.isfinite(v)]
    return Signals(
        confidence=_ratio(variance, median(variances)),
        gradient_norm_variation=_ratio(abs(norm - last_norm), last_norm),
        loss_variation=_ratio(abs(loss - last_loss), abs(last_loss)),
    )


@dataclass(frozen=True, kw_only=True)
class DEBA:
    """Grows the batch while training is calm, and rolls back when it is not (arXiv 2511.03809).

    From the `signals` of the epoch that has just ended::

        noisy  = confidence > confidence_threshold
        stable = gradient_norm_variation < stability_threshold and loss_variation < stability_threshold

    ========  =====================  =====================  ===================
    rule      increase (x growth)    rollback (x rollback)  hold
    ========  =====================  =====================  ===================
    "calm"    not noisy, stable      noisy, not stable      the two disagree
    "noise"   noisy, stable          not noisy, not stable  the two disagree
    ========  =====================  =====================  ===================

    The paper's full decision table is not public. Known from it are the signals, both thresholds, the
    factors, the window and the cooldown. The two rules are ours: "calm" moves when both kinds of evidence
    agree, and is the default because it alone shows what the paper reports; "noise" grows when gradients
    are noisy, as methods built on the noise scale do.

    Args:
        confidence_threshold: Confidence above which the epoch counts as noisy. The paper calibrates it for
            each architecture; take it from a preset.
        stability_threshold: Variation below which gradients, and loss, count as stable. Likewise.
        growth: Factor of an increase.
        rollback: Factor of a rollback.
        window: Number of records for the median behind the confidence. ``None`` takes the full history,
            which the paper's ablation needs and finds worse.
        cooldown: Epochs that a batch size is kept before the next decision; the paper finds 5 or more
            essential. In 25 epochs 2 saves more time, and costs one of our two networks accuracy
            (``configs/compare/ablations.yaml``). The first batch size of a run is kept as long.
        rule: "calm" or "noise", see above.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Note:
        It is not a noise-scale method: its variance is over the components of one gradient, not over
        samples, and it is very nearly the squared norm divided by the number of parameters. A larger batch
        lowers both by itself, so "calm" partly feeds itself; the cooldown slows that down.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> calm = [EpochRecord(t, 32, 32, loss=1.0, gradient_norm=1.0, component_variance=1e-8)
        ...         for t in range(5)]
        >>> DEBA(confidence_threshold=1.05, stability_threshold=0.15)(calm).batch_size
        48
    """

    confidence_threshold: float = 1.0
    stability_threshold: float = 0.3
    growth: float = 1.5
    rollback: float = 0.8
    window: int | None = 15
    cooldown: int = 5
    rule: Literal["calm", "noise"] = "calm"

    def __post_init__(self) -> None:
        check(self, "confidence_threshold", self.confidence_threshold > 0, "positive")
        check(self, "stability_threshold", self.stability_threshold > 0, "positive")
        check(self, "growth", 1 < self.growth < math.inf, "above 1, such as 1.5")
        check(self, "rollback", 0 < self.rollback < 1, "between 0 and 1, such as 0.8")
        window_ok = self.window is None or is_whole(self.window, 2)
        check(self, "window", window_ok, "at least 2 epochs, or None for the full history")
        check(self, "cooldown", self.cooldown >= 0, "0 or more epochs")
        check(self, "rule", self.rule in ("calm", "noise"), '"calm" or "noise"')

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size = history[-1].batch_size
        found = signals(history, self.window)
        if isinstance(found, str):
            return Decision(size, f"hold: {found}")

        noisy = found.confidence > self.confidence_threshold
        stable_gradients = found.gradient_norm_variation < self.stability_threshold
        stable_loss = found.loss_variation < self.stability_threshold
        stable = stable_gradients and stable_loss
        favourable = noisy if self.rule == "noise" else not noisy

        evidence = (
            f"confidence {found.confidence:.3f} {'>' if noisy else '<='} {self.confidence_threshold:g}, "
            f"gradient-norm variation {found.gradient_norm_variation:.3f} "
            f"{'<' if stable_gradients else '>='} {self.stability_threshold:g}, "
            f"loss variation {found.loss_variation:.3f} "
            f"{'<' if stable_loss else '>='} {self.stability_threshold:g}"
        )
        if waiting := cooling(history, self.cooldown):
            proposed, verb = size, waiting
        elif favourable and stable:
            proposed, verb = scaled(size, self.growth), "increase"
        elif not favourable and not stable:
            proposed, verb = scaled(size, self.rollback), "rollback"
        else:
            proposed, verb = size, "hold, the evidence disagrees"
        return Decision(proposed, f"{verb}: {evidence}", found._asdict())


def _ratio(part: float, whole: float) -> float:
    """Divides, the divisor being kept from zero by the smallest normal float."""
    return part / max(whole, sys.float_info.min)

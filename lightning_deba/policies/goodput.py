"""Goodput (Pollux, OSDI 2021): the batch size at which training gets on fastest, by the clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, NamedTuple

from lightning_deba.policies.base import check, cooling, is_whole
from lightning_deba.policies.noise import (
    WINDOW,
    NoiseEstimate,
    check_window,
    largest_measured,
    noise_scale,
    noise_scale_above,
)
from lightning_deba.records import Decision, History

_LEVER = 1.2
"""Sizes that differ by less than this factor count as one: a slope between them would be made of noise."""
_FAR_BELOW = 8.0
"""At a size that many times below the noise scale, doubling it costs a tenth of an epoch's progress at most."""


class StepTime(NamedTuple):
    """How long an optimizer step takes: ``overhead + per_sample * batch_size`` seconds."""

    overhead: float
    per_sample: float

    def throughput(self, batch_size: float) -> float:
        """Returns the samples per second at a batch size."""
        return batch_size / (self.overhead + self.per_sample * batch_size)

    def __str__(self) -> str:
        return f"step time {self.overhead * 1e3:.3g} ms + {self.per_sample * 1e3:.3g} ms a sample"


def step_times(history: History) -> list[tuple[float, float]]:
    """Returns samples and seconds of an optimizer step, once for each batch size that was timed.

    The samples are those that a step really had, partial ones included; both numbers are medians over the
    epochs at the size. The first of them, which pays for warming up, is left out where there are others.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> step_times([EpochRecord(0, 32, 32, optimizer_steps=10, samples=320, seconds=5.0)])
        [(32.0, 0.5)]
    """
    groups: dict[int, list[tuple[float, float]]] = {}
    for record in history:
        if record.optimizer_steps > 0 and 0 < record.seconds < math.inf:
            steps = record.optimizer_steps
            samples = record.samples / steps if record.samples > 0 else float(record.batch_size)
            groups.setdefault(record.batch_size, []).append((samples, record.seconds / steps))
    kept = (group[1:] or group for group in groups.values())
    return [(median(samples for samples, _ in group), median(seconds for _, seconds in group)) for group in kept]


def fit_step_time(points: list[tuple[float, float]]) -> StepTime | None:
    """Fits overhead and seconds per sample by least squares of the *relative* errors, neither of them below 0.

    Absolute errors would leave the small batch sizes, where the overhead shows, without a say.

    Args:
        points: Samples and seconds of a step, for each size.

    Returns:
        The fit, or ``None`` where the sizes are too few or too near to each other for a slope.

    Example:
        >>> print(fit_step_time([(32, 0.042), (64, 0.074)]))
        step time 10 ms + 1 ms a sample
    """
    sizes = [samples for samples, _ in points]
    if not points or max(sizes) < _LEVER * min(sizes):
        return None
    u, v = [1 / seconds for _, seconds in points], [samples / seconds for samples, seconds in points]
    uu, vv = sum(x * x for x in u), sum(x * x for x in v)
    uv = sum(x * y for x, y in zip(u, v, strict=True))
    determinant = uu * vv - uv * uv
    if not 0 < determinant < math.inf:
        return None
    overhead = (sum(u) * vv - sum(v) * uv) / determinant
    per_sample = (sum(v) * uu - sum(u) * uv) / determinant
    if overhead < 0:
        return StepTime(0.0, sum(v) / vv)
    if per_sample < 0:
        return StepTime(sum(u) / uu, 0.0)
    return StepTime(overhead, per_sample)


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Maximizes the goodput: samples per second times what a sample is worth (Qiao et al., Pollux, OSDI 2021).

    Sections 3.1 and 3.2 of the paper, B_0 being the first batch size, and B_s the noise scale::

        goodput(B) = throughput(B) * (B_s + B_0) / (B_s + B)
        throughput(B) = B / (a + b B)      fitted to the run's own seconds per step

    Candidates are the present size times powers of sqrt(2), from B_0 (below which the paper does not go) to `largest`
    times B_0, at most `max_jump` away, and small enough to leave an epoch 8 steps, without which the noise scale could
    not be measured. The best is taken if it gains `min_gain`. How sure is B_s? A larger size has to pay at the lower
    end of its interval, a smaller one at the upper end: so a jump goes no further than what is known carries it, and on
    constant statistics the policy comes to rest. Where B_s is only known to exceed a size (`noise_scale_above`), as
    with a batch far below it, that is the lower end.

    One size alone does not tell `a` from `b`. Then the batch is doubled once, where the lower end of B_s is at least
    the present size: that gains a third at least if all the time is overhead, and costs a third of one epoch's progress
    at most. Where that end is 8 times the present size it costs a tenth, and the larger size is looked at whatever the
    sizes so far tell: on a machine with other work two of them are soon too near to each other.

    Args:
        min_gain: Least gain for which the batch size is changed.
        max_jump: Largest factor of a change, up or down.
        largest: Largest batch size, in multiples of the first.
        window: Number of records that the noise scale is averaged over; ``None`` for all of them.
        cooldown: Epochs that a batch size is kept before the next decision. With 1, the first decision rests
            on an epoch that has paid for warming up, which makes large sizes look better than they are.
        throughput: Samples per second by batch size, measured beforehand. Replaces the run's own times.

    Raises:
        ValueError: If an argument makes no rule, before any training.

    Note:
        There is no threshold to calibrate. The paper scales the rate with AdaScale for this to hold;
        memory, generalization and the rest of a cluster are not in it.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 32, 32, gradient_squared=1.0, gradient_covariance=500.0) for t in range(2)]
        >>> policy = Goodput(throughput={32: 1000.0, 256: 4000.0})
        >>> policy(run).batch_size, f"{policy(run).signals['goodput_gain']:.0%}"
        (128, '137%')
    """

    needs_noise_scale: ClassVar[bool] = True

    min_gain: float = 0.05
    max_jump: float = 4.0
    largest: float = 64.0
    window: int | None = WINDOW
    cooldown: int = 1
    throughput: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        check(self, "min_gain", 0 < self.min_gain < math.inf, "positive, such as 0.05")
        check(self, "max_jump", 1.5 <= self.max_jump < math.inf, "at least 1.5, such as 4")
        check(self, "largest", 1 < self.largest < math.inf, "above 1, such as 64")
        check_window(self, self.window)
        check(self, "cooldown", self.cooldown >= 0, "0 or more epochs")
        if self.throughput is not None:
            holds = isinstance(self.throughput, Mapping)
            holds = holds and all(is_whole(size, 1) and 0 < rate < math.inf for size, rate in self.throughput.items())
            holds = holds and fit_step_time(self._given()) is not None
            expected = "samples per second by batch size, for two that differ or more, such as {32: 900.0, 256: 2000.0}"
            check(self, "throughput", holds, expected)
            object.__setattr__(self, "throughput", dict(self.throughput))

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size = history[-1].batch_size
        noise = noise_scale(history, self.window)
        if isinstance(noise, str):
            above = noise_scale_above(history, self.window)
            if above is None:
                return Decision(size, f"hold: {noise}")
            noise = above
        if waiting := cooling(history, self.cooldown):
            return Decision(size, f"{waiting}: {noise}", noise.signals())
        points = self._given() or step_times(history)
        if not points:
            return Decision(size, f"hold: no epoch was timed, {noise}", noise.signals())
        step_time, most = fit_step_time(points), min(self.largest * history[0].batch_size, largest_measured(history))
        decided = Decision(size, f"hold: step times at one size have no slope, {noise}", noise.signals())
        if step_time is not None:
            decided = self._best(history, noise, step_time, most)
        if decided.batch_size > size or self.throughput is not None:
            return decided
        far = noise.lower >= (size if step_time is None else _FAR_BELOW * size)
        return (_explore(history, noise, most) if far else None) or decided

    def _best(self, history: History, noise: NoiseEstimate, step_time: StepTime, most: float) -> Decision:
        size, first = history[-1].batch_size, history[0].batch_size
        low, high = noise.interval()

        def gain(candidate: int) -> float:
            scale = low if candidate > size else high
            faster = step_time.throughput(candidate) / step_time.throughput(size)
            return faster * (1.0 if math.isinf(scale) else (scale + size) / (scale + candidate)) - 1

        best = max(_candidates(size, self.max_jump, first, most), key=gain, default=size)
        signals = {
            **noise.signals(),
            "step_overhead": step_time.overhead,
            "seconds_per_sample": step_time.per_sample,
            "efficiency": (noise.value + first) / (noise.value + size),
            "goodput_gain": gain(best),
        }
        end = _end(low, "lower", noise) if best > size else _end(high, "upper", noise)
        evidence = f"{best} gains {gain(best):.1%} at {end}, {step_time}"
        if best == size or gain(best) < self.min_gain:
            return Decision(size, f"hold: {evidence}", signals)
        return Decision(best, f"{'increase' if best > size else 'decrease'}: {evidence}", signals)

    def _given(self) -> list[tuple[float, float]]:
        return [(size, size / rate) for size, rate in (self.throughput or {}).items()]


def _end(value: float, which: str, noise: NoiseEstimate) -> str:
    return f"{value:.4g}, the {which} end of {noise}"


def _candidates(size: int, max_jump: float, least: int, most: float) -> list[int]:
    """Returns the sizes within a jump, the nearest first."""
    rungs = math.floor(2 * math.log2(max_jump) + 1e-9)
    sizes = (round(size * 2 ** (sign * rung / 2)) for rung in range(1, rungs + 1) for sign in (1, -1))
    return [candidate for candidate in sizes if least <= candidate <= most and candidate != size]


def _explore(history: History, noise: NoiseEstimate, most: float) -> Decision | None:
    """Doubles the batch size where that was never timed."""
    size, low = history[-1].batch_size, noise.lower
    if 2 * size > most or 2 * size <= max(record.batch_size for record in history):
        return None
    cost = 1 - (low + size) / (low + 2 * size)
    reason = f"{2 * size} was never timed, and costs {cost:.0%} at most at {_end(low, 'lower', noise)}"
    return Decision(2 * size, f"increase to explore: {reason}", noise.signals())

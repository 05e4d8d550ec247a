"""Medians with bootstrap intervals, and what an interval says of a difference."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

__all__ = ["Interval", "interval_of_median", "verdict"]

DRAWS = 2000


class Interval(NamedTuple):
    """A value between two bounds."""

    value: float
    low: float
    high: float


def interval_of_median(values: Sequence[float], level: float = 0.9, draws: int = DRAWS) -> Interval:
    """Returns the median of some values and its bootstrap interval by percentiles, the same at every call.

    With three values the interval goes from the least to the greatest: so few runs do not say more. A single value has
    no interval, and its bounds are infinite.

    Args:
        values: One value a seed; infinite ones may be among them.
        level: Share of the resampled medians that the interval holds.
        draws: How many times the values are resampled; where there are no more ways to, each is taken once.

    Raises:
        ValueError: If there are no values, or one of them is no number.

    Example:
        >>> interval_of_median([3.0, 1.0, 2.0])
        Interval(value=2.0, low=1.0, high=3.0)
        >>> interval_of_median([3.0])
        Interval(value=3.0, low=-inf, high=inf)
    """
    if not values or any(math.isnan(value) for value in values):
        raise ValueError(f"`values` must be one number or more, got {list(values)}.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, such as 0.9, got {level}.")
    if len(values) == 1:
        return Interval(values[0], -math.inf, math.inf)
    ordered, count = sorted(values), len(values)
    medians = sorted(_middle(ordered[low], ordered[high]) for low, high in _middles(count, draws))
    cut = math.floor((1 - level) / 2 * len(medians))
    return Interval(_middle(ordered[(count - 1) // 2], ordered[count // 2]), medians[cut], medians[-1 - cut])


@lru_cache
def _middles(count: int, draws: int) -> list[tuple[int, int]]:
    """Returns which of `count` sorted values are in the middle of each resample; twice the same where it is one.

    All resamples where these are few, else so many at random.
    """
    places: Iterable[Sequence[int]] = product(range(count), repeat=count)
    if count**count > draws:
        generator = random.Random(0)
        places = (generator.choices(range(count), k=count) for _ in range(draws))
    return [(found[(count - 1) // 2], found[count // 2]) for found in map(sorted, places)]


def _middle(low: float, high: float) -> float:
    """Returns the mean of two; between minus and plus infinity there is none, and the lower one is taken."""
    return low if low == high or (math.isinf(low) and math.isinf(high)) else (low + high) / 2


def verdict(difference: Interval) -> str:
    """Names a difference: "more", "less", or "none" where its interval contains 0.

    Of few pairs it asks little: where there is no difference, n of them agree on a sign with a chance of `2**(1 - n)`,
    which for three is 25 %, and only for five is down to 6 %.

    Args:
        difference: Median of the paired differences, with its interval.

    Example:
        >>> verdict(Interval(0.02, 0.01, 0.03)), verdict(Interval(0.02, 0.0, 0.03))
        ('more', 'none')
    """
    if difference.low > 0:
        return "more"
    return "less" if difference.high < 0 else "none"

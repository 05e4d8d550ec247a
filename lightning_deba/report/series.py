"""What tables and figures are made of: running totals, changes and signals, derived from a history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeGuard

from lightning_deba.policies import signals
from lightning_deba.records import Grant, History

__all__ = [
    "changes",
    "clean",
    "count",
    "drawable",
    "duration",
    "samples_seen",
    "seconds_spent",
    "signal_series",
    "signal_thresholds",
]


def drawable(value: float | None) -> TypeGuard[float]:
    """Tells whether a value has a place in a figure: it is a number, and axes can hold it.

    Example:
        >>> [drawable(value) for value in (0.5, None, float("nan"), float("inf"), 1e300)]
        [True, False, False, False, False]
    """
    return value is not None and abs(value) < 1e30


def samples_seen(history: History) -> list[int]:
    """Returns the samples trained on up to the end of each epoch."""
    return list(accumulate(record.samples for record in history))


def seconds_spent(history: History) -> list[float]:
    """Returns the seconds trained up to the end of each epoch; a time that is no finite number adds none.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> seconds_spent([EpochRecord(t, 8, 8, seconds=s) for t, s in enumerate([2.0, float("nan"), 3.0])])
        [2.0, 2.0, 5.0]
    """
    return list(accumulate(r.seconds if drawable(r.seconds) else 0.0 for r in history))


def changes(history: History) -> list[int]:
    """Returns the positions at which training went on with another batch size than before.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> changes([EpochRecord(t, size, size) for t, size in enumerate([32, 32, 48, 48, 38])])
        [2, 4]
    """
    sizes = [record.batch_size for record in history]
    return [t for t in range(1, len(sizes)) if sizes[t] != sizes[t - 1]]


def signal_series(history: History, decisions: Sequence[Grant] = (), window: int | None = 15) -> dict[str, list[float]]:
    """Returns each signal by name, one value an epoch; ``nan`` where an epoch has none.

    They are those that the policy decided on, as the grants tell. Where no grant has any (a fixed batch
    size, say) they are DEBA's, derived anew, so that runs of different policies can be laid side by side.

    Args:
        history: The records of a run, in order.
        decisions: Its grants.
        window: Number of records for DEBA's median, where the signals are derived anew.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 8, 8, loss=1.0, gradient_norm=1.0, component_variance=1.0) for t in (0, 1)]
        >>> signal_series(run)["confidence"]
        [nan, 1.0]
        >>> signal_series(run, [Grant(1, 8, 8, "noise scale 40", signals={"noise_scale": 40.0})])
        {'noise_scale': [nan, 40.0]}
    """
    by_epoch: dict[int, Mapping[str, float]] = {grant.epoch: grant.signals for grant in decisions}
    if not any(by_epoch.values()):
        for end, record in enumerate(history, start=1):
            found = signals(history[:end], window)
            by_epoch[record.epoch] = {} if isinstance(found, str) else found._asdict()
    names = dict.fromkeys(name for found in by_epoch.values() for name in found)
    return {name: [by_epoch.get(r.epoch, {}).get(name, math.nan) for r in history] for name in names}


def signal_thresholds(parameters: Mapping[str, object]) -> dict[str, float]:
    """Reads the threshold of each signal from a policy's parameters.

    A parameter ``x_threshold`` is taken for the threshold of a signal ``x``; DEBA's
    ``stability_threshold`` is that of both variations.

    Example:
        >>> signal_thresholds({"confidence_threshold": 1.05, "growth": 1.5})
        {'confidence': 1.05}
        >>> signal_thresholds({"stability_threshold": 0.3})
        {'gradient_norm_variation': 0.3, 'loss_variation': 0.3}
    """
    found: dict[str, float] = {}
    for name, value in parameters.items():
        if not name.endswith("_threshold") or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        signal = name.removesuffix("_threshold")
        both = ("gradient_norm_variation", "loss_variation")
        found |= dict.fromkeys(both if signal == "stability" else (signal,), float(value))
    return {name: value for name, value in found.items() if drawable(value)}


def duration(seconds: float) -> str:
    """Writes a time for people.

    Example:
        >>> [duration(seconds) for seconds in (0, 2.34, 140, 1500, 9000)]
        ['0 s', '2.3 s', '140 s', '25 min', '2.5 h']
    """
    unit, size = ("s", 1) if seconds < 600 else ("min", 60) if seconds < 7200 else ("h", 3600)
    amount = seconds / size
    return f"{amount:.0f} {unit}" if amount >= 100 or amount == round(amount) else f"{amount:.1f} {unit}"


def count(number: int, noun: str) -> str:
    """Writes a number of things.

    Example:
        >>> count(1, "arm"), count(1200, "run")
        ('1 arm', '1,200 runs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def clean(text: str, limit: int = 400) -> str:
    """Makes a text from a file fit to be shown: one line, nothing but printable characters, not endless.

    Example:
        >>> clean(f"growth{chr(27)}[31m"), clean("abcdef", limit=4)
        ('growth [31m', 'abc…')
    """
    text = "".join(character if character.isprintable() else " " for character in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"

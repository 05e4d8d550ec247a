"""A comparison in words: what is the bar, what did not work, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mode

from lightning_deba.comparison.figures import signed
from lightning_deba.comparison.gains import Gain, fixed_sizes, gains
from lightning_deba.comparison.grid import Job
from lightning_deba.comparison.intervals import Interval, verdict
from lightning_deba.comparison.measures import measure
from lightning_deba.comparison.runs import Run
from lightning_deba.report.series import clean, drawable

__all__ = ["about_bar", "bounds", "chance", "failures", "listed", "missing", "told"]


def about_bar(bar: str | None, baseline: str, found: Sequence[Gain]) -> str:
    """Says which fixed batch size is the bar to beat."""
    if bar is None:
        return ""
    gain = next((gain for gain in found if gain.arm == bar), None)
    if gain is None:
        return f"the bar to beat is `{clean(baseline, 40)}` itself: no other fixed batch size is as good in hindsight."
    return (
        f"the bar to beat is `{clean(bar, 40)}`, in hindsight the best fixed batch size: "
        f"{signed(100 * gain.time.value, 0)}% time, {signed(100 * gain.accuracy.value, 1)} points."
    )


def failures(
    runs: Sequence[Run], baseline: str, bar: str | None, found: Sequence[Gain], over_bar: dict[str, Gain]
) -> Iterator[str]:
    """Tells of a model what did not work: what is worse, what costs something, what is no better than the bar."""
    if not found:
        yield f"No arm has a seed in common with `{clean(baseline, 40)}`, so nothing can be told."
    for gain in found:
        if gain.word in ("worse", "trade"):
            yield f"`{clean(gain.arm, 40)}`: {told(gain)}."
    for word, meaning in (
        ("no difference", "no difference from the baseline is certain, neither in time nor in accuracy"),
        ("one seed", "one seed, which tells no difference from chance"),
    ):
        if names := [f"`{clean(gain.arm, 40)}`" for gain in found if gain.word == word]:
            yield f"{listed(names)}: {meaning}."
    fixed = fixed_sizes(runs, runs[0].model)
    beaten = [
        f"`{clean(gain.arm, 40)}`"
        for gain in found
        if gain.word == "pays" and gain.arm not in fixed and gain.arm in over_bar and over_bar[gain.arm].word != "pays"
    ]
    if beaten and bar and bar != baseline:
        yield (f"{listed(beaten)}: paid over the baseline, not over the bar `{clean(bar, 40)}`, which needs no policy.")


def told(gain: Gain) -> str:
    """Tells both differences in words.

    Example:
        >>> told(Gain("m", "deba", 3, Interval(-0.2, -0.25, -0.15), Interval(0.001, -0.01, 0.02)))
        'takes 20% less time (15 to 25), in accuracy no difference is certain (−1.0 to +2.0 points)'
    """
    time, accuracy = verdict(gain.time), verdict(gain.accuracy)
    if gain.pairs < 2:
        return f"{signed(100 * gain.time.value, 0)}% time, {signed(100 * gain.accuracy.value, 1)} points, of one seed"
    parts = [
        f"in time no difference is certain ({bounds(gain.time, 0)}%)"
        if time == "none"
        else f"takes {abs(100 * gain.time.value):.0f}% {time} time ({_size(gain.time, 0)})",
        f"in accuracy no difference is certain ({bounds(gain.accuracy, 1)} points)"
        if accuracy == "none"
        else f"is {abs(100 * gain.accuracy.value):.1f} points {accuracy} accurate ({_size(gain.accuracy, 1)})",
    ]
    return ", ".join(parts)


def _size(interval: Interval, digits: int) -> str:
    low, high = sorted(abs(100 * bound) for bound in interval[1:])
    return f"{low:.{digits}f} to {high:.{digits}f}"


def listed(words: Sequence[str]) -> str:
    """Joins words as a sentence does.

    Example:
        >>> listed(["a", "b", "c"]), listed(["a"])
        ('a, b and c', 'a')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def missing(runs: Sequence[Run], jobs: Sequence[Job]) -> list[str]:
    """Lists the runs that are not there, an arm of a model in each entry."""
    there = {run.key for run in runs}
    seeds = {model: {run.seed for run in runs if run.model == model} for model, _, _ in there}
    wanted = {(job.model, job.arm, job.seed) for job in jobs} or {
        (model, arm, seed) for model, arm, _ in there for seed in seeds[model]
    }
    gaps: dict[tuple[str, str], list[str]] = {}
    for model, arm, seed in sorted(wanted - there):
        gaps.setdefault((model, arm), []).append(str(seed))
    return [
        f"`{clean(model, 40)}` with `{clean(arm, 40)}`: seed{'s' if absent[1:] else ''} {listed(absent)}"
        for (model, arm), absent in gaps.items()
    ]


def chance(runs: Sequence[Run], baseline: str) -> str:
    """Says how often chance alone would look like a difference."""
    found = [gain for model in {run.model for run in runs} for gain in _gains_of(runs, model, baseline)]
    pairs = mode(gain.pairs for gain in found) if found else 0
    if not 2 <= pairs <= 5:
        return ""
    return (
        f"Where an arm has {pairs} seeds and makes no difference, they agree on a sign by chance once in "
        f"{2 ** (pairs - 1)} times: among {len(found)} arms some look certain, and are not."
    )


def _gains_of(runs: Sequence[Run], model: str, baseline: str) -> list[Gain]:
    return gains(measure([run for run in runs if run.model == model], baseline), baseline)


def bounds(interval: Interval, digits: int) -> str:
    """Writes the bounds of a difference in percent or points, if it has any.

    Example:
        >>> import math
        >>> bounds(Interval(-0.2, -0.25, -0.15), 0), bounds(Interval(0.0, -math.inf, math.inf), 0)
        ('−25 to −15', '')
    """
    if not all(map(drawable, interval)):
        return ""
    return " to ".join(signed(100 * bound, digits) for bound in interval[1:])

"""What a comparison found as a table in Markdown, for a README."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_deba.comparison.figures import signed
from lightning_deba.comparison.gains import Gain, accuracy_name, best_fixed, fixed_sizes, gains
from lightning_deba.comparison.intervals import Interval, verdict
from lightning_deba.comparison.measures import measure
from lightning_deba.comparison.runs import Run
from lightning_deba.comparison.table import median_of
from lightning_deba.comparison.words import bounds
from lightning_deba.report.series import duration

__all__ = ["markdown_gain", "markdown_table"]


def markdown_table(runs: Sequence[Run], baseline: str, arms: Sequence[str] | None = None) -> str:
    """Lays out what pays as a table in Markdown: a row a model, first the best fixed batch size in hindsight.

    Each cell holds the difference from the baseline in processor time, and in points of accuracy, with intervals.
    What is certain is bold.

    Args:
        runs: The results.
        baseline: The arm that the others are compared with.
        arms: The arms of the further columns; by default those that every model has, and whose batch size changes.

    Returns:
        The lines of the table.

    Raises:
        ValueError: If there are no runs, or none is of the baseline.

    Example:
        >>> from lightning_deba.comparison.runs import shipped_runs
        >>> print(markdown_table(shipped_runs(), "fixed_16", ["deba"]).splitlines()[1])
        |---|---|---|---|
    """
    if all(run.arm != baseline for run in runs):
        raise ValueError(f"`baseline` must be the arm of a run, got {baseline!r}.")
    models = list(dict.fromkeys(run.model for run in runs))
    arms = _shared_policies(runs, models, baseline) if arms is None else list(arms)
    rows = [["", f"{baseline}: accuracy, time", "best fixed size in hindsight", *arms]]
    rows += [["---"] * len(rows[0]), *(_markdown_row(runs, model, baseline, arms) for model in models)]
    return "\n".join(f"|{'|'.join(row)}|" if row[0] == "---" else f"| {' | '.join(row)} |" for row in rows)


def _shared_policies(runs: Sequence[Run], models: Sequence[str], baseline: str) -> list[str]:
    shared = set.intersection(*({run.arm for run in runs if run.model == model} for model in models))
    fixed = {arm for model in models for arm in fixed_sizes(runs, model)}
    return sorted(shared - fixed - {baseline})


def _markdown_row(runs: Sequence[Run], model: str, baseline: str, arms: Sequence[str]) -> list[str]:
    mine = [run for run in runs if run.model == model]
    rows = measure(mine, baseline)
    found = {gain.arm: gain for gain in gains(rows, baseline)}
    bar, base = best_fixed(mine, rows, baseline, model), [row for row in rows if row.arm == baseline]
    accuracy, seconds = median_of(base, accuracy_name(rows)), median_of(base, "processor_seconds")
    first = f"{accuracy:.1%}, {duration(seconds)}" if base else "–"
    best = f"{bar}: {markdown_gain(found[bar])}" if bar in found else bar or "–"
    if len(fixed_sizes(mine, model)) < 2:
        best = "no other was run"
    return [model, first.replace("%", " %"), best, *(markdown_gain(found[a]) if a in found else "–" for a in arms)]


def markdown_gain(gain: Gain, *, intervals: bool = True) -> str:
    """Writes both differences, in time and in accuracy; what is certain is bold.

    Args:
        gain: What an arm has over the baseline.
        intervals: Whether to write the intervals as well.

    Example:
        >>> gain = Gain("m", "deba", 3, Interval(-0.2, -0.25, -0.15), Interval(0.001, -0.01, 0.02))
        >>> markdown_gain(gain), markdown_gain(gain, intervals=False)
        ('**−20 %** (−25 to −15), +0.1 (−1.0 to +2.0)', '**−20 %**, +0.1')
    """
    return f"{_difference(gain.time, ' %', 0, intervals)}, {_difference(gain.accuracy, '', 1, intervals)}"


def _difference(interval: Interval, unit: str, digits: int, between: bool) -> str:
    text = signed(100 * interval.value, digits) + unit
    ends = bounds(interval, digits) if between else ""
    return (f"**{text}**" if verdict(interval) != "none" else text) + (f" ({ends})" if ends else "")

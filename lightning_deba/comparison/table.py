"""The table of the page about a comparison: a line an arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from lightning_deba.comparison.figures import signed
from lightning_deba.comparison.gains import Gain, accuracy_name
from lightning_deba.comparison.intervals import Interval
from lightning_deba.comparison.measures import Row
from lightning_deba.comparison.words import bounds
from lightning_deba.report.series import clean, drawable, duration

__all__ = ["Cell", "Line", "line_of", "median_of"]

_NEVER = 1e99


class Cell(NamedTuple):
    """A cell of the table: what it says, its interval, and what it is sorted by; empty comes last."""

    text: str
    interval: str = ""
    by: float | str = ""


class Line(NamedTuple):
    """A line of the table: an arm.

    Attributes:
        arm: Its name.
        note: "baseline" or "bar to beat", if it is that.
        word: What it gains over the baseline, see `Gain.word`; empty for the baseline.
        over_bar: Likewise over the bar to beat; empty for the bar itself, and where there is none.
        is_fixed: Whether its batch size never changes.
        cells: The other columns.
    """

    arm: str
    note: str
    word: str
    over_bar: str
    is_fixed: bool
    cells: list[Cell]


def line_of(
    arm: str,
    rows: Sequence[Row],
    baseline: str,
    bar: str | None,
    found: Sequence[Gain],
    over_bar: dict[str, Gain],
    is_fixed: bool,
) -> Line:
    """Returns the line of an arm of one model.

    Args:
        arm: The arm.
        rows: What `measure` returns for the model.
        baseline: The arm that the others are compared with.
        bar: The best fixed batch size in hindsight, if there is one.
        found: What each arm gains over the baseline.
        over_bar: What each arm gains over the bar.
        is_fixed: Whether the arm's batch size never changes.
    """
    mine = [row for row in rows if row.arm == arm]
    gain = next((gain for gain in found if gain.arm == arm), None)
    notes = [note for note, name in (("baseline", baseline), ("bar to beat", bar)) if name == arm]
    accuracy = median_of(mine, accuracy_name(rows))
    seconds, reached = median_of(mine, "processor_seconds"), median_of(mine, "processor_seconds_to_target")
    steps, last = median_of(mine, "steps"), median_of(mine, "final_batch_size")
    overhead = median_of(mine, "overhead")
    against = over_bar[arm].word if arm in over_bar else ""
    cells = [
        _gain_cell(gain and gain.time, "%", 0),
        _gain_cell(gain and gain.accuracy, "", 1),
        Cell(gain.word if gain else "–", by=gain.word if gain else ""),
        Cell(against or "–", by=against),
        Cell(f"{accuracy:.1%}" if drawable(accuracy) else "–", by=accuracy if drawable(accuracy) else ""),
        Cell(duration(seconds), by=seconds),
        Cell(duration(reached), by=reached) if drawable(reached) else Cell("never", by=_NEVER),
        Cell(f"{steps:,.0f}", by=steps),
        Cell(f"{last:,.0f}", by=last),
        Cell(f"{overhead:.1%}", by=overhead) if drawable(overhead) else Cell("–"),
        Cell(f"{len(mine)}", by=len(mine)),
    ]
    return Line(clean(arm, 40), ", ".join(notes), gain.word if gain else "", against, is_fixed, cells)


def _gain_cell(interval: Interval | None, unit: str, digits: int) -> Cell:
    if interval is None:
        return Cell("–")
    return Cell(signed(100 * interval.value, digits) + unit, bounds(interval, digits), interval.value)


def median_of(rows: Sequence[Row], name: str) -> float:
    """Returns the median of a measure; ``nan`` where no row has it, and infinity where most never got there."""
    values = [value for row in rows if (value := getattr(row, name)) is not None and not math.isnan(value)]
    middle = median(values) if values else math.nan
    return math.inf if math.isnan(middle) and values else middle

"""Tables of a run: what was measured, what was decided and why."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lightning_deba.records import Grant, History
from lightning_deba.report.series import clean, signal_series

__all__ = ["Row", "decision_rows", "summary_table"]

# Longer runs are cut down to the epochs that matter.
_LONG = 40
_SHORT_NAMES = {
    "confidence": "conf",
    "gradient_norm_variation": "dN",
    "loss_variation": "dL",
    "noise_scale": "noise",
    "efficiency": "eff",
    "goodput_gain": "gain",
}
_MOST_SIGNALS = 3
"""More would leave no room in a terminal of 80 characters; those with a short name come first."""


class Row(NamedTuple):
    """One decision, ready to be shown.

    Attributes:
        epoch: The epoch at whose end it was taken.
        before: The batch size of that epoch; the granted one where the history lacks the epoch.
        proposed: The batch size that the policy proposed.
        granted: The batch size that the next epoch got.
        reason: The policy's reason.
        limits: Why the granted size differs from the proposed one, if it does.
        notable: Whether it says something new: a change, or a limit for the first time.
    """

    epoch: int
    before: int
    proposed: int
    granted: int
    reason: str
    limits: str
    notable: bool

    @property
    def direction(self) -> str:
        """Tells whether the batch size went "up", went "down" or was held ("hold")."""
        return "up" if self.granted > self.before else "down" if self.granted < self.before else "hold"


def decision_rows(history: History, decisions: Sequence[Grant]) -> list[Row]:
    """Returns one row for each decision, in order.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> rows = decision_rows([EpochRecord(4, 32, 32)], [Grant(4, 48, 48, "increase: calm")])
        >>> rows[0].before, rows[0].granted, rows[0].direction
        (32, 48, 'up')
    """
    sizes = {record.epoch: record.batch_size for record in history}
    rows, told = [], {""}
    for grant in decisions:
        before, limits = sizes.get(grant.epoch, grant.batch_size), clean(grant.limits)
        # A run that has reached its bound is told so at every epoch; the reader needs it once.
        notable = before != grant.batch_size or limits not in told
        told.add(limits)
        reason = clean(grant.reason)
        rows.append(Row(grant.epoch, before, grant.proposed, grant.batch_size, reason, limits, notable))
    return rows


def summary_table(history: History, decisions: Sequence[Grant] = (), *, window: int | None = 15) -> Table:
    """Lays out a run for the terminal: what each epoch measured, and what was decided at its end.

    Of a run over 40 epochs it shows the first and the last epoch, and those where something changed. Of the signals
    it shows three; the history has them all.

    Args:
        history: The records of a run, in order.
        decisions: Its grants.
        window: Number of records for DEBA's median, where no grant holds signals.

    Returns:
        A table for ``rich.print``.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> table = summary_table([EpochRecord(0, 32, 32)], [Grant(0, 48, 48, "increase: calm")])
        >>> [str(column.header) for column in table.columns]
        ['epoch', 'batch', 'steps', 'loss', 'decision']
    """
    rows = {row.epoch: row for row in decision_rows(history, decisions)}
    found = signal_series(history, decisions, window)
    series = {name: found[name] for name in sorted(found, key=lambda name: name not in _SHORT_NAMES)[:_MOST_SIGNALS]}
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in ("epoch", "batch", "steps", "loss", *(_SHORT_NAMES.get(n, clean(n, 12)) for n in series)):
        table.add_column(Text(name), justify="right", no_wrap=True)
    table.add_column("decision")
    shown = [t for t, record in enumerate(history) if _matters(t, record.epoch, history, rows)]
    for t in shown:
        record = history[t]
        counts = (record.epoch, record.batch_size, record.optimizer_steps)
        measured = (record.loss, *(values[t] for values in series.values()))
        verdict = _Verdict(rows[record.epoch]) if record.epoch in rows else ""
        table.add_row(*map(str, counts), *map(_short, measured), verdict)
    if len(shown) < len(history):
        table.caption = f"{len(shown)} of {len(history)} epochs: the first, the last, and where something changed."
        table.caption_justify = "left"
    return table


def _matters(t: int, epoch: int, history: History, rows: Mapping[int, Row]) -> bool:
    """Tells whether the epoch at `t` is shown: all of a short run are, and few of a long one."""
    if len(history) <= _LONG or t in (0, len(history) - 1):
        return True
    return epoch in rows and rows[epoch].notable


def _short(value: float | None) -> str:
    """Writes a number in few characters; a dash for one that was not measured."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.1e}"


class _Verdict:
    """A decision in a cell of the terminal's table, its arrow in a terminal's own characters."""

    def __init__(self, row: Row) -> None:
        self.row = row

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._text(options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._text(options))

    def _text(self, options: ConsoleOptions) -> Text:
        row = self.row
        # The reason up to its evidence, which the columns beside it hold.
        reason = re.split(r"[:(]", row.reason)[0].strip()
        if row.limits:
            reason = f"not {row.proposed}: {row.limits}"
        if row.direction == "hold":
            return Text(f"{row.granted}, {reason}") if row.limits else Text(reason, style="dim")
        up, down = ("^", "v") if options.ascii_only else ("▲", "▼")
        arrow, style = (up, "green") if row.direction == "up" else (down, "yellow")
        return Text.assemble((f"{arrow} {row.granted}", style), f", {reason}" if reason else "")

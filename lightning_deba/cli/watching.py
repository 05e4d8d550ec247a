"""The command that watches a run: its batch size, loss and last decisions, drawn anew at each epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jsonargparse import ArgumentParser
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lightning_deba.records import Grant, History, HistoryFile, read_history
from lightning_deba.report.series import clean, drawable, duration, samples_seen, seconds_spent
from lightning_deba.report.tables import Row, decision_rows

BLOCKS = "▁▂▃▄▅▆▇█"
IN_ASCII = "_.-~=+*#"
_NAME = "history.jsonl"
_SECONDS = 0.5
_STYLES = {"up": "green", "down": "yellow", "hold": "dim"}


class View(NamedTuple):
    """What is to be seen of a run.

    Attributes:
        path: Its history file; what was asked for, as long as there is none.
        read: What could be read of it.
        finished: Whether the run has ended.
    """

    path: Path
    read: HistoryFile
    finished: bool


def watch(args: list[str]) -> None:
    """Shows a run, and follows it."""
    parser = ArgumentParser(
        prog="lightning-deba watch",
        description="Show a run: batch size, loss and the last decisions. In a terminal it is followed until it has "
        "ended, or Ctrl-C is pressed.",
        exit_on_error=False,
    )
    parser.add_argument("run", help="directory of a run, or above several, of which the newest is shown")
    parser.add_argument("--follow", action="store_true", help="follow the run also where the output is no terminal")
    parser.add_argument("--once", action="store_true", help="show what there is, and end")
    options = parser.parse_args(args)
    if options.follow and options.once:
        raise ValueError("`--follow` and `--once` were both given; give one")
    run, console = Path(options.run), Console()
    if options.once or not (options.follow or console.is_terminal):
        console.print(_shown(_now(run)))
        return
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        for view in follow(run, lambda: time.sleep(_SECONDS)):
            live.update(_shown(view), refresh=True)


# Reading


def find_history(run: Path) -> Path | None:
    """Returns the history file of a run, or of the newest run below a directory; ``None`` while there is none.

    Raises:
        FileNotFoundError: If there is no such directory.
    """
    if run.is_dir():
        own = run / _NAME
        return own if own.is_file() else max(run.rglob(_NAME), key=_changed, default=None)
    if run.is_file():
        return run
    if run.name == _NAME and run.parent.is_dir():
        return None
    raise FileNotFoundError(f"There is no '{run}' to watch. Pass a run's log directory, such as lightning_logs.")


def follow(run: Path, pause: Callable[[], None]) -> Iterator[View]:
    """Yields a run as it is, and again whenever it has changed, until it has ended.

    Args:
        run: The directory of a run, or one above several, or a history file.
        pause: Called between two looks at the file.

    Raises:
        FileNotFoundError: If there is no such directory.
        ValueError: If what is there is no history.
    """
    path, last = None, object()
    while True:
        path = path or find_history(run)
        changed = path and (path, _changed(path), _size(path), _has_ended(path))
        if changed != last:
            view = _now(path or run)
            yield view
            if view.finished:
                return
            last = changed
        pause()


def _now(run: Path) -> View:
    path = find_history(run)
    if path is None:
        return View(run, HistoryFile([], [], []), False)
    finished = _has_ended(path)  # before reading: afterwards the last epoch could be missing
    return View(path, read_history(path, running=True), finished)


def _has_ended(path: Path) -> bool:
    """Whether a run has ended: it then writes its page beside a history that does not change any more."""
    return 0 < _changed(path) <= _changed(path.with_name("report.html"))


def _changed(path: Path) -> int:
    """Returns when a file was last changed; 0 where there is none."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


# Showing


def sparkline(values: Sequence[float | None], width: int, blocks: str = BLOCKS) -> str:
    """Draws numbers as a line of blocks; what is no number is a gap.

    Args:
        values: The numbers, from left to right.
        width: Characters at most; of more numbers, the means of neighbours are drawn.
        blocks: The characters, from the lowest to the highest.

    Raises:
        ValueError: If `width` is below 1.

    Example:
        >>> sparkline([1, 2, 3, 4, None, 8], width=10)
        '▁▂▃▄ █'
        >>> sparkline(range(100), width=4, blocks="0123456789")
        '0369'
    """
    if width < 1:
        raise ValueError(f"`width` must be 1 character at least, got {width}.")
    n = len(values)
    if n > width:
        values = [_mean(values[n * i // width : n * (i + 1) // width]) for i in range(width)]
    known = [value for value in values if drawable(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    steps = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[round((value - low) * steps)] if drawable(value) else " " for value in values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if drawable(value)]
    return sum(known) / len(known) if known else None


class Sparkline:
    """A sparkline as wide as there is room for, in ASCII where a terminal has nothing else."""

    def __init__(self, values: Sequence[float | None]) -> None:
        self.values = values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self.values, options.max_width, IN_ASCII if options.ascii_only else BLOCKS), style="cyan")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, min(len(self.values), options.max_width)))


def layout(history: History, decisions: Sequence[Grant] = (), *, rows: int = 12) -> Group:
    """Lays out a run for the terminal: how far it is, lines of what it measured, and its last decisions.

    Args:
        history: The records up to now; at least one.
        decisions: Their grants.
        rows: How many decisions at most. They are those that changed the batch size or met a limit, and the last.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(0, 32, 32, samples=64, loss=0.5), EpochRecord(1, 48, 48, samples=64, loss=0.25)]
        >>> Console(width=60).print(layout(run, [Grant(0, 48, 48, "all calm"), Grant(1, 48, 48, "cooldown")]))
        2 epochs, 128 samples, 0 s
        <BLANKLINE>
        batch size  32 -> 48     ▁█
        loss        0.5 -> 0.25  █▁
        <BLANKLINE>
        epoch      batch   loss   decision
        ──────────────────────────────────
            0   32 -> 48    0.5   all calm
            1         48   0.25   cooldown
    """
    epochs = f"{len(history)} epoch{'s' * (len(history) != 1)}"
    counts = (epochs, f"{samples_seen(history)[-1]:,} samples", duration(seconds_spent(history)[-1]))
    return Group(Text(", ".join(counts)), Text(), _lines(history), Text(), _last(history, decisions, rows))


def _lines(history: History) -> Table:
    measured: dict[str, list[float | None]] = {
        "batch size": [record.batch_size for record in history],
        "loss": [record.loss for record in history],
        "gradient norm": [record.gradient_norm for record in history],
    }
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, values in measured.items():
        if any(value is not None for value in values):
            table.add_row(name, f"{_short(values[0])} -> {_short(values[-1])}", Sparkline(values))
    return table


def _last(history: History, decisions: Sequence[Grant], rows: int) -> Table:
    losses = {record.epoch: record.loss for record in history}
    told = decision_rows(history, decisions)
    notable = [row for row in told[:-1] if row.notable]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("epoch", "batch", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("decision")
    for row in [*notable, *told[-1:]][-rows:]:
        size = f"{row.granted}" if row.direction == "hold" else f"{row.before} -> {row.granted}"
        style = _STYLES[row.direction]
        table.add_row(str(row.epoch), clean(size, 40), _short(losses.get(row.epoch)), Text(_why(row)), style=style)
    return table


def _why(row: Row) -> str:
    return f"{row.reason} (not {row.proposed}: {row.limits})" if row.limits else row.reason


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if drawable(value) else clean(str(value), 12)


def _shown(view: View) -> Group:
    """Adds to the layout what is known of the file."""
    title = Text(clean(str(view.path.parent if view.path.name == _NAME else view.path), 200), style="bold")
    if not view.read.history:
        return Group(title, Text("no epoch has ended yet"))
    title.append(", finished" if view.finished else "")
    lost = len(view.read.problems)
    notes = [Text(f"{lost} of its lines could not be read", style="yellow")] if lost else []
    return Group(title, layout(view.read.history, view.read.decisions), *notes)

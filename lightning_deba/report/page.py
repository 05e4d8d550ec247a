"""One self-contained HTML page about one run or several: it works offline, and looks fit to print."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup, escape
from matplotlib import rc_context

from lightning_deba.report.cards import VARIABLES, draw_cards
from lightning_deba.report.figures import COLORS, DASHES, plot_history
from lightning_deba.report.runs import Run, read_runs
from lightning_deba.report.series import changes, count, duration, samples_seen, seconds_spent
from lightning_deba.report.tables import Row, decision_rows

__all__ = ["write_figure", "write_report"]

# Keep the page under a megabyte: so many decisions over all runs, so many problems of each.
_MOST_ROWS, _MOST_PROBLEMS = 1000, 20


class Log(NamedTuple):
    """The decisions of a run, ready to be listed.

    Attributes:
        entries: The epochs of each entry, such as "7" or "8 to 15", and the decision taken at their ends.
        notable: Number of decisions that say something new.
        total: Number of all decisions.
        note: What is said of decisions that are not listed.
        unused: Whether the last decision changed the batch size, and no epoch came after it.
    """

    entries: list[tuple[str, Row]]
    notable: int
    total: int
    note: str
    unused: bool


def write_report(runs: Sequence[Path | str] | Path | str, output: Path | str | None = None) -> Path:
    """Writes one HTML page about one run, or about several side by side.

    The page holds all it shows: it loads nothing, so it can be mailed, archived and printed. The same
    runs give the same bytes.

    Args:
        runs: Directories that hold a ``history.jsonl`` each and perhaps a ``run.json``; one may stand alone.
        output: File to write, or a directory to write ``report.html`` into; the first run's by default.

    Returns:
        The file written.

    Raises:
        FileNotFoundError: If one of the runs holds no history.
        ValueError: If `runs` is empty, names a run twice, or one that nothing can be read from.
        OSError: If `output` cannot be written.

    Example:
        >>> import tempfile
        >>> from lightning_deba import EpochRecord
        >>> from lightning_deba.records import to_line
        >>> run = Path(tempfile.mkdtemp())
        >>> _ = (run / "history.jsonl").write_text(to_line(EpochRecord(0, 32, 32, samples=1024, loss=2.3)))
        >>> write_report(run).name
        'report.html'
    """
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    found = read_runs(paths)
    first = Path(paths[0])
    target = Path(output) if output is not None else first.parent if first.is_file() else first
    return save(_page(found), target, "report.html")


def write_figure(run: Path | str, output: Path | str) -> Path:
    """Draws a run into one figure and writes it, for a README or a paper.

    Args:
        run: The directory of a run, or its ``history.jsonl``.
        output: The file; its ending says the format: ``.svg``, ``.pdf`` or ``.png``.

    Returns:
        The file.

    Raises:
        FileNotFoundError: If there is no such run.
        ValueError: If matplotlib knows no such format, or no epoch can be read.
    """
    read, output = read_runs([run])[0], Path(output)
    figure = plot_history(read.history, read.decisions, thresholds=read.thresholds)
    output.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "lightning_deba"}):
        # No date: the same run gives the same bytes.
        figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)
    return output


def _page(runs: Sequence[Run]) -> str:
    """Fills in the template."""
    cards, missing = draw_cards(runs)
    return render(
        "page.html.j2",
        runs=runs,
        summaries=[_summary(run) for run in runs],
        cards=cards,
        missing=missing,
        logs=_logs(runs),
        settings=_settings(runs),
        most_problems=_MOST_PROBLEMS,
        explains=any(card.title == "Confidence" for card in cards),
        colors=len(COLORS),
        dashes=DASHES,
    )


def save(page: str, target: Path, name: str) -> Path:
    """Writes a page to a file, or by its name into a directory, and returns the file."""
    if target.is_dir():
        target = target / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise type(error)(
            f"`output` must be a file that can be written, got '{target}': {error.strerror}. "
            f'Pass another, such as output="{name}".'
        ) from error
    return target


def render(template: str, *, room: str = __package__, **values: Any) -> str:
    """Fills in a template; every text is escaped, and the page's style knows its colours.

    Args:
        template: The file's name.
        room: The package that it lies in; what it includes may lie in this room as well.
        **values: What the template fills in.
    """

    def load(name: str) -> str:
        path = files(room) / name
        return (path if path.is_file() else files(__package__) / name).read_text("utf-8")

    environment = Environment(loader=FunctionLoader(load), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["coded"] = _coded
    return environment.get_template(template).render(values, variables=VARIABLES)


def _coded(text: str) -> Markup:
    """Sets what stands in backticks as code; all else in the text is escaped.

    Example:
        >>> _coded("`max` < 3")
        Markup('<code>max</code> &lt; 3')
    """
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _summary(run: Run) -> str:
    """Tells a run in one sentence with its numbers."""
    history = run.history
    first, last = history[0].batch_size, history[-1].batch_size
    moves = len(changes(history))
    sizes = f"batch size {first:,} throughout"
    if moves:
        sizes = f"batch size {first:,} → {last:,} in {count(moves, 'change')}"
    parts = [
        count(len(history), "epoch"),
        sizes,
        count(samples_seen(history)[-1], "sample"),
        f"{duration(seconds_spent(history)[-1])} of training".replace(" ", "\N{NO-BREAK SPACE}", 1),
    ]
    losses = [record.loss for record in history if record.loss is not None and math.isfinite(record.loss)]
    if losses:
        parts.append(f"loss {losses[0]:.3g} → {losses[-1]:.3g}" if len(losses) > 1 else f"loss {losses[0]:.3g}")
    return ", ".join(parts) + "."


def _logs(runs: Sequence[Run]) -> list[Log]:
    """Lists the decisions of each run; where all together are too many, those that say nothing new go."""
    tables = [decision_rows(run.history, run.decisions) for run in runs]
    crowded = sum(map(len, tables)) > _MOST_ROWS
    logs = []
    for run, rows in zip(runs, tables, strict=True):
        notable = [row for row in rows if row.notable]
        listed = notable[: _MOST_ROWS // len(runs)] if crowded else rows
        note = f"{len(listed):,} of {len(rows):,} decisions are listed; `history.jsonl` holds them all."
        unused = bool(listed) and listed[-1] is rows[-1] and rows[-1].granted != run.history[-1].batch_size
        logs.append(Log(_entries(listed), len(notable), len(rows), note if len(listed) < len(rows) else "", unused))
    return logs


def _entries(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Joins decisions that are the same, epoch after epoch, into one entry each.

    Example:
        >>> held = [Row(t, 32, 32, 32, "fixed batch size", "", notable=False) for t in range(16)]
        >>> _entries(held)[0][0]
        '0 to 15'
    """
    entries = []
    for _, same in groupby(rows, key=lambda row: row[1:]):
        first, *others = same
        entries.append((f"{first.epoch} to {others[-1].epoch}" if others else f"{first.epoch}", first))
    return entries


def _settings(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Lays the settings of all runs side by side: one row a setting, one cell a run."""
    columns = []
    for run in runs:
        about = run.about
        cells = {"policy": about["policy"].get("name")}
        cells |= {f"`{name}`": value for name, value in about["parameters"].items()}
        cells |= {f"preset {key}": value for key, value in about["preset"].items()}
        cells |= {name if name == "model" else f"`{name}`": v for name, v in about["settings"].items()}
        cells |= {f"version of {name}": value for name, value in about["versions"].items()}
        columns.append({name: _written(value) for name, value in cells.items() if value is not None})
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [column.get(name, "") for column in columns]) for name in names]


def _written(value: object) -> str:
    """Writes a setting's value as it would be typed."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)

"""Figures of a run, each drawn into one pair of axes that it returns.

They keep to matplotlib's objects and never touch `pyplot`, so nothing stays open behind them. Several runs
go into the same axes: pass `ax`, and a `run` number for each, which picks its colour and dashes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MultipleLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from lightning_deba.records import Grant, History
from lightning_deba.report.series import (
    changes,
    clean,
    drawable,
    duration,
    samples_seen,
    seconds_spent,
    signal_series,
)

__all__ = ["plot_batch_size", "plot_history", "plot_loss", "plot_seconds", "plot_signal"]

INK, MUTED, GRID = "#24292f", "#5d6773", "#dfe3e8"
# After Okabe and Ito, who chose them for colour-blind eyes; the paler ones darkened for white paper.
COLORS = ("#0072b2", "#d55e00", "#007f5f", "#b0478a", "#8a6d00", "#48515c")
# Dashes tell runs apart where colours cannot: on and off, in line widths.
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.6), (1.2, 1.2), (6, 1.6, 1.2, 1.6))

SIZE = (4.3, 2.6)
# Steps between ticks of a time axis, in seconds: round in seconds, minutes, hours or days.
_MOST_NAMED = 12  # changes whose epochs have room beside their triangles
_TIME_STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400]


def plot_batch_size(history: History, *, ax: Axes | None = None, label: str | None = None, run: int = 0) -> Axes:
    """Draws the batch size against the samples seen; triangles mark where it changed.

    Args:
        history: The records of a run, in order.
        ax: The axes to draw into; a new figure's by default.
        label: The run's name, for ``ax.legend()``.
        run: Number of the run in these axes, from 0.

    Returns:
        The axes; ``.figure.savefig("batch_size.pdf")`` writes them.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> plot_batch_size([EpochRecord(0, 32, 32, samples=1024)]).get_yscale()
        'log'
    """
    ax = _axes(history, ax, "batch size (samples per step)")
    color = COLORS[run % len(COLORS)]
    edges, sizes = [0, *samples_seen(history)], [record.batch_size for record in history]
    ax.set_yscale("log", base=2)
    ax.plot(edges, [sizes[0], *sizes], drawstyle="steps-pre", label=label, **_style(run, history))
    for t in changes(history):
        marker = "^" if sizes[t] > sizes[t - 1] else "v"
        ax.plot(edges[t], sizes[t], marker, color=color, markersize=4.5, gid=f"change-{history[t].epoch}")
        if label is None and len(changes(history)) <= _MOST_NAMED:
            beside = ax.transData + ScaledTranslation(-4 / 72, 1 / 72, ax.figure.dpi_scale_trans)
            after = str(history[t - 1].epoch)
            ax.text(edges[t], sizes[t], after, transform=beside, ha="right", color=MUTED, size=7)
    _octaves(ax)
    _mark(ax, edges[-1], sizes[-1], f"{sizes[-1]:,}", color)
    return ax


def plot_loss(history: History, *, ax: Axes | None = None, label: str | None = None, run: int = 0) -> Axes:
    """Draws the mean training loss of each epoch against the samples seen at its end.

    An epoch without a finite loss leaves a gap. Arguments are those of `plot_batch_size`.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> plot_loss([EpochRecord(0, 32, 32, samples=1024, loss=2.3)]).get_ylabel()
        'training loss'
    """
    ax = _axes(history, ax, "training loss")
    losses = [math.nan if record.loss is None else record.loss for record in history]
    _line(ax, history, losses, label, run)
    return ax


def plot_seconds(history: History, *, ax: Axes | None = None, label: str | None = None, run: int = 0) -> Axes:
    """Draws the time spent training against the samples seen: the flatter, the faster.

    Arguments are those of `plot_batch_size`.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> plot_seconds([EpochRecord(0, 32, 32, samples=1024, seconds=9.0)]).get_ylabel()
        'training time'
    """
    ax = _axes(history, ax, "training time")
    edges, seconds = [0, *samples_seen(history)], [0.0, *seconds_spent(history)]
    ax.plot(edges, seconds, label=label, **_style(run, history))
    longest = ax.dataLim.y1 or 1.0
    set_time_ticks(ax.yaxis, longest)
    ax.set_xlim(left=0, auto=True)
    ax.set_ylim(0, 1.05 * longest)
    return ax


def plot_signal(
    history: History,
    decisions: Sequence[Grant] = (),
    name: str = "confidence",
    *,
    threshold: float | None = None,
    window: int | None = 15,
    ax: Axes | None = None,
    label: str | None = None,
    run: int = 0,
) -> Axes:
    """Draws one signal against the samples seen, and its threshold where that is known.

    Args:
        history: The records of a run, in order.
        decisions: Its grants, which hold the policy's own signals; without them DEBA's are derived anew.
        name: The signal's name, such as "confidence", "gradient_norm_variation" or "loss_variation".
        threshold: The policy's threshold for it.
        window: Number of records for DEBA's median, where the signals are derived anew.
        ax: The axes to draw into; a new figure's by default.
        label: The run's name, for ``ax.legend()``.
        run: Number of the run in these axes, from 0.

    Returns:
        The axes.

    Raises:
        ValueError: If the run has no signal of that name.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 8, 8, loss=1.0, gradient_norm=1.0, component_variance=1.0) for t in (0, 1)]
        >>> plot_signal(run, name="loss_variation", threshold=0.3).get_ylabel()
        'loss variation'
    """
    series = signal_series(history, decisions, window)
    if name not in series:
        known = ", ".join(map(repr, series)) or "none, as a signal needs two measured epochs"
        raise ValueError(f"`name` must be a signal of the run, got {name!r}. The run has: {known}.")
    ax = _axes(history, ax, clean(name, 40).replace("_", " "))
    _line(ax, history, series[name], label, run)
    if threshold is not None:
        draw_threshold(ax, threshold, COLORS[run % len(COLORS)])
    return ax


def plot_history(
    history: History,
    decisions: Sequence[Grant] = (),
    *,
    thresholds: Mapping[str, float] | None = None,
    window: int | None = 15,
) -> Figure:
    """Draws everything about one run into one figure: batch size, loss, time and each signal.

    Args:
        history: The records of a run, in order.
        decisions: Its grants.
        thresholds: The policy's thresholds by the signals' names.
        window: Number of records for DEBA's median, where the signals are derived anew.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 8, 8, loss=1.0, gradient_norm=1.0, component_variance=1.0) for t in (0, 1)]
        >>> len(plot_history(run, thresholds={"confidence": 1.0}).axes)
        6
    """
    names = list(signal_series(history, decisions, window))
    rows = 1 + math.ceil(len(names) / 3)
    figure = Figure(figsize=(3 * SIZE[0], rows * SIZE[1]), layout="constrained")
    places = iter(figure.subplots(rows, 3, squeeze=False).flat)
    for plot in (plot_batch_size, plot_loss, plot_seconds):
        plot(history, ax=next(places))
    for name in names:
        threshold = (thresholds or {}).get(name)
        plot_signal(history, decisions, name, threshold=threshold, window=window, ax=next(places))
    for unused in places:
        unused.remove()
    return figure


def set_time_ticks(axis: Axis, longest: float) -> None:
    """Puts the ticks of an axis of seconds, up to the longest of them, on round times."""
    fine = [10.0 ** math.floor(math.log10(longest)) * step for step in (0.2, 0.5, 1)] if longest < 5 else []
    step = next((step for step in [*fine, *_TIME_STEPS] if longest / step <= 6), longest / 5)
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: duration(round(value, 9))))


def draw_threshold(ax: Axes, value: float, color: str = MUTED) -> None:
    """Draws a threshold across the axes as a dotted line, with its value at the end."""
    ax.axhline(value, color=color, linewidth=1, linestyle=(0, (1, 1.5)), zorder=1.5)
    _from_zero(ax)
    _mark(ax, 1, value, f"{value:g}", color, xycoords=("axes fraction", "data"))


def _axes(history: History, ax: Axes | None, ylabel: str) -> Axes:
    """Returns axes dressed for samples seen against `ylabel`."""
    if not history:
        raise ValueError("`history` must hold at least one epoch's record, got none. Draw it after an epoch.")
    if ax is None:
        ax = Figure(figsize=SIZE, layout="constrained").add_subplot()
    ax.set_xlabel("samples seen")
    # Names come from files: a dollar sign in one is no formula.
    ax.set_ylabel(ylabel, parse_math=False)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)
    return ax


def _style(run: int, history: History) -> dict[str, Any]:
    """Returns colour, dashes and width of a run; the line of a long one is thinner, as it says more."""
    dashes, width = DASHES[run % len(DASHES)], 1.5 if len(history) <= 100 else 1.0
    return {"color": COLORS[run % len(COLORS)], "linestyle": (0, dashes) if dashes else "-", "linewidth": width}


def _line(ax: Axes, history: History, values: Sequence[float], label: str | None, run: int) -> None:
    """Draws one value an epoch, with dots in a short run, and where a gap leaves an epoch on its own."""
    here = [drawable(value) for value in values]
    around = zip([False, *here], here, [*here[1:], False], strict=False)
    alone = [t for t, neighbours in enumerate(around) if neighbours == (False, True, False)]
    dots = list(range(len(values))) if len(values) <= 40 else alone
    shown = [value if ok else math.nan for value, ok in zip(values, here, strict=True)]
    ax.plot(samples_seen(history), shown, label=label, marker="o", markersize=3, markevery=dots, **_style(run, history))
    _from_zero(ax)


def _mark(ax: Axes, x: float, y: float, text: str, color: str, xycoords: Any = "data") -> None:
    """Writes a small number to the right of a point, unless there is one already at its height."""
    height = ax.transScale + ax.transLimits
    others = [text.xy[1] for text in ax.texts if isinstance(text, Annotation)]
    if all(abs(height.transform((1, y))[1] - height.transform((1, other))[1]) > 0.06 for other in others):
        style: dict[str, Any] = {"color": color, "fontsize": "small", "va": "center", "annotation_clip": False}
        ax.annotate(text, (x, y), xytext=(4, 0), xycoords=xycoords, textcoords="offset points", **style)


def _from_zero(ax: Axes) -> None:
    """Lets the axes begin at zero where that is not far from the data; they still grow with what comes."""
    ax.set_xlim(left=0, auto=True)
    if 0 <= ax.dataLim.y0 < ax.dataLim.y1 / 2:
        ax.set_ylim(bottom=0, auto=True)


def _octaves(ax: Axes) -> None:
    """Puts the ticks of a batch-size axis on powers of two, in plain figures, at least an octave of them."""
    low, high = math.floor(math.log2(ax.dataLim.y0)), math.ceil(math.log2(ax.dataLim.y1))
    if low == high:
        low, high = low - 1, high + 1
    ax.set_xlim(left=0, auto=True)
    ax.set_ylim(2**low / 1.12, 2**high * 1.12)
    ax.yaxis.set_major_locator(LogLocator(base=2))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.yaxis.set_minor_locator(NullLocator())

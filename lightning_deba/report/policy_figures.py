"""Figures of what policies would have decided, and of the noise scale that several of them go by.

Both are drawn against the epoch, since policies decide once an epoch. Like the other figures they keep to matplotlib's
objects and never touch `pyplot`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Affine2D

from lightning_deba.policies import noise_scale
from lightning_deba.records import Decision, History
from lightning_deba.report.figures import COLORS, DASHES, GRID, MUTED
from lightning_deba.report.series import clean, drawable

__all__ = ["plot_noise_scale", "plot_replay"]

SIZE = (5.6, 3.4)

_PALE = "#b3bbc4"
# Points from the end of a line to its name, and from one name to the next in heights of a letter.
_REACH, _LEADING = 16, 1.22
_FROM_LEFT: dict[str, Any] = {"relpos": (0, 0.5)}

End: TypeAlias = tuple[str, float, float, str]
"""A name, the point that it belongs to, and its colour."""


def plot_replay(
    replays: Mapping[str, Sequence[int] | Sequence[Decision]], history: History, ax: Axes | None = None
) -> Axes:
    """Draws the batch sizes that policies would have decided on one history, each line named at its end.

    The wide grey line behind them is the run as it was trained. What `simulate` returns lets the decisions add up;
    what `replay` returns starts each epoch from the run's own size, and is drawn at the epoch that it is for.

    Args:
        replays: By a name for each, the batch sizes of the epochs, as from `lightning_deba.characterization.simulate`,
            or the decisions, as from `lightning_deba.replay`.
        history: The records of the run, in order.
        ax: The axes to draw into; a new figure's by default. A batch-size axis that is there already only grows.

    Returns:
        The axes; ``.figure.savefig("policies.pdf")`` writes them.

    Raises:
        ValueError: If there is no policy or no epoch, or a policy has not one size for each epoch.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> from lightning_deba.characterization import simulate
        >>> from lightning_deba.policies import AdaBatch, LinearGrowth
        >>> run = [EpochRecord(t, 32, 32) for t in range(12)]
        >>> policies = {"AdaBatch": AdaBatch(every=4), "LinearGrowth": LinearGrowth(epochs=12, factor=3.0)}
        >>> ax = plot_replay({name: simulate(policy, run) for name, policy in policies.items()}, run)
        >>> [text.get_text() for text in ax.texts]
        ['as trained 32', 'AdaBatch 128', 'LinearGrowth 91']
    """
    sizes = {name: _sizes(name, replay, history) for name, replay in replays.items()}
    if not sizes:
        raise ValueError("`replays` must hold at least one policy's batch sizes, got none.")
    ax = _axes(history, ax)
    ax.set_ylabel("batch size (samples per step)")
    trained = [record.batch_size for record in history]
    edges = [history[0].epoch, *(record.epoch + 1 for record in history)]
    ax.plot(edges, [trained[0], *trained], drawstyle="steps-pre", color=_PALE, linewidth=5, alpha=0.7, gid="trained")
    ends: list[End] = [(f"as trained {trained[-1]:,}", edges[-1], trained[-1], MUTED)]
    for number, (name, values) in enumerate(sizes.items()):
        style = arm_style(number)
        ax.plot(edges, [values[0], *values], drawstyle="steps-pre", linewidth=1.6, gid=f"replay-{name}", **style)
        ends.append((f"{clean(name, 40)} {values[-1]:,}", edges[-1], values[-1], style["color"]))
    octaves(ax, [*trained, *(size for values in sizes.values() for size in values)])
    name_ends(ax, ends)
    return ax


def plot_noise_scale(history: History, ax: Axes | None = None, *, window: int | None = 5) -> Axes:
    """Draws the noise scale as policies see it at each epoch's end, and its interval of two standard errors.

    An interval that reaches beyond twice the largest noise scale, as one without an upper end, is cut off there.
    Where the noise scale is undetermined there is a gap, and a policy that goes by it holds.

    Args:
        history: The records of a run, in order.
        ax: The axes to draw into; a new figure's by default. A batch-size axis that is there already only grows.
        window: Number of records that it is averaged over; ``None`` for all of them.

    Returns:
        The axes.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 32, 32, gradient_squared=1.0, gradient_covariance=500.0 + t) for t in range(6)]
        >>> plot_noise_scale(run).get_ylabel()
        'noise scale (samples)'
    """
    ax = _axes(history, ax)
    ax.set_ylabel(ax.get_ylabel() or "noise scale (samples)")
    seen = [noise_scale(history[: end + 1], window) for end in range(len(history))]
    found = [None if isinstance(estimate, str) or not drawable(estimate.value) else estimate for estimate in seen]
    ends = [record.epoch + 1 for record in history]
    values, lower, upper = ([getattr(e, end, math.nan) for e in found] for end in ("value", "lower", "upper"))
    # The smallest batch has one sample, and a logarithmic axis no zero.
    low = [max(1.0, value) for value in lower]
    roof = 2 * max((value for value in values if drawable(value)), default=1.0)
    upper = [min(value, roof) for value in upper]
    ax.fill_between(ends, low, upper, color=_PALE, alpha=0.32, linewidth=0, zorder=0.5, gid="noise-interval")
    ax.plot(ends, values, color=MUTED, linewidth=1.3, linestyle=(0, DASHES[2]), zorder=1.5, gid="noise-scale")
    tops = [value for value in upper if drawable(value)]
    octaves(ax, [value for value in (*values, *tops) if value >= 1])
    if tops:
        _name_interval(ax, ends[upper.index(max(tops))], max(tops))
    return ax


def _sizes(name: str, replay: Sequence[int] | Sequence[Decision], history: History) -> list[int]:
    """Returns a batch size for each epoch: a decision is for the epoch after the one at whose end it was taken."""
    _check_history(history)
    if len(replay) != len(history):
        raise ValueError(
            f"`replays` must have one batch size for each of the {len(history)} epochs of `history`, got "
            f"{len(replay)} of {name!r}. Write simulate(policy, history), or replay(policy, history)."
        )
    decided = [value.batch_size if isinstance(value, Decision) else value for value in replay]
    return [history[0].batch_size, *decided[:-1]] if isinstance(replay[0], Decision) else decided


def _check_history(history: History) -> None:
    if not history:
        raise ValueError("`history` must hold at least one epoch's record, got none. Draw it after an epoch.")


def _axes(history: History, ax: Axes | None) -> Axes:
    """Returns axes of epochs in the house's dress."""
    _check_history(history)
    if ax is None:
        ax = Figure(figsize=SIZE, layout="constrained").add_subplot()
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.set_xlim(history[0].epoch, history[-1].epoch + 1)
    return ax


def arm_style(number: int) -> dict[str, Any]:
    """Returns colour and dashes of a line; all colours come before the first dashes."""
    dashes = DASHES[number // len(COLORS) % len(DASHES)]
    return {"color": COLORS[number % len(COLORS)], "linestyle": (0, dashes) if dashes else "-"}


def octaves(ax: Axes, sizes: Iterable[float]) -> None:
    """Makes the upright axis one of powers of two that holds the sizes, and what it has held before."""
    before = ax.get_ylim() if ax.get_yscale() == "log" else ()
    sizes = list(sizes)
    if sizes:
        low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
        low, high = (low, high) if low < high else (low - 1, high + 1)
        ends = [2**low / 1.12, 2**high * 1.12, *before]
        ax.set_yscale("log", base=2)
        ax.set_ylim(min(ends), max(ends))
    ax.yaxis.set_major_locator(LogLocator(base=2))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _name_interval(ax: Axes, x: float, y: float) -> None:
    """Writes what the band is beside its highest point, on the side with more room."""
    ahead = x <= sum(ax.get_xlim()) / 2
    place: dict[str, Any] = {"xytext": (5 if ahead else -5, 0), "ha": "left" if ahead else "right", "va": "center"}
    text = "noise scale, and two standard errors"
    ax.annotate(text, (x, y), textcoords="offset points", color=MUTED, fontsize="small", **place)


def name_ends(ax: Axes, ends: Sequence[End], *, leader: float = 0.7) -> None:
    """Writes each text right of the axes, beside its point, and as far up or down as the others need."""
    heights = [height for _, _, height, _ in ends]
    for number, (text, x, height, color) in enumerate(ends):
        ax.annotate(
            text,
            (x, height),
            xytext=(0, 0),
            # Where a name goes depends on how large the axes are, and that is known when they are drawn.
            textcoords=partial(_beside, ax, heights, number),
            va="center",
            fontsize="small",
            color=color,
            parse_math=False,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": leader,
                "shrinkA": 2,
                "shrinkB": 1,
                **_FROM_LEFT,
            },
        )


def _beside(ax: Axes, heights: Sequence[float], number: int, renderer: Any) -> Affine2D:
    """Returns the place, in pixels, of the name of a line among those that end at these heights."""
    point = renderer.points_to_pixels(1)
    gap = _LEADING * FontProperties(size="small").get_size_in_points() * point
    pixels = ax.transData.transform([(0, height) for height in heights])[:, 1].tolist()
    places = spread(pixels, gap, ax.bbox.y0, ax.bbox.y1)
    return Affine2D().translate(ax.bbox.x1 + _REACH * point, places[number])


def spread(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves heights apart until neighbours are `gap` apart, by the least sum of squares, between two ends.

    Where there is no room for all of them between the ends, they pass the lower one.

    Example:
        >>> spread([5.0, 5.0, 20.0], gap=4.0, low=0.0, high=22.0)
        [3.0, 7.0, 20.0]
    """
    order = sorted(range(len(heights)), key=lambda number: heights[number])
    # Without the gaps, it is to find the nearest values that do not fall: neighbours that do are pooled.
    blocks: list[tuple[float, int]] = []
    for rank, number in enumerate(order):
        mean, count = heights[number] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            other, more = blocks.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        blocks.append((mean, count))
    top = high - (len(heights) - 1) * gap
    pooled = [min(max(mean, low), top) for mean, count in blocks for _ in range(count)]
    places = dict(zip(order, (value + rank * gap for rank, value in enumerate(pooled)), strict=True))
    return [places[number] for number in range(len(heights))]

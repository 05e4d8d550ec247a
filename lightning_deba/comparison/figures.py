"""Figures of a comparison, each drawn into one pair of axes that it returns.

Like those of the report they keep to matplotlib's objects and never touch `pyplot`. Each is about one model. An arm is
drawn as the median over its seeds, and a band from the least to the greatest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lightning_deba.comparison.gains import Gain, accuracy_name, best_fixed, fixed_sizes, gains
from lightning_deba.comparison.intervals import Interval
from lightning_deba.comparison.measures import measure
from lightning_deba.comparison.runs import Run
from lightning_deba.report.figures import COLORS, INK, MUTED, set_time_ticks
from lightning_deba.report.policy_figures import End, arm_style, name_ends, octaves
from lightning_deba.report.profile_figures import dressed
from lightning_deba.report.series import clean, drawable

__all__ = ["plot_accuracy", "plot_batch_sizes", "plot_comparison"]

# Of a thousand epochs no more are seen, and a page would be ten times as large.
_MOST_POINTS = 40

_WORDS = {"pays": COLORS[2], "trade": COLORS[4], "worse": COLORS[1]}
_DOTTED = (0, (1, 1.5))


class Curve(NamedTuple):
    """What the seeds of an arm have at each of some places: the median, the least and the greatest."""

    at: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


def plot_accuracy(
    runs: Sequence[Run], ax: Axes | None = None, *, arms: Sequence[str] | None = None, baseline: str | None = None
) -> Axes:
    """Draws the validation accuracy against the processor time of training, each arm named at its end.

    Whoever stops at a time has what was measured last: hence steps. Only the part in which runs differ is shown; the
    steep beginning lies below it.

    Args:
        runs: The results, all of one model; they set the ends of the axes, so that figures of other arms compare.
        ax: The axes to draw into; a new figure's by default.
        arms: The arms to draw, up to half a dozen of which can be told apart; all of them by default.
        baseline: An arm that is drawn in black, whether or not it is among `arms`.

    Returns:
        The axes; ``.figure.savefig("accuracy.pdf")`` writes them.

    Raises:
        ValueError: If the runs are not of one model, or have no such arm.

    Example:
        >>> from lightning_deba.comparison.runs import shipped_runs
        >>> runs = [run for run in shipped_runs() if run.model == "resnet18"]
        >>> plot_accuracy(runs, arms=["fixed_64"], baseline="fixed_16").get_ylabel()
        'validation accuracy'
    """
    by_arm = _by_arm(runs, arms, baseline)
    ax = dressed(ax, "processor time of training", "validation accuracy")
    ends: list[End] = []
    for name, style in _styles(by_arm, baseline):
        curve = _accuracy_curve(by_arm[name])
        if curve.at:
            _draw(ax, curve, style)
            label = f"{clean(name, 30)} {curve.middle[-1]:.1%}"
            ends.append((label, curve.at[-1], curve.middle[-1], style["color"]))
    longest = max(sum(run.processor_seconds) for run in runs) or 1.0
    set_time_ticks(ax.xaxis, longest)
    ax.set_xlim(0, 1.02 * longest)
    ax.set_ylim(*_interesting(runs))
    ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
    name_ends(ax, ends)
    return ax


def plot_batch_sizes(
    runs: Sequence[Run], ax: Axes | None = None, *, arms: Sequence[str] | None = None, baseline: str | None = None
) -> Axes:
    """Draws the batch size of each epoch, each arm named at its end.

    Args:
        runs: The results, all of one model; they set the ends of the axes, so that figures of other arms compare.
        ax: The axes to draw into; a new figure's by default.
        arms: The arms to draw, up to half a dozen of which can be told apart; all of them by default.
        baseline: An arm that is drawn in black, whether or not it is among `arms`.

    Returns:
        The axes.

    Raises:
        ValueError: If the runs are not of one model, or have no such arm.

    Example:
        >>> from lightning_deba.comparison.runs import shipped_runs
        >>> runs = [run for run in shipped_runs() if run.model == "resnet18"]
        >>> [text.get_text() for text in plot_batch_sizes(runs, arms=["fixed_64"]).texts]
        ['fixed_64 64']
    """
    by_arm = _by_arm(runs, arms, baseline)
    ax = dressed(ax, "epoch", "batch size (samples per step)")
    ends: list[End] = []
    for name, style in _styles(by_arm, baseline):
        curve = _size_curve(by_arm[name])
        _draw(ax, curve, style)
        ends.append((f"{clean(name, 30)} {curve.middle[-1]:,.0f}", curve.at[-1], curve.middle[-1], style["color"]))
    octaves(ax, [size for run in runs for size in run.batch_sizes])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    ax.set_xlim(0, max(len(run.batch_sizes) for run in runs))
    name_ends(ax, ends)
    return ax


def plot_comparison(runs: Sequence[Run], ax: Axes | None = None, *, baseline: str) -> Axes:
    """Draws whether it pays: what each arm gains over the baseline, in time and in accuracy at once.

    Left is faster, up is more accurate; bars are the intervals, and 0 is the baseline. Policies are circles, fixed
    batch sizes squares; they are filled where a difference is certain. The diamond is the best fixed batch size in
    hindsight: only what lies above and left of it, or on the dotted lines, gains what choosing a size would not.

    Args:
        runs: The results, all of one model.
        ax: The axes to draw into; a new figure's by default.
        baseline: The arm that the others are compared with, seed by seed.

    Returns:
        The axes.

    Raises:
        ValueError: If the runs are not of one model, or none is of the baseline.

    Example:
        >>> from lightning_deba.comparison.runs import shipped_runs
        >>> runs = [run for run in shipped_runs() if run.model == "resnet18"]
        >>> plot_comparison(runs, baseline="fixed_16").get_xlabel()
        'training time against fixed_16'
    """
    _by_arm(runs, None, baseline)
    rows = measure(runs, baseline)
    found = gains(rows, baseline)
    measured = "test" if accuracy_name(rows) == "test_accuracy" else "validation"
    ax = dressed(ax, "", "")
    ax.set_xlabel(f"training time against {clean(baseline, 30)}", parse_math=False)
    ax.set_ylabel(f"{measured} accuracy (points)")
    _fit(ax, found)
    _dress_plane(ax)
    bar, fixed = best_fixed(runs, rows, baseline, runs[0].model), fixed_sizes(runs, runs[0].model)
    for number, gain in enumerate(found):
        _draw_gain(ax, gain, number, "D" if gain.arm == bar else "s" if gain.arm in fixed else "o")
        if gain.arm == bar:
            _draw_bar(ax, gain)
    name_ends(ax, [(_label(gain, bar), *_point(gain), _color(gain)) for gain in found], leader=0.4)
    return ax


def _by_arm(runs: Sequence[Run], arms: Sequence[str] | None, baseline: str | None) -> dict[str, list[Run]]:
    """Sorts the runs of one model by arm, the baseline first."""
    models = list(dict.fromkeys(run.model for run in runs))
    if len(models) != 1:
        raise ValueError(
            f"`runs` must be one or more of one model, got {', '.join(models) or 'none'}. "
            "Write [run for run in runs if run.model == NAME]."
        )
    known = list(dict.fromkeys(run.arm for run in runs))
    for name, asked in (("baseline", [] if baseline is None else [baseline]), ("arms", arms or [])):
        if odd := [arm for arm in asked if arm not in known]:
            raise ValueError(f"`{name}` must be among the arms {', '.join(known)}, got {odd[0]!r}.")
    chosen = dict.fromkeys([*([] if baseline is None else [baseline]), *(known if arms is None else arms)])
    return {arm: [run for run in runs if run.arm == arm] for arm in chosen}


def _styles(arms: Iterable[str], baseline: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Gives each arm its colour and dashes; the baseline is black."""
    others = [arm for arm in arms if arm != baseline]
    styles = [(arm, arm_style(number)) for number, arm in enumerate(others)]
    # The baseline is drawn first, below the others.
    return [*([] if baseline is None else [(baseline, {"color": INK, "linestyle": "-"})]), *styles]


def _draw(ax: Axes, curve: Curve, style: dict[str, Any]) -> None:
    if curve.low != curve.high:
        ax.fill_between(curve.at, curve.low, curve.high, step="post", color=style["color"], alpha=0.13, linewidth=0)
    ax.plot(curve.at, curve.middle, drawstyle="steps-post", linewidth=1.4, **style)


def _accuracy_curve(runs: Sequence[Run]) -> Curve:
    """Returns the accuracy last measured, from when every seed has one to when the last one ends."""
    measured = [
        [(end, accuracy) for end, accuracy in zip(accumulate(run.processor_seconds), run.accuracies, strict=True)]
        for run in runs
    ]
    seeds = [[pair for pair in pairs if drawable(pair[1])] for pairs in measured]
    seeds = [pairs for pairs in seeds if pairs]
    if not seeds:
        return Curve([], [], [], [])
    begin = max(pairs[0][0] for pairs in seeds)
    at = _thinned(sorted({end for pairs in seeds for end, _ in pairs if end >= begin}))
    return _over_seeds(at, [[_last(pairs, time) for time in at] for pairs in seeds])


def _last(pairs: Sequence[tuple[float, float]], time: float) -> float:
    return pairs[bisect_right(pairs, time, key=lambda pair: pair[0]) - 1][1]


def _size_curve(runs: Sequence[Run]) -> Curve:
    """Returns the batch size from the beginning of each epoch on; a run that has ended counts no more."""
    longest = max(len(run.batch_sizes) for run in runs)
    here = [[run.batch_sizes[epoch] for run in runs if epoch < len(run.batch_sizes)] for epoch in range(longest)]
    triples = [(float(median(sizes)), float(min(sizes)), float(max(sizes))) for sizes in here]
    turns = [epoch for epoch in range(longest) if epoch == 0 or triples[epoch] != triples[epoch - 1]]
    at = [*_thinned([float(epoch) for epoch in turns]), float(longest)]
    middle, low, high = zip(*(triples[min(int(epoch), longest - 1)] for epoch in at), strict=True)
    return Curve(at, list(middle), list(low), list(high))


def _over_seeds(at: list[float], seeds: Sequence[Sequence[float]]) -> Curve:
    columns = list(zip(*seeds, strict=True))
    return Curve(at, [median(c) for c in columns], [min(c) for c in columns], [max(c) for c in columns])


def _thinned(values: list[float]) -> list[float]:
    """Leaves out values until few enough are left, the first and the last among them.

    Example:
        >>> _thinned([float(value) for value in range(1000)])[-2:]
        [973.0, 999.0]
    """
    if len(values) <= _MOST_POINTS:
        return values
    return [values[round(place * (len(values) - 1) / (_MOST_POINTS - 1))] for place in range(_MOST_POINTS)]


def _interesting(runs: Sequence[Run]) -> tuple[float, float]:
    """Returns the ends of an accuracy axis that shows where runs differ, and not the steep beginning."""
    known = [[a for a in run.accuracies if drawable(a)] for run in runs]
    tops = [max(values) for values in known if values] or [1.0]
    floors = [median(values) for values in known if values] or [0.0]
    room = max(max(tops) - min(floors), 0.02)
    return min(floors) - 0.15 * room, max(tops) + 0.08 * room


def _percents(interval: Interval) -> list[float]:
    """Returns the value, and the bounds that there are, in percent or points."""
    return [100 * value for value in interval if drawable(value)]


def _point(gain: Gain) -> tuple[float, float]:
    return 100 * gain.time.value, 100 * gain.accuracy.value


def _color(gain: Gain) -> str:
    return _WORDS.get(gain.word, MUTED)


def _label(gain: Gain, bar: str | None) -> str:
    return f"{clean(gain.arm, 30)}{', the bar' if gain.arm == bar else ''}"


def _fit(ax: Axes, found: Sequence[Gain]) -> None:
    """Fits both axes to all points and intervals, 0 included."""
    for name, values in (
        ("x", [value for gain in found for value in _percents(gain.time)]),
        ("y", [value for gain in found for value in _percents(gain.accuracy)]),
    ):
        low, high = min([0.0, *values]), max([0.0, *values])
        room = 0.06 * (high - low) or 1.0
        ax.set(**{f"{name}lim": (low - room, high + room)})
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: signed(value) + "%"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: signed(value)))
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.yaxis.set_major_locator(MaxNLocator(7))


def signed(value: float, digits: int | None = None) -> str:
    """Writes a difference with its sign, in as many decimals as it has, or in some.

    Example:
        >>> signed(2.0), signed(-0.5), signed(0.0), signed(-0.04, 1), signed(1.26, 1)
        ('+2', '−0.5', '0', '−0.0', '+1.3')
    """
    text = f"{value:+.4g}" if digits is None else f"{value:+.{digits}f}"
    return (text[1:] if value == 0 else text).replace("-", "\N{MINUS SIGN}")


def _dress_plane(ax: Axes) -> None:
    """Draws the lines of no difference, and names the good and the bad corner."""
    ax.axhline(0, color=INK, linewidth=0.8, zorder=1)
    ax.axvline(0, color=INK, linewidth=0.8, zorder=1)
    left, top = ax.get_xlim()[0], ax.get_ylim()[1]
    ax.fill_between([left, 0], 0, top, color=COLORS[2], alpha=0.07, linewidth=0, zorder=0)
    style: dict[str, Any] = {"fontsize": "small", "transform": ax.transAxes, "zorder": 1}
    ax.text(0.01, 1.01, "faster and more accurate", color=COLORS[2], va="bottom", **style)


def _draw_gain(ax: Axes, gain: Gain, number: int, marker: str) -> None:
    color, (x, y) = _color(gain), _point(gain)
    for axis, ends in ((0, _percents(gain.time)), (1, _percents(gain.accuracy))):
        if len(ends) == 3:
            span = ends[1:]
            ax.plot(*((span, (y, y)) if axis == 0 else ((x, x), span)), color=color, linewidth=0.9, alpha=0.6)
    style: dict[str, Any] = {"markersize": 5.5, "markeredgewidth": 1.1, "zorder": 3}
    if gain.word not in _WORDS:
        style["markerfacecolor"] = "none"
    ax.plot([x], [y], marker, color=color, gid=f"change-{number}", **style)


def _draw_bar(ax: Axes, gain: Gain) -> None:
    """Draws the corner that an arm has to lie in to beat the bar."""
    x, y = _point(gain)
    left, top = ax.get_xlim()[0], ax.get_ylim()[1]
    style: dict[str, Any] = {"color": MUTED, "linewidth": 1, "linestyle": _DOTTED, "zorder": 1.5}
    ax.plot([left, x], [y, y], **style)
    ax.plot([x, x], [y, top], **style)

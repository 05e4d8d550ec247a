"""Figures of a baseline characterization, each drawn into one pair of axes that it returns.

Like those of a run they keep to matplotlib's objects and never touch `pyplot`. The runs of all seeds share one hue:
what matters is where they lie together, and where the thresholds fall among them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from lightning_deba.characterization import (
    Characterization,
    StabilityProfile,
    ThroughputCurve,
    calibrate,
    threshold_intervals,
)
from lightning_deba.characterization.verdict import HARDLY
from lightning_deba.policies import DEBA, Signals
from lightning_deba.records import EpochRecord
from lightning_deba.report.figures import COLORS, GRID, MUTED, SIZE, plot_batch_size
from lightning_deba.report.series import drawable, signal_series, signal_thresholds

__all__ = ["plot_evidence", "plot_profile", "plot_sizes", "plot_throughput"]

NAMES = {name: name.replace("gradient_norm", "gradient-norm").replace("_", " ") for name in Signals._fields}

_DATA, _THRESHOLD = COLORS[0], COLORS[1]
# A page of points is no clearer with ten thousand of them, and a hundred times as large.
_MOST_POINTS = 1200
_DOTTED = (0, (1, 1.5))


class _Found(NamedTuple):
    """What the figures need of a characterization, or of a profile alone."""

    profile: StabilityProfile
    policy: DEBA
    intervals: dict[str, tuple[float, float]]


def plot_profile(
    found: Characterization | StabilityProfile, ax: Axes | None = None, *, signal: str = "confidence"
) -> Axes:
    """Draws one signal against the epochs of all runs, and the threshold calibrated from them.

    The initial descent, which the calibration leaves out, is grey. The band about the threshold is its 90 %
    interval. The confidence is drawn on a logarithmic axis, being a ratio; of the descent only what fits is shown.

    Args:
        found: What a baseline characterization found, or its profile alone.
        ax: The axes to draw into; a new figure's by default.
        signal: "confidence", "gradient_norm_variation" or "loss_variation".

    Returns:
        The axes.

    Raises:
        ValueError: If there is no signal of that name.

    Example:
        >>> run = [EpochRecord(t, 32, 32, loss=0.9**t, gradient_norm=1 + 0.1 * (t % 3),
        ...                    component_variance=(1 + 0.1 * (t % 3)) ** 2) for t in range(20)]
        >>> plot_profile(StabilityProfile.from_history(run), signal="loss_variation").get_ylabel()
        'loss variation'
    """
    if signal not in NAMES:
        raise ValueError(f"`signal` must be one of {', '.join(map(repr, NAMES))}, got {signal!r}.")
    profile, policy, intervals = _parts(found)
    ax = dressed(ax, "epoch", NAMES[signal])
    ordinary: list[float] = []
    ink = _ink(profile)
    for run, descent in zip(profile.histories, profile.descent, strict=True):
        epochs = [record.epoch for record in run]
        values = [v if drawable(v) else math.nan for v in signal_series(run)[signal]]
        ax.plot(epochs[: descent + 1], values[: descent + 1], **ink | {"color": MUTED, "alpha": 0.45})
        ax.plot(epochs[descent:], values[descent:], **ink)
        ordinary += values[descent:]
    threshold = signal_thresholds({name: getattr(policy, name) for name in intervals})[signal]
    interval = intervals["confidence_threshold" if signal == "confidence" else "stability_threshold"]
    _mark_descent(ax, profile)
    _draw_threshold(ax, threshold, interval, label=f"{threshold:g}")
    fit = _about_one if signal == "confidence" else _from_zero
    fit(ax, [*ordinary, threshold, *interval])
    return ax


def plot_evidence(found: Characterization | StabilityProfile, ax: Axes | None = None) -> Axes:
    """Draws each epoch where the policy sees it: its confidence against the larger of its two variations.

    The calibrated thresholds part the plane into what the policy would do there; beside each is the share of the
    ordinary epochs that lie in it. Epochs of the initial descent are grey, and count for nothing.

    Args:
        found: What a baseline characterization found, or its profile alone.
        ax: The axes to draw into; a new figure's by default.

    Returns:
        The axes.

    Example:
        >>> run = [EpochRecord(t, 32, 32, loss=0.9**t, gradient_norm=1 + 0.1 * (t % 3),
        ...                    component_variance=(1 + 0.1 * (t % 3)) ** 2) for t in range(20)]
        >>> plot_evidence(StabilityProfile.from_history(run)).get_xlabel()
        'confidence'
    """
    profile, policy, intervals = _parts(found)
    ax = dressed(ax, "confidence", "larger variation")
    early, ordinary = _evidence(profile)
    calm = [point for point in ordinary if _is_calm(point, policy)]
    others = [point for point in ordinary if not _is_calm(point, policy)]
    ink = _ink(profile)
    _points(ax, early, ink | {"color": MUTED, "alpha": 0.45})
    _points(ax, others, ink | {"fillstyle": "none", "markeredgewidth": 0.9})
    _points(ax, calm, ink)
    thresholds = policy.confidence_threshold, policy.stability_threshold
    ends = intervals["confidence_threshold"], intervals["stability_threshold"]
    _draw_threshold(ax, thresholds[0], ends[0], label=f"{thresholds[0]:g}", upright=True)
    _draw_threshold(ax, thresholds[1], ends[1], label=f"{thresholds[1]:g}")
    confidences, variations = zip(*ordinary, strict=True) if ordinary else ((), ())
    _about_one(ax, [*confidences, thresholds[0], *ends[0]], upright=False)
    # Above and below the points is room for the names of the quarters.
    _from_zero(ax, [*variations, thresholds[1], *ends[1]], above=0.16, below=0.14)
    _name_quarters(ax, ordinary, policy)
    return ax


def plot_throughput(curve: ThroughputCurve, ax: Axes | None = None, *, batch_size: int | None = None) -> Axes:
    """Draws samples per second against the batch size: what was measured as points, the fit as a thin line.

    Args:
        curve: Seconds of a step by batch size.
        ax: The axes to draw into; a new figure's by default.
        batch_size: The size to compare the fastest with; the smallest measured by default.

    Returns:
        The axes.

    Example:
        >>> ax = plot_throughput(ThroughputCurve({16: 0.018, 32: 0.026, 64: 0.042}))
        >>> ax.texts[-1].get_text()
        'fit: 10.0 ms + 500.0 µs per sample'
    """
    ax = dressed(ax, "batch size (samples per step)", "samples per second")
    sizes = sorted(curve.seconds)
    rates = [size / curve.seconds[size] for size in sizes]
    a, b, _ = curve.fit()
    ends = math.log(sizes[0]), math.log(sizes[-1])
    between = [math.exp(ends[0] + (ends[1] - ends[0]) * step / 60) for step in range(61)]
    fitted = [size / (a + b * size) for size in between]
    ax.set_xscale("log", base=2)
    ax.plot(between, fitted, color=MUTED, linewidth=0.9)
    ax.plot(sizes, rates, "o", color=_DATA, markersize=4.5)
    start = sizes[0] if batch_size is None else batch_size
    _mark_speedup(ax, curve, start, max(curve.seconds, key=lambda size: size / curve.seconds[size]))
    time = EngFormatter(unit="s", places=1)
    parts = ([time(a)] if a else []) + ([f"{time(b)} per sample"] if b else [])
    _small(ax, f"fit: {' + '.join(parts)}", (0.02, 0.05), color=MUTED, va="bottom")
    if curve.ceiling is not None:
        ax.axvline(curve.ceiling, color=_THRESHOLD, linewidth=1, linestyle=_DOTTED)
        place = {"ha": "right", "va": "center", "rotation": 90}
        _small(ax, "out of memory", (curve.ceiling, 0.5), ax.get_xaxis_transform(), color=_THRESHOLD, **place)
    _octaves(ax, [*sizes, start, *([curve.ceiling] if curve.ceiling else [])])
    ax.set_ylim(0, 1.12 * max(*rates, *fitted))
    return ax


def plot_sizes(found: Characterization, ax: Axes | None = None) -> Axes:
    """Draws the batch sizes that the calibrated policy would go through on the signals of the baseline.

    Args:
        found: What a baseline characterization found.
        ax: The axes to draw into; a new figure's by default.

    Returns:
        The axes.

    Example:
        >>> run = [EpochRecord(t, 32, 32, loss=0.9**t, gradient_norm=1.0, component_variance=1.0) for t in range(20)]
        >>> curve = ThroughputCurve({32: 0.02, 64: 0.03})
        >>> plot_sizes(Characterization(StabilityProfile.from_history(run), curve)).get_xlabel()
        'epoch'
    """
    # One sample an epoch turns the samples seen into epochs.
    run = [EpochRecord(t, size, size, samples=1) for t, size in enumerate(found.verdict.sizes)]
    ax = plot_batch_size(run, ax=ax)
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def _parts(found: Characterization | StabilityProfile) -> _Found:
    """Returns the profile with its policy and intervals, which a characterization has at hand."""
    if isinstance(found, Characterization):
        return _Found(found.profile, found.policy, found.intervals)
    return _Found(found, calibrate(found), threshold_intervals(found))


def dressed(ax: Axes | None, xlabel: str, ylabel: str) -> Axes:
    """Returns axes in the house's dress."""
    if ax is None:
        ax = Figure(figsize=SIZE, layout="constrained").add_subplot()
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)
    if xlabel == "epoch":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def _ink(profile: StabilityProfile) -> dict[str, Any]:
    """Returns how runs are drawn: more faintly where they are so many that they would hide each other."""
    if sum(map(len, profile.histories)) > 400:
        return {"color": _DATA, "alpha": 0.4, "linewidth": 0.6, "markersize": 2.2}
    return {"color": _DATA, "alpha": 0.85, "linewidth": 1.0, "markersize": 3.6}


def _points(ax: Axes, points: Sequence[tuple[float, float]], style: dict[str, Any]) -> None:
    thinned = points[:: max(1, math.ceil(len(points) / _MOST_POINTS))]
    if thinned:
        ax.plot(*zip(*thinned, strict=True), "o", **style)


def _evidence(profile: StabilityProfile) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Returns the confidence and the larger variation of each epoch, of the initial descent and after it."""
    early: list[tuple[float, float]] = []
    ordinary: list[tuple[float, float]] = []
    for run, descent in zip(profile.histories, profile.descent, strict=True):
        for t, (confidence, *variations) in enumerate(zip(*signal_series(run).values(), strict=True)):
            point = confidence, max(variations)
            if all(map(drawable, point)):
                (early if t < descent else ordinary).append(point)
    return early, ordinary


def _is_calm(point: tuple[float, float], policy: DEBA) -> bool:
    return point[0] <= policy.confidence_threshold and point[1] < policy.stability_threshold


def _name_quarters(ax: Axes, points: Sequence[tuple[float, float]], policy: DEBA) -> None:
    """Writes into each quarter of the plane what the policy does there, and how many of the epochs it has."""
    counts = Counter((c > policy.confidence_threshold, v >= policy.stability_threshold) for c, v in points)
    verbs = {(False, False): "grow", (True, False): "hold", (False, True): "hold", (True, True): "roll back"}
    for (noisy, unstable), verb in verbs.items():
        text = f"{verb} {counts[noisy, unstable] / max(1, len(points)):.0%}"
        style: dict[str, Any] = {"color": _DATA, "fontweight": "bold"} if verb == "grow" else {"color": MUTED}
        style |= {"ha": "right" if noisy else "left", "va": "top" if unstable else "bottom"}
        _small(ax, text, (0.985 if noisy else 0.015, 0.98 if unstable else 0.02), **style)


def _draw_threshold(
    ax: Axes, value: float, interval: tuple[float, float], label: str, *, upright: bool = False
) -> None:
    """Draws a threshold across the axes, its interval as a band, and its value at its end."""
    line, span = (ax.axvline, ax.axvspan) if upright else (ax.axhline, ax.axhspan)
    span(*interval, color=_THRESHOLD, alpha=0.14, linewidth=0, zorder=0.5)
    line(value, color=_THRESHOLD, linewidth=1.2, zorder=2.5)
    place: dict[str, Any] = {"xy": (1, value), "xycoords": ax.get_yaxis_transform(), "xytext": (4, 0), "va": "center"}
    if upright:
        place = {"xy": (value, 1), "xycoords": ax.get_xaxis_transform(), "xytext": (0, 3), "ha": "center"}
    style: dict[str, Any] = {"color": _THRESHOLD, "fontsize": "small", "annotation_clip": False}
    ax.annotate(label, textcoords="offset points", **style, **place)


def _mark_descent(ax: Axes, profile: StabilityProfile) -> None:
    """Shades the epochs of the longest initial descent, and names them above the axes."""
    last = max(run[min(d, len(run) - 1)].epoch for run, d in zip(profile.histories, profile.descent, strict=True))
    end = max(run[-1].epoch for run in profile.histories)
    ax.axvspan(0, last, color=GRID, alpha=0.45, linewidth=0, zorder=0)
    _small(ax, "initial descent", (0, 1.01), color=MUTED, va="bottom")
    ax.set_xlim(0, end)


def _mark_speedup(ax: Axes, curve: ThroughputCurve, start: int, fastest: int) -> None:
    """Draws by what factor the fastest size is faster than the first, or that none is."""
    before, after = (1 / curve.seconds_per_sample(size) for size in (start, fastest))
    if after < before / (1 - HARDLY):
        _small(ax, f"no size is much faster than {start:,}", (0.02, 0.13), color=_THRESHOLD, va="bottom")
        return
    ax.plot([start, fastest], [before, before], color=_THRESHOLD, linewidth=0.9, linestyle=_DOTTED)
    arrow = {"arrowstyle": "-|>", "color": _THRESHOLD, "linewidth": 1, "shrinkA": 0, "shrinkB": 4}
    ax.annotate("", (fastest, after), (fastest, before), arrowprops=arrow)
    gain, sizes = f"{after / before:.2f} × as fast", f"at {fastest:,} as at {start:,}"
    if after < 1.25 * before:
        # Beside so short an arrow the text would stand among the points.
        _small(ax, f"{gain} {sizes}", (0.02, 0.13), color=_THRESHOLD, va="bottom")
        return
    # Left of the arrow is most room, unless it stands at the left end itself.
    side, gap = ("left", 6) if fastest < math.sqrt(min(curve.seconds) * max(curve.seconds)) else ("right", -6)
    style: dict[str, Any] = {"ha": side, "va": "center", "color": _THRESHOLD, "fontsize": "small"}
    middle = fastest, (before + after) / 2
    ax.annotate(f"{gain}\n{sizes}", middle, xytext=(gap, 0), textcoords="offset points", **style)


def _small(ax: Axes, text: str, xy: tuple[float, float], transform: Any = None, **style: Any) -> None:
    """Writes a small text, by default at a place in fractions of the axes."""
    ax.text(*xy, text, transform=transform or ax.transAxes, fontsize="small", **style)


def _from_zero(ax: Axes, values: Iterable[float], *, above: float = 0.06, below: float = 0.0) -> None:
    """Fits the upright axis to the values, from zero on, with room above and below in shares of the largest."""
    top = max(filter(drawable, values), default=0.0) or 1.0
    ticks = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(0, top)
    ax.set_yticks([tick for tick in ticks if 0 <= tick <= (1 + above) * top])
    ax.set_ylim(-below * top, (1 + above) * top)


def _about_one(ax: Axes, values: Iterable[float], *, upright: bool = True) -> None:
    """Fits an axis to a ratio's values: logarithmic, with 1 in sight."""
    # A variance of zero has no place on a logarithmic axis, and needs none.
    positive = [value for value in values if drawable(value) and value > 0]
    low, high = min([*positive, 0.7]), max([*positive, 1.4])
    side, ticks = ("y", ax.yaxis) if upright else ("x", ax.xaxis)
    ax.set(**{f"{side}scale": "log", f"{side}lim": (low / 1.12, high * 1.12)})
    # Powers of two alone are too few where the values keep close to 1.
    close = FixedLocator((0.5, 0.6, 0.8, 1, 1.25, 1.5, 2))
    ticks.set_major_locator(close if high < 4 * low else LogLocator(base=2, numticks=7))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks.set_minor_locator(NullLocator())


def _octaves(ax: Axes, sizes: Sequence[int]) -> None:
    """Puts the ticks of a batch-size axis on powers of two, in plain figures."""
    ax.set_xlim(min(sizes) / 1.25, max(sizes) * 1.25)
    ax.xaxis.set_major_locator(LogLocator(base=2))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())

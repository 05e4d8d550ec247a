"""Figures for the inside of a page: SVG that follows the page's colours, with a caption each."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from xml.etree import ElementTree

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_deba.report import figures
from lightning_deba.report.runs import Run
from lightning_deba.report.series import changes, clean, drawable, signal_series

__all__ = ["VARIABLES", "Card", "draw_card", "draw_cards"]

# A page with a figure for each of hundreds of signals is no longer a page.
_MOST_SIGNALS = 6

_STYLE = {
    "axes.edgecolor": figures.MUTED,
    "axes.labelcolor": figures.INK,
    "axes.linewidth": 0.7,
    "font.size": 8.5,
    "svg.fonttype": "none",
    "text.color": figures.INK,
    "text.parse_math": False,
    "xtick.color": figures.MUTED,
    "xtick.labelcolor": figures.INK,
    "xtick.major.width": 0.7,
    "ytick.color": figures.MUTED,
    "ytick.labelcolor": figures.INK,
    "ytick.major.size": 0,
}
# The colours of the figures by the page's variables, which know a light and a dark value.
VARIABLES = {figures.INK: "ink", figures.MUTED: "muted", figures.GRID: "grid"} | {
    color: f"run-{number}" for number, color in enumerate(figures.COLORS)
}

_CAPTIONS = {
    "batch size": "Samples per optimizer step, against samples seen. Triangles mark the changes; a number beside one "
    "is the epoch after which it came.",
    "training loss": "Mean training loss of each epoch, against samples seen.",
    "training time": "Time spent training, validation not counted, against samples seen. Flatter is faster.",
    "confidence": "Component variance of the gradient over its median in the window, against samples seen. "
    "Above the threshold (dotted) an epoch counts as noisy.",
    "gradient_norm_variation": "Relative change of the gradient norm since the epoch before, against samples "
    "seen. Below the threshold (dotted) gradients count as stable.",
    "loss_variation": "Relative change of the training loss since the epoch before, against samples seen. "
    "Below the threshold (dotted) the loss counts as stable.",
    "noise_scale": "Simple noise scale in samples, where it is determined: about the batch size beyond which more "
    "samples hardly make a better step.",
    "noise_scale_above": "What the noise scale exceeds, in samples, where it is undetermined: far above the batch.",
    "noise_scale_error": "Standard error of the noise scale, in samples.",
    "step_overhead": "Seconds of an optimizer step whatever the batch size, fitted to the times of the run.",
    "seconds_per_sample": "Seconds that each further sample adds to a step, fitted likewise.",
    "efficiency": "What a sample is worth at this batch size, against one at the first size.",
    "goodput_gain": "Share of progress per second that the best other batch size would gain. From `min_gain` on, by "
    "default 0.05, it is taken.",
    "cabs_batch_size": "Batch size that the gradient's covariance and the loss ask for.",
    "gradient_error": "Error of the gradient as a share of its norm.",
    "cosine": "Expected cosine of the gradients of the batch's two halves.",
}


class Card(NamedTuple):
    """A figure with what is said about it."""

    title: str
    caption: str
    svg: str


def _series(run: Run) -> dict[str, list[float]]:
    """Returns the signals of a run that have a value to draw."""
    series = signal_series(run.history, run.decisions, run.window)
    return {name: values for name, values in series.items() if any(map(drawable, values))}


def draw_cards(runs: Sequence[Run]) -> tuple[list[Card], list[str]]:
    """Draws every figure that has something to show, and names those that have not."""
    series = [_series(run) for run in runs]
    names = list(dict.fromkeys(name for found in series for name in found))
    cards = [_card("batch size", runs, figures.plot_batch_size)]
    missing = [clean(name, 40) for name in names[_MOST_SIGNALS:]] if names else ["signals"]
    if any(drawable(record.loss) for run in runs for record in run.history):
        cards.append(_card("training loss", runs, figures.plot_loss))
    else:
        missing.append("training loss")
    cards.append(_card("training time", runs, figures.plot_seconds))
    cards += [_signal_card(name, runs, series) for name in names[:_MOST_SIGNALS]]
    return cards, missing


def _card(title: str, runs: Sequence[Run], plot: Callable[..., Axes]) -> Card:
    """Draws all runs into one figure."""

    def draw(ax: Axes) -> None:
        for number, run in enumerate(runs):
            # With a name, its changes leave out their epochs, which are too many in one figure.
            plot(run.history, ax=ax, run=number, label=run.name if len(runs) > 1 else None)

    return draw_card(title, _CAPTIONS[title], draw, _tooltips(runs))


def _signal_card(name: str, runs: Sequence[Run], series: Sequence[dict[str, list[float]]]) -> Card:
    """Draws one signal of all runs that have it; a threshold that they share is nobody's colour."""
    having = [number for number in range(len(runs)) if name in series[number]]
    thresholds = [runs[number].thresholds.get(name) for number in having]
    shared = len(set(thresholds)) == 1
    title = clean(name, 40).replace("_", " ")
    caption = _CAPTIONS.get(name, "A signal that the policy decides on, against samples seen.")

    def draw(ax: Axes) -> None:
        for number, threshold in zip(having, thresholds, strict=True):
            run = runs[number]
            figures.plot_signal(run.history, run.decisions, name, window=run.window, ax=ax, run=number)
            if threshold is not None:
                color = figures.COLORS[number % len(figures.COLORS)]
                figures.draw_threshold(ax, threshold, figures.MUTED if shared else color)

    return draw_card(title, caption, draw)


def draw_card(
    title: str,
    caption: str,
    draw: Callable[[Axes], object],
    tooltips: Iterable[str] = (),
    *,
    size: tuple[float, float] = figures.SIZE,
) -> Card:
    """Draws a figure for the inside of a page.

    Args:
        title: What it shows, in few words.
        caption: What is said about it.
        draw: Draws into the axes that it is given.
        tooltips: A text for each part whose `gid` begins with "change-", in the order in which they are drawn.
        size: Width and height in inches.
    """
    with _figure(title, size) as figure:
        draw(figure.add_subplot())
        svg = _svg(figure, f"{title}. {caption}", tooltips)
    return Card(title[:1].upper() + title[1:], caption, svg)


def _tooltips(runs: Sequence[Run]) -> list[str]:
    """Returns a line about each change of batch size, in the order in which they are drawn."""
    lines = []
    for run in runs:
        reasons = {grant.epoch: clean(grant.reason) for grant in run.decisions}
        for t in changes(run.history):
            before, after = run.history[t - 1], run.history[t]
            change = f"after epoch {before.epoch}: {before.batch_size:,} → {after.batch_size:,}"
            lines.append(f"{run.name}, {change}. {reasons.get(before.epoch, '')}".strip())
    return lines


@contextmanager
def _figure(title: str, size: tuple[float, float]) -> Iterator[Figure]:
    """Yields a new figure, drawn in the page's own style whatever the user's is."""
    # The salt gives the parts of each figure identifiers of its own, and the same ones every time.
    with style.context(["default", _STYLE | {"svg.hashsalt": title}]):
        yield Figure(figsize=size, layout="constrained")


def _svg(figure: Figure, description: str, tooltips: Iterable[str]) -> str:
    """Writes a figure as SVG for the inside of a page, with one of `tooltips` at each change."""
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(buffer.getvalue())
    # The first child is a style for every element, of the whole page even; the page has its own.
    root.remove(root[0])
    waiting = iter(tooltips)
    for element in root.iter():
        element.tag = element.tag.split("}")[-1]
        element.text, element.tail = (element.text or "").strip(), None
        if element.get("id", "").startswith("change-"):
            tooltip = ElementTree.Element("title")
            tooltip.text = next(waiting, "")
            element.insert(0, tooltip)
        attributes = {name.split("}")[-1]: _slim(value) for name, value in element.items()}
        element.attrib.clear()
        element.attrib.update({name: value for name, value in attributes.items() if _needed(name, value)})
    view = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": description}
    root.attrib.clear()
    root.attrib.update(view)
    return ElementTree.tostring(root, encoding="unicode")


def _slim(value: str) -> str:
    """Rewrites an attribute for the page: its colours, its font, and no digit that nobody sees."""
    for color, variable in VARIABLES.items():
        value = value.replace(color, f"var(--{variable})")
    value = re.sub(r"font-family: [^;]*; |rotate\(-0 [^)]*\)", "", value)
    value = re.sub(r"(\.\d\d)\d+", r"\1", value)
    return " ".join(value.split())


def _needed(name: str, value: str) -> bool:
    """Tells whether a page needs an attribute: identifiers only where something may refer to them."""
    return bool(value) and (name != "id" or re.fullmatch("[a-z][0-9a-f]{10}", value) is not None)

"""One self-contained HTML page about a baseline characterization, in the looks of the page about a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lightning_deba.characterization import Characterization
from lightning_deba.characterization.profile import stability_score
from lightning_deba.characterization.verdict import HARDLY, WORTH_IT
from lightning_deba.report.cards import Card, draw_card
from lightning_deba.report.page import render, save
from lightning_deba.report.profile_figures import NAMES, plot_evidence, plot_profile, plot_sizes, plot_throughput
from lightning_deba.report.series import clean

__all__ = ["write_profile_report"]

_MOST_FACTS = 50

_SIGNALS = {
    "confidence": "Component variance of the gradient over its median in the window: below the threshold an epoch is "
    "quiet.",
    "gradient_norm_variation": "Relative change of the gradient norm since the epoch before: below the threshold "
    "gradients are stable.",
    "loss_variation": "Relative change of the training loss since the epoch before: below the same threshold the loss "
    "is stable.",
}


class Row(NamedTuple):
    """A line of the table of what was found."""

    name: str
    value: str
    interval: str
    meaning: str


def write_profile_report(found: Characterization, output: Path | str, *, preset: str | None = None) -> Path:
    """Writes one HTML page about a characterization: the verdict, why, and what was measured.

    The page holds all it shows: it loads nothing, so it can be mailed, archived and printed. The same
    characterization gives the same bytes.

    Args:
        found: What the baseline characterization found.
        output: File to write, or a directory to write ``profile.html`` into.
        preset: The YAML of a preset for the reader to copy, if there is one.

    Returns:
        The file written.

    Raises:
        OSError: If `output` cannot be written.

    Example:
        >>> import tempfile
        >>> from lightning_deba import EpochRecord
        >>> from lightning_deba.characterization import StabilityProfile, ThroughputCurve
        >>> run = [EpochRecord(t, 32, 32, loss=0.9**t, gradient_norm=1.0, component_variance=1.0) for t in range(20)]
        >>> curve = ThroughputCurve({32: 0.02, 64: 0.03})
        >>> toy = Characterization(StabilityProfile.from_history(run, "toy"), curve)
        >>> write_profile_report(toy, tempfile.mkdtemp()).name
        'profile.html'
    """
    word = found.verdict
    page = render(
        "profile.html.j2",
        architecture=clean(found.profile.architecture, 80),
        baseline=_baseline(found),
        verdict=word,
        worth_it=_percent(WORTH_IT),
        hardly=_percent(HARDLY),
        kind={"adapt": "yes", "marginal": "maybe"}.get(word.word, "no"),
        numbers=_numbers(found),
        cards=list(_cards(found)),
        rows=list(_rows(found)),
        curve=_curve(found),
        base=found.profile.batch_size,
        ceiling=found.curve.ceiling,
        device=clean(found.curve.device, 80),
        preset=preset and "\n".join(clean(line, 400) for line in preset.strip("\n").split("\n")[:200]),
        about=_about(found.about),
    )
    return save(page, Path(output), "profile.html")


def _baseline(found: Characterization) -> str:
    """Tells in a line what was run."""
    lengths = sorted({len(run) for run in found.profile.histories})
    epochs = f"{lengths[0]} epochs" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]} epochs"
    runs = len(found.profile.histories)
    return f"{epochs} at a fixed batch size of {found.profile.batch_size:,}" + (f", {runs} runs" if runs > 1 else "")


def _numbers(found: Characterization) -> list[tuple[str, str]]:
    """Returns the few numbers that the verdict rests on."""
    word = found.verdict
    return [
        ("predicted saving of time", _percent(word.saving)),
        ("attainable by the throughput", _percent(word.attainable)),
        ("by doubling every 5 epochs", _percent(word.by_clock)),
        ("stability score", f"{found.profile.score:.2f}"),
        ("simulated batch sizes", _way(word.sizes)),
    ]


def _way(sizes: Sequence[int]) -> str:
    """Tells where batch sizes go, and how high in between where they come back.

    Example:
        >>> _way([16, 24, 36]), _way([16, 24, 16]), _way([16, 16])
        ('16 → 36', '16 → 24 → 16', '16 throughout')
    """
    first, last = sizes[0], sizes[-1]
    if len(set(sizes)) == 1:
        return f"{first:,} throughout"
    stations = (first, last) if first != last else (first, max(sizes) if max(sizes) > first else min(sizes), last)
    return " → ".join(f"{size:,}" for size in stations)


def _percent(share: float) -> str:
    """Writes a share as a percentage; nothing is not less than nothing.

    Example:
        >>> _percent(0.234), _percent(-0.001), _percent(-0.2)
        ('23%', '0%', '−20%')
    """
    return f"{round(100 * share):d}%".replace("-", "\N{MINUS SIGN}")


def _cards(found: Characterization) -> Iterator[Card]:
    """Draws the figures of the page."""
    for name, caption in _SIGNALS.items():
        yield draw_card(NAMES[name], caption, partial(plot_profile, found, signal=name))
    yield draw_card(
        "what the policy sees",
        "Each epoch after the initial descent by both kinds of evidence, and what the policy does there. It grows "
        "where both thresholds are kept (filled), and rolls back where neither is.",
        partial(plot_evidence, found),
    )
    yield draw_card(
        "throughput",
        "Samples per second by batch size, as measured (points) and as fitted (line). Where it is flat, a larger "
        "batch gains no time.",
        partial(plot_throughput, found.curve, batch_size=found.profile.batch_size),
    )
    changes = [(t, before, after) for t, (before, after) in enumerate(pairwise(found.verdict.sizes))]
    yield draw_card(
        "simulated batch sizes",
        "What the calibrated policy would do, were the signals those of the baseline. Triangles mark the changes.",
        partial(plot_sizes, found),
        [f"after epoch {t}: {before:,} → {after:,}" for t, before, after in changes if before != after],
    )


def _rows(found: Characterization) -> Iterator[Row]:
    """Lists what was found, with what it says."""
    profile, policy = found.profile, found.policy
    intervals = {name: f"{_short(low)} to {_short(high)}" for name, (low, high) in found.intervals.items()}
    scores = [stability_score(run) for run in profile.histories]
    over = f" {min(scores):.2f} to {max(scores):.2f} over the runs." if scores[1:] else ""
    yield Row("Architecture", clean(profile.architecture, 80) or "unnamed", "", f"Trained for {_baseline(found)}.")
    yield Row(
        "Stability score",
        f"{profile.score:.2f}",
        "",
        f"How steady the component variance is: 1 where it never moves, ½ where it varies by its own size.{over}",
    )
    yield Row(
        "`confidence_threshold`",
        f"{policy.confidence_threshold:g}",
        intervals["confidence_threshold"],
        "Confidence above which an epoch counts as noisy.",
    )
    yield Row(
        "`stability_threshold`",
        f"{policy.stability_threshold:g}",
        intervals["stability_threshold"],
        "Variation below which gradients, and loss, count as stable.",
    )
    yield Row(
        "`cooldown`",
        f"{policy.cooldown} epochs",
        "",
        "How long a batch size is kept before the next decision: twice the correlation time, at least 5 epochs.",
    )
    yield Row(
        "Correlation time",
        f"{profile.correlation_time:.1f} epochs",
        "",
        "How long the component variance remembers itself; 1 is no longer than the epoch.",
    )
    few, many = min(profile.descent), max(profile.descent)
    yield Row(
        "Initial descent",
        f"{few} epochs" if few == many else f"{few} to {many} epochs",
        "",
        "Until half of the loss’s whole fall is done. The numbers above leave it out.",
    )
    if profile.noise_scale is not None:
        yield Row(
            "Noise scale",
            f"{profile.noise_scale:,.0f} samples",
            "",
            "Simple gradient noise scale: a batch much larger than this averages out noise that is no longer there.",
        )


def _short(value: float) -> str:
    return f"{value:.3g}"


def _curve(found: Characterization) -> tuple[list[str], list[list[str]]]:
    """Lays out the throughput curve: names of the columns, and a line for each size."""
    curve, base, peaks = found.curve, found.profile.batch_size, found.curve.peak_memory
    names = ["Batch", "Step", "Samples/s", "Speed"] + (["Memory"] if peaks else [])
    lines = []
    for size, seconds in sorted(curve.seconds.items()):
        line = [
            f"{size:,}",
            f"{1000 * seconds:,.4g} ms",
            f"{size / seconds:,.4g}",
            f"{curve.speedup(base, size):.2f} ×",
        ]
        lines.append(line + ([f"{peaks[size] / 2**20:,.0f} MiB" if size in peaks else "–"] if peaks else []))
    return names, lines


def _about(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lists how the characterization was made; all of it comes from a file."""
    return [(clean(str(name), 60), _written(value)) for name, value in list(about.items())[:_MOST_FACTS]]


def _written(value: object) -> str:
    """Writes a value as it would be typed.

    Example:
        >>> _written([0, 1, 2]), _written(0.1), _written({"torch": "2.9.0"})
        ('0, 1, 2', '0.1', 'torch: 2.9.0')
    """
    if isinstance(value, Mapping):
        value = [f"{name}: {_written(one)}" for name, one in list(value.items())[:_MOST_FACTS]]
    if isinstance(value, list | tuple):
        value = ", ".join(map(_written, value[:_MOST_FACTS]))
    return clean(value if isinstance(value, str) else f"{value:.6g}" if isinstance(value, float) else json.dumps(value))

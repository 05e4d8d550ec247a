"""One self-contained HTML page about a comparison, in the looks of the page about a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from lightning_deba.comparison.figures import plot_accuracy, plot_batch_sizes, plot_comparison
from lightning_deba.comparison.gains import Gain, best_fixed, fixed_sizes, gains, ordered_arms
from lightning_deba.comparison.grid import Job
from lightning_deba.comparison.measures import measure
from lightning_deba.comparison.runs import Run
from lightning_deba.comparison.table import Line, line_of
from lightning_deba.comparison.words import about_bar, chance, failures, listed, missing, told
from lightning_deba.report.cards import Card, draw_card
from lightning_deba.report.page import render, save
from lightning_deba.report.series import clean, count

__all__ = ["write_comparison_report"]

# Keep the page under a megabyte: so many models, arms over all of them, and arms as lines.
_MOST_MODELS, _MOST_ARMS, _MOST_LINES = 12, 150, 60
# Besides the baseline, no more lines can be told apart in one figure.
_MOST_TOGETHER = 4
# In inches: of every figure, of one with lines, and the least of one with names.
_WIDTH, _HEIGHT, _LEAST = 4.6, 2.7, 3.9


class Part(NamedTuple):
    """What the page says of one model.

    Attributes:
        model: Its name.
        bar: A sentence about the best fixed batch size in hindsight.
        target: The accuracy whose time is listed.
        lines: The table.
        payoff: The figure that tells whether it pays; ``None`` without a baseline.
        cards: The other figures.
        failed: What did not work, a sentence each.
    """

    model: str
    bar: str
    target: str
    lines: list[Line]
    payoff: Card | None
    cards: list[Card]
    failed: list[str]


def write_comparison_report(
    runs: Sequence[Run], path: str | Path, *, baseline: str, target: float | None = None, jobs: Sequence[Job] = ()
) -> Path:
    """Writes one HTML page about a comparison: what pays, what does not, and the bar that there is to beat.

    The page holds all it shows: it loads nothing, so it can be mailed, archived and printed. The same runs give the
    same bytes.

    Args:
        runs: The results.
        path: File to write, or a directory to write ``comparison.html`` into.
        baseline: The arm that the others are compared with, seed by seed.
        target: Validation accuracy whose time is listed; see `measure`.
        jobs: What was to be run, so that what is missing is said. By default every arm of a model is to have the
            seeds that any of its arms has.

    Returns:
        The file written.

    Raises:
        ValueError: If there are no runs, or none is of the baseline.
        OSError: If `path` cannot be written.

    Example:
        >>> import tempfile
        >>> from lightning_deba.comparison.runs import shipped_runs
        >>> fixed = [run for run in shipped_runs() if run.arm in ("fixed_16", "fixed_64")]
        >>> write_comparison_report(fixed, tempfile.mkdtemp(), baseline="fixed_16").name
        'comparison.html'
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    if baseline not in arms:
        raise ValueError(f"`baseline` must be among the arms {', '.join(arms) or '(no runs)'}, got {baseline!r}.")
    shown, notes = _limited(runs, baseline)
    models = [[run for run in shown if run.model == model] for model in dict.fromkeys(run.model for run in shown)]
    most = _lines_each([len({run.arm for run in mine} - {baseline}) for mine in models])
    parts = [_part(mine, baseline, target, most) for mine in models]
    if any(len(part.lines) - 1 > most for part in parts):
        notes.append(f"Curves are drawn of the first {most} arms of each model.")
    page = render(
        "comparison.html.j2",
        room=__package__,
        about=_about(runs),
        answer=_answer(parts, clean(baseline, 40)),
        baseline=clean(baseline, 40),
        measured="Test accuracy" if all(run.test_accuracy is not None for run in runs) else "Validation accuracy",
        parts=parts,
        missing=missing(runs, jobs),
        chance=chance(runs, baseline),
        notes=notes,
    )
    return save(page, Path(path), "comparison.html")


def _limited(runs: Sequence[Run], baseline: str) -> tuple[list[Run], list[str]]:
    """Returns the runs of so many arms as a page has room for, those of the baseline first, and what is left out."""
    pairs = sorted({(run.model, run.arm) for run in runs}, key=lambda pair: (pair[1] != baseline, *pair))
    models = list(dict.fromkeys(model for model, _ in pairs))[:_MOST_MODELS]
    kept = set([pair for pair in pairs if pair[0] in models][:_MOST_ARMS])
    notes = [f"{len(kept):,} of {len(pairs):,} arms are shown."] if len(kept) < len(pairs) else []
    return [run for run in runs if (run.model, run.arm) in kept], notes


def _lines_each(arms: Sequence[int]) -> int:
    """Returns how many arms of each model may be drawn as lines beside the baseline, given how many there are.

    Example:
        >>> _lines_each([10, 20]), _lines_each([10, 100])
        (60, 50)
    """
    return next(
        most for most in range(_MOST_LINES, 0, -1) if most == 1 or sum(min(n, most) for n in arms) <= _MOST_LINES
    )


def _part(runs: Sequence[Run], baseline: str, target: float | None, most_lines: int) -> Part:
    model = runs[0].model
    rows = measure(runs, baseline, target)
    found = gains(rows, baseline)
    fixed = fixed_sizes(runs, model)
    bar = best_fixed(runs, rows, baseline, model)
    over_bar = {gain.arm: gain for gain in gains(rows, bar)} if bar else {}
    lines = [line_of(arm, rows, baseline, bar, found, over_bar, arm in fixed) for arm in ordered_arms(runs, baseline)]
    return Part(
        model=clean(model, 40),
        bar=about_bar(bar, baseline, found),
        target=f"{rows[0].target:.1%}",
        lines=lines,
        payoff=_payoff(runs, found, baseline),
        cards=list(_cards(runs, baseline, most_lines)),
        failed=list(failures(runs, baseline, bar, found, over_bar)),
    )


# The figures


def _payoff(runs: Sequence[Run], found: Sequence[Gain], baseline: str) -> Card | None:
    if not found:
        return None
    return draw_card(
        f"time and accuracy on {clean(runs[0].model, 40)}",
        f"What each arm gains over {clean(baseline, 40)}, with {'its interval' if found[0].pairs > 1 else 'one seed'}. "
        "Left is faster, up is more accurate.",
        partial(plot_comparison, runs, baseline=baseline),
        [f"{clean(gain.arm, 40)}: {told(gain)}" for gain in found],
        size=(_WIDTH, max(_LEAST, 0.15 * len(found))),  # each has its name
    )


def _cards(runs: Sequence[Run], baseline: str, most: int) -> Iterator[Card]:
    """Draws accuracy against time for all arms, a few in each figure, and the batch sizes of those that change it."""
    model, fixed = clean(runs[0].model, 40), fixed_sizes(runs, runs[0].model)
    arms = [arm for arm in ordered_arms(runs, baseline) if arm != baseline][:most]
    base = baseline if any(run.arm == baseline for run in runs) else None
    for kind, chosen in (
        ("fixed batch sizes", [arm for arm in arms if arm in fixed]),
        ("policies", [arm for arm in arms if arm not in fixed]),
    ):
        groups = _groups(chosen)
        for number, group in enumerate(groups, start=1):
            which = f"{kind} on {model}" + (f", {number} of {len(groups)}" if len(groups) > 1 else "")
            yield draw_card(
                f"accuracy against time: {which}",
                "Median over the seeds, and the range from the least to the greatest.",
                partial(plot_accuracy, runs, arms=group, baseline=base),
                size=(_WIDTH, _HEIGHT),
            )
            if kind == "policies":
                yield draw_card(
                    f"batch sizes: {which}",
                    "Samples per optimizer step in each epoch, likewise.",
                    partial(plot_batch_sizes, runs, arms=group, baseline=base),
                    size=(_WIDTH, _HEIGHT),
                )


def _groups(arms: Sequence[str]) -> list[Sequence[str]]:
    """Parts arms into groups of nearly the same size, none too large for one figure.

    Example:
        >>> _groups(["a", "b", "c", "d", "e"])
        [['a', 'b', 'c'], ['d', 'e']]
    """
    count = math.ceil(len(arms) / _MOST_TOGETHER)
    ends = [math.ceil(place * len(arms) / count) for place in range(count + 1)] if count else [0]
    return [arms[begin:end] for begin, end in pairwise(ends)]


# The words


def _answer(parts: Sequence[Part], baseline: str) -> list[str]:
    """Answers in sentences whether it pays."""
    words = [line.word for part in parts for line in part.lines if line.word]
    kinds = {
        "pays": ("pays", "pay"),
        "trade": ("trades time for accuracy", "trade time for accuracy or the other way round"),
        "no difference": ("makes no difference", "make no difference"),
        "worse": ("is worse", "are worse"),
        "one seed": ("has one seed, too few to tell", "have one seed, too few to tell"),
    }
    shares = [
        f"{number} {kinds[word][number > 1]}" for word in kinds if (number := sum(other == word for other in words))
    ]
    over = f" over {len(parts)} models" if len(parts) > 1 else ""
    answers = [f"Against `{baseline}`, of {count(len(words), 'arm')}{over}, {listed(shares)}."] if shares else []
    where = {part.model: f"On `{part.model}`, " if len(parts) > 1 else "" for part in parts}
    bars = [where[part.model] + part.bar for part in parts if part.bar]
    return [*answers, *(bar[0].upper() + bar[1:] for bar in bars), *_over_the_bar(parts)]


def _over_the_bar(parts: Sequence[Part]) -> list[str]:
    """Says how many policies are worth more than the best fixed batch size."""
    certain = {"pays", "trade", "no difference", "worse"}
    policies = [(part.model, line) for part in parts for line in part.lines if line.over_bar in certain]
    policies = [(model, line) for model, line in policies if not line.is_fixed]
    winners = [f"`{line.arm}` on `{model}`" for model, line in policies if line.over_bar == "pays"]
    if not policies:
        return []
    return [
        f"Over the bar, {len(winners) or 'none'} of {len(policies)} policies {'pays' if len(winners) == 1 else 'pay'}"
        + (f": {listed(winners[:12])}{' and more' if winners[12:] else ''}." if winners else ".")
    ]


def _about(runs: Sequence[Run]) -> str:
    counts = [len({getattr(run, name) for run in runs}) for name in ("model", "arm", "seed")]
    words = [count(number, noun) for number, noun in zip(counts, ("model", "arm", "seed"), strict=True)]
    return f"{count(len(runs), 'run')}: {', '.join(words)}"

"""What stored results say: a row a run, and medians with intervals, paired by seed with a baseline arm."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from statistics import median, median_low
from typing import Any, NamedTuple

from lightning_deba.comparison.intervals import Interval, interval_of_median, verdict
from lightning_deba.comparison.runs import Run

__all__ = ["Row", "Summary", "area_under", "final_level", "measure", "reached", "summarize", "write_csv"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The measures of one run. A target that was not reached takes infinitely long.

    Attributes:
        model: The model's name in the grid.
        arm: The arm's name.
        seed: The seed.
        val_accuracy: Accuracy on the validation data in the end.
        test_accuracy: Accuracy on the test data in the end; ``None`` where there are none.
        seconds: Seconds of training, validation not counted.
        processor_seconds: Processor seconds of training, likewise.
        samples: Samples trained on.
        steps: Optimizer steps.
        final_batch_size: Batch size of the last epoch.
        overhead: Share of the processor seconds that was spent in the callback's hooks; ``None`` where it was not
            measured.
        target: The accuracy whose time was taken.
        seconds_to_target: Seconds of training until the validation accuracy was first that of the target.
        processor_seconds_to_target: Processor seconds, likewise.
        samples_to_target: Samples, likewise.
        area: Mean over the time that the baseline takes of the validation accuracy reached by then, from 0 to 1.
        processor_area: Likewise over processor seconds.
    """

    model: str
    arm: str
    seed: int
    val_accuracy: float
    test_accuracy: float | None
    seconds: float
    processor_seconds: float
    samples: int
    steps: int
    final_batch_size: int
    overhead: float | None
    target: float
    seconds_to_target: float
    processor_seconds_to_target: float
    samples_to_target: float
    area: float
    processor_area: float


MEASURES = tuple(f.name for f in fields(Row) if f.name not in ("model", "arm", "seed", "target"))


class Summary(NamedTuple):
    """What the seeds say of one measure of one arm.

    Attributes:
        model: The model's name in the grid.
        arm: The arm's name.
        measure: The measure's name, as in `Row`.
        runs: How many runs there are.
        median: Median over the runs with its interval.
        pairs: How many seeds the baseline has as well.
        difference: Median over these of what the arm has more than the baseline; ``None`` for the baseline itself.
        verdict: "more", "less" or "none", see `verdict`; empty for the baseline itself.
    """

    model: str
    arm: str
    measure: str
    runs: int
    median: Interval
    pairs: int = 0
    difference: Interval | None = None
    verdict: str = ""


def reached(costs: Sequence[float], accuracies: Sequence[float], target: float) -> float:
    """Returns what was spent until the accuracy was first `target` or more, in whole epochs.

    Args:
        costs: What each epoch cost: seconds or samples.
        accuracies: The accuracy at its end.
        target: The accuracy to reach.

    Returns:
        The sum of the costs up to that epoch, it included; infinity if the target was not reached.

    Example:
        >>> reached([2, 2, 3], [0.5, 0.8, 0.9], 0.8), reached([2, 2, 3], [0.5, 0.8, 0.9], 0.95)
        (4, inf)
    """
    spent = zip(accumulate(costs), accuracies, strict=True)
    return next((cost for cost, accuracy in spent if accuracy >= target), math.inf)


def area_under(seconds: Sequence[float], accuracies: Sequence[float], horizon: float) -> float:
    """Returns the mean from 0 to `horizon` of the accuracy last measured by then.

    Whoever stops at a time has what was measured last: 0 during the first epoch, and after the last one its accuracy.

    Args:
        seconds: Seconds of each epoch.
        accuracies: The accuracy at its end.
        horizon: Seconds up to which the mean goes.

    Example:
        >>> area_under([2.0, 2.0], [0.5, 0.9], horizon=8.0)  # 2 s of 0, 2 s of 0.5 and 4 s of 0.9
        0.575
    """
    ends = [*accumulate(seconds), math.inf]
    spans = zip(ends, ends[1:], accuracies, strict=False)
    area = sum(accuracy * max(0.0, min(end, horizon) - start) for start, end, accuracy in spans)
    return area / horizon if horizon > 0 else 0.0


def final_level(accuracies: Sequence[float]) -> float:
    """Returns the accuracy at which a run ends: the median of its last 5 epochs, of four the lower middle one.

    The last epoch alone is a matter of luck, and the best one all the more.

    Example:
        >>> final_level([0.2, 0.7, 0.9, 0.8, 0.6, 0.81])
        0.8
    """
    return median_low(accuracies[-5:])


def measure(runs: Sequence[Run], baseline: str, target: float | None = None) -> list[Row]:
    """Measures runs, a row each.

    Args:
        runs: The results.
        baseline: The arm whose median time is the horizon of the area under the curve, for each model its own. Where
            a model has no such run, all its runs stand in.
        target: Validation accuracy whose time is taken; by default, for each model, the lowest `final_level` of the
            baseline's runs, which all of them reach.

    Returns:
        The rows, in the order of the runs.
    """
    references = {model: _references(runs, model, baseline) for model in {run.model for run in runs}}
    return [_row(run, references[run.model], target) for run in runs]


def _references(runs: Sequence[Run], model: str, baseline: str) -> list[Run]:
    mine = [run for run in runs if run.model == model]
    return [run for run in mine if run.arm == baseline] or mine


def _row(run: Run, references: Sequence[Run], target: float | None) -> Row:
    goal = min(final_level(other.accuracies) for other in references) if target is None else target
    return Row(
        model=run.model,
        arm=run.arm,
        seed=run.seed,
        val_accuracy=run.accuracies[-1],
        test_accuracy=run.test_accuracy,
        seconds=sum(run.seconds),
        processor_seconds=sum(run.processor_seconds),
        samples=sum(run.samples),
        steps=sum(run.steps),
        final_batch_size=run.batch_sizes[-1],
        overhead=_overhead(run),
        target=goal,
        seconds_to_target=reached(run.seconds, run.accuracies, goal),
        processor_seconds_to_target=reached(run.processor_seconds, run.accuracies, goal),
        samples_to_target=reached(run.samples, run.accuracies, goal),
        area=area_under(run.seconds, run.accuracies, median(sum(other.seconds) for other in references)),
        processor_area=area_under(
            run.processor_seconds, run.accuracies, median(sum(other.processor_seconds) for other in references)
        ),
    )


def _overhead(run: Run) -> float | None:
    spent = sum(run.processor_seconds)
    return None if run.callback_seconds is None or not spent else run.callback_seconds / spent


def summarize(
    rows: Sequence[Row], baseline: str, *, level: float = 0.9, measures: Sequence[str] = MEASURES
) -> list[Summary]:
    """Summarizes rows over their seeds, for each model, arm and measure.

    Args:
        rows: What `measure` returns.
        baseline: The arm that the others are compared with, seed by seed.
        level: Level of the intervals.
        measures: Names of the measures.

    Returns:
        Models, arms and measures in the order in which they first come. A measure that a run does not have is left
        out.
    """
    groups: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.arm), {})[row.seed] = row
    return [
        _summary(model, arm, name, values, None if arm == baseline else _values(groups, model, baseline, name), level)
        for model, arm in groups
        for name in measures
        if (values := _values(groups, model, arm, name))
    ]


def _values(groups: Mapping[tuple[str, str], Mapping[int, Row]], model: str, arm: str, name: str) -> dict[int, float]:
    values = {seed: getattr(row, name) for seed, row in groups.get((model, arm), {}).items()}
    return {seed: value for seed, value in values.items() if value is not None and not math.isnan(value)}


def _summary(
    model: str, arm: str, name: str, values: Mapping[int, float], others: Mapping[int, float] | None, level: float
) -> Summary:
    middle = interval_of_median(list(values.values()), level)
    # Where neither has reached the target, neither is ahead.
    pairs = [0.0 if values[s] == others[s] else values[s] - others[s] for s in values if s in others] if others else []
    if not pairs:
        return Summary(model, arm, name, len(values), middle)
    difference = interval_of_median(pairs, level)
    return Summary(model, arm, name, len(values), middle, len(pairs), difference, verdict(difference))


def write_csv(rows: Iterable[Row], path: str | Path) -> None:
    """Writes a row a run, under the names of `Row`. What was not reached, or does not exist, is left empty.

    Args:
        rows: The rows.
        path: A CSV file, written anew.
    """
    names = [f.name for f in fields(Row)]
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(getattr(row, name)) for name in names] for row in rows)


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value

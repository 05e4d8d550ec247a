"""What stored results say: a row a run, and medians with intervals, paired by seed with a baseline arm."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

__all__ = [
    "Interval",
    "Row",
    "Run",
    "Summary",
    "area_under",
    "interval_of_median",
    "load_runs",
    "measure",
    "reached",
    "summarize",
    "verdict",
    "write_csv",
]

DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class Run:
    """The stored result of one run; the sequences have one number an epoch.

    Attributes:
        model: The model's name in the grid.
        arm: The arm's name.
        seed: The seed.
        seconds: Seconds of training, validation not counted.
        processor_seconds: Processor seconds of training in the training process, likewise.
        samples: Samples trained on.
        steps: Optimizer steps.
        batch_sizes: Batch size.
        accuracies: Accuracy on the validation data at the epoch's end.
        test_accuracy: Accuracy on the test data in the end; ``None`` where there are none.
    """

    model: str
    arm: str
    seed: int
    seconds: Sequence[float]
    processor_seconds: Sequence[float]
    samples: Sequence[int]
    steps: Sequence[int]
    batch_sizes: Sequence[int]
    accuracies: Sequence[float]
    test_accuracy: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the run as plain data."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Run:
        """Builds a run from plain data, which is checked, since it comes from a file.

        Raises:
            ValueError: If a field is missing, or the sequences are not of one length.
        """
        try:
            run = cls(**{f.name: data[f.name] for f in fields(cls)})
            lengths = {len(getattr(run, name)) for name in _SERIES}
        except (KeyError, TypeError) as error:
            raise ValueError(f"no result of a run: {error!r}") from error
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"no result of a run: its epochs count differently, {sorted(lengths)}")
        return run


_SERIES = ("seconds", "processor_seconds", "samples", "steps", "batch_sizes", "accuracies")


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
    target: float
    seconds_to_target: float
    processor_seconds_to_target: float
    samples_to_target: float
    area: float
    processor_area: float


MEASURES = tuple(f.name for f in fields(Row) if f.name not in ("model", "arm", "seed", "target"))


class Interval(NamedTuple):
    """A value between two bounds."""

    value: float
    low: float
    high: float


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


def load_runs(root: str | Path) -> list[Run]:
    """Reads all results under the directory of a comparison, in order.

    Raises:
        ValueError: If a result cannot be read.
    """
    runs = []
    for path in sorted(Path(root).glob("runs/*/*/seed-*/result.json")):
        try:
            runs.append(Run.from_dict(json.loads(path.read_text(encoding="utf-8"))))
        except ValueError as error:
            raise ValueError(f"'{path}' cannot be read: {error}. Without it, that run is made again.") from error
    return sorted(runs, key=lambda run: (run.model, run.arm, run.seed))


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


def measure(runs: Sequence[Run], baseline: str, target: float | None = None) -> list[Row]:
    """Measures runs, a row each.

    Args:
        runs: The results.
        baseline: The arm whose median time is the horizon of the area under the curve, for each model its own. Where
            a model has no such run, all its runs stand in.
        target: Validation accuracy whose time is taken; by default, for each model, the best that the worst run of
            the baseline reaches, which all of them reach.

    Returns:
        The rows, in the order of the runs.
    """
    references = {model: _references(runs, model, baseline) for model in {run.model for run in runs}}
    return [_row(run, references[run.model], target) for run in runs]


def _references(runs: Sequence[Run], model: str, baseline: str) -> list[Run]:
    mine = [run for run in runs if run.model == model]
    return [run for run in mine if run.arm == baseline] or mine


def _row(run: Run, references: Sequence[Run], target: float | None) -> Row:
    goal = min(max(other.accuracies) for other in references) if target is None else target
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
        target=goal,
        seconds_to_target=reached(run.seconds, run.accuracies, goal),
        processor_seconds_to_target=reached(run.processor_seconds, run.accuracies, goal),
        samples_to_target=reached(run.samples, run.accuracies, goal),
        area=area_under(run.seconds, run.accuracies, median(sum(other.seconds) for other in references)),
        processor_area=area_under(
            run.processor_seconds, run.accuracies, median(sum(other.processor_seconds) for other in references)
        ),
    )


def interval_of_median(values: Sequence[float], level: float = 0.9, draws: int = DRAWS) -> Interval:
    """Returns the median of some values and its bootstrap interval by percentiles, the same at every call.

    With three values the interval goes from the least to the greatest: so few runs do not say more. A single value has
    no interval, and its bounds are infinite.

    Args:
        values: One value a seed; infinite ones may be among them.
        level: Share of the resampled medians that the interval holds.
        draws: How many times the values are resampled; where there are no more ways to, each is taken once.

    Raises:
        ValueError: If there are no values, or one of them is no number.

    Example:
        >>> interval_of_median([3.0, 1.0, 2.0])
        Interval(value=2.0, low=1.0, high=3.0)
        >>> interval_of_median([3.0])
        Interval(value=3.0, low=-inf, high=inf)
    """
    if not values or any(math.isnan(value) for value in values):
        raise ValueError(f"`values` must be one number or more, got {list(values)}.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, such as 0.9, got {level}.")
    if len(values) == 1:
        return Interval(values[0], -math.inf, math.inf)
    medians = sorted(map(_median, _resamples(values, draws)))
    cut = math.floor((1 - level) / 2 * len(medians))
    return Interval(_median(values), medians[cut], medians[-1 - cut])


def _resamples(values: Sequence[float], draws: int) -> Iterable[Sequence[float]]:
    """Returns all resamples where these are few, else so many at random."""
    if len(values) ** len(values) <= draws:
        return product(values, repeat=len(values))
    generator = random.Random(0)
    return (generator.choices(values, k=len(values)) for _ in range(draws))


def _median(values: Sequence[float]) -> float:
    """The median; between minus and plus infinity there is no middle, and the lower one is taken."""
    middle = median(values)
    return sorted(values)[(len(values) - 1) // 2] if math.isnan(middle) else middle


def verdict(difference: Interval) -> str:
    """Names a difference: "more", "less", or "none" where its interval contains 0.

    Of few pairs it asks little: where there is no difference, n of them agree on a sign with a chance of `2**(1 - n)`,
    which for three is 25 %, and only for five is down to 6 %.

    Example:
        >>> verdict(Interval(0.02, 0.01, 0.03)), verdict(Interval(0.02, 0.0, 0.03))
        ('more', 'none')
    """
    if difference.low > 0:
        return "more"
    return "less" if difference.high < 0 else "none"


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
    """Writes a row a run, under the names of `Row`. What was not reached, or does not exist, is left empty."""
    names = [f.name for f in fields(Row)]
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(getattr(row, name)) for name in names] for row in rows)


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value

"""Does it pay? What each arm gains over the baseline in time and in accuracy, and the bar that it has to beat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from lightning_deba.comparison.intervals import Interval, interval_of_median, verdict
from lightning_deba.comparison.measures import Row
from lightning_deba.comparison.runs import Run

__all__ = ["Gain", "accuracy_name", "best_fixed", "fixed_sizes", "gains", "ordered_arms"]

TOLERANCE = 0.005
"""What may be lost of the baseline's accuracy, in the median: half a point."""


class Gain(NamedTuple):
    """What an arm has over the baseline, seed by seed.

    Attributes:
        model: The model's name in the grid.
        arm: The arm's name.
        pairs: How many seeds both have.
        time: Median, with its interval, of the processor seconds that it takes more, as a share of the baseline's:
            -0.2 is a saving of 20 %.
        accuracy: Likewise of the accuracy that it has more: 0.01 is a point.
    """

    model: str
    arm: str
    pairs: int
    time: Interval
    accuracy: Interval

    @property
    def word(self) -> str:
        """What both differences come to, each counted only where its interval does not contain 0.

        - "pays": faster and not less accurate, or more accurate and not slower;
        - "trade": faster and less accurate, or slower and more accurate; also faster where the median of the accuracy
          is lower by more than half a point, though that is not certain: few seeds must not hide a loss;
        - "worse": slower and not more accurate, or less accurate and not faster;
        - "no difference": neither;
        - "one seed": no interval can be had.
        """
        if self.pairs < 2:
            return "one seed"
        good = verdict(self.time) == "less", verdict(self.accuracy) == "more"
        bad = verdict(self.time) == "more", verdict(self.accuracy) == "less"
        if any(good):
            return "pays" if not any(bad) and _kept(self.accuracy.value) else "trade"
        return "worse" if any(bad) else "no difference"


def _kept(difference: float) -> bool:
    """Tells whether an accuracy is kept, to half a point, which 0.795 - 0.8 is in spite of its last digits."""
    return difference >= -TOLERANCE - 1e-9


def gains(rows: Sequence[Row], baseline: str, *, level: float = 0.9) -> list[Gain]:
    """Compares every arm with a baseline, for each model, seed by seed.

    Accuracy is that on the test data where all rows have it, else that on the validation data.

    Args:
        rows: What `measure` returns.
        baseline: The arm that the others are compared with.
        level: Level of the intervals.

    Returns:
        Models and arms in the order in which they first come; an arm that has no seed in common with the baseline is
        left out.

    Example:
        >>> from lightning_deba.comparison.measures import measure
        >>> def run(arm, seconds, accuracy, seed):
        ...     return Run(model="m", arm=arm, seed=seed, seconds=[seconds], processor_seconds=[seconds], samples=[80],
        ...                steps=[5], batch_sizes=[16], accuracies=[accuracy])
        >>> runs = [run(*one, seed) for seed in (0, 1) for one in (("fixed", 10.0, 0.8), ("deba", 8.0, 0.8))]
        >>> [(gain.arm, round(gain.time.value, 3), gain.word) for gain in gains(measure(runs, "fixed"), "fixed")]
        [('deba', -0.2, 'pays')]
    """
    name = accuracy_name(rows)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    others = {(row.model, row.seed): row for row in rows if row.arm == baseline}
    for row in rows:
        other = others.get((row.model, row.seed))
        pair = found.setdefault((row.model, row.arm), [])
        if other is None or row.arm == baseline or other.processor_seconds <= 0:
            continue
        more = getattr(row, name) - getattr(other, name)
        if not math.isnan(more):
            pair.append((row.processor_seconds / other.processor_seconds - 1, more))
    return [
        Gain(*key, len(pairs), *(interval_of_median(values, level) for values in zip(*pairs, strict=True)))
        for key, pairs in found.items()
        if pairs
    ]


def accuracy_name(rows: Sequence[Row]) -> str:
    """Names the measure of accuracy that all rows have."""
    return "val_accuracy" if any(row.test_accuracy is None for row in rows) else "test_accuracy"


def fixed_sizes(runs: Sequence[Run], model: str) -> dict[str, int]:
    """Returns the arms of a model whose batch size never changes, each with its size, the smallest first.

    Args:
        runs: The results, also of other models.
        model: The model's name.

    Example:
        >>> from lightning_deba.comparison.runs import shipped_runs
        >>> fixed_sizes(shipped_runs(), "resnet18")["fixed_64"]
        64
    """
    sizes: dict[str, set[int]] = {}
    for run in runs:
        if run.model == model:
            sizes.setdefault(run.arm, set()).update(run.batch_sizes)
    fixed = {arm: min(seen) for arm, seen in sizes.items() if len(seen) == 1}
    return dict(sorted(fixed.items(), key=lambda item: (item[1], item[0])))


def best_fixed(runs: Sequence[Run], rows: Sequence[Row], baseline: str, model: str) -> str | None:
    """Returns the bar to beat: the fastest fixed batch size that is about as accurate as the baseline, in hindsight.

    Whoever had known it from the start had needed no policy. It may be half a point less accurate, so that a single
    unlucky seed does not decide; the baseline itself is the bar where no other is as good.

    Args:
        runs: The results.
        rows: What `measure` returns for them.
        baseline: The arm that the others are compared with.
        model: The model's name.

    Returns:
        The arm's name; ``None`` if the model has no run of the baseline, its batch size changes, or no other fixed
        size was run: of one there is no best.

    Example:
        >>> from lightning_deba.comparison import measure, shipped_runs
        >>> runs = shipped_runs()
        >>> best_fixed(runs, measure(runs, "fixed_16"), "fixed_16", "resnet18") in fixed_sizes(runs, "resnet18")
        True
    """
    fixed = fixed_sizes(runs, model)
    if baseline not in fixed or len(fixed) < 2:
        return None
    good = {gain.arm for gain in gains(rows, baseline) if gain.model == model and _kept(gain.accuracy.value)}
    times = {
        arm: median(row.processor_seconds for row in rows if (row.model, row.arm) == (model, arm))
        for arm in fixed
        if arm in good or arm == baseline
    }
    return min(times, key=lambda arm: times[arm])


def ordered_arms(runs: Sequence[Run], baseline: str) -> list[str]:
    """Returns the arms of one model: the baseline, the fixed batch sizes by size, and then the policies.

    Example:
        >>> from lightning_deba.comparison.runs import shipped_runs
        >>> ordered_arms([run for run in shipped_runs() if run.model == "resnet18"], "fixed_16")[0]
        'fixed_16'
    """
    arms = dict.fromkeys([baseline, *fixed_sizes(runs, runs[0].model), *sorted({run.arm for run in runs})])
    return [arm for arm in arms if any(run.arm == arm for run in runs)]

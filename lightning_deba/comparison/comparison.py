"""A comparison: what of a grid has no result yet is carried out by an engine, and all results are taken together."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lightning_deba.comparison.grid import Grid, Job
from lightning_deba.comparison.job import Outcome, is_begun
from lightning_deba.comparison.local import LocalEngine
from lightning_deba.comparison.lock import locked
from lightning_deba.comparison.measures import Row, Summary, measure, summarize
from lightning_deba.comparison.runs import Run, load_runs

__all__ = ["Comparison", "Engine", "compare"]


class Engine(Protocol):
    """Carries jobs out, wherever it likes: a job is plain data, and all it leaves is in its directory."""

    def __call__(self, jobs: Sequence[Job], root: Path, /) -> Iterator[Outcome]:
        """Carries out the jobs, each as `execute` does, and tells of each as it ends, in any order."""
        ...


@dataclass(frozen=True)
class Comparison:
    """What was found.

    Attributes:
        grid: What was to be run.
        runs: The results there are.
        failures: The jobs that failed this time.
    """

    grid: Grid
    runs: Sequence[Run]
    failures: Sequence[Outcome] = field(default=())

    @property
    def rows(self) -> list[Row]:
        """The measures, a row a run."""
        return measure(self.runs, self.grid.reference, self.grid.target)

    def summary(self, level: float = 0.9) -> list[Summary]:
        """Returns medians with intervals, paired by seed with the baseline arm; see `summarize`."""
        return summarize(self.rows, self.grid.reference, level=level)


def compare(
    grid: Grid,
    directory: str | Path = "comparison",
    *,
    workers: int | None = None,
    engine: Engine | None = None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> Comparison:
    """Runs what of a grid has no result yet, and returns what was found.

    Every run goes to ``runs/<model>/<arm>/seed-N`` in `directory`, with its history and, in the end, a
    ``result.json``. A run that fails leaves its reason in ``error.txt`` and the others go on; it is tried again the
    next time. Stopped anywhere, the same call goes on where it was, from the end of each run's last whole epoch.

    Args:
        grid: What to run.
        directory: Where the runs go.
        workers: Processes of one thread each; by default one for each GPU, or else for each core. A script has to
            call `compare` below ``if __name__ == "__main__":`` then. 0 runs one job after the other in this process.
        engine: Carries the jobs out, instead of processes on this machine; such as a `RayEngine`.
        on_outcome: Called with each outcome as it comes, those of earlier times first.

    Returns:
        All results of the grid, and this time's failures.

    Raises:
        ValueError: If `directory` holds a run of another grid under the same names, or there are both `workers` and
            an `engine`.
        BlockingIOError: If another comparison runs in `directory`.

    Example:
        >>> import tempfile
        >>> grid = Grid.from_dict({
        ...     "models": {"tiny": {"class_path": "lightning_deba.vision.ImageClassifier",
        ...                         "init_args": {"model_name": "test_resnet", "lr": 0.01}}},
        ...     "data": {"class_path": "lightning_deba.vision.DigitsDataModule",
        ...              "init_args": {"train_samples": 64, "val_samples": 20, "image_size": 16}},
        ...     "arms": {"fixed": {"batch_size": 16, "policy": {"class_path": "lightning_deba.Hold"}}},
        ...     "seeds": 1, "epochs": 2, "trainer_args": {"accelerator": "cpu"}})
        >>> found = compare(grid, tempfile.mkdtemp(), workers=0)
        >>> [(row.arm, row.samples, row.steps) for row in found.rows], found.failures
        ([('fixed', 128, 8)], [])
    """
    if engine is not None and workers is not None:
        raise ValueError(f"`workers` are those of the default engine: give them to {engine!r} itself, got {workers}.")
    root, jobs, engine = Path(directory), grid.jobs(), engine or LocalEngine(workers)
    with locked(root):
        for job in jobs:
            _check_same(job, root)
        failures = [outcome for outcome in _outcomes(jobs, root, engine, on_outcome) if outcome.error]
        found = {(run.model, run.arm, run.seed): run for run in load_runs(root)}
    runs = [found[key] for job in jobs if (key := (job.model, job.arm, job.seed)) in found]
    return Comparison(grid, runs, failures)


def _outcomes(
    jobs: Sequence[Job], root: Path, engine: Engine, on_outcome: Callable[[Outcome], None]
) -> Iterator[Outcome]:
    """Yields the outcomes, those of earlier times first, each after it was told of."""
    todo = []
    for job in jobs:
        if (job.directory(root) / "result.json").exists():
            on_outcome(Outcome(job))
            yield Outcome(job)
        else:
            todo.append(job)
    outcomes = engine(todo, root)
    try:
        for outcome in outcomes:
            on_outcome(outcome)
            yield outcome
    finally:
        if isinstance(outcomes, Generator):
            outcomes.close()  # ends its processes, also where `on_outcome` was interrupted


def _check_same(job: Job, root: Path) -> None:
    """Refuses to mix runs of two grids: what is stored under a name must be what the name means now."""
    path = job.directory(root) / "job.json"
    if is_begun(path.parent) and path.exists() and json.loads(path.read_text(encoding="utf-8")) != job.to_dict():
        raise ValueError(
            f"`directory` '{root}' holds a run of {job} with other arguments, see '{path}'. "
            "Choose another directory, another name, or delete that run."
        )

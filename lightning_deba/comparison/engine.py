"""Carries jobs out, each a plain Lightning fit in its own directory, in processes on this machine or otherwise."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser

from lightning_deba.baseline import fit_once
from lightning_deba.callback import BatchSizeScheduler
from lightning_deba.comparison.grid import Grid, Job
from lightning_deba.comparison.measures import Row, Run, Summary, load_runs, measure, summarize
from lightning_deba.policies import BatchSizePolicy
from lightning_deba.presets import preset_for
from lightning_deba.records import EpochRecord, read_history

__all__ = ["Comparison", "Engine", "LocalEngine", "Outcome", "compare", "execute"]


class Outcome(NamedTuple):
    """How a job ended.

    Attributes:
        job: The job.
        error: What went wrong, in a line; empty where there is a result.
    """

    job: Job
    error: str = ""


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
        workers: Processes of one thread each; by default as many as there are cores. 0 runs one job after the other
            in this process.
        engine: Carries the jobs out, instead of processes on this machine.
        on_outcome: Called with each outcome as it comes, those of earlier times first.

    Returns:
        All results of the grid, and this time's failures.

    Raises:
        ValueError: If `directory` holds a run of another grid under the same names.

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
    root = Path(directory)
    jobs = grid.jobs()
    for job in jobs:
        _check_same(job, root)
    todo = [job for job in jobs if not (job.directory(root) / "result.json").exists()]
    for job in jobs:
        if job not in todo:
            on_outcome(Outcome(job))
    failures = []
    outcomes = (engine or LocalEngine(workers))(todo, root)
    try:
        for outcome in outcomes:
            if outcome.error:
                failures.append(outcome)
            on_outcome(outcome)
    finally:
        if isinstance(outcomes, Generator):
            outcomes.close()  # ends its processes, also where `on_outcome` was interrupted
    found = {(run.model, run.arm, run.seed): run for run in load_runs(root)}
    runs = [found[key] for job in jobs if (key := (job.model, job.arm, job.seed)) in found]
    return Comparison(grid, runs, failures)


def _check_same(job: Job, root: Path) -> None:
    """Refuses to mix runs of two grids: what is stored under a name must be what the name means now."""
    path = job.directory(root) / "job.json"
    kept = any((path.parent / name).exists() for name in ("result.json", "last.ckpt"))  # else it is begun anew anyway
    if kept and path.exists() and json.loads(path.read_text(encoding="utf-8")) != job.to_dict():
        raise ValueError(
            f"`directory` '{root}' holds a run of {job} with other arguments, see '{path}'. "
            "Choose another directory, another name, or delete that run."
        )


# One job


def execute(job: Job, root: Path) -> Outcome:
    """Carries a job out, or goes on with it, and leaves ``result.json`` in its directory, else ``error.txt``.

    Args:
        job: The job.
        root: The directory of the comparison.

    Returns:
        How it ended: an exception is an outcome as well.
    """
    directory = job.directory(root)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / "result.json").exists():
            return Outcome(job)
        (directory / "error.txt").unlink(missing_ok=True)
        _begin(job, directory)
        run = _fit(job, directory)
        _write(directory / "result.json", {**run.to_dict(), "about": _about()})
    except Exception as error:
        return _failed(job, root, f"{type(error).__name__}: {error}")
    return Outcome(job)


def _failed(job: Job, root: Path, message: str) -> Outcome:
    message = " ".join(message.split())
    directory = job.directory(root)
    if directory.is_dir():
        (directory / "error.txt").write_text(message + "\n", encoding="utf-8")
    return Outcome(job, message)


def _begin(job: Job, directory: Path) -> None:
    """Clears away what cannot be gone on with: no checkpoint, or no epoch left whose end gives a result."""
    history = directory / "history.jsonl"
    if not (directory / "last.ckpt").exists() or _epochs_in(history) >= job.epochs:
        shutil.rmtree(directory)
        directory.mkdir()
    _write(directory / "job.json", job.to_dict())


def _epochs_in(path: Path) -> int:
    return len(read_history(path).history) if path.exists() and path.stat().st_size else 0


def _about() -> dict[str, str]:
    return {name: version(name) for name in ("lightning-deba", "lightning", "torch")}


def _fit(job: Job, directory: Path) -> Run:
    built: list[LightningModule] = []

    def build() -> LightningModule:
        built.append(_model_and_data(job)[0])
        return built[-1]

    model, datamodule = _model_and_data(job)
    scheduler = _scheduler(job, model)
    watch = Watch(f"val/{job.metric}")
    arguments = {"limit_val_batches": 1.0, "num_sanity_val_steps": 0, **job.trainer_args}
    history = fit_once(
        build,
        datamodule,
        scheduler,
        epochs=job.epochs,
        seed=job.seed,
        directory=directory,
        trainer_args=arguments,
        callbacks=[watch],
    )
    return _result(job, history, watch, _test_accuracy(job, built[-1], datamodule, arguments))


def _result(job: Job, history: Sequence[EpochRecord], watch: Watch, test_accuracy: float | None) -> Run:
    return Run(
        model=job.model,
        arm=job.arm,
        seed=job.seed,
        seconds=[record.seconds for record in history],
        processor_seconds=watch.processor_seconds,
        samples=[record.samples for record in history],
        steps=[record.optimizer_steps for record in history],
        batch_sizes=[record.batch_size for record in history],
        accuracies=watch.accuracies,
        test_accuracy=test_accuracy,
    )


def _model_and_data(job: Job) -> tuple[LightningModule, LightningDataModule]:
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(LightningModule, "model", subclass_mode=True)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    for name in ("num_classes", "in_chans"):
        parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")
    built = parser.instantiate_classes(parser.parse_object({"model": job.module, "data": job.data}))
    return built.model, built.data


def _scheduler(job: Job, model: LightningModule) -> BatchSizeScheduler:
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_class_arguments(BatchSizeScheduler, "scheduler")
    given = parser.parse_object({"scheduler": {**job.scheduler, "policy": job.policy}})
    scheduler: BatchSizeScheduler = parser.instantiate_classes(given).scheduler
    if job.changes:
        scheduler.policy = _changed(preset_for(model).policy, job)
    return scheduler


def _changed(policy: Any, job: Job) -> BatchSizePolicy:
    try:
        changed: BatchSizePolicy = replace(policy, **job.changes)
    except TypeError as error:
        raise ValueError(f"`changes` of arm {job.arm!r} do not fit the preset's policy {policy!r}: {error}") from error
    return changed


def _test_accuracy(job: Job, model: LightningModule, datamodule: LightningDataModule, arguments: Any) -> float | None:
    """Tests, where there is something to test on."""
    has_data = type(datamodule).test_dataloader is not LightningDataModule.test_dataloader
    if not has_data or type(model).test_step is LightningModule.test_step:
        return None
    kept = {name: arguments[name] for name in ("accelerator", "devices", "precision") if name in arguments}
    trainer = Trainer(
        **kept, logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False
    )
    (found,) = trainer.test(model, datamodule=datamodule, verbose=False)
    return _metric(found, f"test/{job.metric}")


def _metric(metrics: Any, name: str) -> float:
    if name not in metrics:
        raise ValueError(f"`metric`: the module logs no '{name}'; it logs {', '.join(sorted(metrics)) or 'nothing'}.")
    return round(float(metrics[name]), 6)  # 0.89 as a float of 32 bits would miss a target of 0.89


class Watch(Callback):
    """Notes of each epoch the accuracy, and the processor seconds of training, which no other process adds to.

    Args:
        metric: Name of the accuracy among the metrics of the Trainer.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.accuracies: list[float] = []
        self.processor_seconds: list[float] = []
        self._spent = 0.0
        self._since = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._spent, self._since = 0.0, time.process_time()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the clock."""
        self._spent += time.process_time() - self._since

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets the clock run again."""
        self._since = time.process_time()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes the epoch, before it is saved."""
        if len(self.accuracies) > trainer.current_epoch:
            return  # a resumed run comes through the end of a finished epoch once more
        self.processor_seconds.append(self._spent + time.process_time() - self._since)
        self.accuracies.append(_metric(trainer.callback_metrics, self.metric))

    def state_dict(self) -> dict[str, Any]:
        """Returns what was noted."""
        return {"accuracies": self.accuracies, "processor_seconds": self.processor_seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what was noted."""
        self.accuracies = list(state_dict["accuracies"])
        self.processor_seconds = list(state_dict["processor_seconds"])


def _write(path: Path, data: Any) -> None:
    """Writes a file so that it is either not there or whole, whenever the process is killed."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(data) + "\n", encoding="utf-8")
    new.replace(path)


# Many jobs


class LocalEngine:
    """Processes on this machine, each of one thread, each with one job at a time.

    What a run prints goes to ``seed-N.txt`` beside its directory. A process that dies costs its job alone.

    Args:
        workers: How many; by default as many as there are cores. 0 for none beside this process.

    Raises:
        ValueError: If `workers` is below 0.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 0:
            raise ValueError(f"`workers` must be 0 or more, got {workers}.")
        self.workers = _cores() if workers is None else workers

    def __call__(self, jobs: Sequence[Job], root: Path, /) -> Iterator[Outcome]:
        """Carries out the jobs, and tells of each as it ends."""
        if self.workers == 0:
            for job in jobs:
                yield execute(job, root)
            return
        waiting, seats = deque(jobs), {}  # type: deque[Job], dict[Connection, _Seat]
        try:
            while waiting or seats:
                while waiting and len(seats) < self.workers:
                    seat = _Seat(root, waiting.popleft())
                    seats[seat.connection] = seat
                for connection in wait(list(seats)):
                    seat = seats[connection]  # type: ignore[index]
                    yield seat.outcome(root)
                    if seat.alive and waiting:
                        seat.take(waiting.popleft())
                    else:
                        del seats[seat.connection]
                        seat.close()
        finally:
            for seat in seats.values():
                seat.close()


class _Seat:
    """A process, and the job that it has."""

    def __init__(self, root: Path, job: Job) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self.connection, theirs = context.Pipe()
        # No daemon, which could not have the workers of a DataLoader.
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, root), daemon=False)
        self.process.start()
        theirs.close()  # so that its end is noticed
        self.alive = True
        self.take(job)

    def take(self, job: Job) -> None:
        self.job = job
        try:
            self.connection.send(job)
        except OSError:
            self.alive = False  # it has died in between, as `outcome` will find out

    def outcome(self, root: Path) -> Outcome:
        """Returns how the job ended, or the process."""
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join()
            self.job.directory(root).mkdir(parents=True, exist_ok=True)
            return _failed(self.job, root, f"the process died, exit code {self.process.exitcode}")
        return outcome

    def close(self) -> None:
        """Ends the process, in the middle of its job if need be: whatever it had, a later one goes on from."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(connection: Connection, root: Path) -> None:
    """Carries out the jobs that come, until there are no more or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        _say_into(job.directory(root))
        outcome = execute(job, root)
        sys.stdout.flush()
        connection.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)  # at once: a grid that is started anew must not find this run going on


def _say_into(directory: Path) -> None:
    """Sends what is printed from here on to a file, libraries that hold on to the standard streams included."""
    path = directory.with_name(f"{directory.name}.txt")  # beside it, for the directory may be cleared
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

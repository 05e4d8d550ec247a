"""Carries one job out: a plain Lightning fit in its own directory, which goes on where it was stopped."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser

from lightning_deba.baseline import fit_once
from lightning_deba.callback import BatchSizeScheduler
from lightning_deba.comparison.grid import Job
from lightning_deba.comparison.lock import in_turn
from lightning_deba.comparison.runs import Run
from lightning_deba.comparison.watch import Watch, metric_of
from lightning_deba.policies import BatchSizePolicy
from lightning_deba.presets import preset_for
from lightning_deba.records import EpochRecord, read_history, write_whole

__all__ = ["Outcome", "epochs_done", "execute", "failed", "is_begun", "model_and_data", "scheduler_of"]


class Outcome(NamedTuple):
    """How a job ended.

    Attributes:
        job: The job.
        error: What went wrong, in a line; empty where there is a result.
    """

    job: Job
    error: str = ""


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
        if not (directory / "result.json").exists():
            (directory / "error.txt").unlink(missing_ok=True)
            _begin(job, directory)
            run = _run(job, directory, root / ".data")
            write_whole(directory / "result.json", json.dumps({**run.to_dict(), "about": _about()}) + "\n")
        for name in Watch.CHECKPOINTS:
            (directory / name).unlink(missing_ok=True)
    except Exception as error:
        return failed(job, root, f"{type(error).__name__}: {error}")
    return Outcome(job)


def failed(job: Job, root: Path, message: str) -> Outcome:
    """Notes in the job's directory why there is no result, where it can be noted, and returns it."""
    message = " ".join(message.split())
    directory = job.directory(root)
    with contextlib.suppress(OSError):  # the message may be that nothing can be written there
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "error.txt").write_text(message + "\n", encoding="utf-8")
    return Outcome(job, message)


def epochs_done(job: Job, root: Path) -> int:
    """Returns how many epochs of a job are behind it, as its files say, in whatever process it runs."""
    directory = job.directory(root)
    if (directory / "result.json").exists():
        return job.epochs
    try:
        lines = (directory / "history.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0
    return min(lines, job.epochs)


def is_begun(directory: Path) -> bool:
    """Whether there is something that is kept or gone on with; all else is begun anew."""
    return any((directory / name).exists() for name in ("result.json", *Watch.CHECKPOINTS))


# From the last checkpoint


def _begin(job: Job, directory: Path) -> None:
    """Makes ready to go on from the last checkpoint; without one, clears all away."""
    last, trained = (directory / name for name in Watch.CHECKPOINTS)
    if trained.exists():
        trained.replace(last)
    if not last.exists():
        shutil.rmtree(directory)
        directory.mkdir()
    write_whole(directory / "job.json", json.dumps(job.to_dict()) + "\n")


def _run(job: Job, directory: Path, lock: Path) -> Run:
    """Trains what is left to train, and tests."""
    model, datamodule = model_and_data(job)
    _prepare_in_turn(datamodule, lock)
    watch = Watch(f"val/{job.metric}")
    last = directory / Watch.CHECKPOINTS[0]
    if last.exists():
        watch.load_state_dict(_noted(watch, last))
    if len(watch.accuracies) >= job.epochs:  # it was stopped after its last epoch
        history = read_history(directory).history
        accuracy = _test_accuracy(job, model, datamodule, checkpoint=last)
    else:
        # What the checkpoint holds is written anew; an epoch that it does not hold is trained once more.
        (directory / "history.jsonl").unlink(missing_ok=True)
        history, model = _fit(job, directory, scheduler_of(job, model), datamodule, watch)
        accuracy = _test_accuracy(job, model, datamodule)
    return _result(job, history, watch, accuracy)


def _prepare_in_turn(datamodule: LightningDataModule, lock: Path) -> None:
    """Has a data set that is not there yet downloaded by one process, while the others wait."""
    prepare = datamodule.prepare_data

    @wraps(prepare)
    def prepare_data() -> None:
        with in_turn(lock):
            prepare()

    datamodule.prepare_data = prepare_data  # type: ignore[method-assign]


def _noted(watch: Watch, checkpoint: Path) -> dict[str, Any]:
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    noted: dict[str, Any] = saved["callbacks"][watch.state_key]
    return noted


def _fit(
    job: Job, directory: Path, scheduler: BatchSizeScheduler, datamodule: LightningDataModule, watch: Watch
) -> tuple[list[EpochRecord], LightningModule]:
    built: list[LightningModule] = []

    def build() -> LightningModule:
        built.append(model_and_data(job)[0])
        return built[-1]

    history = fit_once(
        build,
        datamodule,
        scheduler,
        epochs=job.epochs,
        seed=job.seed,
        directory=directory,
        trainer_args={"profiler": watch.hooks, **_trainer_args(job)},
        callbacks=[watch],
    )
    return history, built[-1]


def _trainer_args(job: Job) -> dict[str, Any]:
    return {"limit_val_batches": 1.0, "num_sanity_val_steps": 0, **job.trainer_args}


def _test_accuracy(
    job: Job, model: LightningModule, datamodule: LightningDataModule, checkpoint: Path | None = None
) -> float | None:
    """Tests, where there is something to test on."""
    has_data = type(datamodule).test_dataloader is not LightningDataModule.test_dataloader
    if not has_data or type(model).test_step is LightningModule.test_step:
        return None
    arguments = _trainer_args(job)
    kept = {name: arguments[name] for name in ("accelerator", "devices", "precision") if name in arguments}
    trainer = Trainer(
        **kept, logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False
    )
    path = None if checkpoint is None else str(checkpoint)
    (found,) = trainer.test(model, datamodule=datamodule, ckpt_path=path, verbose=False)
    return metric_of(found, f"test/{job.metric}")


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
        callback_seconds=watch.callback_seconds or None,  # nothing, where the grid has a profiler of its own
    )


def _about() -> dict[str, str]:
    return {name: version(name) for name in ("lightning-deba", "lightning", "torch")}


# From plain data to objects


def model_and_data(job: Job) -> tuple[LightningModule, LightningDataModule]:
    """Builds the model and the data of a job; what the data tell of classes and channels goes to the model."""
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(LightningModule, "model", subclass_mode=True)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    for name in ("num_classes", "in_chans"):
        parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")
    built = parser.instantiate_classes(parser.parse_object({"model": job.module, "data": job.data}))
    return built.model, built.data


def scheduler_of(job: Job, model: LightningModule) -> BatchSizeScheduler:
    """Builds the scheduler of a job, with the policy of the model's preset where the job changes that."""
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

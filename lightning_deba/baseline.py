"""The baseline pass: a model trained with a fixed batch size, once a seed, and what that tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_deba.callback import BatchSizeScheduler
from lightning_deba.characterization import Characterization, StabilityProfile, ThroughputCurve
from lightning_deba.characterization.profile import SHORTEST
from lightning_deba.policies import Hold
from lightning_deba.presets import architecture_in
from lightning_deba.records import EpochRecord, read_history, write_whole
from lightning_deba.throughput import LADDER, measure_throughput

__all__ = ["characterize", "fit_once", "run_baseline"]


def characterize(
    module_factory: Callable[[], LightningModule],
    datamodule: LightningDataModule,
    *,
    epochs: int = 100,
    seeds: int | Sequence[int] = 3,
    directory: str | Path = "characterization",
    batch_sizes: Sequence[int] = LADDER,
    trainer_args: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    about: Mapping[str, Any] | None = None,
) -> Characterization:
    """Trains with a fixed batch size, measures the throughput, and says what would suit the architecture.

    Source: the paper's baseline characterization (DEBA, arXiv 2511.03809) takes 100 epochs. Stopped anywhere it goes
    on where it was, from what it finds in `directory`.

    Args:
        module_factory: Builds the module; called once a seed, after the seed is set.
        datamodule: The data, whose batch size is the fixed one.
        epochs: Epochs of each run, at least 8.
        seeds: Seeds of the runs, or how many: 0, 1 and so on.
        directory: Where the histories and the throughput curve go.
        batch_sizes: Ladder of the throughput curve. With another one, or other threads, it is measured anew.
        trainer_args: Further arguments of every `Trainer`.
        callbacks: Further callbacks of the training runs.
        about: What to keep of how it was made, as plain data.

    Returns:
        Profile, curve, calibrated policy and verdict.

    Raises:
        ValueError: If there are too few epochs or no seeds, the runs say too little, or `directory` holds those of
            another model, batch size, `trainer_args` or `about`.
        OSError: If nothing can be written to `directory`, before any training.

    Example:
        >>> import tempfile
        >>> from lightning_deba.vision import DigitsDataModule, ImageClassifier
        >>> found = characterize(lambda: ImageClassifier("test_resnet", in_chans=1),
        ...                      DigitsDataModule(train_samples=64, image_size=16, batch_size=16), epochs=8, seeds=1,
        ...                      directory=tempfile.mkdtemp(), batch_sizes=(16, 32))
        >>> found.profile.architecture, found.verdict.word in ("adapt", "marginal", "don't adapt")
        ('test_resnet', True)
    """
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    if epochs < SHORTEST:
        raise ValueError(f"`epochs` must be at least {SHORTEST} to say anything, got {epochs}.")
    directory, module = Path(directory), module_factory()
    architecture = architecture_in(module) or type(module).__name__
    about = {"architecture": architecture, "batch_size": getattr(datamodule, "batch_size", None), **(about or {})}
    if trainer_args:
        about["trainer_args"] = {name: _plain(value) for name, value in trainer_args.items()}
    _check_the_same(directory, about)
    histories = run_baseline(
        module_factory,
        datamodule,
        epochs=epochs,
        seeds=numbers,
        directory=directory,
        trainer_args=trainer_args,
        callbacks=callbacks,
    )
    profile = StabilityProfile.from_histories(histories, architecture)
    curve = _throughput(module, datamodule, batch_sizes, trainer_args, directory / "throughput.json")
    versions = {name: version(name) for name in ("lightning-deba", "lightning", "torch")}
    return Characterization(profile, curve, {"seeds": list(numbers), "versions": versions, **about})


def _check_the_same(directory: Path, about: Mapping[str, Any]) -> None:
    """Refuses a directory with the runs of something else, which would be taken for those of this; notes what it is."""
    path, here = directory / "about.json", json.loads(json.dumps(about, default=str))
    if path.exists():
        there = _read(path)
        if differing := [name for name in {**there, **here} if there.get(name) != here.get(name)]:
            raise ValueError(
                f"`directory` '{directory}' holds the runs of another characterization: `{differing[0]}` was "
                f"{there.get(differing[0])!r} and is {here.get(differing[0])!r}. Name another one, or delete it."
            )
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(here, indent=1) + "\n")


def _plain(value: Any) -> Any:
    """Returns what JSON can hold as it is, and of anything else what it is."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return type(value).__name__


def _throughput(
    module: LightningModule,
    datamodule: LightningDataModule,
    batch_sizes: Sequence[int],
    trainer_args: Mapping[str, Any] | None,
    path: Path,
) -> ThroughputCurve:
    """Measures the throughput curve, or reads the one that was measured alike."""
    alike = {"batch_sizes": list(batch_sizes), "threads": torch.get_num_threads()}
    if path.exists():
        kept = _read(path)
        if all(kept.get(name) == value for name, value in alike.items()):
            return ThroughputCurve.from_dict(kept)
    curve = measure_throughput(module, datamodule, batch_sizes, trainer_args=trainer_args)
    write_whole(path, json.dumps({**curve.to_dict(), **alike}) + "\n")
    return curve


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"'{path}' cannot be read: {error}. Delete it, and it is made anew.") from error
    if not isinstance(found, dict):
        raise ValueError(f"'{path}' cannot be read: it must be a JSON object. Delete it, and it is made anew.")
    return found


def run_baseline(
    module_factory: Callable[[], LightningModule],
    datamodule: LightningDataModule,
    *,
    epochs: int,
    seeds: Sequence[int],
    directory: str | Path,
    trainer_args: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[list[EpochRecord]]:
    """Trains once a seed with a fixed batch size, and returns the histories.

    Stopped anywhere it goes on where it was: a finished seed is not trained again, an unfinished one goes on from
    the end of its last epoch.

    Args:
        module_factory: Builds the module; called once a seed, after the seed is set.
        datamodule: The data, whose batch size is the fixed one.
        epochs: Epochs of each run.
        seeds: Seeds of the runs.
        directory: Where the histories and checkpoints go, each into ``seed-N``.
        trainer_args: Further arguments of the `Trainer`.
        callbacks: Further callbacks of the `Trainer`.

    Returns:
        One history a seed.

    Raises:
        ValueError: If there are no epochs or no seeds.
        OSError: If nothing can be written to `directory`, before any training.
    """
    if epochs < 1 or not seeds:
        raise ValueError(f"`epochs` and the number of `seeds` must be at least 1, got {epochs} and {len(seeds)}.")
    return [
        fit_once(
            module_factory,
            datamodule,
            BatchSizeScheduler(Hold(), min_batch_size=1),
            epochs=epochs,
            seed=seed,
            directory=Path(directory) / f"seed-{seed}",
            trainer_args=trainer_args,
            callbacks=callbacks,
        )
        for seed in seeds
    ]


def fit_once(
    module_factory: Callable[[], LightningModule],
    datamodule: LightningDataModule,
    scheduler: BatchSizeScheduler,
    *,
    epochs: int,
    seed: int,
    directory: Path,
    trainer_args: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[EpochRecord]:
    """Trains one seed in its own directory, or goes on where it was stopped, and returns the history."""
    directory.mkdir(parents=True, exist_ok=True)
    done = read_history(directory, running=True).history
    if len(done) >= epochs:
        return done[:epochs]
    seed_everything(seed, workers=True, verbose=False)
    defaults: dict[str, Any] = {"limit_val_batches": 0, "enable_model_summary": False, "enable_progress_bar": False}
    trainer = Trainer(
        **{
            **defaults,
            **(trainer_args or {}),
            "max_epochs": epochs,
            "logger": False,
            "default_root_dir": str(directory),
            "callbacks": [
                scheduler,
                ModelCheckpoint(directory, filename="last", enable_version_counter=False),
                *callbacks,
            ],
        }
    )
    checkpoint = directory / "last.ckpt"
    trainer.fit(module_factory(), datamodule=datamodule, ckpt_path=str(checkpoint) if checkpoint.exists() else None)
    checkpoint.unlink(missing_ok=True)
    return scheduler.history

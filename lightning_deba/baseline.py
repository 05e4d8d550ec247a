"""The baseline pass: one model trained with a fixed batch size, once a seed, and what was measured on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_deba.callback import BatchSizeScheduler
from lightning_deba.policies import BatchSizePolicy, Hold
from lightning_deba.records import EpochRecord, read_history

__all__ = ["fit_once", "run_baseline"]


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
            Hold(),
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
    policy: BatchSizePolicy,
    *,
    epochs: int,
    seed: int,
    directory: Path,
    trainer_args: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[EpochRecord]:
    """Trains one seed with one policy in its own directory, or goes on with it, and returns its history."""
    directory.mkdir(parents=True, exist_ok=True)
    done = _history_in(directory)
    if len(done) >= epochs:
        return done[:epochs]
    seed_everything(seed, workers=True, verbose=False)
    scheduler = BatchSizeScheduler(policy=policy, min_batch_size=1)
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


def _history_in(directory: Path) -> list[EpochRecord]:
    path = directory / "history.jsonl"
    return read_history(path).history if path.exists() and path.stat().st_size else []

"""A small real run, and an account of what really happened in it, for the tests.

No mock: a real Trainer, a model of one linear layer, and a probe that writes down every batch that arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_deba import BatchSizeScheduler, Decision, History


class Samples(Dataset[Tensor]):
    """`n` samples that are their own numbers, so that a lost or doubled one is seen."""

    def __init__(self, n: int = 64) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index), 1.0])


@dataclass(frozen=True)
class Sizes:
    """The policy of the trials: `Sizes({0: 16})` asks for 16 after epoch 0, and keeps it."""

    after: dict[int, int]

    def __call__(self, history: History) -> Decision:
        now = history[-1]
        wanted = self.after.get(now.epoch, now.batch_size)
        return Decision(wanted, f"the trial wants {wanted} after epoch {now.epoch}")


class Linear(LightningModule):
    """One linear layer; may own its training loader, as module, with an attribute or hyper-parameter."""

    def __init__(self, lr: float = 1e-4) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.lr = lr

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.layer(batch).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class ModuleWithLoader(Linear):
    def __init__(self, batch_size: int = 8, samples: int = 64, **loader: Any) -> None:
        super().__init__()
        self.batch_size, self.samples, self.loader_args = batch_size, samples, loader
        self.built = 0

    def train_dataloader(self) -> DataLoader[Tensor]:
        self.built += 1
        return DataLoader(Samples(self.samples), batch_size=self.batch_size, shuffle=True, **self.loader_args)

    def val_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Samples(8), batch_size=8)


class Data(LightningDataModule):
    """A datamodule with the attribute; counts how often its loaders are built."""

    def __init__(self, batch_size: int = 8, samples: int = 64, **loader: Any) -> None:
        super().__init__()
        self.batch_size, self.samples, self.loader_args = batch_size, samples, loader
        self.built = 0
        self.validation_built = 0

    def train_dataloader(self) -> DataLoader[Tensor]:
        self.built += 1
        return DataLoader(Samples(self.samples), batch_size=self.batch_size, shuffle=True, **self.loader_args)

    def val_dataloader(self) -> DataLoader[Tensor]:
        self.validation_built += 1
        return DataLoader(Samples(8), batch_size=8)


class DataWithHparams(LightningDataModule):
    """A datamodule that keeps its batch size in the hyper-parameters only."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Samples(), batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Samples(8), batch_size=8)


class Epoch(NamedTuple):
    epoch: int
    batch_size: int
    batches: int
    samples: int


@dataclass
class Probe(Callback):
    """Writes down what arrives. Placed last, so that it sees what the scheduler has made of it."""

    epochs: list[Epoch] = field(default_factory=list)
    seen: dict[int, list[int]] = field(default_factory=dict)
    validations: list[int] = field(default_factory=list)
    training_batches: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch
        self.sizes.append(len(first))
        self.seen.setdefault(trainer.current_epoch, []).extend(first[:, 0].long().tolist())
        if len(self.training_batches) <= trainer.current_epoch:
            self.training_batches.append(trainer.num_training_batches)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.validations.append(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self.sizes:
            self.epochs.append(Epoch(trainer.current_epoch, self.sizes[0], len(self.sizes), sum(self.sizes)))
        self.sizes = []


class Run(NamedTuple):
    trainer: Trainer
    scheduler: BatchSizeScheduler
    probe: Probe
    model: LightningModule


def trainer_of(callbacks: Sequence[Callback], root: Any = None, **settings: Any) -> Trainer:
    """A quiet Trainer on one CPU."""
    return Trainer(
        **{
            "max_epochs": 3,
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "default_root_dir": root,
            **settings,
        },
        callbacks=list(callbacks),
    )


def run(
    after: dict[int, int],
    root: Any,
    *,
    source: str = "fit",
    actuator: Any = "auto",
    neighbours: Sequence[Callback] = (),
    neighbours_after: Sequence[Callback] = (),
    model: LightningModule | None = None,
    loaders: Any = None,
    data: LightningDataModule | None = None,
    min_batch_size: int = 1,
    ckpt_path: Any = None,
    loader_args: dict[str, Any] | None = None,
    scheduler_args: dict[str, Any] | None = None,
    probe: Probe | None = None,
    **settings: Any,
) -> Run:
    """Fits once and returns what happened.

    `source` says who owns the training loader: "fit", "module" or "datamodule". 64 samples, batch size 8.
    `neighbours` come before the scheduler in the list of callbacks, `neighbours_after` behind it.
    """
    scheduler = BatchSizeScheduler(
        Sizes(after), actuator=actuator, min_batch_size=min_batch_size, **(scheduler_args or {})
    )
    probe = Probe() if probe is None else probe
    trainer = trainer_of([*neighbours, scheduler, *neighbours_after, probe], root, **settings)
    loader_args = loader_args or {}
    if source == "module":
        model = ModuleWithLoader(**loader_args) if model is None else model
        trainer.fit(model, ckpt_path=ckpt_path)
    elif source == "datamodule":
        model = Linear() if model is None else model
        trainer.fit(model, datamodule=data or Data(**loader_args), ckpt_path=ckpt_path)
    else:
        model = Linear() if model is None else model
        if loaders is None:
            loaders = DataLoader(Samples(), batch_size=8, shuffle=True, **loader_args)
        trainer.fit(model, loaders, DataLoader(Samples(8), batch_size=8), ckpt_path=ckpt_path)
    return Run(trainer, scheduler, probe, model)

"""Four ways to change the batch size between epochs of a plain Lightning Trainer, each as its own means allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_deba import BatchSizeScheduler
from tests.runs import Sizes

FIRST = 8  # the loaders' own batch size

Changes = Mapping[int, int]
"""From an epoch to the batch size per device that is wanted after it."""


class Stock(Callback):
    """What a careful user writes without any library: sets the size, keeps it in the checkpoint, sets it again."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.batch_size: int | None = None

    def apply(self, trainer: Trainer) -> None:
        raise NotImplementedError

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch in self.changes:
            self.batch_size = self.changes[trainer.current_epoch]
            self.apply(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batch_size = state_dict["batch_size"]


class InPlace(Stock):
    """Sets it on the batch sampler of the live loader."""

    def apply(self, trainer: Trainer) -> None:
        trainer.train_dataloader.batch_sampler.batch_size = self.batch_size

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.batch_size is not None:
            self.apply(trainer)


class Reload(Stock):
    """Sets it on the datamodule, whose loader Lightning builds anew at every epoch."""

    def apply(self, trainer: Trainer) -> None:
        if trainer.datamodule is not None:
            trainer.datamodule.batch_size = self.batch_size

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.batch_size is not None:
            self.apply(trainer)


class BSSchedulerCallback(Callback):
    """bs-scheduler as its documentation has it: made around the loader, stepped after each epoch, saved with it."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.scheduler: Any = None
        self.restored: dict[str, Any] | None = None

    def factor(self, epoch: int) -> float:
        """Returns the batch size of an epoch over the first one."""
        sizes = [FIRST, *(self.changes[past] for past in sorted(self.changes) if past < epoch)]
        return sizes[-1] / FIRST

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        from bs_scheduler import LambdaBS

        self.scheduler = LambdaBS(trainer.train_dataloader, self.factor)
        if self.restored is not None:
            self.scheduler.load_state_dict(self.restored)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scheduler is None else self.scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.restored = state_dict


def ours(changes: Changes, ranks: int = 1) -> Callback:
    """Returns this library's callback, whose batch size is that of all ranks together."""
    return BatchSizeScheduler(Sizes({epoch: size * ranks for epoch, size in changes.items()}), min_batch_size=1)


@dataclass(frozen=True, eq=False)  # each is itself, and can be a key
class Contender:
    """A way to change the batch size.

    Attributes:
        name: Heads its column.
        callback: Makes its callback from the wanted changes and the number of ranks.
        settings: What it needs of the Trainer.
    """

    name: str
    callback: Callable[[Changes, int], Callback]
    settings: Mapping[str, Any] = field(default_factory=dict)


OURS = Contender("lightning_deba", ours)
CONTENDERS = [
    OURS,
    Contender("bs-scheduler 1.0.2", lambda changes, ranks: BSSchedulerCallback(changes)),
    Contender("`batch_sampler.batch_size = n`", lambda changes, ranks: InPlace(changes)),
    Contender(
        "`reload_dataloaders_every_n_epochs=1`",
        lambda changes, ranks: Reload(changes),
        {"reload_dataloaders_every_n_epochs": 1},
    ),
]

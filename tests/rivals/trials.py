"""The trials: each is a function that lets a contender train for a few epochs, and returns whether all was right."""

from __future__ import annotations

import inspect
import io
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from tests.processes import Processes
from tests.rivals.contenders import CONTENDERS, FIRST, Changes, Contender
from tests.runs import Data, Linear, Probe, Samples, trainer_of
from tests.trials.test_the_change_itself import Large, PidProbe, Pids

GROW, SHRINK, BOTH = {0: 16}, {0: 4}, {0: 16, 1: 4}

Trial = Callable[[Contender], bool]


def fit(
    contender: Contender,
    changes: Changes,
    *,
    loader: DataLoader[Any] | None = None,
    data: LightningDataModule | None = None,
    model: LightningModule | None = None,
    probe: Probe | None = None,
    checkpoint: ModelCheckpoint | None = None,
    ckpt_path: Path | None = None,
    ranks: int = 1,
    **settings: Any,
) -> Probe:
    """Fits for 3 epochs, by a datamodule or by a loader given to `fit`: 64 samples, batch size 8."""
    probe = probe or Probe()
    callbacks = [contender.callback(changes, ranks), probe, *([checkpoint] if checkpoint else [])]
    with tempfile.TemporaryDirectory() as root:
        settings = {"enable_checkpointing": checkpoint is not None, **contender.settings, **settings}
        trainer = trainer_of(callbacks, root, **settings)
        arguments: dict[str, Any] = {"datamodule": data or Data()}
        if loader is not None:
            arguments = {"train_dataloaders": loader, "val_dataloaders": DataLoader(Samples(8), batch_size=8)}
        if "weights_only" in inspect.signature(Trainer.fit).parameters:
            arguments["weights_only"] = False  # what the checkpoint holds is another trial's question
        trainer.fit(model or Linear(), ckpt_path=ckpt_path, **arguments)
    return probe


def expected(changes: Changes, epochs: int = 3) -> list[tuple[int, int, int, int]]:
    """Returns what each epoch should be: its number, batch size, batches and samples."""
    rows, size = [], FIRST
    for epoch in range(epochs):
        rows.append((epoch, size, 64 // size, 64))
        size = changes.get(epoch, size)
    return rows


def nothing_lost(probe: Probe, changes: Changes, validations: int = 1) -> bool:
    """Whether all epochs had the wanted size, every sample once, and every validation."""
    return (
        probe.epochs == expected(changes)
        and all(sorted(seen) == list(range(64)) for seen in probe.seen.values())
        and probe.validations == [epoch for epoch in range(3) for _ in range(validations)]
    )


# Every sample once, and every validation


def changes_well(contender: Contender, changes: Changes) -> bool:
    return nothing_lost(fit(contender, changes), changes)


def loader_given_to_fit(contender: Contender) -> bool:
    return nothing_lost(fit(contender, BOTH, loader=DataLoader(Samples(), batch_size=8, shuffle=True)), BOTH)


def validates_twice_an_epoch(contender: Contender) -> bool:
    return nothing_lost(fit(contender, BOTH, val_check_interval=0.5), BOTH, validations=2)


def on_this_rank(root: Path, contender: Contender) -> dict[str, Any]:
    loader = DataLoader(Samples(), batch_size=8, shuffle=True)
    probe = fit(contender, BOTH, loader=loader, ranks=2, devices=2, strategy="ddp")
    return {"epochs": probe.epochs, "validations": probe.validations, "seen": list(probe.seen.values())}


SCENARIOS = {str(number): partial(on_this_rank, contender=contender) for number, contender in enumerate(CONTENDERS)}


@cache
def both_ranks() -> list[list[dict[str, Any]]]:
    """Runs all contenders in the same two processes, and returns what each saw on each rank."""
    with tempfile.TemporaryDirectory() as root:
        processes = Processes(__name__, Path(root))
        return [processes.results(name) for name in SCENARIOS]


def two_processes(contender: Contender) -> bool:
    ranks = both_ranks()[CONTENDERS.index(contender)]
    epochs = [[epoch, size, batches // 2, samples // 2] for epoch, size, batches, samples in expected(BOTH)]
    return all(rank["epochs"] == epochs and rank["validations"] == [0, 1, 2] for rank in ranks) and all(
        sorted(chain(*seen)) == list(range(64)) for seen in zip(*(rank["seen"] for rank in ranks), strict=True)
    )


# A schedule in steps


class OneCycle(Linear):
    """Its schedule is sized as Lightning's documentation says."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-4)
        steps = int(self.trainer.estimated_stepping_batches)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-4, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.schedule, "interval": "step"}}


def one_cycle_ends(contender: Contender, changes: Changes) -> bool:
    """Whether the schedule has ended when all samples have; one whose epochs are cut short may end in time by luck."""
    model = OneCycle()
    probe = fit(contender, changes, model=model)
    whole = [samples for *_, samples in probe.epochs] == [64] * 3
    return whole and model.schedule.last_epoch == model.schedule.total_steps


# The checkpoint


def goes_on(contender: Contender, name: str, left: list[tuple[int, int, int, int]], **when: Any) -> bool:
    """Whether a fit resumed from one of its checkpoints trains on what was left, with the size it had."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = ModelCheckpoint(folder, save_top_k=-1, filename=name, **when)
        fit(contender, GROW, checkpoint=checkpoint)
        probe = fit(contender, GROW, ckpt_path=Path(folder, name.format(epoch="epoch=0", step="step=10") + ".ckpt"))
    return probe.epochs == left and probe.validations == [1, 2]


def after_an_epoch(contender: Contender) -> bool:
    return goes_on(contender, "{epoch}", [(1, 16, 4, 64), (2, 16, 4, 64)], save_on_train_epoch_end=True)


def inside_an_epoch(contender: Contender) -> bool:
    return goes_on(contender, "{step}", [(1, 16, 2, 32), (2, 16, 4, 64)], every_n_train_steps=1)


class LargeData(Data):
    """Of 4 MB."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Large(), batch_size=self.batch_size)


def load_checkpoint(contender: Contender, weights_only: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        fit(contender, GROW, data=LargeData(), checkpoint=ModelCheckpoint(folder, filename="end"))
        loaded: dict[str, Any] = torch.load(Path(folder, "end.ckpt"), weights_only=weights_only)
    return loaded


def small_state(contender: Contender) -> bool:
    state, buffer = load_checkpoint(contender, weights_only=False)["callbacks"], io.BytesIO()
    torch.save(state[contender.callback({}, 1).state_key], buffer)
    return buffer.tell() < 10_000


def loads_as_plain_data(contender: Contender) -> bool:
    return "callbacks" in load_checkpoint(contender, weights_only=True)


# No more than is needed


def reloads_at_changes_only(contender: Contender) -> bool:
    data = Data()
    fit(contender, {3: 16, 6: 8}, data=data, max_epochs=9)
    return data.built <= 3 and data.validation_built == 1


WORKERS = {"num_workers": 2, "persistent_workers": True}


class PidsData(Data):
    """Its samples say which process has made them."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Pids(), batch_size=self.batch_size, **WORKERS)


def workers_live_on(contender: Contender, from_datamodule: bool) -> bool:
    """Whether the size changed, and the same two workers made every sample."""
    probe = PidProbe()
    source = {"data": PidsData()} if from_datamodule else {"loader": DataLoader(Pids(), batch_size=8, **WORKERS)}
    fit(contender, BOTH, probe=probe, **source)
    return len(set.union(*probe.pids.values())) == 2 and [epoch.batch_size for epoch in probe.epochs] == [8, 16, 4]


# All of them


class Row(NamedTuple):
    """Trials that stand in one row of the table."""

    title: str
    trials: dict[str, Trial]


ROWS = [
    Row(
        "every sample once, every validation",
        {
            "8→16": partial(changes_well, changes=GROW),
            "8→4": partial(changes_well, changes=SHRINK),
            "8→16→4": partial(changes_well, changes=BOTH),
        },
    ),
    Row(
        "the same for 8→16→4",
        {
            "loader given to `fit`": loader_given_to_fit,
            "two processes": two_processes,
            "`val_check_interval=0.5`": validates_twice_an_epoch,
        },
    ),
    Row(
        "OneCycle ends with the last sample",
        {"8→16": partial(one_cycle_ends, changes=GROW), "8→4": partial(one_cycle_ends, changes=SHRINK)},
    ),
    Row("goes on from a checkpoint", {"of an epoch's end": after_an_epoch, "inside an epoch": inside_an_epoch}),
    Row("checkpoint", {"state below 10 kB": small_state, "`weights_only=True`": loads_as_plain_data}),
    Row(
        "no needless restart",
        {
            "reloads at changes only": reloads_at_changes_only,
            "persistent workers live on": partial(workers_live_on, from_datamodule=False),
            "also a datamodule's": partial(workers_live_on, from_datamodule=True),
        },
    ),
]


def label(row: Row) -> str:
    """Returns a row's first cell."""
    return f"{row.title}: {' / '.join(row.trials)}"


def verdict(trial: Trial, contender: Contender) -> str:
    """Returns "yes", "no", or "raises" where the contender did not come to the end."""
    torch.manual_seed(0)
    try:
        return "yes" if trial(contender) else "no"
    except Exception as error:
        print(f"{contender.name} raises {type(error).__name__}: {str(error)[:80]} ...", file=sys.stderr)
        return "raises"


def column(contender: Contender) -> list[str]:
    """Returns a contender's cells, one a row."""
    cells = []
    for row in ROWS:
        verdicts = [verdict(trial, contender) for trial in row.trials.values()]
        cells.append(verdicts[0] if len(set(verdicts)) == 1 else " / ".join(verdicts))
    return cells

"""A run that was cut off goes on as if nothing had happened."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from itertools import chain, product
from pathlib import Path

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader

from lightning_deba import BatchSizeScheduler, read_history
from lightning_deba.callback import STATE_VERSION
from tests.processes import Processes
from tests.runs import Data, Epoch, Linear, ModuleWithLoader, Samples, Sizes, run, trainer_of
from tests.trials import test_learning_rate as schedules
from tests.trials.test_loaders import WithoutBatchSize
from tests.trials.test_several_processes import Refused, agreeing, refusals, run_here

ROOT = Path(__file__).parents[2]
STORED = {version: ROOT / "tests" / "data" / "checkpoints" / f"version_{version}.ckpt" for version in (1, 2)}
SOURCES = ["fit", "module", "datamodule"]


class CrashError(Exception):
    """Stands for whatever ends a process."""


class Crash(Callback):
    """Ends a fit after so many batches of an epoch, once their checkpoint is written."""

    def __init__(self, epoch: int, batches: int) -> None:
        self.at, self.done = (epoch, batches), (0, 0)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.done = (trainer.current_epoch, batch_idx + 1)

    def on_train_batch_start(self, *_):
        if self.done == self.at:
            raise CrashError

    def on_validation_start(self, *_):
        if self.done == self.at:
            raise CrashError


def broken(after, root, epoch, batches, *, checkpoint, **settings):
    """Runs until the batch, with a checkpoint after it, and returns the checkpoint."""
    with pytest.raises(CrashError):
        run(
            after,
            root / "broken",
            neighbours=[checkpoint, Crash(epoch, batches)],
            enable_checkpointing=True,
            **settings,
        )
    return checkpoint.last_model_path or checkpoint.best_model_path


def sizes(scheduler):
    return [record.batch_size for record in scheduler.history]


@pytest.mark.parametrize("source", SOURCES)
def test_inside_an_epoch_the_size_is_kept_at_once(source, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=1, save_last=True)
    path = broken({0: 16}, tmp_path, epoch=1, batches=2, checkpoint=checkpoint, source=source)
    _, scheduler, probe, _ = run({0: 16}, tmp_path / "resumed", source=source, ckpt_path=path)
    assert probe.sizes == []
    assert probe.epochs == [Epoch(1, 16, 2, 32), Epoch(2, 16, 4, 64)]
    assert probe.validations == [1, 2]
    assert [(r.batch_size, r.samples, r.optimizer_steps) for r in scheduler.history] == [
        (8, 64, 8),
        (16, 64, 4),  # the two batches before the crash are in the record as well
        (16, 64, 4),
    ]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("after", [{0: 16}, {0: 4}, {0: 16, 1: 4}], ids=["grow", "shrink", "both"])
def test_at_the_end_of_an_epoch_under_max_steps(after, source, tmp_path):
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    settings = {"source": source, "max_steps": 40, "max_epochs": -1}
    whole = run(after, tmp_path / "whole", neighbours=[checkpoints], enable_checkpointing=True, **settings)
    for epoch in range(2):
        resumed = run(after, tmp_path / f"from{epoch}", ckpt_path=tmp_path / f"epoch={epoch}.ckpt", **settings)
        assert resumed.probe.epochs == whole.probe.epochs[epoch + 1 :]
        assert resumed.trainer.global_step == whole.trainer.global_step == 40
        assert sizes(resumed.scheduler) == sizes(whole.scheduler)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("after", [{0: 16}, {0: 4}, {0: 16, 1: 4}], ids=["grow", "shrink", "both"])
def test_after_the_validation_of_an_epoch(after, source, tmp_path):
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}", save_on_train_epoch_end=False)
    whole = run(after, tmp_path / "whole", source=source, neighbours=[checkpoints], enable_checkpointing=True)
    for epoch in range(2):
        resumed = run(after, tmp_path / f"from{epoch}", source=source, ckpt_path=tmp_path / f"epoch={epoch}.ckpt")
        assert resumed.probe.epochs == whole.probe.epochs[epoch + 1 :]
        assert resumed.probe.validations == list(range(epoch + 1, 3))
        assert [(r.batch_size, r.samples) for r in resumed.scheduler.history] == [
            (r.batch_size, r.samples) for r in whole.scheduler.history
        ]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("after", [{0: 16}, {0: 4}, {0: 16, 1: 4}], ids=["grow", "shrink", "both"])
def test_at_the_last_batch_of_an_epoch(after, source, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=1, save_last=True)
    whole = run(after, tmp_path / "whole", source=source)
    path = broken(after, tmp_path, epoch=0, batches=8, checkpoint=checkpoint, source=source)
    resumed = run(after, tmp_path / "resumed", source=source, ckpt_path=path)
    assert sizes(resumed.scheduler) == sizes(whole.scheduler)
    assert resumed.probe.epochs == whole.probe.epochs[1:]


@pytest.mark.parametrize("source", SOURCES)
def test_the_loader_may_come_with_another_size(source, tmp_path):
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    run({0: 16}, tmp_path, source=source, neighbours=[checkpoints], enable_checkpointing=True)
    another = {
        "fit": {"loaders": DataLoader(Samples(), batch_size=32, shuffle=True)},
        "module": {"model": ModuleWithLoader(batch_size=32)},
        "datamodule": {"data": Data(batch_size=32)},
    }
    probe = run({0: 16}, tmp_path, source=source, ckpt_path=tmp_path / "epoch=0.ckpt", **another[source]).probe
    assert probe.epochs == [Epoch(1, 16, 4, 64), Epoch(2, 16, 4, 64)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (2, 4)])
def test_another_accumulation_keeps_the_batch_size(before, now, source, tmp_path):
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    whole = run({0: 32}, tmp_path, source=source, neighbours=[checkpoints], enable_checkpointing=True,
                accumulate_grad_batches=before)  # fmt: skip
    path = tmp_path / "epoch=0.ckpt"
    resumed = run({0: 32}, tmp_path, source=source, ckpt_path=path, accumulate_grad_batches=now)
    micro = 32 // now
    assert resumed.probe.epochs == [Epoch(epoch, micro, 64 // micro, 64) for epoch in (1, 2)]
    assert sizes(resumed.scheduler) == sizes(whole.scheduler) == [8 * before, 32, 32]
    assert [r.accumulation for r in resumed.scheduler.history] == [before, now, now]
    assert [r.optimizer_steps for r in resumed.scheduler.history[1:]] == [2, 2]
    with pytest.raises(MisconfigurationException, match=r"batch size of 32 cannot be divided among 1 ranks x 3 "):
        run({0: 32}, tmp_path, source=source, ckpt_path=path, accumulate_grad_batches=3)


def test_another_schedule_of_reloads_brings_no_size_back(tmp_path):
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    run({0: 16}, tmp_path, source="datamodule", neighbours=[checkpoints], enable_checkpointing=True)
    path = tmp_path / "epoch=0.ckpt"
    probe = run({0: 16}, tmp_path, source="datamodule", ckpt_path=path, reload_dataloaders_every_n_epochs=1).probe
    assert [epoch.batch_size for epoch in probe.epochs] == [16, 16]


KILLS = """
import os, pathlib, random, signal, sys, time
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from tests.runs import run

torch.set_num_threads(1)
folder, source, after = pathlib.Path(sys.argv[1]), sys.argv[2], {after!r}

class Slow(Callback):
    def on_train_batch_start(self, *_):
        time.sleep(0.06)

def live():
    last = folder / "last.ckpt"
    steps = ModelCheckpoint(folder, filename="step", every_n_train_steps=3, save_last=True)
    ends = ModelCheckpoint(folder, filename="end", save_last=False, enable_version_counter=False)
    run(after, folder, source=source, max_epochs=8, neighbours=[Slow(), steps, ends],
        enable_checkpointing=True, ckpt_path=last if last.exists() else None)

dice = random.Random(source)
for life in range(21):
    child = os.fork()
    if not child:
        live()
        os._exit(0)
    if life < 20:
        time.sleep(dice.uniform(0.1, 0.5))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)
"""


@pytest.mark.parametrize("source", ["fit", "datamodule"])
def test_killed_at_twenty_random_moments_the_sizes_are_those_of_an_unbroken_run(source, tmp_path):
    after = {0: 16, 2: 4, 4: 32, 5: 8}
    expected = run(after, tmp_path / "whole", source=source, max_epochs=8).scheduler
    script = KILLS.format(after=after)
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", script, str(killed), source]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.stdout.split() == [str(int(signal.SIGKILL))] * 20 + ["0"], ended.stderr[-2000:]
    read = read_history(killed)
    assert [(r.epoch, r.batch_size) for r in read.history] == [(r.epoch, r.batch_size) for r in expected.history]
    assert read.problems == []


# On another number of devices


def with_checkpoints(fit, root, **settings):
    """Fits with a checkpoint after every epoch, and one after every step."""
    ends = ModelCheckpoint(root, save_top_k=-1, filename="{epoch}")
    steps = ModelCheckpoint(root, save_top_k=-1, filename="{step}", every_n_train_steps=1)
    return fit(root=root, neighbours=[ends, steps], enable_checkpointing=True, **settings)


def on_two(root, source, after, **settings):
    return run_here(after, root, source=source, **settings)


def made_by_two(root, source):
    return with_checkpoints(partial(on_two, source=source, after={0: 32}), root)


def from_one_to_two(root, source, checkpoint):
    return on_two(root, source, {0: 32}, ckpt_path=root.parent / f"made_by_one-{source}" / checkpoint)


def odd_from_one_to_two(root, source):
    path = root.parent / f"odd_by_one-{source}" / "epoch=0.ckpt"
    # The datamodule's own size is one that two ranks could share.
    return on_two(root, source, {0: 9}, model=Refused(), ckpt_path=path)


OWNERS = ["fit", "datamodule"]
POINTS = {"end": "epoch=0.ckpt", "middle": "step=5.ckpt"}
SCENARIOS = {
    **{f"two-{source}": partial(made_by_two, source=source) for source in OWNERS},
    **{f"odd-{source}": partial(odd_from_one_to_two, source=source) for source in OWNERS},
    **{
        f"{point}-{source}": partial(from_one_to_two, source=source, checkpoint=POINTS[point])
        for point, source in product(POINTS, OWNERS)
    },
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Two ranks, which find the checkpoints of one process beside their own directories."""
    root = tmp_path_factory.mktemp("devices")
    for source in OWNERS:
        for name, size, after in [("made", 16, {0: 32}), ("odd", 8, {0: 9})]:
            loader = {"loaders": DataLoader(Samples(), batch_size=size, shuffle=True), "data": Data(size)}
            with_checkpoints(partial(run, after, source=source, **loader), root / f"{name}_by_one-{source}")
    return Processes(__name__, root)


@pytest.mark.parametrize("source", OWNERS)
def test_on_twice_as_many_devices_the_batch_size_is_kept(source, processes):
    ranks = processes.results(f"end-{source}")
    told = agreeing(ranks)
    # Epoch, batch size, samples on one device, devices, samples in all.
    assert [record[:5] for record in told["history"]] == [[0, 16, 16, 1, 64], [1, 32, 16, 2, 64], [2, 32, 16, 2, 64]]
    assert told["steps"] == [4, 2, 2]
    for rank in ranks:
        assert rank["epochs"] == [[1, 16, 2, 32], [2, 16, 2, 32]]
        assert rank["validations"] == [1, 2]
    for seen in zip(*(rank["seen"] for rank in ranks), strict=True):
        assert sorted(chain(*seen)) == list(range(64))


@pytest.mark.parametrize("source", OWNERS)
def test_on_half_as_many_devices_the_batch_size_is_kept(source, processes, tmp_path):
    agreeing(processes.results(f"two-{source}"))
    path = processes.root / f"two-{source}" / POINTS["end"]
    _, scheduler, probe, _ = run({0: 32}, tmp_path, source=source, ckpt_path=path)
    assert probe.epochs == [Epoch(1, 32, 2, 64), Epoch(2, 32, 2, 64)]
    assert probe.validations == [1, 2]
    assert [(r.epoch, r.batch_size, r.micro_batch_size, r.world_size, r.samples) for r in scheduler.history] == [
        (0, 16, 8, 2, 64),
        (1, 32, 32, 1, 64),
        (2, 32, 32, 1, 64),
    ]


@pytest.mark.parametrize("source", OWNERS)
def test_in_the_middle_of_an_epoch_as_well(source, processes, tmp_path):
    """One of the two steps of epoch 1 was done, on half or twice as many devices: one is left."""
    told = agreeing(processes.results(f"middle-{source}"))
    assert told["epochs"] == [[1, 16, 1, 16], [2, 16, 2, 32]]
    assert (told["sizes"], told["steps"]) == ([16, 32, 32], [4, 2, 2])
    path = processes.root / f"two-{source}" / POINTS["middle"]
    _, scheduler, probe, _ = run({0: 32}, tmp_path, source=source, ckpt_path=path)
    assert probe.epochs == [Epoch(1, 32, 1, 32), Epoch(2, 32, 2, 64)]
    assert sizes(scheduler) == [16, 32, 32]
    assert [r.optimizer_steps for r in scheduler.history] == [4, 2, 2]
    assert [r.samples for r in scheduler.history] == [row[4] for row in told["history"]] == [64, 64, 64]


@pytest.mark.parametrize("accumulation", [(1, 2), (2, 1)])
@pytest.mark.parametrize("batches", [2, 3, 4, 5])
def test_inside_an_epoch_another_accumulation_loses_nothing(batches, accumulation, tmp_path):
    """Of whole steps none is lost or doubled; a step that was in its middle begins again."""
    before, after = accumulation
    saved = ModelCheckpoint(tmp_path, filename="middle", every_n_train_steps=4 // before + batches // before)
    run({0: 16}, tmp_path, neighbours=[saved], enable_checkpointing=True, accumulate_grad_batches=before,
        loaders=DataLoader(Samples(), batch_size=16 // before), max_epochs=3)  # fmt: skip
    done = run({0: 16}, tmp_path, ckpt_path=saved.best_model_path, accumulate_grad_batches=after,
               loaders=DataLoader(Samples(), batch_size=16 // after))  # fmt: skip
    assert [(r.batch_size, r.samples, r.optimizer_steps) for r in done.scheduler.history] == [(16, 64, 4)] * 3


@pytest.mark.parametrize("source", OWNERS)
def test_a_batch_size_that_the_devices_cannot_share_is_refused_with_both_numbers(source, processes):
    message = refusals(processes.results(f"odd-{source}"))
    assert message.startswith("MisconfigurationException: A batch size of 9 cannot be divided among 2 ranks x 1 ")


# From a file of an earlier release


class Scheduled(Linear):
    """With a schedule that counts steps, so that its clock is in the checkpoint, too."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-4, total_steps=3 * 8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def write_stored():
    """Writes the newest stored checkpoint, after 2 of 4 batches of 16; `tests/data/checkpoints/README.md` says when."""
    newest = STORED[max(STORED)]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:  # its name gets into the checkpoint
        checkpoint = ModelCheckpoint(folder, filename=newest.stem, every_n_train_steps=10)
        run({0: 16}, folder, loaders=DataLoader(Samples(), batch_size=8), model=Scheduled(),
            neighbours=[checkpoint], enable_checkpointing=True, max_epochs=2)  # fmt: skip
        shutil.copy(checkpoint.best_model_path, newest)


def test_there_is_a_file_of_every_version():
    assert max(STORED) == STATE_VERSION


@pytest.mark.parametrize("version", STORED)
def test_a_checkpoint_of_every_state_version_is_gone_on_from(version, tmp_path):
    state = torch.load(STORED[version], weights_only=True)["callbacks"]["BatchSizeScheduler"]
    assert (state["version"], state["batch_size"]) == (version, 16)
    assert STORED[version].stat().st_size < 20_000
    trainer, scheduler, probe, _ = run({0: 16}, tmp_path, model=Scheduled(), ckpt_path=STORED[version])
    assert probe.epochs == [Epoch(1, 16, 2, 32), Epoch(2, 16, 4, 64)]
    assert probe.validations == [1, 2]
    assert [(r.epoch, r.batch_size, r.samples, r.optimizer_steps) for r in scheduler.history] == [
        (0, 8, 64, 8),
        (1, 16, 64, 4),
        (2, 16, 64, 4),
    ]
    assert [scheduler.history[0].to_dict()[name] for name in state["history"]] == [
        column[0] for column in state["history"].values()
    ]
    assert scheduler.history[0].loss == pytest.approx(0.0774, abs=1e-4)
    assert scheduler.decisions[0].reason == "the trial wants 16 after epoch 0"
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == 24  # its end, after 16 steps


@pytest.mark.parametrize("version", STORED)
@pytest.mark.parametrize("source", OWNERS)
def test_by_every_owner(source, version, tmp_path):
    probe = run({0: 16}, tmp_path, source=source, model=Scheduled(), ckpt_path=STORED[version]).probe
    assert probe.epochs == [Epoch(1, 16, 2, 32), Epoch(2, 16, 4, 64)]


# What a checkpoint is of


class Unsized(Data):
    """Its loader does not tell a batch size, which is then to be had from the datamodule alone."""

    def train_dataloader(self):
        return DataLoader(Samples(), batch_sampler=WithoutBatchSize(64, self.batch_size))


class AsksForSteps(Linear):
    """Has the loader built before the training state is restored."""

    def configure_optimizers(self):
        assert self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


@pytest.mark.parametrize(("data", "model"), product([Data, Unsized], [Linear, AsksForSteps]))
def test_the_loader_is_built_with_the_restored_size(data, model, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    settings = {"after": {0: 16}, "root": tmp_path, "source": "datamodule"}
    run(data=data(), model=model(), neighbours=[checkpoint], enable_checkpointing=True, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*does not use.*")
        resumed = run(data=data(), model=model(), ckpt_path=tmp_path / "epoch=0.ckpt", **settings)
    assert resumed.probe.epochs == [Epoch(1, 16, 4, 64), Epoch(2, 16, 4, 64)]


def test_testing_an_earlier_checkpoint_leaves_the_history(tmp_path):
    class Tested(Linear):
        def test_step(self, batch, batch_idx):
            return None

    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    trainer, scheduler, *_ = run({0: 16}, tmp_path, model=Tested(), neighbours=[checkpoint], enable_checkpointing=True)
    trainer.test(trainer.lightning_module, DataLoader(Samples(), 8), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert sizes(scheduler) == [8, 16, 16]


def test_a_scheduler_that_joins_a_run_later_goes_on_inside_an_epoch(tmp_path):
    alone = ModelCheckpoint(tmp_path, filename="alone")
    trainer_of([alone], tmp_path, max_epochs=2, enable_checkpointing=True).fit(Linear(), DataLoader(Samples(), 8))
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    settings = {"after": {2: 16}, "root": tmp_path, "max_epochs": 6}
    run(ckpt_path=tmp_path / "alone.ckpt", neighbours=[checkpoint], enable_checkpointing=True, **settings)
    resumed = run(ckpt_path=tmp_path / "step=26.ckpt", **settings).scheduler
    assert [(r.epoch, r.batch_size, r.samples) for r in resumed.history] == [
        (2, 8, 64),
        (3, 16, 64),
        (4, 16, 64),
        (5, 16, 64),
    ]


def test_the_rate_follows_the_decision_that_was_not_saved(tmp_path):
    settings = {"source": "fit", "scheduler_args": {"lr_scaling": "linear"}}
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_last=True)
    path = broken({0: 16}, tmp_path, epoch=0, batches=8, checkpoint=checkpoint, **settings)
    history = run({0: 16}, tmp_path / "resumed", ckpt_path=path, **settings).scheduler.history
    assert [record.learning_rate for record in history] == pytest.approx([1e-4, 2e-4, 2e-4])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("steps", [10, 14])
@pytest.mark.parametrize(("after", "size"), [({1: 16}, 16), ({}, 8)])
def test_an_epoch_that_max_steps_has_cut_off_goes_on_where_it_was(after, size, steps, source, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    settings = {"after": after, "root": tmp_path, "source": source, "max_epochs": -1}
    first = run(max_steps=steps, neighbours=[checkpoint], enable_checkpointing=True, **settings)
    assert [r.samples for r in first.scheduler.history] == [64, 8 * (steps - 8)]
    resumed = run(max_steps=16 + 2 * 64 // size, ckpt_path=tmp_path / "epoch=1.ckpt", **settings)
    left = 16 - steps
    assert resumed.probe.epochs == [Epoch(1, 8, left, 8 * left), *(Epoch(t, size, 64 // size, 64) for t in (2, 3))]
    assert [(r.epoch, r.batch_size, r.samples) for r in resumed.scheduler.history] == [
        (0, 8, 64),
        (1, 8, 64),
        (2, size, 64),
        (3, size, 64),
    ]
    assert resumed.probe.validations == [1, 2, 3]


def test_a_schedule_begun_by_lightning_is_left_to_it_where_the_scheduler_joins_inside_an_epoch(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    alone = trainer_of([checkpoint], tmp_path, max_epochs=2, enable_checkpointing=True)
    alone.fit(schedules.Scheduled("ExponentialLR"), DataLoader(Samples(), 8))
    model = schedules.Scheduled("ExponentialLR")
    run({}, tmp_path, model=model, ckpt_path=tmp_path / "step=5.ckpt", max_epochs=2)
    assert model.optimizers().param_groups[0]["lr"] == pytest.approx(0.05 * 0.95**16)


class Late(SingleDeviceStrategy):
    """Restores after the setup, as sharded strategies do."""

    @property
    def restore_checkpoint_after_setup(self):
        return True


@pytest.mark.parametrize(("data", "model"), product([Data, Unsized], [Linear, AsksForSteps]))
def test_a_strategy_may_restore_after_the_setup(data, model, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    settings = {"after": {0: 16}, "root": tmp_path, "source": "datamodule"}
    run(data=data(), model=model(), neighbours=[checkpoint], enable_checkpointing=True, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*does not use.*")
        path = tmp_path / "step=10.ckpt"
        resumed = run(data=data(), model=model(), strategy=Late("cpu"), ckpt_path=path, **settings)
    assert resumed.probe.epochs == [Epoch(1, 16, 2, 32), Epoch(2, 16, 4, 64)]


@pytest.mark.parametrize("data", [Data, Unsized])
def test_a_checkpoint_of_a_fit_that_ended_inside_an_epoch_begins_the_next(data, tmp_path):
    settings = {"after": {1: 16}, "root": tmp_path, "source": "datamodule"}
    first = run(data=data(), scheduler_args={"max_samples": 80}, **settings)
    first.trainer.save_checkpoint(tmp_path / "final.ckpt")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*does not use.*")
        resumed = run(data=data(), ckpt_path=tmp_path / "final.ckpt", **settings)
    assert resumed.probe.epochs == [Epoch(2, 16, 4, 64)]
    assert [(r.epoch, r.batch_size, r.samples) for r in resumed.scheduler.history] == [
        (0, 8, 64),
        (1, 8, 16),
        (2, 16, 64),
    ]


def test_a_fit_after_one_that_has_failed_begins_anew(tmp_path):
    class FailsOnce(Callback):
        failed = False

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 2 and not self.failed:
                self.failed = True
                raise CrashError

    model, loader = schedules.Scheduled("ExponentialLR"), DataLoader(Samples(), 8)
    scheduler = BatchSizeScheduler(Sizes({0: 16}), min_batch_size=1)
    trainer = trainer_of([scheduler, FailsOnce()], tmp_path, max_epochs=2)
    with pytest.raises(CrashError):
        trainer.fit(model, loader)
    trainer.fit(model, loader)
    assert sizes(scheduler) == [8, 16]
    assert model.optimizers().param_groups[0]["lr"] == pytest.approx(0.05 * 0.95**16)

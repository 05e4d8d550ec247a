"""A run that was cut off goes on as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_deba import read_history
from tests.runs import Data, Epoch, run

ROOT = Path(__file__).parents[2]
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


def test_the_datamodule_may_come_with_another_size(tmp_path):
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    run({0: 16}, tmp_path, source="datamodule", neighbours=[checkpoints], enable_checkpointing=True)
    path = tmp_path / "epoch=0.ckpt"
    probe = run({0: 16}, tmp_path, source="datamodule", data=Data(batch_size=32), ckpt_path=path).probe
    assert probe.epochs == [Epoch(1, 16, 4, 64), Epoch(2, 16, 4, 64)]


def test_another_accumulation_keeps_the_batch_size(tmp_path):
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    run({0: 16}, tmp_path, source="datamodule", neighbours=[checkpoints], enable_checkpointing=True)
    path = tmp_path / "epoch=0.ckpt"
    resumed = run({0: 16}, tmp_path, source="datamodule", ckpt_path=path, accumulate_grad_batches=2)
    assert resumed.probe.epochs == [Epoch(1, 8, 8, 64), Epoch(2, 8, 8, 64)]
    assert sizes(resumed.scheduler) == [8, 16, 16]
    with pytest.raises(MisconfigurationException, match=r"batch size of 16 cannot be divided among 1 ranks x 3 "):
        run({0: 16}, tmp_path, source="datamodule", ckpt_path=path, accumulate_grad_batches=3)


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

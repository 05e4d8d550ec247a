"""What stock Lightning does, without the scheduler, where that is not what one would wish: each with its issue there.

Where one of these fails, a newer Lightning has mended it: what is built around the fault here can be looked at again.
"""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from tests.runs import Data, Epoch, Linear, Probe, Samples, trainer_of


def fit(*callbacks, model=None, loader=None, validated=True, data=None, ckpt_path=None, **settings):
    """Fits 64 samples in batches of 8, and returns what arrived."""
    probe = Probe()
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    trainer = trainer_of([*callbacks, probe], enable_checkpointing=saves, **settings)
    loaders = [loader or DataLoader(Samples(), batch_size=8), DataLoader(Samples(8), batch_size=8)]
    model = model or Linear()
    trainer.fit(model, *([] if data else loaders[: 1 + validated]), datamodule=data, ckpt_path=ckpt_path)
    return probe


def checkpoints(folder, **when):
    return ModelCheckpoint(folder, save_top_k=-1, enable_version_counter=False, **when)


# Changing the batch size


class Setting(Callback):
    """Sets the batch size after the first epoch, on the live loader and on the datamodule."""

    def __init__(self, batch_size):
        self.batch_size = batch_size

    def on_train_epoch_end(self, trainer, module):
        trainer.train_dataloader.batch_sampler.batch_size = self.batch_size
        if trainer.datamodule is not None:
            trainer.datamodule.batch_size = self.batch_size


def test_after_a_growth_in_place_no_epoch_is_validated():
    """#17327, #19286 and #19624: batches are counted when the loader is set up, and the last of them validates."""
    probe = fit(Setting(16))
    assert probe.epochs == [Epoch(0, 8, 8, 64), Epoch(1, 16, 4, 64), Epoch(2, 16, 4, 64)]
    assert probe.training_batches == [8, 8, 8]
    assert probe.validations == [0]


def test_after_a_shrink_in_place_the_epochs_are_cut():
    """#1181."""
    assert fit(Setting(4)).epochs == [Epoch(0, 8, 8, 64), Epoch(1, 4, 8, 32), Epoch(2, 4, 8, 32)]


class OneCycle(Linear):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-4, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def test_a_schedule_sized_by_the_estimated_steps_is_overrun():
    """The property of #11599 is read once, and so is of the first batch size."""
    with pytest.raises(ValueError, match=r"Tried to step 25 times\. The specified number of total steps is 24"):
        fit(Setting(4), model=OneCycle(), data=Data(), reload_dataloaders_every_n_epochs=1)


# Accumulating


class Gradients(Linear):
    """The gradient of a micro-batch is the mean of its samples' second numbers: 1, unless said otherwise."""

    def __init__(self, last=1.0):
        super().__init__()
        self.last, self.gradients = last, []

    def training_step(self, batch, batch_idx):
        values = torch.where(batch[:, 0] == 4, self.last, batch[:, 1])
        return self.layer.bias.sum() * values.mean()

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(self.layer.bias.grad.item())


def gradients_of(model, loader, *callbacks, accumulate):
    fit(*callbacks, model=model, loader=loader, max_epochs=1, accumulate_grad_batches=accumulate)
    return pytest.approx(model.gradients)


def test_a_shorter_last_window_is_divided_by_the_whole():
    """#19987: 10 micro-batches, 4 to a step."""
    model = Gradients()
    assert gradients_of(model, DataLoader(Samples(80), batch_size=8), accumulate=4) == [1.0, 1.0, 0.5]


def test_a_smaller_last_micro_batch_weighs_as_much_as_the_others():
    """#13243, the division by their number: four samples with the gradient 1 and one with 5, whose mean is 1.8."""
    assert gradients_of(Gradients(last=5.0), DataLoader(Samples(5), batch_size=4), accumulate=2) == [3.0]


class FromTwoToThree(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == 3:
            trainer.accumulate_grad_batches = 3


def test_a_change_inside_an_epoch_adds_gradients_that_were_stepped_on():
    """#21534: they are set to zero by the number of the batch, not by the step before. The last step is a short one."""
    loader = DataLoader(Samples(64), batch_size=8)
    assert gradients_of(Gradients(), loader, FromTwoToThree(), accumulate=2) == [1.0, 1.0, 5 / 3, 2 / 3]


# Resuming


def test_without_validation_a_batch_of_the_finished_epoch_is_trained_again(tmp_path):
    """#19403 and #19617."""
    settings = {"validated": False, "max_steps": 24, "max_epochs": -1}
    fit(checkpoints(tmp_path, filename="{epoch}"), **settings)
    probe = fit(ckpt_path=tmp_path / "epoch=0.ckpt", **settings)
    assert probe.epochs == [Epoch(0, 8, 1, 8), Epoch(1, 8, 8, 64), Epoch(2, 8, 7, 56)]


def test_resumed_from_an_epochs_last_batch_and_then_again_an_epoch_is_skipped(tmp_path):
    """No report of just this is known; #18060 and #19815 are of checkpoints after a number of steps, too."""
    fit(checkpoints(tmp_path, filename="{step}", every_n_train_steps=8), max_epochs=1)
    first = fit(checkpoints(tmp_path, filename="{epoch}"), ckpt_path=tmp_path / "step=8.ckpt", max_epochs=4)
    assert first.epochs == [Epoch(epoch, 8, 8, 64) for epoch in (1, 2, 3)]
    second = fit(ckpt_path=tmp_path / "epoch=1.ckpt", max_epochs=4)
    assert second.epochs == [Epoch(3, 8, 8, 64)]

"""What people ran into when they changed the batch size: the right answer, exactly."""

from __future__ import annotations

import io
import os
from itertools import product

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_deba import BatchSizeScheduler
from tests.runs import Data, DataWithHparams, Epoch, Linear, Probe, Samples, Sizes, run, trainer_of

CHANGES = {
    "grow": ({0: 16}, [(8, 8), (16, 4), (16, 4)]),
    "shrink": ({0: 4}, [(8, 8), (4, 16), (4, 16)]),
    "both": ({0: 16, 1: 4}, [(8, 8), (16, 4), (4, 16)]),
}
WORKERS = {
    "0": {},
    "2": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
ACTUATORS = [("in_place", "fit"), *product(["reload", "in_place"], ["module", "datamodule"])]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("actuator", "source"), ACTUATORS)
@pytest.mark.parametrize("change", CHANGES)
def test_no_sample_and_no_validation_is_lost(change, actuator, source, workers, tmp_path):
    after, expected = CHANGES[change]
    _, scheduler, probe, _ = run(after, tmp_path, source=source, actuator=actuator, loader_args=WORKERS[workers])
    assert probe.epochs == [Epoch(t, size, batches, 64) for t, (size, batches) in enumerate(expected)]
    assert probe.validations == [0, 1, 2]
    assert probe.training_batches == [batches for _, batches in expected]
    assert all(sorted(seen) == list(range(64)) for seen in probe.seen.values())
    assert [(r.batch_size, r.optimizer_steps, r.samples) for r in scheduler.history] == [
        (size, batches, 64) for size, batches in expected
    ]


# Who owns the loader


class WithoutBatchSize(Data):
    """A datamodule that says its batch size nowhere but in the loader."""

    def __init__(self):
        super().__init__()
        del self.batch_size

    def train_dataloader(self):
        self.built += 1
        return DataLoader(Samples(), batch_size=8, shuffle=True)


@pytest.mark.parametrize("actuator", ["reload", "in_place"])
def test_hyper_parameters_alone_are_enough(actuator, tmp_path):
    data = DataWithHparams(batch_size=8)
    probe = run({0: 16}, tmp_path, source="datamodule", data=data, actuator=actuator).probe
    assert probe.epochs == [Epoch(0, 8, 8, 64), Epoch(1, 16, 4, 64), Epoch(2, 16, 4, 64)]
    assert probe.validations == [0, 1, 2]


def test_without_any_attribute_the_live_loader_is_rewritten(tmp_path):
    data = WithoutBatchSize()
    probe = run({0: 16}, tmp_path, source="datamodule", data=data).probe
    assert probe.epochs == [Epoch(0, 8, 8, 64), Epoch(1, 16, 4, 64), Epoch(2, 16, 4, 64)]
    assert data.built == 1


def test_without_any_attribute_a_reload_is_refused(tmp_path):
    with pytest.raises(MisconfigurationException, match="There is no `batch_size` to set"):
        run({0: 16}, tmp_path, source="datamodule", data=WithoutBatchSize(), actuator="reload")


def test_an_attribute_that_holds_no_size_is_no_owner(tmp_path):
    data = WithoutBatchSize()
    data.batch_size = None
    probe = run({0: 16}, tmp_path, source="datamodule", data=data).probe
    assert [epoch.batch_size for epoch in probe.epochs] == [8, 16, 16]
    with pytest.raises(MisconfigurationException, match="a positive int"):
        run({0: 16}, tmp_path, source="datamodule", data=data, actuator="reload")


class ReadOnly(WithoutBatchSize):
    batch_size = property(lambda self: 8)

    def __init__(self):
        LightningDataModule.__init__(self)
        self.built = self.validation_built = 0


def test_an_attribute_that_cannot_be_set_is_no_owner(tmp_path):
    probe = run({0: 16}, tmp_path, source="datamodule", data=ReadOnly()).probe
    assert [epoch.batch_size for epoch in probe.epochs] == [8, 16, 16]
    with pytest.raises(MisconfigurationException, match="that can be set"):
        run({0: 16}, tmp_path, source="datamodule", data=ReadOnly(), actuator="reload")


def test_a_module_with_another_size_does_not_set_that_of_its_datamodule(tmp_path):
    model = Linear()
    model.batch_size = 32
    data = Data(batch_size=8)
    probe = run({0: 16}, tmp_path, source="datamodule", model=model, data=data).probe
    assert [epoch.batch_size for epoch in probe.epochs] == [8, 16, 16]
    assert (model.batch_size, data.batch_size) == (32, 8)


# What is left behind


@pytest.mark.parametrize("actuator", ["reload", "in_place"])
def test_a_datamodule_is_left_as_it_was(actuator, tmp_path):
    data = Data()
    for name in ("a", "b"):
        probe = run({0: 16}, tmp_path / name, source="datamodule", data=data, actuator=actuator).probe
        assert [epoch.batch_size for epoch in probe.epochs] == [8, 16, 16]
        assert data.batch_size == 8


def test_a_loader_is_left_as_it_was(tmp_path):
    loader = DataLoader(Samples(), batch_size=8)
    for name in ("a", "b"):
        probe = run({0: 16}, tmp_path / name, loaders=loader).probe
        assert [epoch.batch_size for epoch in probe.epochs] == [8, 16, 16]
        assert (loader.batch_sampler.batch_size, loader.batch_size) == (8, 8)


@pytest.mark.parametrize("actuator", ["reload", "in_place"])
def test_a_fit_that_fails_leaves_all_as_it_was(actuator, tmp_path):
    class Fails(Linear):
        def on_train_epoch_end(self):
            if self.current_epoch == 1:
                raise RuntimeError("on purpose")

    data, scheduler = Data(), BatchSizeScheduler(Sizes({0: 16, 1: 32}), actuator=actuator, min_batch_size=1)
    trainer = trainer_of([scheduler], tmp_path, reload_dataloaders_every_n_epochs=2)
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.fit(Fails(), datamodule=data)
    assert (data.batch_size, trainer.reload_dataloaders_every_n_epochs) == (8, 2)


# When the loader is built


def test_the_loader_is_rebuilt_at_the_changes_and_at_no_other_epoch(tmp_path):
    data = Data()
    probe = run({3: 16, 9: 8}, tmp_path, source="datamodule", data=data, max_epochs=12).probe
    sizes = [8] * 4 + [16] * 6 + [8] * 2
    assert probe.epochs == [Epoch(t, size, 64 // size, 64) for t, size in enumerate(sizes)]
    assert probe.validations == list(range(12))
    assert (data.built, data.validation_built) == (3, 1)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("with_attribute", [True, False])
@pytest.mark.parametrize("actuator", ["reload", "in_place"])
def test_reloads_that_the_user_asks_for_as_well(actuator, with_attribute, every, tmp_path, caplog):
    if actuator == "reload" and not with_attribute:
        return
    data = Data() if with_attribute else WithoutBatchSize()
    with caplog.at_level("INFO", "lightning.pytorch"):
        trainer, _, probe, _ = run({1: 16, 3: 4}, tmp_path, source="datamodule", data=data, actuator=actuator,
                                   max_epochs=6, reload_dataloaders_every_n_epochs=every)  # fmt: skip
    assert probe.epochs == [Epoch(t, size, 64 // size, 64) for t, size in enumerate([8, 8, 16, 16, 4, 4])]
    assert probe.validations == list(range(6))
    assert all(sorted(seen) == list(range(64)) for seen in probe.seen.values())
    assert trainer.reload_dataloaders_every_n_epochs == every
    changes = [message for message in caplog.messages if "batch size" in message and " -> " in message]
    assert [message.split(".")[0] for message in changes] == [
        "After epoch 1: batch size 8 -> 16",
        "After epoch 3: batch size 16 -> 4",
    ]


class Pids(Samples):
    """Samples that say which process has made them."""

    def __getitem__(self, index):
        return torch.tensor([float(index), float(os.getpid())])


class PidProbe(Probe):
    def __init__(self):
        super().__init__()
        self.pids = {}

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        super().on_train_batch_start(trainer, module, batch, batch_idx)
        self.pids.setdefault(trainer.current_epoch, set()).update(batch[:, 1].tolist())


def test_persistent_workers_live_through_a_change(tmp_path):
    loader = DataLoader(Pids(), batch_size=8, num_workers=2, persistent_workers=True)
    probe = PidProbe()
    run({0: 16, 1: 4}, tmp_path, loaders=loader, probe=probe)
    assert [epoch.batch_size for epoch in probe.epochs] == [8, 16, 4]
    assert len(probe.pids[0]) == 2
    assert probe.pids[0] == probe.pids[1] == probe.pids[2]


# The checkpoint


class Large(Samples):
    """A data set of 4 MB."""

    def __init__(self):
        super().__init__()
        self.payload = torch.zeros(1_000_000)


def test_a_checkpoint_holds_numbers_and_no_data(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, save_last=True)
    run({0: 16}, tmp_path, loaders=DataLoader(Large(), batch_size=8), neighbours=[checkpoint],
        enable_checkpointing=True)  # fmt: skip
    loaded = torch.load(tmp_path / "last.ckpt", weights_only=True)
    buffer = io.BytesIO()
    torch.save(loaded["callbacks"]["BatchSizeScheduler"], buffer)
    assert buffer.tell() < 10_000
    assert (tmp_path / "last.ckpt").stat().st_size < 50_000

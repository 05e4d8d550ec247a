"""Every setting of the Trainer that counts batches, epochs or time holds across a change of the batch size."""

from __future__ import annotations

from datetime import timedelta

import lightning
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from packaging.version import Version
from torch.utils.data import DataLoader

from lightning_deba import BatchSizeScheduler
from tests.runs import Data, Epoch, Linear, ModuleWithLoader, Samples, Sizes, run, trainer_of

WAYS = [("in_place", "fit"), ("reload", "datamodule"), ("in_place", "module")]
CHANGES = {0: 16, 1: 4}
WHOLE = [Epoch(0, 8, 8, 64), Epoch(1, 16, 4, 64), Epoch(2, 4, 16, 64)]

since_2_6 = pytest.mark.skipif(Version(lightning.__version__) < Version("2.6"), reason="Lightning has it from 2.6 on")
every_way = pytest.mark.parametrize(("actuator", "source"), WAYS)


# Limits of an epoch


@every_way
def test_limit_train_batches_in_batches(actuator, source, tmp_path):
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, limit_train_batches=5).probe
    assert probe.epochs == [Epoch(0, 8, 5, 40), Epoch(1, 16, 4, 64), Epoch(2, 4, 5, 20)]
    assert probe.training_batches == [5, 4, 5]
    assert probe.validations == [0, 1, 2]


@every_way
def test_limit_train_batches_as_a_share(actuator, source, tmp_path):
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, limit_train_batches=0.5).probe
    assert probe.epochs == [Epoch(0, 8, 4, 32), Epoch(1, 16, 2, 32), Epoch(2, 4, 8, 32)]
    assert probe.training_batches == [4, 2, 8]
    assert probe.validations == [0, 1, 2]


@every_way
def test_a_share_that_would_leave_no_batch_bounds_the_size(actuator, source, tmp_path):
    # Lightning would raise in the middle of the fit: 0.2 of 4 batches is less than one.
    _, scheduler, probe, _ = run(
        {0: 16}, tmp_path, actuator=actuator, source=source, limit_train_batches=0.2, max_epochs=2
    )
    assert probe.epochs == [Epoch(0, 8, 1, 8), Epoch(1, 15, 1, 15)]
    assert scheduler.decisions[0].limits == "`limit_train_batches=0.2` would leave no batch"


@every_way
def test_overfit_batches_in_batches(actuator, source, tmp_path):
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, overfit_batches=2).probe
    assert probe.epochs == [Epoch(0, 8, 2, 16), Epoch(1, 16, 2, 32), Epoch(2, 4, 2, 8)]
    assert all(seen == list(range(len(seen))) for seen in probe.seen.values())
    assert probe.validations == [0, 1, 2]


@every_way
def test_overfit_batches_as_a_share(actuator, source, tmp_path):
    settings = {"overfit_batches": 0.25, "check_val_every_n_epoch": 100}  # a quarter of the one batch for validation
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, **settings).probe
    assert probe.epochs == [Epoch(0, 8, 2, 16), Epoch(1, 16, 1, 16), Epoch(2, 4, 4, 16)]
    assert all(seen == list(range(16)) for seen in probe.seen.values())


# Validation


@every_way
def test_val_check_interval_as_a_share(actuator, source, tmp_path):
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, val_check_interval=0.5).probe
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 0, 1, 1, 2, 2]


@every_way
def test_val_check_interval_in_batches(actuator, source, tmp_path):
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, val_check_interval=4).probe
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 0, 1, 2, 2, 2, 2]


@every_way
def test_val_check_interval_across_epochs(actuator, source, tmp_path):
    # 28 batches in all: validations after 6 (epoch 0), 12 (epoch 1), 18, 24 (epoch 2).
    settings = {"val_check_interval": 6, "check_val_every_n_epoch": None}
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, **settings).probe
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 1, 2, 2]


class Clock(Callback):
    """Lets a second of Lightning's validation clock pass at each batch."""

    def on_train_batch_start(self, trainer, *_):
        trainer._last_val_time -= 1.0


@since_2_6
@every_way
@pytest.mark.parametrize("interval", ["00:00:00:06", timedelta(seconds=6), {"seconds": 6}])
def test_val_check_interval_in_time(interval, actuator, source, tmp_path):
    settings = {"val_check_interval": interval, "neighbours": [Clock()]}
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, **settings).probe
    assert probe.epochs == WHOLE
    # After 6, 12, 18 and 24 batches. A reload alone would set the clock to zero: 6, 14 and 20.
    assert probe.validations == [0, 1, 2, 2]


@every_way
def test_check_val_every_n_epoch(actuator, source, tmp_path):
    settings = {"check_val_every_n_epoch": 2, "max_epochs": 4}
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, **settings).probe
    assert probe.epochs == [*WHOLE, Epoch(3, 4, 16, 64)]
    assert probe.validations == [1, 3]


@since_2_6
@every_way
def test_limit_val_batches_of_zero_lifts_the_bound_of_the_interval(actuator, source, tmp_path):
    settings = {"val_check_interval": 8, "limit_val_batches": 0}
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, **settings).probe
    assert probe.epochs == WHOLE


@every_way
def test_num_sanity_val_steps(actuator, source, tmp_path):
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, num_sanity_val_steps=2).probe
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 1, 2]


# The end of the fit


@every_way
@pytest.mark.parametrize("max_epochs", [-1, 10])
def test_max_steps(max_epochs, actuator, source, tmp_path):
    settings = {"max_steps": 20, "max_epochs": max_epochs}
    trainer, scheduler, probe, _ = run(CHANGES, tmp_path, actuator=actuator, source=source, **settings)
    assert probe.epochs == [*WHOLE[:2], Epoch(2, 4, 8, 32)]
    assert trainer.global_step == 20
    assert probe.validations == [0, 1]
    assert [record.samples for record in scheduler.history] == [64, 64, 32]


@every_way
def test_max_time(actuator, source, tmp_path):
    class Late(Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 2:
                timer = next(c for c in trainer.callbacks if type(c).__name__ == "Timer")
                timer._offset += 3600

    settings = {"max_time": "00:01:00:00", "max_epochs": -1, "neighbours": [Late()]}
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, **settings).probe
    assert probe.epochs == [*WHOLE[:2], Epoch(2, 4, 1, 4)]
    assert probe.validations == [0, 1, 2]


@every_way
def test_fast_dev_run_writes_nothing(actuator, source, tmp_path):
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, fast_dev_run=2, logger=CSVLogger(tmp_path)).probe
    assert probe.epochs == [Epoch(0, 8, 2, 16)]
    assert not list(tmp_path.rglob("*"))


# One Trainer, several fits


@pytest.mark.parametrize("actuator", ["reload", "in_place"])
@pytest.mark.parametrize("source", ["fit", "module", "datamodule"])
def test_a_second_fit_goes_on_where_the_first_one_ended(source, actuator, tmp_path):
    if (source, actuator) == ("fit", "reload"):
        return
    data, loader = Data(), DataLoader(Samples(), batch_size=8, shuffle=True)
    model = ModuleWithLoader() if source == "module" else Linear()
    arguments = {"datamodule": data} if source == "datamodule" else {}
    if source == "fit":
        arguments = {"train_dataloaders": loader, "val_dataloaders": DataLoader(Samples(8), batch_size=8)}
    whole = run({0: 16, 2: 4, 3: 8}, tmp_path / "whole", source=source, actuator=actuator, max_epochs=6)

    scheduler = BatchSizeScheduler(Sizes({0: 16, 2: 4, 3: 8}), actuator=actuator, min_batch_size=1)
    probe = type(whole.probe)()
    trainer = trainer_of([scheduler, probe], tmp_path, max_epochs=1)
    for epochs in (1, 3, 6):
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(model, **arguments)
        assert [r.batch_size for r in scheduler.history] == [8, 16, 16, 4, 8, 8][:epochs]
        assert (data.batch_size, loader.batch_sampler.batch_size) == (8, 8)
    assert probe.epochs == whole.probe.epochs
    assert probe.validations == whole.probe.validations
    assert all(sorted(seen) == list(range(64)) for seen in probe.seen.values())
    assert [d.reason for d in scheduler.decisions] == [d.reason for d in whole.scheduler.decisions]


def test_validation_and_test_on_the_same_trainer_are_left_alone(tmp_path):
    class Tested(Linear):
        def test_step(self, batch, batch_idx):
            sizes.append(len(batch))

    class WithTest(Data):
        def test_dataloader(self):
            return DataLoader(Samples(), batch_size=self.batch_size)

    sizes, data, model = [], WithTest(), Tested()
    trainer = trainer_of([BatchSizeScheduler(Sizes(CHANGES), min_batch_size=1)], tmp_path)
    trainer.fit(model, datamodule=data)
    trainer.validate(model, datamodule=data)
    trainer.test(model, datamodule=data)
    assert sizes == [8] * 8


# The rest


@every_way
@pytest.mark.parametrize(
    "settings",
    [
        {"use_distributed_sampler": False},
        {"log_every_n_steps": 3},
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
        {"detect_anomaly": True},
        {"barebones": True, "logger": None},
        {"min_epochs": 2},
        {"deterministic": True},
        {"inference_mode": False},
        {"precision": "bf16-mixed"},
        {"enable_progress_bar": True},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_settings_that_count_nothing(settings, actuator, source, tmp_path):
    if settings == {"log_every_n_steps": 3}:
        settings = {**settings, "logger": CSVLogger(tmp_path)}
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, **settings).probe
    torch.use_deterministic_algorithms(False)
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 1, 2]
    assert all(sorted(seen) == list(range(64)) for seen in probe.seen.values())


def test_log_every_n_steps_counts_steps_over_the_whole_run(tmp_path):
    class Logs(Linear):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss", loss)
            return loss

    run(CHANGES, tmp_path, model=Logs(), logger=CSVLogger(tmp_path), log_every_n_steps=4)
    lines = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    names = lines[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    steps = [int(row["step"]) for row in rows if row["train_loss"]]
    assert steps == [3, 7, 11, 15, 19, 23, 27]  # 8 + 4 + 16 steps

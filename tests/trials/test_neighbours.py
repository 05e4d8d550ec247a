"""Lightning's own callbacks beside the scheduler, before it and behind it in the list."""

from __future__ import annotations

from datetime import timedelta

import lightning
import pytest
import torch
from lightning.pytorch import Callback, callbacks
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    RichProgressBar,
    StochasticWeightAveraging,
    ThroughputMonitor,
    Timer,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger
from packaging.version import Version

from tests.runs import Epoch, Linear, run
from tests.trials.test_learning_rate import Scheduled

CHANGES = {0: 16, 1: 4}
WHOLE = [Epoch(0, 8, 8, 64), Epoch(1, 16, 4, 64), Epoch(2, 4, 16, 64)]
WAYS = [("in_place", "fit"), ("reload", "datamodule")]

since_2_6 = pytest.mark.skipif(Version(lightning.__version__) < Version("2.6"), reason="Lightning has it from 2.6 on")
every_way = pytest.mark.parametrize(("actuator", "source"), WAYS)
every_place = pytest.mark.parametrize("place", ["neighbours", "neighbours_after"], ids=["before", "behind"])


class WithBatchNorm(Linear):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))


def size_in(path):
    return torch.load(path, weights_only=True)["callbacks"]["BatchSizeScheduler"]["batch_size"]


# Checkpoints


@every_way
@every_place
@pytest.mark.parametrize("monitor", [None, "val_loss"])
def test_a_checkpoint_of_an_epochs_end_holds_the_new_size(monitor, place, actuator, source, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", monitor=monitor, save_top_k=-1, save_last=True)
    run(CHANGES, tmp_path, actuator=actuator, source=source, enable_checkpointing=True, **{place: [checkpoint]})
    assert [size_in(tmp_path / f"epoch={epoch}.ckpt") for epoch in range(3)] == [16, 4, 4]
    assert size_in(tmp_path / "last.ckpt") == 4


@every_way
@every_place
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # A validation comes before the end of its epoch: nothing is decided yet.
        ({"save_on_train_epoch_end": False, "save_top_k": -1}, {8: 8, 12: 16, 28: 4}),
        ({"every_n_train_steps": 4, "save_top_k": -1}, {4: 8, 8: 8, 12: 16, 16: 4, 20: 4, 24: 4, 28: 4}),
        ({"train_time_interval": timedelta(microseconds=1), "save_top_k": -1}, dict.fromkeys(range(2, 29))),
        ({"monitor": "batch_size", "mode": "min", "save_top_k": 1}, None),
    ],
    ids=["validation", "steps", "time", "monitor"],
)
def test_every_kind_of_checkpoint_leaves_the_epochs_alone(settings, expected, place, actuator, source, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", **settings)
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, enable_checkpointing=True,
                **{place: [checkpoint]}).probe  # fmt: skip
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 1, 2]
    if expected is None:
        assert checkpoint.best_model_score == 4
        return
    assert {int(path.stem.removeprefix("step=")) for path in tmp_path.glob("*.ckpt")} >= set(expected)
    assert all(size is None or size_in(tmp_path / f"step={step}.ckpt") == size for step, size in expected.items())


# The progress bar


def recording(kind):
    class Recording(kind):
        def __init__(self):
            super().__init__()
            self.totals = []

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            if len(self.totals) <= trainer.current_epoch:
                self.totals.append(self.total())

        def total(self):
            if kind is TQDMProgressBar:
                return self.train_progress_bar.total
            return next(task.total for task in self.progress.tasks if task.id == self.train_progress_bar_id)

    return Recording()


@pytest.mark.parametrize("every", [0, 1])
@every_way
@every_place
@pytest.mark.parametrize("kind", [TQDMProgressBar, RichProgressBar])
def test_the_progress_bar_knows_the_batches_of_each_epoch(kind, place, actuator, source, every, tmp_path):
    bar = recording(kind)
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, enable_progress_bar=True,
                reload_dataloaders_every_n_epochs=every, **{place: [bar]}).probe  # fmt: skip
    assert bar.totals == [8, 4, 16]
    assert probe.epochs == WHOLE


# Weight averaging


@every_way
@every_place
def test_stochastic_weight_averaging(place, actuator, source, tmp_path):
    swa = StochasticWeightAveraging(swa_lrs=1e-4, swa_epoch_start=1)
    _, scheduler, probe, _ = run(CHANGES, tmp_path, actuator=actuator, source=source, **{place: [swa]})
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 1, 2]
    assert [record.batch_size for record in scheduler.history] == [8, 16, 4]


@pytest.mark.parametrize("last", [{}, {2: 32}])
@every_way
@every_place
def test_the_extra_epoch_for_batch_norm_is_not_taken_for_training(place, actuator, source, last, tmp_path):
    # In that epoch Lightning sets `accumulate_grad_batches` to all batches and does no backward pass.
    swa = StochasticWeightAveraging(swa_lrs=1e-4, swa_epoch_start=1)
    trainer, scheduler, probe, _ = run({**CHANGES, **last}, tmp_path, actuator=actuator, source=source,
                                       model=WithBatchNorm(), **{place: [swa]})  # fmt: skip
    size = last.get(2, 4)
    assert probe.epochs == [*WHOLE, Epoch(3, size, 64 // size, 64)]
    assert [(r.epoch, r.batch_size, r.optimizer_steps, r.samples) for r in scheduler.history] == [
        (0, 8, 8, 64),
        (1, 16, 4, 64),
        (2, 4, 16, 64),
    ]
    assert trainer.accumulate_grad_batches == 1
    assert trainer.global_step == 8 + 4 + 16 + 1  # Lightning counts that epoch as a step
    assert trainer.reload_dataloaders_every_n_epochs == 0


@since_2_6
@every_way
@every_place
@pytest.mark.parametrize(("kind", "settings"), [("WeightAveraging", {}), ("EMAWeightAveraging", {"decay": 0.9})])
def test_averaged_weights(kind, settings, place, actuator, source, tmp_path):
    averaging = getattr(callbacks, kind)(**settings)
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, **{place: [averaging]}).probe
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 1, 2]


# Those that end the fit


@every_way
@every_place
def test_early_stopping(place, actuator, source, tmp_path):
    class Flat(Linear):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", 1.0)

    stopping = EarlyStopping("val_loss", patience=2)
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, model=Flat(), max_epochs=9,
                **{place: [stopping]}).probe  # fmt: skip
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 1, 2]


@every_way
@every_place
def test_a_timer_of_ones_own(place, actuator, source, tmp_path):
    class Late(Timer):
        def on_train_batch_end(self, trainer, *args, **kwargs):
            if trainer.current_epoch == 2:
                self._offset += 3600
            super().on_train_batch_end(trainer, *args, **kwargs)

    timer = Late(duration="00:01:00:00")
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, max_epochs=9, **{place: [timer]}).probe
    assert probe.epochs == [*WHOLE[:2], Epoch(2, 4, 1, 4)]


# Those that watch


@every_way
@every_place
@pytest.mark.parametrize(
    "kind",
    [
        lambda: LearningRateMonitor("step"),
        lambda: LearningRateMonitor("epoch"),
        # Before, it took every batch to have been as large as the present one, and raised where one was smaller.
        pytest.param(lambda: ThroughputMonitor(batch_size_fn=len, window_size=3), marks=since_2_6),
        lambda: DeviceStatsMonitor(cpu_stats=False),
        ModelSummary,
    ],
    ids=["rate by step", "rate by epoch", "throughput", "device", "summary"],
)
def test_callbacks_that_watch(kind, place, actuator, source, tmp_path):
    probe = run(CHANGES, tmp_path, actuator=actuator, source=source, logger=CSVLogger(tmp_path), log_every_n_steps=1,
                **{place: [kind()]}).probe  # fmt: skip
    assert probe.epochs == WHOLE
    assert probe.validations == [0, 1, 2]


# One that changes the optimizer


class Components(Callback):
    """Counts the components that the optimizer holds, epoch by epoch."""

    def __init__(self):
        self.counts = []

    def on_train_epoch_end(self, trainer, module):
        groups = trainer.optimizers[0].param_groups
        self.counts.append(sum(p.numel() for group in groups for p in group["params"]))


@every_way
@every_place
def test_parameters_that_are_unfrozen_later_are_measured(place, actuator, source, tmp_path):
    class WithBackbone(Linear):
        def __init__(self):
            super().__init__()
            self.backbone = torch.nn.Linear(2, 2)
            self.norms = {}

        def training_step(self, batch, batch_idx):
            return self.layer(self.backbone(batch)).square().mean()

        def validation_step(self, batch, batch_idx):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=1e-6)

        def on_before_optimizer_step(self, optimizer):
            gradients = torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None])
            self.norms.setdefault(self.current_epoch, []).append(gradients.norm().item())

    components, model = Components(), WithBackbone()
    finetuning = BackboneFinetuning(unfreeze_backbone_at_epoch=1, lambda_func=lambda epoch: 1.0)
    places = {"neighbours": [], "neighbours_after": [components]}
    places[place].insert(0, finetuning)
    _, scheduler, probe, _ = run(CHANGES, tmp_path, actuator=actuator, source=source, model=model, **places)
    assert probe.epochs == WHOLE
    assert components.counts == [3, 9, 9]
    for record, norms in zip(scheduler.history, model.norms.values(), strict=True):
        assert record.gradient_norm == pytest.approx(sum(norms) / len(norms), rel=1e-5)


def test_the_monitor_sees_a_schedule_in_steps(tmp_path):
    """It asks each schedule whether it is one in steps or in epochs."""
    settings = {"source": "datamodule", "loader_args": {"samples": 60}, "log_every_n_steps": 1}
    model, logger = Scheduled("OneCycleLR"), CSVLogger(tmp_path)
    run({0: 16}, tmp_path, model=model, logger=logger, neighbours=[LearningRateMonitor()], **settings)
    assert "lr-SGD" in next(tmp_path.rglob("metrics.csv")).read_text()

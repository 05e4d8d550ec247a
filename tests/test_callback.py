"""The scheduler in a real Trainer: what it measures, decides, does, refuses and keeps."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import BatchSizeFinder, GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, IterableDataset

from lightning_deba import DEBA, BatchSizeScheduler, Decision, Hold, read_history, replay
from tests.runs import Data, Epoch, Linear, Samples, Sizes, run, trainer_of

ALWAYS_CALM = DEBA(confidence_threshold=10, stability_threshold=10, cooldown=2)


def fit(scheduler, root, *, data=None, **settings):
    trainer = trainer_of([scheduler], root, **settings)
    trainer.fit(Linear(), datamodule=data or Data())
    return trainer


# What it measures


def test_a_record_holds_what_was_measured(tmp_path):
    _, scheduler, _, _ = run({}, tmp_path, max_epochs=2)
    record = scheduler.history[1]
    assert record == replace(
        record, epoch=1, batch_size=8, micro_batch_size=8, accumulation=1, world_size=1, optimizer_steps=8, samples=64
    )
    assert record.seconds > 0
    assert record.learning_rate == 1e-4
    assert record.skipped_steps == 0


def test_loss_norm_and_variance_are_those_of_the_run(tmp_path):
    class Noted(Linear):
        """Notes every batch's loss and gradient by itself, in float64 and after the fact."""

        def __init__(self):
            super().__init__()
            self.losses, self.vectors = [], []

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.losses.append((loss.item(), len(batch)))
            return loss

        def on_before_optimizer_step(self, optimizer):
            self.vectors.append(torch.cat([p.grad.flatten() for p in self.parameters()]).double())

    model = Noted()
    loader = DataLoader(Samples(20), batch_size=8)
    _, scheduler, _, _ = run({}, tmp_path, model=model, loaders=loader, max_epochs=1)
    record = scheduler.history[0]
    full = torch.stack(model.vectors[:2])  # the third step has four samples of eight
    assert record.loss == pytest.approx(sum(loss * n for loss, n in model.losses) / 20, rel=1e-6)
    assert record.gradient_norm == pytest.approx(full.norm(dim=1).mean().item(), rel=1e-6)
    # The squared mean is read at the first step; in a network of three parameters that shows.
    expected = full.square().mean(1).mean() - full[0].mean() ** 2
    assert record.component_variance == pytest.approx(expected.item(), rel=1e-6)
    assert record.optimizer_steps == 3


def test_the_loss_is_whole_under_accumulation(tmp_path):
    records = []
    for accumulation in (1, 2):
        torch.manual_seed(0)
        standing_still = Linear(lr=0.0)
        records += run({}, tmp_path, model=standing_still, max_epochs=1, accumulate_grad_batches=accumulation)[
            1
        ].history
    assert records[1].loss == pytest.approx(records[0].loss, rel=1e-6)
    assert [(r.batch_size, r.micro_batch_size, r.optimizer_steps) for r in records] == [(8, 8, 8), (16, 8, 4)]


def test_validation_time_does_not_count(tmp_path):
    class SlowToValidate(Linear):
        def validation_step(self, batch, batch_idx):
            import time

            time.sleep(0.5)

    scheduler = run({}, tmp_path, model=SlowToValidate(), max_epochs=1).scheduler
    assert scheduler.history[0].seconds < 0.5


# What it decides and does


def test_a_live_run_and_its_replay_agree(tmp_path):
    scheduler = BatchSizeScheduler(ALWAYS_CALM, min_batch_size=1)
    fit(scheduler, tmp_path, max_epochs=6)
    assert [record.batch_size for record in scheduler.history] == [8, 8, 12, 12, 18, 18]
    assert [decision.batch_size for decision in replay(ALWAYS_CALM, scheduler.history)] == [
        decided.proposed for decided in scheduler.decisions
    ]


def test_any_callable_is_a_policy(tmp_path):
    scheduler = BatchSizeScheduler(lambda history: Decision(2 * history[-1].batch_size, "twice"), min_batch_size=1)
    fit(scheduler, tmp_path)
    assert [record.batch_size for record in scheduler.history] == [8, 16, 32]


def test_what_was_proposed_and_granted_and_why_they_differ_is_kept(tmp_path):
    scheduler = BatchSizeScheduler(Sizes({0: 100}), min_batch_size=1, multiple_of=8)
    fit(scheduler, tmp_path)
    decided = scheduler.decisions[0]
    assert (decided.proposed, decided.batch_size) == (100, 64)
    assert "`multiple_of` is 8" in decided.limits
    assert "the data set has 64 samples" in decided.limits


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"min_batch_size": 9}, r"first batch size is 8, below `min_batch_size` \(9\): the first growth"),
        ({"min_batch_size": 1, "max_batch_size": 7}, r"first batch size is 8, above `max_batch_size` \(7\): it cannot"),
    ],
)
def test_a_run_that_begins_outside_of_its_bounds_is_told(bounds, message, tmp_path):
    with pytest.warns(UserWarning, match=message):
        fit(BatchSizeScheduler(DEBA(), **bounds), tmp_path, max_epochs=1)


def test_a_dry_run_decides_and_touches_nothing(tmp_path):
    _, scheduler, probe, _ = run({0: 16}, tmp_path, source="datamodule", scheduler_args={"dry_run": True})
    assert {epoch.batch_size for epoch in probe.epochs} == {8}
    assert (scheduler.decisions[0].proposed, scheduler.decisions[0].batch_size) == (16, 8)
    assert scheduler.decisions[0].limits == "dry run: 16 would be granted"


def test_a_batch_norm_never_gets_a_last_batch_of_one(tmp_path):
    class WithBatchNorm(Linear):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))

    loader = DataLoader(Samples(65), batch_size=5)
    _, scheduler, probe, _ = run({0: 16}, tmp_path, model=WithBatchNorm(), loaders=loader)
    assert probe.epochs[1].batch_size in (15, 17)
    assert probe.epochs[1].samples == 65
    assert "BatchNorm" in scheduler.decisions[0].limits


def test_an_integer_validation_interval_bounds_the_size(tmp_path):
    _, scheduler, probe, _ = run({0: 32}, tmp_path, val_check_interval=4)
    assert probe.epochs[1] == Epoch(1, 21, 4, 64)
    assert "`val_check_interval=4`" in scheduler.decisions[0].limits
    assert probe.validations == [0, 0, 1, 2]


def test_drop_last_never_empties_the_epoch(tmp_path):
    _, _, probe, _ = run({0: 2000}, tmp_path, loader_args={"drop_last": True})
    assert probe.epochs[1:] == [Epoch(1, 64, 1, 64), Epoch(2, 64, 1, 64)]


def test_an_owner_that_ignores_its_attribute_is_found_out(tmp_path):
    class Stubborn(Data):
        def train_dataloader(self):
            return DataLoader(Samples(), batch_size=8)

    with pytest.warns(UserWarning, match=r"`Stubborn.train_dataloader` does not use `batch_size`"):
        probe = run({0: 16}, tmp_path, source="datamodule", data=Stubborn()).probe
    assert probe.epochs[1] == Epoch(1, 16, 4, 64)


def test_a_reload_happens_only_where_the_size_changes(tmp_path):
    data = Data()
    trainer = run({1: 16, 3: 32}, tmp_path, source="datamodule", data=data, actuator="reload", max_epochs=6).trainer
    assert data.built == 3
    assert data.validation_built == 1
    assert trainer.reload_dataloaders_every_n_epochs == 0


def test_nan_gradients_hold_with_a_reason(tmp_path):
    class Diverging(Linear):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * float("nan")

    scheduler = BatchSizeScheduler(ALWAYS_CALM, min_batch_size=1)
    trainer = trainer_of([scheduler], tmp_path)
    trainer.fit(Diverging(), datamodule=Data())
    assert [record.batch_size for record in scheduler.history] == [8, 8, 8]
    assert scheduler.history[0].skipped_steps == 8
    assert "was not measured" in scheduler.decisions[-1].reason
    assert read_history(tmp_path).history[0].skipped_steps == 8


# What it writes


def test_the_history_is_on_disk_after_every_epoch(tmp_path):
    lines = []

    class Reader(Linear):
        def on_train_epoch_start(self):
            path = tmp_path / "history.jsonl"
            lines.append(len(path.read_text().splitlines()))

    run({0: 16}, tmp_path, model=Reader())
    assert lines == [0, 1, 2]


def test_history_file_and_attributes_agree(tmp_path):
    scheduler = run({0: 16}, tmp_path).scheduler
    read = read_history(tmp_path)
    assert (read.history, read.decisions, read.problems) == (scheduler.history, scheduler.decisions, [])
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["policy"]["name"] == "Sizes"
    assert described["actuator"] == "InPlaceActuator"


def test_loggers_get_the_numbers(tmp_path):
    scheduler = BatchSizeScheduler(ALWAYS_CALM, min_batch_size=1)
    trainer = fit(scheduler, tmp_path, logger=CSVLogger(tmp_path), max_epochs=4)
    header = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"batch_size", "samples_seen", "grad/norm", "grad/component_variance", "deba/confidence"} <= set(header)
    assert trainer.callback_metrics["samples_seen"] == 4 * 64
    page = tmp_path / "lightning_logs" / "version_0" / "report.html"
    assert scheduler.decisions[1].reason.split(":")[0] in page.read_text()


# What it keeps


def state_of(scheduler):
    return scheduler.state_dict()


def test_the_state_is_small_plain_data(tmp_path):
    scheduler = BatchSizeScheduler(ALWAYS_CALM, min_batch_size=1)
    checkpoint = ModelCheckpoint(tmp_path, save_last=True)
    trainer = trainer_of([scheduler, checkpoint], tmp_path, max_epochs=40, enable_checkpointing=True)
    trainer.fit(Linear(), datamodule=Data())
    loaded = torch.load(tmp_path / "last.ckpt", weights_only=True)
    buffer = io.BytesIO()
    torch.save(loaded["callbacks"]["BatchSizeScheduler"], buffer)
    assert buffer.tell() < 300 * 40


@pytest.mark.parametrize("source", ["fit", "datamodule", "module"])
def test_a_resumed_run_decides_as_an_unbroken_one(source, tmp_path):
    after = {0: 16, 2: 4}
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    whole = run(after, tmp_path / "whole", source=source, max_epochs=5, neighbours=[checkpoints],
                enable_checkpointing=True)  # fmt: skip
    for epoch in range(4):
        resumed = run(after, tmp_path / f"from{epoch}", source=source, max_epochs=5,
                      ckpt_path=tmp_path / f"epoch={epoch}.ckpt")  # fmt: skip
        assert resumed.probe.epochs == whole.probe.epochs[epoch + 1 :]
        assert resumed.probe.validations == list(range(epoch + 1, 5))
        sizes = [record.batch_size for record in resumed.scheduler.history]
        assert sizes == [record.batch_size for record in whole.scheduler.history]
        assert [d.reason for d in resumed.scheduler.decisions] == [d.reason for d in whole.scheduler.decisions]
        assert len(read_history(tmp_path / f"from{epoch}").history) == 5


def test_a_checkpoint_of_a_later_version_is_refused():
    with pytest.raises(ValueError, match="has version 3; this release reads versions 1 to 2"):
        BatchSizeScheduler(Hold()).load_state_dict({"version": 3})


def test_one_scheduler_serves_two_runs(tmp_path):
    scheduler = BatchSizeScheduler(Sizes({0: 16}), min_batch_size=1)
    for name in ("a", "b"):
        fit(scheduler, tmp_path / name)
        assert [record.batch_size for record in scheduler.history] == [8, 16, 16]


# What it refuses


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": Hold(), "preset": "resnet18"}, "`policy` and `preset`"),
        ({"policy": Hold(), "min_batch_size": 64, "max_batch_size": 32}, "`min_batch_size`"),
        ({"policy": Hold(), "min_batch_size": 0}, "`min_batch_size`"),
        ({"policy": Hold(), "multiple_of": 0}, "`multiple_of`"),
        ({"preset": "resnte18"}, "resnet18"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, message):
    with pytest.raises((ValueError, KeyError), match=message):
        BatchSizeScheduler(**arguments)


def test_a_policy_must_be_a_callable():
    with pytest.raises(TypeError, match="`policy` must be a callable"):
        BatchSizeScheduler(DEBA)


class Refused(Linear):
    """Fails the test where a single batch is trained on."""

    def training_step(self, batch, batch_idx):
        raise AssertionError("trained before refusing")


class Endless(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(12, 2))


class Opaque:
    """Yields batches, and has no batch size to change."""

    def __iter__(self):
        return iter(torch.ones(3, 8, 2))

    def __len__(self):
        return 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loaders": Opaque()}, "`BatchSizeAdapter`"),
        ({"actuator": "reload"}, "There is no `batch_size` to set"),
        ({"actuator": "replace"}, "`actuator` must be"),
        ({"min_batch_size": 65}, "`min_batch_size` is 65, and the data set has 64 samples"),
        ({"neighbours": [GradientAccumulationScheduler({0: 2})]}, "GradientAccumulationScheduler"),
        ({"neighbours": [BatchSizeFinder()], "source": "datamodule"}, "cannot work beside `BatchSizeFinder`"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_batch(arguments, message, tmp_path):
    with pytest.raises(MisconfigurationException, match=message):
        run({0: 16}, tmp_path, model=Refused(), **arguments)


def test_without_a_known_model_a_preset_must_be_named(tmp_path):
    with pytest.raises(ValueError, match="preset"):
        fit(BatchSizeScheduler(), tmp_path)


def test_an_iterable_without_length_works(tmp_path):
    probe = run({0: 4}, tmp_path, loaders=DataLoader(Endless(), batch_size=2)).probe
    assert probe.epochs == [Epoch(0, 2, 6, 12), Epoch(1, 4, 3, 12), Epoch(2, 4, 3, 12)]
    assert probe.validations == [0, 1, 2]


def test_a_policy_that_returns_something_else_is_named(tmp_path):
    with pytest.raises(TypeError, match="must return a `Decision"):
        fit(BatchSizeScheduler(lambda history: 16, min_batch_size=1), tmp_path)

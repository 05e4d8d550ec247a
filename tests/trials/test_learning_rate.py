"""Learning rate and schedule in a real Trainer, while the batch size changes."""

from __future__ import annotations

import math

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tests.runs import Linear, run
from tests.test_learning_rate import SCHEDULES, SIZE, TICKS, TOTAL, new_optimizer, reference_rates

CHANGES = {"grow": {0: 16, 2: 24, 4: 32}, "shrink": {0: 4, 3: 2}, "both": {0: 16, 1: 4, 3: 12}}
LENGTH = {"max_epochs": 6, "loader_args": {"samples": 60}, "source": "datamodule"}  # as TOTAL was counted


class Scheduled(Linear):
    """Notes the schedule's rate at each batch, by samples; its optimizer has two groups."""

    def __init__(self, name: str, interval: str = "step") -> None:
        super().__init__()
        self.name, self.interval, self.rates, self.samples = name, interval, {}, 0

    def configure_optimizers(self):
        groups = [{"params": [self.layer.weight]}, {"params": [self.layer.bias], "lr": 0.02}]
        optimizer = torch.optim.SGD(groups, lr=0.05)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": SCHEDULES[self.name](optimizer), "interval": self.interval},
        }

    def on_train_batch_start(self, batch, batch_idx):
        self.rates[self.trainer.current_epoch, self.samples] = [g["lr"] for g in self.optimizers().param_groups]
        self.samples += len(batch)

    def on_train_epoch_end(self):
        self.samples = 0

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * 1e-6  # the rates of the schedules are no matter here


def assert_rates_are_the_references(model):
    reference = reference_rates(SCHEDULES[model.name])
    for (epoch, samples), rates in model.rates.items():
        assert rates == pytest.approx(reference[epoch * TICKS + samples // SIZE], rel=1e-6)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_in_steps_keeps_its_shape(name, change, tmp_path):
    model = Scheduled(name)
    run(CHANGES[change], tmp_path, model=model, **LENGTH)
    assert_rates_are_the_references(model)
    assert [group["lr"] for group in model.optimizers().param_groups] == pytest.approx(
        reference_rates(SCHEDULES[name])[TOTAL], rel=1e-6
    )


def test_as_stock_lightning_has_it_the_schedule_counts_steps(tmp_path):
    model = Scheduled("ExponentialLR")
    run({0: 16}, tmp_path, model=model, scheduler_args={"schedule_by": "steps"}, **LENGTH)
    last = model.optimizers().param_groups[0]["lr"]
    assert last == pytest.approx(0.05 * 0.95 ** (TICKS + 5 * math.ceil(60 / 16)))


def test_a_schedule_in_epochs_is_left_alone(tmp_path):
    model = Scheduled("ExponentialLR", interval="epoch")
    run({0: 16}, tmp_path, model=model, **LENGTH)
    assert model.optimizers().param_groups[0]["lr"] == pytest.approx(0.05 * 0.95**6)


@pytest.mark.parametrize("where", ["end", "inside"])
@pytest.mark.parametrize("name", ["OneCycleLR", "CosineAnnealingLR", "SequentialLR"])
def test_a_resumed_schedule_goes_on(name, where, tmp_path):
    settings = {"end": {"filename": "{epoch}"}, "inside": {"filename": "{step}", "every_n_train_steps": 9}}[where]
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, **settings)
    run({0: 16}, tmp_path, model=Scheduled(name), neighbours=[checkpoints], enable_checkpointing=True, **LENGTH)
    path = tmp_path / {"end": "epoch=1.ckpt", "inside": "step=9.ckpt"}[where]
    model = Scheduled(name)
    model.samples = 0 if where == "end" else 16  # one step of the second epoch was done
    run({0: 16}, tmp_path, model=model, ckpt_path=path, **LENGTH)
    assert_rates_are_the_references(model)
    assert model.optimizers().param_groups[0]["lr"] == pytest.approx(reference_rates(SCHEDULES[name])[TOTAL][0])


class Noted(Callback):
    """Notes how far a step moves the bias, whose gradient is 1."""

    def __init__(self) -> None:
        self.moved: list[float] = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.before = module.layer.bias.item()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.moved.append((self.before - module.layer.bias.item()) / module.optimizers().param_groups[0]["lr"])


class UnitGradient(Linear):
    def training_step(self, batch, batch_idx):
        return self.layer.bias.sum() + 0 * self.layer(batch).mean()


@pytest.mark.parametrize(("rule", "factors"), [("none", [1, 1]), ("linear", [1, 2]), ("sqrt", [1, math.sqrt(2)])])
def test_the_rate_of_a_step_follows_the_batch_size_once(rule, factors, tmp_path):
    noted = Noted()
    checkpoints = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    scaled = {"scheduler_args": {"lr_scaling": rule}}
    whole = run({0: 16}, tmp_path, model=UnitGradient(0.1), neighbours=[noted, checkpoints],
                enable_checkpointing=True, **scaled)  # fmt: skip
    assert noted.moved == pytest.approx([factors[0]] * 8 + [factors[1]] * 8, rel=1e-4)
    assert [r.learning_rate for r in whole.scheduler.history] == pytest.approx(
        [0.1 * factors[0], *[0.1 * factors[1]] * 2]
    )
    again = Noted()
    run({0: 16}, tmp_path, model=UnitGradient(0.1), neighbours=[again], ckpt_path=tmp_path / "epoch=0.ckpt", **scaled)
    assert again.moved == pytest.approx([factors[1]] * 8, rel=1e-4)


def test_both_rates_are_logged(tmp_path):
    logger = CSVLogger(tmp_path)
    run({0: 16}, tmp_path, logger=logger, neighbours=[LearningRateMonitor()], log_every_n_steps=1,
        scheduler_args={"lr_scaling": "linear"}, model=Linear(0.1))  # fmt: skip
    rows = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert {"lr/effective", "lr/factor", "lr-SGD"} <= set(rows.splitlines()[0].split(","))


def test_several_optimizers_under_manual_optimization_are_scaled_alike(tmp_path):
    class Two(Linear):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.moves = []

        def configure_optimizers(self):
            return [torch.optim.SGD([self.layer.weight], lr=0.1), torch.optim.SGD([self.layer.bias], lr=0.2)]

        def training_step(self, batch, batch_idx):
            before = self.layer.weight.sum().item(), self.layer.bias.item()
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(self.layer.weight.sum() + self.layer.bias.sum())
            for optimizer in self.optimizers():
                optimizer.step()
            self.moves.append((before[0] - self.layer.weight.sum().item(), before[1] - self.layer.bias.item()))

    model = Two()
    run({0: 16}, tmp_path, model=model, scheduler_args={"lr_scaling": "linear"}, max_epochs=2)
    assert model.moves[0] == pytest.approx((0.2, 0.2), rel=1e-3)
    assert model.moves[-1] == pytest.approx((0.4, 0.4), rel=1e-3)


def test_plateau_keeps_working_beside_a_factor(tmp_path):
    class Plateau(Linear):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * 0

    scheduler = run({0: 16}, tmp_path, model=Plateau(), scheduler_args={"lr_scaling": "linear"}).scheduler
    assert [r.learning_rate for r in scheduler.history] == pytest.approx([0.1, 2 * 0.01, 2 * 0.001])


@pytest.mark.parametrize(("budget", "samples"), [(64, 64), (96, 96), (100, 112)])
def test_a_budget_in_samples_ends_the_training(budget, samples, tmp_path):
    scheduler = run({0: 16}, tmp_path, max_epochs=-1, scheduler_args={"max_samples": budget}).scheduler
    assert sum(record.samples for record in scheduler.history) == samples


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(MisconfigurationException, match="`max_samples` is 4, which is less than one batch of 8"):
        run({}, tmp_path, scheduler_args={"max_samples": 4})
    for wrong in ({"max_samples": 0}, {"schedule_by": "epochs"}, {"lr_scaling": "cubic"}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}`"):
            run({}, tmp_path, scheduler_args=wrong)


def test_the_reference_has_two_groups():
    assert len(new_optimizer().param_groups) == 2


def test_an_epoch_of_one_partial_step_is_a_step_of_the_schedule(tmp_path):
    class Decaying(Linear):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * 0

    model = Decaying()
    run({}, tmp_path, model=model, accumulate_grad_batches=16)  # an epoch has 8 micro-batches
    assert model.optimizers().param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)

"""The noise scale in a real Trainer, against the truth of a problem whose gradients are known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, Dataset

from lightning_deba import BatchSizeScheduler, Hold
from lightning_deba.learning_rate import adascale_gain
from lightning_deba.policies import DEBA, Chain, Goodput, Milestones, NoiseScale
from lightning_deba.policies.base import needs_noise_scale
from tests.runs import trainer_of

SIZE, DIMENSION, MEAN, SPREAD = 4096, 400, 0.1, 0.5
TRUTH = SPREAD**2 / MEAN**2  # of every component, and so of all


class Targets(Dataset):
    """Sample i pulls the weights towards its own target; the targets scatter around one point."""

    def __init__(self, n=SIZE):
        generator = torch.Generator().manual_seed(0)
        self.targets = MEAN + SPREAD * torch.randn(n, DIMENSION, generator=generator)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.targets[index]


class Pulled(LightningModule):
    """Of the loss ``|w - x|^2 / 2`` the gradient at w = 0 is ``-x``. The rate is 0: it stays there."""

    def __init__(self, parts=4, fused=False, rate=0.0):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(DIMENSION // parts) for _ in range(parts))
        self.fused, self.rate = fused, rate

    def training_step(self, batch, batch_idx):
        return (torch.cat(list(self.weights)) - batch).square().sum(1).mean() / 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate, fused=self.fused or None)


def fitted(root, mode="auto", model=None, policy=None, batch_size=32, checkpoints=(), ckpt_path=None, **settings):
    scheduler = BatchSizeScheduler(policy or Hold(), noise_scale=mode, min_batch_size=1)
    torch.manual_seed(0)
    trainer = trainer_of([scheduler, *checkpoints], root, **{"max_epochs": 8, **settings})
    loader = DataLoader(Targets(), batch_size=batch_size, shuffle=True)
    trainer.fit(model or Pulled(), loader, ckpt_path=ckpt_path)
    return scheduler


def noise_scale(history):
    return sum(r.gradient_covariance for r in history) / sum(r.gradient_squared for r in history)


CASES = {
    "consecutive": {},
    "micro-batches": {"accumulate_grad_batches": 4, "batch_size": 8},
    "an odd number of micro-batches": {"accumulate_grad_batches": 3, "batch_size": 8},
    "clipped": {"gradient_clip_val": 1e-3},
    "bf16-mixed": {"precision": "bf16-mixed"},
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_within_five_percent_of_the_truth(case, tmp_path):
    scheduler = fitted(tmp_path, **CASES[case])
    assert noise_scale(scheduler.history) == pytest.approx(TRUTH, rel=0.05)


@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_scale_is_divided_out(fused, tmp_path):
    plugins = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    for extra in ({}, {"accumulate_grad_batches": 4, "batch_size": 8}):
        scheduler = fitted(tmp_path, model=Pulled(fused=fused), plugins=[plugins], **extra)
        assert noise_scale(scheduler.history) == pytest.approx(TRUTH, rel=0.05)
        assert scheduler.history[-1].gradient_squared == pytest.approx(MEAN**2 * DIMENSION, rel=0.1)


def test_frozen_parameters_are_left_out(tmp_path):
    model = Pulled()
    model.weights[0].requires_grad_(False)
    assert noise_scale(fitted(tmp_path, model=model).history) == pytest.approx(TRUTH, rel=0.06)


def test_the_mode_follows_the_accumulation(tmp_path):
    scheduler = fitted(tmp_path, accumulate_grad_batches=2, max_epochs=1)
    assert scheduler._noise.meter.mode == "micro_batches"
    assert fitted(tmp_path, max_epochs=1)._noise.meter.mode == "consecutive"


def test_it_has_an_error_that_is_about_right(tmp_path):
    history = fitted(tmp_path, max_epochs=4).history
    assert all(0 < r.noise_scale_error < 0.5 for r in history)


def test_without_need_nothing_is_measured(tmp_path):
    history = fitted(tmp_path, mode=None, max_epochs=1).history
    assert history[0].gradient_squared is None


@pytest.mark.parametrize("policy", [NoiseScale(), Goodput(), Chain([DEBA(), NoiseScale()])])
def test_a_policy_that_needs_it_gets_it(policy, tmp_path):
    assert needs_noise_scale(policy)
    scheduler = fitted(tmp_path, mode=None, policy=policy, max_epochs=3)
    assert scheduler.history[0].gradient_squared is not None
    assert not needs_noise_scale(Chain([DEBA(), Hold()]))


def test_the_noise_scale_policy_ends_there(tmp_path):
    scheduler = fitted(tmp_path, policy=NoiseScale(cooldown=1), batch_size=8, max_epochs=8)
    # Measured with few large steps an epoch, it is known to a fifth.
    assert scheduler.history[-1].batch_size == pytest.approx(TRUTH, rel=0.3)


def test_the_measurement_goes_on_after_a_resume(tmp_path):
    saved = ModelCheckpoint(tmp_path, filename="middle", every_n_train_steps=128 + 64)
    whole = fitted(tmp_path, checkpoints=[saved], enable_checkpointing=True, max_epochs=2)
    resumed = fitted(tmp_path / "b", ckpt_path=saved.best_model_path, max_epochs=2)
    assert resumed.history[0].gradient_squared == whole.history[0].gradient_squared
    assert noise_scale(resumed.history[1:]) == pytest.approx(TRUTH, rel=0.2)


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(ValueError, match='`noise_scale` must be None, "auto", "ranks"'):
        BatchSizeScheduler(Hold(), noise_scale="always")


# The learning rate by the gain


@pytest.mark.parametrize(("rule", "power"), [("adascale", 1.0), ("adamscale", 0.5)])
def test_the_rate_goes_by_the_gain_of_the_larger_batch(rule, power, tmp_path):
    scheduler = BatchSizeScheduler(Milestones(epochs={0: 16, 2: 64}), lr_scaling=rule, min_batch_size=1)
    torch.manual_seed(0)
    model = Pulled(rate=1e-9)
    trainer_of([scheduler], tmp_path, max_epochs=4).fit(model, DataLoader(Targets(), batch_size=16, shuffle=True))
    rates = [record.learning_rate / 1e-9 for record in scheduler.history]
    # Every step counts for (TRUTH + 16) / (TRUTH / 4 + 16) of the first size's.
    assert rates == pytest.approx([1.0, 1.0, *[((TRUTH + 16) / (TRUTH / 4 + 16)) ** power] * 2], rel=0.1)
    assert model.optimizers().param_groups[0]["lr"] == 1e-9


class Decaying(Pulled):
    """Has a schedule that tells how often it was stepped."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def ticks_of(tmp_path, schedule_by, resumes=False):
    def scheduler():
        policy = Milestones(epochs={0: 16, 2: 64})
        return BatchSizeScheduler(policy, lr_scaling="adascale", schedule_by=schedule_by, min_batch_size=1)

    def fit(checkpoints=(), **ways):
        torch.manual_seed(0)
        trainer = trainer_of(
            [scheduler(), *checkpoints], tmp_path, max_epochs=4, enable_checkpointing=bool(checkpoints)
        )
        trainer.fit(Decaying(), DataLoader(Targets(), batch_size=16, shuffle=True), **ways)
        return trainer.lr_scheduler_configs[0].scheduler.last_epoch

    if not resumes:
        return fit()
    saved = ModelCheckpoint(tmp_path, filename="middle", every_n_train_steps=2 * SIZE // 16 + SIZE // 64 + 7)
    fit([saved])
    return fit(ckpt_path=saved.best_model_path)


def test_adascales_clock_goes_by_the_gain(tmp_path):
    gain = (TRUTH + 16) / (TRUTH / 4 + 16)
    by_gain = ticks_of(tmp_path, "gain")
    assert by_gain == pytest.approx(2 * SIZE / 16 + 2 * gain * SIZE / 64, rel=0.05)
    assert by_gain < ticks_of(tmp_path, "samples") == 4 * SIZE / 16  # a sample of a larger batch is worth less


def test_adascales_clock_goes_on_after_a_resume(tmp_path):
    assert abs(ticks_of(tmp_path / "b", "gain", resumes=True) - ticks_of(tmp_path / "a", "gain")) <= 1


@given(st.floats(1, 100) | st.floats(0.01, 1), st.floats(0, 1e6), st.integers(1, 512))
def test_the_gain_is_that_of_the_paper_and_between_one_and_the_ratio(ratio, noise_scale, size):
    squared, variance = 2.0, 2.0 * noise_scale / size  # |G|^2, and of the gradient of the first size
    gain = adascale_gain(ratio, noise_scale, size)
    assert gain == pytest.approx((variance + squared) / (variance / ratio + squared))
    assert min(1, ratio) * (1 - 1e-9) <= gain <= max(1, ratio) * (1 + 1e-9)

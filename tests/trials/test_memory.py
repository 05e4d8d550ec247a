"""A cap on the micro-batch: what is larger is accumulated, and every step is the mean over its samples."""

from __future__ import annotations

import math

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.callbacks import BatchSizeFinder, ModelCheckpoint
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

from lightning_deba import BatchSizeScheduler, memory
from tests.runs import (
    Data,
    DataWithHparams,
    Epoch,
    Linear,
    ModuleWithLoader,
    Probe,
    Samples,
    Sizes,
    run,
    trainer_of,
)
from tests.test_memory import Device
from tests.trials.test_gradients import OPTIMIZERS, Net, half, signals
from tests.trials.test_learning_rate import SizedByTheTrainer

SOURCES = ("fit", "module", "datamodule")


class Steps(Callback):
    """Notes the gradient of the bias at each optimizer step, as the optimizer gets it. Comes after the scheduler."""

    def __init__(self):
        self.gradients = []

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.gradients.append(module.layer.bias.grad.item())


class MeanOfNumbers(Linear):
    """Its gradient on the bias is the mean of the samples' own numbers."""

    def training_step(self, batch, batch_idx):
        return (self.layer.bias * batch[:, 0]).mean()


class OutOfMemoryAbove(ModuleWithLoader):
    """A device on which 32 samples fit, and not one more."""

    def training_step(self, batch, batch_idx):
        if len(batch) > 32:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB (simulated)")
        return super().training_step(batch, batch_idx)


def capped(cap, **more):
    return {"max_micro_batch_size": cap, **more}


@pytest.mark.parametrize("source", SOURCES)
def test_growth_above_the_cap_is_accumulated_and_said(source, tmp_path, caplog):
    with caplog.at_level("INFO", "lightning.pytorch"):
        done = run({0: 64}, tmp_path, source=source, scheduler_args=capped(32), max_epochs=3)
    assert caplog.messages.count("A step of 64 samples takes 2 micro-batches of 32 on a device.") == 1
    assert done.probe.epochs == [Epoch(0, 8, 8, 64), Epoch(1, 32, 2, 64), Epoch(2, 32, 2, 64)]
    assert [(r.batch_size, r.micro_batch_size, r.accumulation) for r in done.scheduler.history] == [
        (8, 8, 1),
        (64, 32, 2),
        (64, 32, 2),
    ]
    assert [r.optimizer_steps for r in done.scheduler.history] == [8, 1, 1]
    assert done.probe.validations == [0, 1, 2]
    assert done.trainer.accumulate_grad_batches == 1


@pytest.mark.parametrize("source", SOURCES)
def test_a_first_batch_above_the_cap_is_split_at_once(source, tmp_path):
    arguments = {"source": source, "scheduler_args": capped(8), "max_epochs": 2}
    if source == "fit":
        done = run({}, tmp_path, loaders=DataLoader(Samples(), batch_size=32), **arguments)
    else:
        done = run({}, tmp_path, loader_args={"batch_size": 32}, **arguments)
    assert done.probe.epochs == [Epoch(0, 8, 8, 64), Epoch(1, 8, 8, 64)]
    assert [(r.batch_size, r.accumulation, r.optimizer_steps) for r in done.scheduler.history] == [(32, 4, 2)] * 2


@pytest.mark.parametrize("actuator", ["reload", "in_place"])
@pytest.mark.parametrize(("first", "after"), [(8, 32), (32, 16)])
def test_hyper_parameters_alone_are_enough(first, after, actuator, tmp_path):
    data = DataWithHparams(first)
    done = run({0: after}, tmp_path, source="datamodule", data=data, actuator=actuator, scheduler_args=capped(8))
    assert done.probe.epochs == [Epoch(epoch, 8, 8, 64) for epoch in range(3)]
    assert [(r.batch_size, r.accumulation, r.optimizer_steps) for r in done.scheduler.history] == [
        (first, first // 8, 64 // first),
        *[(after, after // 8, 64 // after)] * 2,
    ]
    assert data.hparams.batch_size == first


def test_the_granted_size_is_one_that_micro_batches_can_make(tmp_path):
    done = run({0: 53}, tmp_path, scheduler_args=capped(16), max_epochs=2)
    granted = done.scheduler.decisions[0]
    assert (granted.proposed, granted.batch_size) == (53, 52)
    assert granted.limits == "1 ranks x 4 micro-batches of at most 16 divide a step evenly"
    assert [(r.micro_batch_size, r.accumulation) for r in done.scheduler.history] == [(8, 1), (13, 4)]


def test_back_below_the_cap_nothing_is_accumulated(tmp_path):
    done = run({0: 32, 1: 8}, tmp_path, scheduler_args=capped(16), source="datamodule")
    assert [(r.micro_batch_size, r.accumulation) for r in done.scheduler.history] == [(8, 1), (16, 2), (8, 1)]
    assert [samples for *_, samples in done.probe.epochs] == [64] * 3


def test_the_users_accumulation_is_where_it_starts(tmp_path):
    done = run({0: 64}, tmp_path, scheduler_args=capped(16), accumulate_grad_batches=2, max_epochs=2)
    assert [(r.batch_size, r.micro_batch_size, r.accumulation) for r in done.scheduler.history] == [
        (16, 8, 2),
        (64, 16, 4),
    ]
    assert done.trainer.accumulate_grad_batches == 2


def test_a_cap_below_the_minimum_batch_size_is_no_contradiction(tmp_path):
    done = run({0: 16}, tmp_path, scheduler_args=capped(4), min_batch_size=16, max_epochs=2)
    assert [(r.batch_size, r.micro_batch_size) for r in done.scheduler.history] == [(8, 4), (16, 4)]


# Every step is the mean over its own samples


@pytest.mark.parametrize("sizes", [(8, 24, 40), (8, 16, 24), (8, 24, 16)])
@pytest.mark.parametrize("samples", [64, 60, 61])
def test_each_step_is_the_mean_over_its_samples(samples, sizes, tmp_path):
    """An accumulation that changes between epochs, and whose windows do not fit into them."""
    steps, probe = Steps(), Probe()
    loader = DataLoader(Samples(samples), batch_size=8)
    run({0: sizes[1], 1: sizes[2]}, tmp_path, model=MeanOfNumbers(), loaders=loader, probe=probe,
        scheduler_args=capped(8), neighbours_after=[steps], max_epochs=3)  # fmt: skip
    expected = []
    for epoch, size in enumerate(sizes):
        numbers = probe.seen[epoch]
        expected += [sum(own) / len(own) for own in (numbers[i : i + size] for i in range(0, samples, size))]
    assert steps.gradients == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("samples", "accumulation", "expected"),
    [
        (20, 4, [1.0, 1.0, 1.0]),  # ten micro-batches; stock Lightning 0.5 at the last (19987)
        (5, 2, [1.0, 1.0]),  # a ragged last micro-batch, alone in its window
        (14, 3, [1.0, 1.0, 1.0]),  # and a ragged window as well
    ],
)
def test_with_the_users_own_accumulation_too(samples, accumulation, expected, tmp_path):
    class One(Linear):
        def training_step(self, batch, batch_idx):
            return (self.layer.bias * batch[:, 1]).mean()

    steps = Steps()
    loader = DataLoader(Samples(samples), batch_size=2)
    run({}, tmp_path, model=One(), loaders=loader, neighbours_after=[steps], max_epochs=1,
        accumulate_grad_batches=accumulation)  # fmt: skip
    assert steps.gradients == pytest.approx(expected)


def test_a_ragged_last_micro_batch_weighs_by_its_samples(tmp_path):
    class Four(Linear):
        def training_step(self, batch, batch_idx):
            return (self.layer.bias * (1.0 if len(batch) == 4 else 5.0)).sum()

    steps = Steps()
    run({}, tmp_path, model=Four(), loaders=DataLoader(Samples(5), batch_size=4), neighbours_after=[steps],
        max_epochs=1, accumulate_grad_batches=2)  # fmt: skip
    assert steps.gradients == pytest.approx([1.8])  # stock Lightning: 3.0


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_weights_come_out_as_with_the_large_batch(precision, tmp_path):
    weights = []
    for cap in (None, 8):
        seed_everything(0, verbose=False)
        loader = DataLoader(Samples(60), batch_size=8)
        done = run({0: 32}, tmp_path, loaders=loader, scheduler_args=capped(cap), precision=precision)
        weights.append(torch.cat([p.detach().flatten() for p in done.model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-6 if precision == "64-true" else 1e-2, atol=0)


def test_a_step_without_a_loss_weighs_nothing(tmp_path):
    class Skips(Linear):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 1 else (self.layer.bias * batch[:, 1]).mean()

    steps = Steps()
    run({}, tmp_path, model=Skips(), neighbours_after=[steps], max_epochs=1, accumulate_grad_batches=4)
    assert steps.gradients == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_what_is_clipped_is_the_mean(algorithm, tmp_path):
    class Clipped(MeanOfNumbers):
        def configure_optimizers(self):
            self.clipped, optimizer = [], super().configure_optimizers()
            optimizer.register_step_post_hook(lambda *_: self.clipped.append(self.layer.bias.grad.item()))
            return optimizer

    model, steps = Clipped(), Steps()
    # Three micro-batches a step, and two at the end of an epoch: as a sum over three, 36.5, it would not be clipped.
    run({0: 24}, tmp_path, model=model, loaders=DataLoader(Samples(61), batch_size=8), neighbours_after=[steps],
        scheduler_args=capped(8), gradient_clip_val=45.0, gradient_clip_algorithm=algorithm, max_epochs=2)  # fmt: skip
    assert steps.gradients[-3:] == pytest.approx([11.5, 35.5, 54.0])
    assert model.clipped[-3:] == pytest.approx([11.5, 35.5, 45.0])


MIXED = {"64-true": "SGD", "bf16-mixed": "SGD", "16-mixed": "SGD", "16-mixed, fused": "fused SGD"}


@pytest.mark.parametrize("samples", [64, 61])
@pytest.mark.parametrize("precision", MIXED)
def test_what_is_measured_is_what_the_large_batch_has(precision, samples, tmp_path):
    kind, arguments = OPTIMIZERS[MIXED[precision]]
    histories = []
    for cap in (None, 8):
        settings = {"plugins": [half()]} if precision.startswith("16") else {"precision": precision}
        loader = DataLoader(Samples(samples), batch_size=8)
        done = run({0: 24, 1: 40}, tmp_path, model=Net(kind, lr=0.1, **arguments), loaders=loader,
                   scheduler_args=capped(cap, lr_scaling="sqrt"), **settings)  # fmt: skip
        histories.append(done.scheduler.history)
    assert [record.accumulation for record in histories[1]] == [1, 3, 5]
    for large, found in zip(*histories, strict=True):
        assert signals(found) == pytest.approx(signals(large), rel=1e-5 if precision == "64-true" else 0.02)
        for name in ("batch_size", "samples", "optimizer_steps", "skipped_steps", "learning_rate"):
            assert getattr(found, name) == getattr(large, name)


def test_a_micro_batch_that_overflows_takes_its_whole_step_along(tmp_path):
    class Overflows(MeanOfNumbers):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * (math.inf if batch_idx == 4 else 1.0)

    done = run({0: 24}, tmp_path, model=Overflows(), loaders=DataLoader(Samples(), batch_size=8), plugins=[half()],
               scheduler_args=capped(8))  # fmt: skip
    assert [(r.accumulation, r.optimizer_steps, r.skipped_steps) for r in done.scheduler.history] == [
        (1, 8, 1),
        (3, 3, 1),
        (3, 3, 1),
    ]
    assert [r.gradient_norm for r in done.scheduler.history] == pytest.approx([(8 * 31.5 - 35.5) / 7, 11.5, 11.5])


# Settings of the Trainer that count batches count micro-batches; those that count steps, steps


class Validations(Callback):
    """Notes after how many micro-batches of its epoch each validation comes."""

    def __init__(self):
        self.after = []

    def on_validation_start(self, trainer, module):
        self.after.append((trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("interval", "batches"), [(0.5, (4, 8)), (0.25, (2, 4, 6, 8)), (3, (3, 6))])
def test_val_check_interval(interval, batches, source, tmp_path):
    validations = Validations()
    done = run({0: 32}, tmp_path, source=source, neighbours_after=[validations], val_check_interval=interval,
               scheduler_args=capped(8))  # fmt: skip
    assert done.probe.epochs == [Epoch(epoch, 8, 8, 64) for epoch in range(3)]
    assert validations.after == [(epoch, after) for epoch in range(3) for after in batches]
    assert [(r.batch_size, r.optimizer_steps) for r in done.scheduler.history] == [(8, 8), (32, 2), (32, 2)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("limit", [4, 0.5])
def test_limit_train_batches(limit, source, tmp_path):
    done = run({0: 16}, tmp_path, source=source, limit_train_batches=limit, scheduler_args=capped(8))
    assert done.probe.epochs == [Epoch(epoch, 8, 4, 32) for epoch in range(3)]
    assert done.probe.validations == [0, 1, 2]
    assert [(r.batch_size, r.optimizer_steps) for r in done.scheduler.history] == [(8, 4), (16, 2), (16, 2)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("steps", "batches"), [(9, 4), (10, 8), (12, 16)])
def test_max_steps(steps, batches, source, tmp_path):
    done = run({0: 32}, tmp_path, source=source, max_epochs=-1, max_steps=steps, scheduler_args=capped(8))
    assert done.trainer.global_step == steps
    assert sum(epoch.batches for epoch in done.probe.epochs) == 8 + batches
    assert sum(r.optimizer_steps for r in done.scheduler.history) == steps


# Schedules and budgets count samples, and not micro-batches


@pytest.mark.parametrize("source", ["fit", "datamodule"])
@pytest.mark.parametrize("first", [8, 32])
def test_a_schedule_that_the_trainer_sizes_is_that_of_the_large_batch(first, source, tmp_path):
    models = []
    for cap in (None, 8):
        loaders = {"loaders": DataLoader(Samples(), batch_size=first), "data": Data(first)}
        models.append(SizedByTheTrainer())
        run({0: 2 * first, 1: first}, tmp_path, model=models[-1], source=source, scheduler_args=capped(cap), **loaders)
    large, found = models
    assert found.estimates[0] == large.estimates[0] == 3 * 64 // first
    assert len(found.rates) == 24  # micro-batches
    assert {at: found.rates[at] for at in large.rates} == large.rates
    assert found.optimizers().param_groups[0]["lr"] == large.optimizers().param_groups[0]["lr"]


@pytest.mark.parametrize("schedule", ["OneCycleLR", "CosineAnnealingLR"])
def test_a_schedule_in_steps_does_not_see_the_accumulation(schedule, tmp_path):
    from tests.test_learning_rate import SCHEDULES, TOTAL, reference_rates
    from tests.trials.test_learning_rate import LENGTH, Scheduled

    model = Scheduled(schedule)
    run({0: 16, 2: 32}, tmp_path, model=model, scheduler_args=capped(8), **LENGTH)
    assert [group["lr"] for group in model.optimizers().param_groups] == pytest.approx(
        reference_rates(SCHEDULES[schedule])[TOTAL], rel=1e-6
    )


# The forecast


def test_growth_turns_to_accumulation_before_memory_runs_out(tmp_path, monkeypatch):
    device = Device(fixed=100, per_sample=10, total=400)  # 0.9 x 400 bytes: a micro-batch of 26
    monkeypatch.setattr(memory, "reader_for", lambda _: device)

    class Uses(Linear):
        def training_step(self, batch, batch_idx):
            device.train(len(batch))
            return super().training_step(batch, batch_idx)

    done = run({0: 16, 1: 32, 2: 64}, tmp_path, model=Uses(), source="datamodule", max_epochs=4)
    assert [(r.batch_size, r.micro_batch_size, r.accumulation) for r in done.scheduler.history] == [
        (8, 8, 1),
        (16, 16, 1),  # from one size: 16 is what surely fits
        (32, 16, 2),
        (63, 21, 3),  # 64 does not divide by three
    ]


def test_memory_that_another_process_takes_is_given_up_and_taken_back(tmp_path, monkeypatch):
    device = Device(fixed=0, per_sample=10, total=1000)
    monkeypatch.setattr(memory, "reader_for", lambda _: device)

    class Uses(Linear):
        def training_step(self, batch, batch_idx):
            device.train(len(batch))
            device.held = 900 if self.current_epoch == 1 else 0
            return super().training_step(batch, batch_idx)

    done = run({0: 16}, tmp_path, model=Uses(), source="datamodule", max_epochs=5)
    assert [(r.batch_size, r.micro_batch_size) for r in done.scheduler.history] == [
        (8, 8),
        (16, 16),
        (16, 8),
        (16, 16),
        (16, 16),
    ]


class Uses(Linear):
    """Takes a device's memory by the samples of a micro-batch."""

    def __init__(self, device):
        super().__init__()
        self.device_memory = device

    def training_step(self, batch, batch_idx):
        self.device_memory.train(len(batch))
        return super().training_step(batch, batch_idx)


def test_a_resumed_run_keeps_to_the_forecast(tmp_path, monkeypatch):
    device = Device(fixed=100, per_sample=10, total=400)
    monkeypatch.setattr(memory, "reader_for", lambda _: device)
    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    after = {"after": {0: 16, 1: 32}, "source": "datamodule", "model": Uses(device)}
    unbroken = run(root=tmp_path, neighbours=[checkpoint], enable_checkpointing=True, **after).scheduler
    resumed = run(root=tmp_path, ckpt_path=tmp_path / "epoch=1.ckpt", **after).scheduler
    assert [(r.batch_size, r.accumulation) for r in resumed.history] == [(8, 1), (16, 1), (32, 2)]
    assert [r.accumulation for r in unbroken.history] == [1, 1, 2]


@pytest.mark.parametrize("scheduler_args", [{}, {"dry_run": True}])
def test_a_size_that_has_trained_is_not_split(scheduler_args, tmp_path, monkeypatch):
    device = Device(fixed=0, per_sample=10, total=85)  # of which 8 samples take more than 0.9
    monkeypatch.setattr(memory, "reader_for", lambda _: device)
    done = run({}, tmp_path, source="datamodule", model=Uses(device), scheduler_args=scheduler_args)
    assert [r.accumulation for r in done.scheduler.history] == [1, 1, 1]


def test_a_dry_run_splits_nothing_also_where_memory_is_short(tmp_path, monkeypatch):
    device = Device(fixed=0, per_sample=10, total=85)
    monkeypatch.setattr(memory, "reader_for", lambda _: device)
    device.held = 40  # it has trained all the same
    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    settings = {"source": "datamodule", "model": Uses(device), "scheduler_args": {"dry_run": True}}
    run({}, tmp_path, neighbours=[checkpoint], enable_checkpointing=True, **settings)
    done = run({}, tmp_path, ckpt_path=tmp_path / "epoch=0.ckpt", **settings)
    assert [r.accumulation for r in done.scheduler.history] == [1, 1, 1]


# Out of memory all the same


@pytest.mark.parametrize("where", [1, 3])
def test_a_run_out_of_memory_is_saved_and_goes_on(where, tmp_path):
    after = {where - 1: 64}
    scheduler, probe = BatchSizeScheduler(Sizes(after), min_batch_size=1), Probe()
    model = OutOfMemoryAbove()
    with pytest.warns(UserWarning, match="Out of memory with 64 samples"), pytest.raises(torch.OutOfMemoryError):
        trainer_of([scheduler, probe], tmp_path, max_epochs=5).fit(model)
    found = scheduler.out_of_memory
    assert found.max_micro_batch_size == 32
    assert found.checkpoint.is_file()
    assert len(scheduler.history) == where
    done = run(after, tmp_path / "b", model=OutOfMemoryAbove(), source="module", max_epochs=5,
               ckpt_path=found.checkpoint, scheduler_args=capped(found.max_micro_batch_size))  # fmt: skip
    assert [r.batch_size for r in done.scheduler.history] == [8] * where + [64] * (5 - where)
    assert [r.samples for r in done.scheduler.history] == [64] * 5
    assert done.scheduler.history[-1].accumulation == 2


def test_inside_an_epoch_it_goes_on_after_the_steps_that_were_done(tmp_path):
    class Breaks(ModuleWithLoader):
        def training_step(self, batch, batch_idx):
            if self.current_epoch == 1 and batch_idx == 2:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
            return super().training_step(batch, batch_idx)

    scheduler = BatchSizeScheduler(Sizes({0: 16}), min_batch_size=1)
    with pytest.warns(UserWarning, match="Out of memory"), pytest.raises(torch.OutOfMemoryError):
        trainer_of([scheduler], tmp_path).fit(Breaks())
    done = run({0: 16}, tmp_path / "b", source="module", ckpt_path=scheduler.out_of_memory.checkpoint,
               scheduler_args=capped(8))  # fmt: skip
    # Two of four steps were done, two are left, each of two micro-batches.
    assert done.probe.epochs == [Epoch(1, 8, 4, 32), Epoch(2, 8, 8, 64)]
    assert [(r.optimizer_steps, r.batch_size) for r in done.scheduler.history] == [(8, 8), (4, 16), (4, 16)]


def test_where_one_sample_is_too_much_there_is_nothing_to_advise(tmp_path):
    class Never(ModuleWithLoader):
        def training_step(self, batch, batch_idx):
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")

    scheduler = BatchSizeScheduler(Sizes({}), min_batch_size=1)
    with pytest.warns(UserWarning, match="with 1 samples"), pytest.raises(torch.OutOfMemoryError):
        trainer_of([scheduler], tmp_path).fit(Never(batch_size=1))
    assert scheduler.out_of_memory is None


# What is refused, and what works beside


def test_a_cap_under_manual_optimization_is_refused(tmp_path):
    class Manual(Linear):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(MisconfigurationException, match=r"`max_micro_batch_size` is 4, and under manual"):
        run({}, tmp_path, model=Manual(), scheduler_args=capped(4))


def test_a_cap_with_lbfgs_is_refused(tmp_path):
    class Second(Linear):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(MisconfigurationException, match="LBFGS evaluates"):
        run({}, tmp_path, model=Second(), scheduler_args=capped(4))


@pytest.mark.parametrize("cap", [0, -1])
def test_a_cap_that_is_none_is_refused(cap):
    with pytest.raises(ValueError, match="`max_micro_batch_size` must be at least 1"):
        BatchSizeScheduler(Sizes({}), max_micro_batch_size=cap)


@pytest.mark.parametrize("mode", ["power", "binsearch"])
def test_the_tuners_search_before_the_fit_works_together(mode, tmp_path):
    class Fits48(Linear):
        def training_step(self, batch, batch_idx):
            if len(batch) > 48:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
            return super().training_step(batch, batch_idx)

    scheduler, probe = BatchSizeScheduler(Sizes({0: 16}), min_batch_size=1), Probe()
    data, model = Data(samples=640), Fits48()
    trainer = trainer_of([scheduler, probe], tmp_path)
    found = Tuner(trainer).scale_batch_size(model, datamodule=data, mode=mode, init_val=8)
    assert data.batch_size == found
    assert 24 <= found <= 48
    trainer.fit(model, datamodule=data)
    assert [r.batch_size for r in scheduler.history] == [found, 16, 16]
    first = Epoch(0, found, math.ceil(640 / found), 640)
    assert probe.epochs == [first, Epoch(1, 16, 40, 640), Epoch(2, 16, 40, 640)]


def test_the_finder_inside_a_fit_is_refused(tmp_path):
    with pytest.raises(MisconfigurationException, match=r"`Tuner\(Trainer\(\)\).scale_batch_size` before `fit`"):
        run({}, tmp_path, source="datamodule", neighbours=[BatchSizeFinder()])


def test_the_checkpoint_of_an_epochs_end_holds_the_accumulation(tmp_path):
    saved = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    run({0: 32}, tmp_path, source="datamodule", neighbours=[saved], enable_checkpointing=True,
        scheduler_args=capped(8), max_epochs=2)  # fmt: skip
    done = run({0: 32}, tmp_path / "b", source="datamodule", ckpt_path=tmp_path / "epoch=1.ckpt",
               scheduler_args=capped(8))  # fmt: skip
    assert done.probe.epochs == [Epoch(2, 8, 8, 64)]
    assert [(r.accumulation, r.optimizer_steps) for r in done.scheduler.history] == [(1, 8), (4, 2), (4, 2)]


@pytest.mark.parametrize(("limit", "granted"), [(4, 32), (2, 16)])
def test_no_step_is_larger_than_what_the_limit_leaves(limit, granted, tmp_path):
    done = run({0: 64}, tmp_path, scheduler_args=capped(8), limit_train_batches=limit)
    assert [r.batch_size for r in done.scheduler.history] == [8, granted, granted]
    assert "would leave no whole step" in done.scheduler.decisions[0].limits
    assert done.scheduler.history[-1].gradient_norm is not None

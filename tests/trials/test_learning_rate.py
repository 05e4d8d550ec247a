"""Learning rate and schedule in a real Trainer, while the batch size changes."""

from __future__ import annotations

import csv
import math

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch.optim import LBFGS, SGD, AdamW
from torch.optim import lr_scheduler as schedulers
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_deba import BatchSizeScheduler, steps_at
from tests.runs import Epoch, Linear, ModuleWithLoader, Sizes, run, trainer_of
from tests.test_learning_rate import SAMPLES, SCHEDULES, SIZE, TICKS, TOTAL, new_optimizer, reference_rates

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


@pytest.mark.parametrize("accumulation", [2, 4])
@pytest.mark.parametrize("name", ["OneCycleLR", "CosineAnnealingLR"])
def test_under_accumulation_the_rate_is_the_same_function_of_samples(name, accumulation, tmp_path):
    class AtTheFirstMicroBatch(Scheduled):
        def on_train_batch_start(self, batch, batch_idx):
            super().on_train_batch_start(batch, batch_idx)
            if batch_idx % self.trainer.accumulate_grad_batches:
                self.rates.popitem()

    model = AtTheFirstMicroBatch(name)
    settings = {**LENGTH, "loader_args": {"samples": SAMPLES, "batch_size": SIZE // accumulation}}
    done = run(CHANGES["both"], tmp_path, model=model, accumulate_grad_batches=accumulation, **settings)
    assert [record.batch_size for record in done.scheduler.history] == [8, 16, 4, 4, 12, 12]
    assert len(model.rates) == done.trainer.global_step
    assert_rates_are_the_references(model)
    assert model.optimizers().param_groups[0]["lr"] == pytest.approx(reference_rates(SCHEDULES[name])[TOTAL][0])


class SizedByTheTrainer(Scheduled):
    """A OneCycle schedule as Lightning's documentation has it. Notes what the Trainer estimates."""

    def __init__(self) -> None:
        super().__init__("OneCycleLR")
        self.estimates, self.used = [], []

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        schedule = schedulers.OneCycleLR(optimizer, 0.1, steps, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_epoch_start(self):
        self.estimates.append(self.trainer.estimated_stepping_batches)


@pytest.mark.parametrize(
    ("after", "estimates", "steps"),
    [({0: 16}, [24, 12, 12], 16), ({0: 4}, [24, 48, 48], 40), ({0: 16, 1: 4}, [24, 12, 48], 28)],
    ids=["grow", "shrink", "both"],
)
def test_the_trainers_estimate_moves_and_the_schedule_that_it_sized_does_not(after, estimates, steps, tmp_path):
    fixed, model = SizedByTheTrainer(), SizedByTheTrainer()
    run({}, tmp_path, model=fixed, source="datamodule")
    done = run(after, tmp_path, model=model, source="datamodule")
    assert model.estimates == estimates
    assert done.trainer.global_step == steps == len(model.rates)
    for (epoch, samples), rates in model.rates.items():
        assert rates == fixed.rates[epoch, samples // 8 * 8]
    assert model.optimizers().param_groups[0]["lr"] == fixed.optimizers().param_groups[0]["lr"] < 0.001


# In samples: inside an epoch as inside a step of one batch size, but at the end of one for all that are tried.
WARM_UP, MILESTONES = SAMPLES + 48, [48, 2 * SAMPLES, 3 * SAMPLES + 48, 5 * SAMPLES]


class InSamples(Scheduled):
    """A warm-up and milestones that were given in samples."""

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1)
        milestones = [steps_at(samples, SIZE, SAMPLES) for samples in MILESTONES]
        warm_up = schedulers.LinearLR(optimizer, 0.1, 1.0, total_iters=steps_at(WARM_UP, SIZE, SAMPLES))
        both = schedulers.ChainedScheduler([warm_up, schedulers.MultiStepLR(optimizer, milestones, 0.5)])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": both, "interval": "step"}}


@pytest.mark.parametrize("change", CHANGES)
def test_a_warm_up_and_milestones_happen_at_their_samples(change, tmp_path):
    model = InSamples("of its own")
    done = run(CHANGES[change], tmp_path, model=model, **LENGTH)
    assert len({record.batch_size for record in done.scheduler.history}) > 2
    before = 0.1
    for (epoch, within), (rate,) in model.rates.items():
        samples = epoch * SAMPLES + within
        warm_up = rate / 0.1 * 2 ** sum(samples >= milestone for milestone in MILESTONES)
        if samples >= WARM_UP:
            assert warm_up == pytest.approx(1, rel=1e-6)
        else:
            assert before - 1e-9 <= warm_up < 0.99
            before = warm_up


class Noted(Callback):
    """Notes how far a step moves the bias, whose gradient is 1, and the schedule's rates before it."""

    def __init__(self) -> None:
        self.moved: list[float] = []
        self.rates: list[list[float]] = []

    @property
    def factors(self) -> list[float]:
        return [moved / rates[-1] for moved, rates in zip(self.moved, self.rates, strict=True)]

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.before = module.layer.bias.item()
        self.rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.moved.append(self.before - module.layer.bias.item())


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
    assert noted.factors == pytest.approx([factors[0]] * 8 + [factors[1]] * 8, rel=1e-4)
    assert [r.learning_rate for r in whole.scheduler.history] == pytest.approx(
        [0.1 * factors[0], *[0.1 * factors[1]] * 2]
    )
    again = Noted()
    run({0: 16}, tmp_path, model=UnitGradient(0.1), neighbours=[again], ckpt_path=tmp_path / "epoch=0.ckpt", **scaled)
    assert again.factors == pytest.approx([factors[1]] * 8, rel=1e-4)


def test_both_rates_are_logged(tmp_path):
    logger = CSVLogger(tmp_path)
    run({0: 16}, tmp_path, logger=logger, neighbours=[LearningRateMonitor()], log_every_n_steps=1,
        scheduler_args={"lr_scaling": "linear"}, model=Linear(0.1))  # fmt: skip
    with (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    logged = {name: [float(row[name]) for row in rows if row[name]] for name in ("lr-SGD", "lr/effective", "lr/factor")}
    assert set(logged["lr-SGD"]) == {0.1}  # the schedule's, at each step
    assert logged["lr/effective"] == pytest.approx([0.1, 0.2, 0.2])
    assert logged["lr/factor"] == [1, 2, 2]


@pytest.mark.parametrize("rule", ["linear", "sqrt"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_under_every_schedule_the_factor_is_applied_once_after_a_resume(name, rule, tmp_path):
    class UnitGradients(Scheduled):
        def training_step(self, batch, batch_idx):
            return self.layer.bias.sum() + self.layer.weight.sum() + 0 * self.layer(batch).mean()

    noted, again = Noted(), Noted()
    saved = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    settings = {"loader_args": {"samples": 24}, "source": "datamodule", "scheduler_args": {"lr_scaling": rule}}
    run({0: 16}, tmp_path, model=UnitGradients(name), neighbours=[noted, saved], enable_checkpointing=True, **settings)
    path = tmp_path / "epoch=0.ckpt"
    run({0: 16}, tmp_path, model=UnitGradients(name), neighbours=[again], ckpt_path=path, **settings)
    factor = 2 if rule == "linear" else math.sqrt(2)
    assert noted.factors == pytest.approx([1] * 3 + [factor] * 4, rel=1e-3)
    assert again.factors == pytest.approx([factor] * 4, rel=1e-3)
    assert again.rates == noted.rates[3:]


class Decaying(Linear):
    """Its gradient on the bias is 1, and its schedule would keep any factor that it saw."""

    def __init__(self, optimizer=SGD, **settings):
        super().__init__()
        self.optimizer, self.settings = optimizer, settings

    def training_step(self, batch, batch_idx):
        return self.layer.bias.sum() + 0 * self.layer(batch).mean()

    def groups(self):
        return self.parameters()

    def configure_optimizers(self):
        optimizer = self.optimizer(self.groups(), lr=0.1, **self.settings)
        schedule = schedulers.ExponentialLR(optimizer, 0.95)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Groups(Decaying):
    def groups(self):
        return [{"params": [self.layer.weight], "lr": 1.0}, {"params": [self.layer.bias]}]


class Overflowing(Decaying):
    """Its gradient overflows at the second step of each epoch."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (math.inf if batch_idx == 1 else 1.0)


class Manual(Decaying):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer, loss = self.optimizers(), super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        for _ in range(self.trainer.datamodule.batch_size // 8):
            self.lr_schedulers().step()
        return loss


def half():
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))]}


KINDS = {
    "several groups": (Groups, {}, dict),
    "manual": (Manual, {}, dict),
    "LBFGS": (Decaying, {"optimizer": LBFGS, "max_iter": 1}, dict),
    "with a scaler": (Decaying, {}, half),
    "overflowing": (Overflowing, {}, half),
    "fused": (Decaying, {"fused": True}, half),
    "fused, overflowing": (Overflowing, {"fused": True}, half),
    "fused, by hand": (Manual, {"fused": True}, half),
    "fused AdamW": (Decaying, {"optimizer": AdamW, "fused": True, "weight_decay": 0.0}, half),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_factor_is_the_steps_and_the_rate_the_schedules(kind, tmp_path):
    """Beside a run without a factor: its steps are twice as long, and its schedule is the same."""
    model, arguments, precision = KINDS[kind]
    runs = {}
    for rule in ("none", "linear"):
        noted = runs[rule] = Noted()
        run({0: 16}, tmp_path, model=model(**arguments), source="datamodule", neighbours=[noted],
            scheduler_args={"lr_scaling": rule}, max_epochs=3, **precision())  # fmt: skip
    assert runs["linear"].rates == runs["none"].rates
    assert runs["linear"].rates[-1][-1] == pytest.approx(0.1 * 0.95**22)
    factors = [1] * 8 + [2] * 8
    expected = [own * factor for own, factor in zip(runs["none"].moved, factors, strict=True)]
    assert runs["linear"].moved == pytest.approx(expected, rel=1e-4, abs=1e-7)
    skipped = [i for i, moved in enumerate(runs["linear"].moved) if not moved]
    assert skipped == ([1, 9, 13] if "overflowing" in kind else [])


def test_out_of_memory_leaves_no_factor_in_the_checkpoint(tmp_path):
    """Lightning runs forward and backward pass inside the optimizer's step, where the factor is on."""

    class Breaks(ModuleWithLoader):
        groups, configure_optimizers = Decaying.groups, Decaying.configure_optimizers
        optimizer, settings = SGD, {}

        def training_step(self, batch, batch_idx):
            if self.current_epoch == 1 and batch_idx == 2 and len(batch) > 8:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
            return super().training_step(batch, batch_idx) * 0

    scheduler = BatchSizeScheduler(Sizes({0: 16}), min_batch_size=1, lr_scaling="linear")
    with pytest.warns(UserWarning, match="Out of memory"), pytest.raises(torch.OutOfMemoryError):
        trainer_of([scheduler], tmp_path).fit(Breaks())
    saved = torch.load(scheduler.out_of_memory.checkpoint, weights_only=True)
    assert saved["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.1 * 0.95**12)
    model, settings = Breaks(), {"lr_scaling": "linear", "max_micro_batch_size": 8}
    done = run({0: 16}, tmp_path, model=model, source="module", ckpt_path=scheduler.out_of_memory.checkpoint,
               scheduler_args=settings)  # fmt: skip
    assert model.optimizers().param_groups[0]["lr"] == pytest.approx(0.1 * 0.95**24)
    assert done.scheduler.history[-1].learning_rate == pytest.approx(2 * 0.1 * 0.95**22)


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


# A horizon of another kind


class Sized(Linear):
    """A schedule made by a function of the module, such as one that asks the Trainer how long it will train."""

    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = self.schedule(optimizer, self.trainer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * 1e-6

    @property
    def rate(self):
        return self.optimizers().param_groups[0]["lr"]


def one_cycle(steps=None):
    def schedule(optimizer, trainer):
        total = trainer.estimated_stepping_batches if steps is None else steps
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=int(total))

    return schedule


@pytest.mark.parametrize("size", [16, 4])
def test_where_max_steps_ends_the_run_its_schedule_counts_steps(size, tmp_path):
    model = Sized(one_cycle())
    run({0: size}, tmp_path, model=model, source="datamodule", max_epochs=-1, max_steps=20)
    assert model.trainer.global_step == model.lr_schedulers().last_epoch == model.lr_schedulers().total_steps == 20


@pytest.mark.parametrize("budget", [100, 104, 128])
@pytest.mark.parametrize("size", [16, 4, 8])
def test_a_schedule_sized_by_the_budget_ends_with_it(size, budget, tmp_path):
    model = Sized(one_cycle(steps_at(budget, 8, 64)))
    done = run({0: size}, tmp_path, model=model, source="datamodule", max_epochs=-1,
               scheduler_args={"max_samples": budget})  # fmt: skip
    assert budget <= sum(r.samples for r in done.scheduler.history) < budget + 16
    assert model.lr_schedulers().last_epoch == model.lr_schedulers().total_steps == steps_at(budget, 8, 64)


def test_a_budget_that_is_spent_inside_a_step_lets_the_step_be_done(tmp_path):
    done = run({0: 64}, tmp_path, source="datamodule", max_epochs=-1,
               scheduler_args={"max_samples": 100, "max_micro_batch_size": 8})  # fmt: skip
    assert [(r.samples, r.optimizer_steps) for r in done.scheduler.history] == [(64, 8), (64, 1)]


def test_a_schedule_that_asks_for_the_steps_gets_the_same_answer_after_a_resume(tmp_path):
    asked = []

    def schedule(optimizer, trainer):
        asked.append(trainer.estimated_stepping_batches)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t, n=asked[-1]: 1 - t / n)

    saved = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    run({0: 16}, tmp_path, model=Sized(schedule), source="datamodule", neighbours=[saved], enable_checkpointing=True)
    model = Sized(schedule)
    done = run({0: 16}, tmp_path / "b", model=model, source="datamodule", ckpt_path=tmp_path / "epoch=0.ckpt")
    assert asked == [24, 24]
    assert model.rate == pytest.approx(0.0, abs=1e-9)
    assert done.probe.epochs == [Epoch(1, 16, 4, 64), Epoch(2, 16, 4, 64)]

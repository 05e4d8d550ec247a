"""The gradient that is measured is the one of the step: whatever the precision, the model and the optimizer."""

from __future__ import annotations

import math

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_deba import DEBA, BatchSizeScheduler
from tests.runs import Epoch, Linear, Probe, Samples, run, trainer_of

GROWN = [Epoch(0, 8, 8, 64), Epoch(1, 16, 4, 64)]


class Net(Linear):
    """A network small enough to be checked, and large enough to be one. Notes the gradient of every step."""

    def __init__(self, optimizer=torch.optim.SGD, lr=0.0, **settings):
        super().__init__(lr)
        torch.manual_seed(0)
        self.layer = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer, self.settings = optimizer, settings
        self.noted = {}

    def training_step(self, batch, batch_idx):
        return (self.layer(batch / 64) - batch[:, :1] / 32).square().mean()

    def on_before_optimizer_step(self, optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if parameters:
            vector = torch.cat([p.grad.to_dense().flatten() for p in parameters]).double()
            self.noted.setdefault(self.current_epoch, []).append(vector)

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), lr=self.lr, **self.settings)


def in_order(batch_size=8):
    return DataLoader(Samples(), batch_size=batch_size)


def measure(root, model=None, after=None, **settings):
    """Trains for two epochs, with a growth after the first, on samples in their order."""
    settings = {"loaders": in_order(), "max_epochs": 2, **settings}
    return run({0: 16} if after is None else after, root, model=Net() if model is None else model, **settings)


def signals(record):
    return record.loss, record.gradient_norm, record.component_variance


def account(vectors):
    """Norm and variance by hand. The mean of the components is read at an epoch's first step."""
    variances = torch.stack([vector.square().mean() for vector in vectors]).mean() - vectors[0].mean() ** 2
    return torch.stack([vector.norm() for vector in vectors]).mean().item(), variances.item()


def check(found, rel=1e-6):
    """Compares both epochs with the gradients that the model has noted."""
    assert found.probe.epochs == GROWN
    for record in found.scheduler.history:
        assert signals(record)[1:] == pytest.approx(account(found.model.noted[record.epoch]), rel=rel)
        assert record.optimizer_steps == (8, 4)[record.epoch]


# Precision


def half(init_scale=2.0**10):
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    return MixedPrecision("16-mixed", "cpu", scaler=scaler)


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {}),
    "fused SGD": (torch.optim.SGD, {"fused": True}),
    "AdamW": (torch.optim.AdamW, {}),
    "fused AdamW": (torch.optim.AdamW, {"fused": True}),
}


@pytest.mark.parametrize("manually", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_measures_what_full_precision_does(precision, optimizer, manually, tmp_path):
    """A fused optimizer takes the loss scale off by itself, and too late to be seen."""
    kind, settings = OPTIMIZERS[optimizer]
    model = Manual if manually else Net
    mixed = {"precision": precision} if precision == "bf16-mixed" else {"plugins": [half()]}
    full = measure(tmp_path / "full", model(kind, lr=1e-3, **settings))
    found = measure(tmp_path / "mixed", model(kind, lr=1e-3, **settings), **mixed)
    assert found.probe.epochs == GROWN
    for record, expected in zip(found.scheduler.history, full.scheduler.history, strict=True):
        assert signals(record) == pytest.approx(signals(expected), rel=0.02)
        assert record.skipped_steps == 0


@pytest.mark.parametrize("optimizer", ["SGD", "fused SGD"])
def test_steps_that_overflow_are_counted_and_left_out(optimizer, tmp_path):
    kind, settings = OPTIMIZERS[optimizer]
    precision, full = half(init_scale=2.0**20), measure(tmp_path / "full").model
    first, second = measure(tmp_path / "half", Net(kind, **settings), plugins=[precision]).scheduler.history
    skipped = round(math.log2(2.0**20 / precision.scaler.get_scale()))  # the scale is halved at each
    assert 0 < skipped < 8
    assert (first.optimizer_steps, first.skipped_steps, second.skipped_steps) == (8, skipped, 0)
    # The first mean is lost with the first step, so only the norm is that of the steps that were taken.
    assert first.gradient_norm == pytest.approx(account(full.noted[0][skipped:])[0], rel=0.02)
    assert signals(second)[1:] == pytest.approx(account(full.noted[1]), rel=0.02)


def test_an_epoch_that_only_overflows_holds(tmp_path):
    scheduler = BatchSizeScheduler(DEBA(), min_batch_size=1)
    trainer = trainer_of([scheduler], tmp_path, max_epochs=1, plugins=[half(init_scale=2.0**60)])
    trainer.fit(Net(), in_order())
    assert scheduler.history[0].skipped_steps == 8
    assert scheduler.decisions[0].batch_size == 8
    assert scheduler.history[0].gradient_norm is None


# Accumulation and clipping


def test_an_accumulated_gradient_is_that_of_its_whole_batch(tmp_path):
    whole = measure(tmp_path / "whole", after={}, loaders=in_order(16)).scheduler.history
    found = measure(tmp_path / "accumulated", after={}, accumulate_grad_batches=2).scheduler.history
    for record, expected in zip(found, whole, strict=True):
        assert signals(record) == pytest.approx(signals(expected), rel=1e-5)
        assert (record.batch_size, record.optimizer_steps) == (16, 4)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_the_gradient_is_measured_before_it_is_clipped(algorithm, tmp_path):
    expected = measure(tmp_path / "full").scheduler.history
    settings = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": algorithm}
    found = measure(tmp_path / "clipped", **settings)
    assert found.probe.epochs == GROWN
    assert [signals(record) for record in found.scheduler.history] == [signals(record) for record in expected]
    assert found.scheduler.history[0].gradient_norm > 1e-2


# Models


class Unfrozen(Net):
    """Trains its last layer alone in epoch 0."""

    def on_train_epoch_start(self):
        self.layer[0].requires_grad_(self.current_epoch > 0)


def test_only_what_has_a_gradient_is_measured(tmp_path):
    found = measure(tmp_path, Unfrozen())
    check(found)
    assert [len(found.model.noted[epoch][0]) for epoch in (0, 1)] == [17, 65]


class GrowingOptimizer(Net):
    """Gives its optimizer the first layer only in epoch 1."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.layer[2].parameters(), lr=self.lr)

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.optimizers().add_param_group({"params": self.layer[0].parameters()})


def test_a_parameter_group_may_come_late(tmp_path):
    found = measure(tmp_path, GrowingOptimizer())
    check(found)
    assert [len(found.model.noted[epoch][0]) for epoch in (0, 1)] == [17, 65]


class Embedded(Net):
    """Meets some of its rows several times in a batch, and most not at all."""

    def __init__(self, sparse):
        super().__init__()
        self.embedding = nn.Embedding(40, 2, sparse=sparse)

    def training_step(self, batch, batch_idx):
        return super().training_step(64 * self.embedding((batch[:, 0] / 3).long()), batch_idx)


def test_a_sparse_gradient_is_measured_as_its_dense_one(tmp_path):
    dense, sparse = (measure(tmp_path / str(sparse), Embedded(sparse)) for sparse in (False, True))
    check(dense)
    check(sparse)
    for record, expected in zip(sparse.scheduler.history, dense.scheduler.history, strict=True):
        assert signals(record) == pytest.approx(signals(expected), rel=1e-6)


class Normalized(Net):
    def __init__(self):
        super().__init__(lr=1e-2)
        self.layer = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))


def test_batch_norm_is_no_obstacle(tmp_path):
    """Per-sample gradients, which a batch's statistics forbid, are not needed."""
    check(measure(tmp_path, Normalized()))


class Picky(Net):
    """Passes over every second batch."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 2 else None


def test_a_batch_that_is_passed_over_has_no_signal(tmp_path):
    losses = []

    class Noting(Picky):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            losses.extend([] if loss is None else [loss.item()])
            return loss

    found = measure(tmp_path, Noting())
    check(found)
    assert [len(found.model.noted[epoch]) for epoch in (0, 1)] == [4, 2]
    assert [record.loss for record in found.scheduler.history] == pytest.approx(
        [sum(losses[:4]) / 4, sum(losses[4:]) / 2]
    )
    assert [record.skipped_steps for record in found.scheduler.history] == [0, 0]


# Manual optimization


class Manual(Net):
    automatic_optimization = False
    returns_loss = True

    def training_step(self, batch, batch_idx):
        optimizer, loss = self.optimizers(), super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss if self.returns_loss else None


def test_manual_optimization_is_measured_as_automatic(tmp_path):
    automatic, manual = measure(tmp_path / "automatic", Net(lr=0.1)), measure(tmp_path / "manual", Manual(lr=0.1))
    check(manual)
    assert [signals(r) for r in manual.scheduler.history] == [signals(r) for r in automatic.scheduler.history]


class Two(Manual):
    """Two players with an optimizer each; the second one steps twice on every batch."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(2, 3)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        for optimizer, layer in ((second, self.other), (first, self.layer), (second, self.other)):
            optimizer.zero_grad()
            loss = layer(batch / 64).square().mean()
            self.manual_backward(loss)
            optimizer.step()
        return {"loss": loss.detach()}

    def configure_optimizers(self):
        return [torch.optim.SGD(layer.parameters(), lr=0.0) for layer in (self.layer, self.other)]


@pytest.mark.parametrize(("index", "steps"), [(0, [8, 4]), (1, [16, 8])])
def test_of_several_optimizers_the_chosen_one_is_measured(index, steps, tmp_path):
    found = measure(tmp_path, Two(), scheduler_args={"optimizer_index": index})
    assert found.probe.epochs == GROWN
    assert [record.optimizer_steps for record in found.scheduler.history] == steps
    size = (65, 9)[index]
    for record in found.scheduler.history:
        chosen = [vector for vector in found.model.noted[record.epoch] if len(vector) == size]
        assert signals(record)[1:] == pytest.approx(account(chosen), rel=1e-6)


class Refused(Net):
    """Fails the test where a single batch is trained on."""

    def training_step(self, batch, batch_idx):
        raise AssertionError("trained before refusing")


def test_an_optimizer_that_is_not_there_is_refused(tmp_path):
    message = r"`optimizer_index` is 1, and `configure_optimizers` has returned 1 optimizer.*from 0 to 0"
    with pytest.raises(MisconfigurationException, match=message):
        measure(tmp_path, Refused(), scheduler_args={"optimizer_index": 1})
    with pytest.raises(ValueError, match="`optimizer_index` must be 0 or more, got -1"):
        BatchSizeScheduler(DEBA(), optimizer_index=-1)


@pytest.mark.parametrize("kind", [Net, Manual])
def test_a_loss_that_is_not_returned_is_spoken_of(kind, tmp_path):
    class Silent(kind):
        returns_loss = False

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss if self.automatic_optimization and batch_idx < 0 else None

    scheduler = BatchSizeScheduler(DEBA(), min_batch_size=1)
    with pytest.warns(UserWarning, match=r"The loss of epoch 0 was not measured.* DEBA, holds") as warned:
        trainer_of([scheduler], tmp_path).fit(Silent(), in_order())
    assert sum("The loss of epoch" in str(warning.message) for warning in warned) == 1
    assert [decided.batch_size for decided in scheduler.decisions] == [8, 8, 8]
    missing = "loss" if kind is Manual else "component variance"  # without a loss there was no gradient, either
    assert f"the {missing} of epoch 1 was not measured" in scheduler.decisions[2].reason


class Raw(Manual):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers(use_pl_optimizer=False)
        loss = Net.training_step(self, batch, batch_idx)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss


def test_steps_that_lightning_hides_are_spoken_of(tmp_path):
    with pytest.warns(
        UserWarning, match="No step of optimizer 0 was seen in epoch 0.*use_pl_optimizer=False"
    ) as warned:
        found = measure(tmp_path, Raw())
    assert sum("No step of" in str(warning.message) for warning in warned) == 1
    assert found.trainer.global_step == 0
    assert found.probe.epochs == GROWN  # a policy that needs no gradient is still obeyed
    assert found.scheduler.history[0].gradient_norm is None


# Optimizers that look several times


class Searching(Net):
    """LBFGS evaluates the gradient up to five times a step; the first is the one that the step starts from."""

    def __init__(self):
        super().__init__(torch.optim.LBFGS, lr=0.1, max_iter=4, max_eval=5, tolerance_grad=0, tolerance_change=0)
        self.looks = 0

    def on_before_optimizer_step(self, optimizer):
        self.looks += 1
        if self.trainer.global_step != getattr(self, "last", None):
            super().on_before_optimizer_step(optimizer)
        self.last = self.trainer.global_step


class SearchingManually(Searching, Manual):
    def training_step(self, batch, batch_idx):
        def closure():
            optimizer.zero_grad()
            loss = Net.training_step(self, batch, batch_idx)
            self.manual_backward(loss)
            return loss

        optimizer = self.optimizers()
        return optimizer.step(closure)


@pytest.mark.parametrize("kind", [Searching, SearchingManually])
def test_a_step_with_several_gradients_is_one_step_with_its_first(kind, tmp_path):
    found = measure(tmp_path, kind())
    check(found)
    assert found.model.looks > 2 * 12


# Compiled models


class Counting:
    """A backend that compiles nothing and counts how often it is asked to."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, module, inputs):
        self.graphs += 1
        return module.forward


WAYS = {
    "the module": lambda model, settings: torch.compile(model, **settings),
    "a layer": lambda model, settings: setattr(model, "layer", torch.compile(model.layer, **settings)) or model,
    "a layer in place": lambda model, settings: model.layer.compile(**settings) or model,
}
TEN_CHANGES = [8, 16, 32, 64, 32, 16, 8, 4, 8, 16, 4]


def compiled(root, way, sizes):
    """Trains a compiled model through the sizes, and returns the run and the number of graphs compiled for it."""
    torch._dynamo.reset()
    backend = Counting()
    model = WAYS[way](Net(lr=0.1), {"backend": backend})
    return measure(root, model, after=dict(enumerate(sizes[1:])), max_epochs=len(sizes)), backend.graphs


@pytest.mark.parametrize("way", WAYS)
def test_ten_changes_of_a_compiled_model_cost_no_more_than_one(way, tmp_path, caplog):
    plain = measure(tmp_path / "plain", Net(lr=0.1), after=dict(enumerate(TEN_CHANGES[1:])), max_epochs=11)
    with caplog.at_level("INFO", "lightning.pytorch"):
        found, graphs = compiled(tmp_path / "ten", way, TEN_CHANGES)
    assert sum("The model is compiled" in message for message in caplog.messages) == 1
    assert found.probe.epochs == [Epoch(t, size, 64 // size, 64) for t, size in enumerate(TEN_CHANGES)]
    for record, expected in zip(found.scheduler.history, plain.scheduler.history, strict=True):
        assert signals(record) == pytest.approx(signals(expected), rel=1e-4)
    assert graphs == compiled(tmp_path / "one", way, [8, 16])[1]


def test_a_plain_model_is_not_told_of_compilation(tmp_path, caplog):
    with caplog.at_level("INFO", "lightning.pytorch"):
        measure(tmp_path)
    assert not any("compiled" in message for message in caplog.messages)


# Refused


class Engine(DeepSpeedStrategy):
    """As much of the strategy as there is without the package: one process, and no engine."""

    def __init__(self):
        DDPStrategy.__init__(self)

    def setup_environment(self):
        pass

    def _configure_launcher(self):
        pass


def test_deepspeed_is_refused_with_the_reason(tmp_path):
    message = "cannot work under the DeepSpeed strategy, whose engine fixes the batch size.*`ModelParallelStrategy`"
    with pytest.raises(MisconfigurationException, match=message):
        measure(tmp_path, Refused(), strategy=Engine())


class Sharded(FSDPStrategy):
    """As much of the strategy as a Trainer takes on a CPU."""

    def setup_environment(self):
        pass

    def _configure_launcher(self):
        pass


def test_fsdp_of_flat_parameters_is_refused_with_the_reason(tmp_path):
    with pytest.raises(
        MisconfigurationException, match=r"cannot measure gradients under `FSDPStrategy`.*`ModelParallelStrategy`"
    ):
        measure(tmp_path, Refused(), strategy=Sharded())


def test_a_loss_may_have_one_element_and_any_shape(tmp_path):
    class OneElement(Linear):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx).reshape(1)

    torch.manual_seed(0)
    odd = run({}, tmp_path, model=OneElement()).scheduler.history
    torch.manual_seed(0)
    plain = run({}, tmp_path, model=Linear()).scheduler.history
    assert [record.loss for record in odd] == pytest.approx([record.loss for record in plain])


def test_images_in_a_list_are_counted_by_the_loader(tmp_path):
    class Detector(Linear):
        def training_step(self, batch, batch_idx):
            return self.layer(torch.stack(batch)).square().mean()

        def validation_step(self, batch, batch_idx):
            return None

    class Blind(Probe):
        def on_train_batch_start(self, *_):
            return None

    loader = DataLoader(Samples(), 8, collate_fn=lambda batch: [sample.repeat(3, 1, 1) for sample in batch])
    with pytest.warns(UserWarning, match="has 3 samples by its first dimension"):
        history = run({0: 16}, tmp_path, model=Detector(), loaders=loader, probe=Blind()).scheduler.history
    assert [(record.batch_size, record.samples) for record in history] == [(8, 64), (16, 64), (16, 64)]
    assert all(record.gradient_norm is not None for record in history)


def test_images_in_a_list_are_counted_by_the_loader_in_a_stream_as_well(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return map(Samples().__getitem__, range(64))

    class Blind(Probe):
        def on_train_batch_start(self, *_):
            return None

    class Detector(Linear):
        def training_step(self, batch, batch_idx):
            return self.layer(torch.stack(batch)).square().mean()

        def validation_step(self, batch, batch_idx):
            return None

    loader = DataLoader(Stream(), 8, collate_fn=lambda batch: [sample.repeat(3, 1, 1) for sample in batch])
    history = run({0: 16}, tmp_path, model=Detector(), loaders=loader, probe=Blind()).scheduler.history
    assert [(record.batch_size, record.samples) for record in history] == [(8, 64), (16, 64), (16, 64)]
    assert all(record.gradient_norm is not None for record in history)


def test_where_no_step_has_all_its_samples_it_is_said(tmp_path):
    with pytest.warns(UserWarning, match="of its 1 steps none was whole"):
        run({}, tmp_path, loaders=DataLoader(Samples(5), 8))


def test_a_short_batch_in_the_middle_stays_out_of_the_means(tmp_path):
    class Uneven(Linear):
        """Its gradient is 1 for a whole batch, and 100 for a short one."""

        def training_step(self, batch, batch_idx):
            return self.layer.bias.sum() * (1.0 if len(batch["a"]) == 8 else 100.0)

    loaders = CombinedLoader({"a": DataLoader(Samples(12), 8), "b": DataLoader(Samples(), 8)}, "max_size_cycle")
    record = run({}, tmp_path, loaders=loaders, model=Uneven(), max_epochs=1).scheduler.history[0]
    assert record.gradient_norm == pytest.approx(1.0)

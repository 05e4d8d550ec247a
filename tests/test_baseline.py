"""The baseline pass in a real Trainer: it goes on where it was stopped, and leaves what it measures as it was."""

from __future__ import annotations

import copy
import json
import statistics

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.profilers import SimpleProfiler
from torch.utils.data import DataLoader, IterableDataset

from lightning_deba import read_history
from lightning_deba.baseline import characterize, run_baseline
from lightning_deba.throughput import measure_throughput
from lightning_deba.vision import DigitsDataModule, ImageClassifier
from tests.runs import Data, Linear, Samples


def digits(batch_size=16):
    return DigitsDataModule(train_samples=64, val_samples=16, image_size=16, batch_size=batch_size)


def small():
    return ImageClassifier("test_resnet", in_chans=1, lr=0.01)


class Stops(Callback):
    """Pulls the plug in the middle of an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.current_epoch == self.epoch and batch_idx == 2:
            raise RuntimeError("power cut")


class Counts(Callback):
    def __init__(self):
        self.epochs = 0

    def on_train_epoch_end(self, trainer, module):
        self.epochs += 1


def measured(histories):
    return [[(r.epoch, r.batch_size, r.samples, r.loss, r.gradient_norm) for r in history] for history in histories]


def test_stopped_in_an_epoch_it_goes_on_from_the_last_whole_one(tmp_path):
    unbroken = run_baseline(small, digits(), epochs=4, seeds=[0, 1], directory=tmp_path / "a")
    for epoch in (2, 3):
        with pytest.raises(RuntimeError, match="power cut"):
            run_baseline(small, digits(), epochs=4, seeds=[0, 1], directory=tmp_path / "b", callbacks=[Stops(epoch)])
    counts = Counts()
    found = run_baseline(small, digits(), epochs=4, seeds=[0, 1], directory=tmp_path / "b", callbacks=[counts])
    assert [[row[:3] for row in run] for run in measured(found)] == [
        [row[:3] for row in run] for run in measured(unbroken)
    ]
    # Up to the cut digit for digit; after it the order of the samples is another.
    assert measured(found)[0][:2] == measured(unbroken)[0][:2]
    assert counts.epochs == 1 + 4


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = run_baseline(small, digits(), epochs=2, seeds=[3], directory=tmp_path)
    counts = Counts()
    again = run_baseline(small, digits(), epochs=2, seeds=[3], directory=tmp_path, callbacks=[counts])
    assert (again, counts.epochs) == (first, 0)
    assert not list(tmp_path.rglob("*.ckpt"))
    assert read_history(tmp_path / "seed-3").history == first[0]


@pytest.mark.parametrize(("epochs", "seeds"), [(0, [0]), (3, [])])
def test_nothing_to_run_is_refused(epochs, seeds, tmp_path):
    with pytest.raises(ValueError, match="`epochs` and the number of `seeds` must be at least 1"):
        run_baseline(small, digits(), epochs=epochs, seeds=seeds, directory=tmp_path)


def test_too_few_epochs_are_refused_before_any_training(tmp_path):
    with pytest.raises(ValueError, match="`epochs` must be at least 8"):
        characterize(small, digits(), epochs=7, directory=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_characterization_says_what_was_run_and_measures_once(tmp_path):
    arguments = {"epochs": 8, "seeds": 2, "directory": tmp_path, "batch_sizes": (8, 16), "about": {"data": "digits"}}
    found = characterize(small, digits(), **arguments)
    assert found.profile.architecture == "test_resnet"
    assert [len(history) for history in found.profile.histories] == [8, 8]
    assert (found.about["seeds"], found.about["data"]) == ([0, 1], "digits")
    assert sorted(found.curve.seconds) == [8, 16]
    assert characterize(small, digits(), **arguments) == found
    kept = json.loads((tmp_path / "throughput.json").read_text())
    assert {name: kept[name] for name in found.curve.to_dict()} == found.curve.to_dict()
    assert kept["batch_sizes"] == [8, 16]


def test_a_directory_with_the_runs_of_another_model_or_size_is_refused(tmp_path):
    arguments = {"epochs": 8, "seeds": 1, "directory": tmp_path, "batch_sizes": (8, 16)}
    characterize(small, digits(), **arguments)
    with pytest.raises(ValueError, match="another characterization: `batch_size` was 16 and is 32"):
        characterize(small, digits(32), **arguments)
    with pytest.raises(ValueError, match="another characterization: `architecture` was 'test_resnet' and is 'Linear'"):
        characterize(Linear, digits(), **arguments)


# Throughput


def test_a_measurement_leaves_all_as_it_was():
    module, data = small(), digits(batch_size=24)
    weights, random = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    measure_throughput(module, data, (8, 16), rounds=1, steps=1)
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert data.batch_size == 24
    assert module._trainer is None


def test_sizes_that_the_data_cannot_fill_are_left_out():
    assert sorted(measure_throughput(Linear(), Data(samples=40), (4, 16, 64, 8), rounds=1).seconds) == [4, 8, 16]


def test_the_size_that_does_not_fit_is_the_ceiling():
    class Small(Linear):
        def training_step(self, batch, batch_idx):
            if len(batch) > 16:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
            return super().training_step(batch, batch_idx)

    curve = measure_throughput(Small(), Data(), (8, 16, 32, 64), rounds=2)
    assert (sorted(curve.seconds), curve.ceiling) == ([8, 16], 32)


def test_a_loader_that_ignores_the_attribute_is_refused():
    class Ignores(Data):
        def train_dataloader(self):
            return DataLoader(Samples(64), batch_size=8)

    with pytest.raises(
        ValueError, match=r"`Ignores.train_dataloader` does not use `batch_size`: with 16 its batch has 8"
    ):
        measure_throughput(Linear(), Ignores(), (8, 16))


def test_data_without_a_length_are_measured_too():
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.ones(2)

    class Streamed(Data):
        def train_dataloader(self):
            return DataLoader(Endless(), batch_size=self.batch_size)

    assert sorted(measure_throughput(Linear(), Streamed(), (8, 16), rounds=1).seconds) == [8, 16]


def test_another_fault_is_none_of_memory():
    class Broken(Linear):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        measure_throughput(Broken(), Data(), (8, 16))


def test_each_size_gets_the_median_of_its_turns():
    readings = iter(number**2 for number in range(1000))
    curve = measure_throughput(
        Linear(), Data(), (8, 16), steps=3, warmup=1, rounds=2, clock=lambda: float(next(readings))
    )
    # In a turn the clock is read once in the warm-up, and at both ends of each of three steps.
    steps = [[2 * (7 * turn + 1 + 2 * step) + 1 for step in range(3)] for turn in range(4)]
    assert curve.seconds == {8: statistics.median(steps[0] + steps[2]), 16: statistics.median(steps[1] + steps[3])}


def test_the_module_may_be_any(tmp_path):
    class Own(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    found = characterize(Own, Data(), epochs=8, seeds=1, directory=tmp_path, batch_sizes=(8, 16))
    assert found.profile.architecture == "Own"


def characterized(tmp_path, **changes):
    settings = {"epochs": 8, "seeds": 1, "directory": tmp_path, "batch_sizes": (8, 16)}
    return characterize(small, digits(), **{**settings, **changes})


def test_another_ladder_is_measured_and_nothing_trained_again(tmp_path):
    first, counts = characterized(tmp_path), Counts()
    again = characterized(tmp_path, batch_sizes=(8, 16, 32), callbacks=[counts])
    assert (sorted(first.curve.seconds), sorted(again.curve.seconds)) == ([8, 16], [8, 16, 32])
    assert (again.profile, counts.epochs) == (first.profile, 0)
    with pytest.raises(ValueError, match=r"`trainer_args` was None and is .'precision': 'bf16-mixed'."):
        characterized(tmp_path, trainer_args={"precision": "bf16-mixed"})
    profiled = [
        characterized(tmp_path / "profiled", trainer_args={"profiler": SimpleProfiler()}).to_dict() for _ in range(2)
    ]
    assert json.dumps(profiled[0]["about"]) == json.dumps(profiled[1]["about"])
    (tmp_path / "throughput.json").write_text("{")
    with pytest.raises(ValueError, match=r"throughput.json' cannot be read.* Delete it, and it is made anew"):
        characterized(tmp_path)


@pytest.mark.parametrize(
    "limits", [{"limit_train_batches": 0.1}, {"limit_train_batches": 2}, {"max_steps": 1}, {"fast_dev_run": True}]
)
def test_limits_of_the_training_do_not_end_a_measurement(limits):
    curve = measure_throughput(Linear(), Data(), (8, 16), trainer_args={"accelerator": "cpu", **limits})
    assert sorted(curve.seconds) == [8, 16]

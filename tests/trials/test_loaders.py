"""Every kind of loader that Lightning takes is changed, or refused before the first batch with a remedy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from lightning_deba import BatchSizeAdapter, InPlaceActuator
from tests.runs import Data, Epoch, Linear, Probe, Samples, run

GROWN_THEN_SHRUNK = [Epoch(0, 8, 8, 64), Epoch(1, 16, 4, 64), Epoch(2, 4, 16, 64)]
CHANGES = {0: 16, 1: 4}


class Refused(Linear):
    """Fails the test where a single batch is trained on."""

    def training_step(self, batch, batch_idx):
        raise AssertionError("trained before refusing")


def check_all_samples(probe):
    assert all(sorted(seen) == list(range(64)) for seen in probe.seen.values())


# Samplers


class Backwards(Sampler[int]):
    """A sampler of the user's own, with another length than that of the data set."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n - 1, -1, -1))


def test_a_custom_sampler_decides_how_many_samples_there_are(tmp_path):
    loader = DataLoader(Samples(1000), batch_size=8, sampler=Backwards(64))
    _, scheduler, probe, _ = run({**CHANGES, 2: 100}, tmp_path, loaders=loader)
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    assert all(seen == list(range(63, -1, -1)) for seen in probe.seen.values())
    assert scheduler.decisions[2].limits == "the data set has 64 samples"


def test_a_weighted_random_sampler(tmp_path):
    sampler = WeightedRandomSampler(torch.ones(64), num_samples=40)
    probe = run({0: 16, 1: 4}, tmp_path, loaders=DataLoader(Samples(), batch_size=8, sampler=sampler)).probe
    assert probe.epochs == [Epoch(0, 8, 5, 40), Epoch(1, 16, 3, 40), Epoch(2, 4, 10, 40)]
    assert probe.validations == [0, 1, 2]


# Batch samplers


class Pairs(BatchSampler):
    """A batch sampler of the user's own, by inheritance."""


class ByHand(Sampler[list[int]]):
    """A batch sampler of the user's own that inherits nothing, and computes all from its batch size."""

    def __init__(self, n: int, batch_size: int) -> None:
        self.n, self.batch_size = n, batch_size

    def __len__(self) -> int:
        return math.ceil(self.n / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, self.n, self.batch_size):
            yield list(range(first, min(first + self.batch_size, self.n)))


class LengthIsWhatWasAndWillBe(ByHand):
    """Counts the batches given and those to come: at an epoch's end its length is that of the epoch past."""

    def __init__(self, n: int, batch_size: int) -> None:
        super().__init__(n, batch_size)
        self.given = self.used = 0

    def __len__(self) -> int:
        return self.given + math.ceil((self.n - self.used) / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        self.given = self.used = 0
        for batch in super().__iter__():
            self.given, self.used = self.given + 1, self.used + len(batch)
            yield batch


class TwoBuckets(ByHand):
    """Mixes no sample of one half with one of the other: more batches than samples over batch size."""

    def __len__(self) -> int:
        return 2 * math.ceil(self.n / 2 / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        half = self.n // 2
        for start in (0, half):
            for first in range(start, start + half, self.batch_size):
                yield list(range(first, min(first + self.batch_size, start + half)))


BATCH_SAMPLERS = {
    "plain": lambda: BatchSampler(RandomSampler(range(64)), 8, drop_last=False),
    "subclass": lambda: Pairs(SequentialSampler(range(64)), 8, drop_last=False),
    "by hand": lambda: ByHand(64, 8),
    "length known once begun": lambda: LengthIsWhatWasAndWillBe(64, 8),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", BATCH_SAMPLERS)
def test_a_batch_sampler_with_a_batch_size_is_rewritten(kind, workers, tmp_path):
    loader = DataLoader(Samples(), batch_sampler=BATCH_SAMPLERS[kind](), num_workers=workers)
    probe = run(CHANGES, tmp_path, loaders=loader).probe
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    assert probe.training_batches == [8, 4, 16]
    check_all_samples(probe)


def test_a_batch_sampler_with_a_length_of_its_own_is_believed(tmp_path):
    loader = DataLoader(Samples(), batch_sampler=TwoBuckets(64, 8))
    probe = run({0: 24, 1: 4}, tmp_path, loaders=loader).probe
    assert probe.epochs == [Epoch(0, 8, 8, 64), Epoch(1, 24, 4, 64), Epoch(2, 4, 16, 64)]
    assert probe.validations == [0, 1, 2]
    check_all_samples(probe)


class StaleLength(ByHand):
    """Counts its batches when it is made. Lightning would end a longer epoch early, and skip a validation."""

    def __init__(self, n: int, batch_size: int) -> None:
        super().__init__(n, batch_size)
        self.batches = math.ceil(n / batch_size)

    def __len__(self) -> int:
        return self.batches


class StaleBatches(StaleLength):
    """Makes its batches when it is made: its batch size says how, and nothing more."""

    def __init__(self, n: int, batch_size: int) -> None:
        super().__init__(n, batch_size)
        self.made = list(super().__iter__())

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.made)


@pytest.mark.parametrize("kind", [StaleLength, StaleBatches])
def test_a_batch_sampler_whose_length_is_stale_is_refused(kind, tmp_path):
    loader = DataLoader(Samples(), batch_sampler=kind(64, 8))
    message = f"The length of `{kind.__name__}` does not follow its `batch_size`: it is 8 with 8 and with 16"
    with pytest.raises(MisconfigurationException, match=message):
        run(CHANGES, tmp_path, model=Refused(), loaders=loader)
    assert loader.batch_sampler.batch_size == 8


@pytest.mark.parametrize("kind", [StaleLength, StaleBatches])
def test_and_reloaded_where_an_owner_builds_it(kind, tmp_path):
    class Owner(Data):
        def train_dataloader(self):
            return DataLoader(Samples(), batch_sampler=kind(64, self.batch_size))

    probe = run(CHANGES, tmp_path, source="datamodule", data=Owner()).probe
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    check_all_samples(probe)


class WithoutBatchSize(Sampler[list[int]]):
    """Keeps its batch size under a name of its own."""

    def __init__(self, n: int, width: int, drop_last: bool = False) -> None:
        self.n, self.width, self.drops = n, width, drop_last

    def __len__(self) -> int:
        return self.n // self.width if self.drops else math.ceil(self.n / self.width)

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, len(self) * self.width, self.width):
            yield list(range(first, min(first + self.width, self.n)))


def test_a_batch_sampler_without_batch_size_is_reloaded(tmp_path):
    class Owner(Data):
        def train_dataloader(self):
            return DataLoader(Samples(), batch_sampler=WithoutBatchSize(64, self.batch_size))

    _, scheduler, probe, _ = run(CHANGES, tmp_path, source="datamodule", data=Owner())
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    check_all_samples(probe)
    assert [record.batch_size for record in scheduler.history] == [8, 16, 4]
    assert all(record.gradient_norm is not None for record in scheduler.history)


@pytest.mark.parametrize("source", ["fit", "datamodule"])
def test_and_without_an_owner_it_is_refused(source, tmp_path):
    class Owner(Data):
        def train_dataloader(self):
            return DataLoader(Samples(), batch_sampler=WithoutBatchSize(64, 8))

    loader, data = DataLoader(Samples(), batch_sampler=WithoutBatchSize(64, 8)), Owner()
    with pytest.raises(MisconfigurationException, match="its batch sampler has no `batch_size`"):
        run(CHANGES, tmp_path, model=Refused(), loaders=loader, source=source, data=data, actuator="in_place")


def test_an_owner_that_ignores_its_attribute_and_whose_loader_tells_nothing(tmp_path):
    class Stubborn(Data):
        def train_dataloader(self):
            return DataLoader(Samples(), batch_sampler=WithoutBatchSize(64, 8))

    message = (
        "`Stubborn.train_dataloader` does not use `batch_size`: its loader has 8 batches with 8 and, reloaded, with 16"
    )
    with pytest.raises(MisconfigurationException, match=message):
        run(CHANGES, tmp_path, source="datamodule", data=Stubborn())


def test_an_owner_that_ignores_its_attribute_is_asked_once(tmp_path):
    class Stubborn(Data):
        def train_dataloader(self):
            self.built += 1
            return DataLoader(Samples(), batch_size=8)

    data = Stubborn()
    with pytest.warns(UserWarning, match="`Stubborn.train_dataloader` does not use `batch_size`"):
        probe = run(CHANGES, tmp_path, source="datamodule", data=data).probe
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    assert data.built == 2


def test_an_epoch_is_never_left_without_a_batch(tmp_path):
    class Owner(Data):
        def train_dataloader(self):
            return DataLoader(Samples(), batch_sampler=WithoutBatchSize(64, self.batch_size, drop_last=True))

    with pytest.raises(MisconfigurationException, match="No batch is left in an epoch"):
        run({0: 65}, tmp_path, source="datamodule", data=Owner())


# Without a batch sampler


class Prepared(IterableDataset):
    """Makes batches by itself."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.stack([torch.arange(64.0), torch.ones(64)], dim=1).split(self.size))


def test_a_loader_without_batching_is_reloaded(tmp_path):
    class Owner(Data):
        def train_dataloader(self):
            return DataLoader(Prepared(self.batch_size), batch_size=None)

    probe = run(CHANGES, tmp_path, source="datamodule", data=Owner()).probe
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    check_all_samples(probe)


def test_or_refused(tmp_path):
    with pytest.raises(MisconfigurationException, match="The batch size of `DataLoader` cannot be changed in place"):
        run(CHANGES, tmp_path, model=Refused(), loaders=DataLoader(Prepared(8), batch_size=None))


# Iterable data sets


class Stream(IterableDataset):
    """Without a length; shares its samples out among workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (torch.tensor([float(i), 1.0]) for i in range(first, 64, step))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return 64


@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined")
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("kind", [Stream, StreamWithLength])
def test_an_iterable_data_set(kind, workers, tmp_path):
    probe = run(CHANGES, tmp_path, loaders=DataLoader(kind(), batch_size=8, **workers)).probe
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    check_all_samples(probe)
    assert probe.training_batches == ([8, 4, 16] if kind is StreamWithLength else [math.inf] * 3)


@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined")
def test_workers_that_each_have_a_last_batch_are_cut_off_as_from_the_start(tmp_path):
    # PyTorch says 3 batches of 24 for 64 samples; two workers of 32 samples each give 24, 24, 8, 8. Lightning
    # ends the epoch at 3, whatever the batch size was before: a data set without `__len__` is trained on whole.
    def loader(size, kind=StreamWithLength):
        return DataLoader(kind(), batch_size=size, num_workers=2)

    changed = run({0: 24}, tmp_path / "changed", loaders=loader(8), max_epochs=2).probe
    from_the_start = run({}, tmp_path / "start", loaders=loader(24), max_epochs=1).probe
    without_length = run({0: 24}, tmp_path / "without", loaders=loader(8, Stream), max_epochs=2).probe
    assert changed.epochs[1][1:] == from_the_start.epochs[0][1:] == (24, 3, 56)
    assert without_length.epochs[1] == Epoch(1, 24, 4, 64)
    assert changed.validations == without_length.validations == [0, 1]


# Loaders side by side


class Several(Linear):
    """Takes whatever the loaders give, together."""

    def training_step(self, batch, batch_idx):
        return super().training_step(torch.cat(parts(batch)), batch_idx)


def parts(batch):
    parts = batch.values() if isinstance(batch, dict) else batch
    return [part for part in parts if part is not None]


class SideBySide(Probe):
    """Writes down the sizes of all loaders' batches, and an epoch's samples of each loader."""

    def __init__(self):
        super().__init__()
        self.side_by_side, self.drawn = [], []

    def on_train_epoch_start(self, trainer, module):
        self.side_by_side.append([])
        self.drawn.append([])

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        super().on_train_batch_start(trainer, module, parts(batch)[0], batch_idx)
        everything = list(batch.values()) if isinstance(batch, dict) else list(batch)
        self.side_by_side[-1].append(tuple(0 if part is None else len(part) for part in everything))
        self.drawn[-1].append([[] if part is None else part[:, 0].long().tolist() for part in everything])

    def samples(self, epoch, loader):
        return sorted(sample for batch in self.drawn[epoch] for sample in batch[loader])


def of_two(first=(64, 8), second=(24, 4)):
    return [DataLoader(Samples(n), batch_size=size, shuffle=True) for n, size in (first, second)]


@pytest.mark.parametrize("as_dict", [True, False])
def test_a_collection_of_loaders_keeps_its_proportion(as_dict, tmp_path):
    loaders = dict(zip("ab", of_two(), strict=True)) if as_dict else of_two()
    probe = run(CHANGES, tmp_path, loaders=loaders, model=Several(), probe=SideBySide()).probe
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    check_all_samples(probe)
    # Lightning begins the shorter one anew: 6 batches of 4, and 2 more.
    assert probe.side_by_side[0] == [(8, 4)] * 8
    assert probe.side_by_side[1] == [(16, 8)] * 4
    assert probe.side_by_side[2] == [(4, 2)] * 16
    assert set(probe.samples(1, loader=1)) == set(range(24))


def test_min_size_ends_with_the_shorter(tmp_path):
    loaders = CombinedLoader(of_two(), "min_size")
    probe = run(CHANGES, tmp_path, loaders=loaders, model=Several(), probe=SideBySide()).probe
    assert probe.side_by_side == [[(8, 4)] * 6, [(16, 8)] * 3, [(4, 2)] * 12]
    assert probe.validations == [0, 1, 2]
    assert probe.training_batches == [6, 3, 12]
    assert all(probe.samples(epoch, loader=1) == list(range(24)) for epoch in range(3))


def test_max_size_draws_each_sample_once(tmp_path):
    loaders = CombinedLoader(of_two(), "max_size")
    probe = run(CHANGES, tmp_path, loaders=loaders, model=Several(), probe=SideBySide()).probe
    assert probe.side_by_side == [
        [(8, 4)] * 6 + [(8, 0)] * 2,
        [(16, 8)] * 3 + [(16, 0)],
        [(4, 2)] * 12 + [(4, 0)] * 4,
    ]
    assert probe.validations == [0, 1, 2]
    for epoch in range(3):
        assert probe.samples(epoch, loader=0) == list(range(64))
        assert probe.samples(epoch, loader=1) == list(range(24))


def test_max_size_cycle_is_as_long_as_the_longer(tmp_path):
    loaders = CombinedLoader(of_two((24, 4), (64, 8)), "max_size_cycle")
    probe = run({0: 8, 1: 2}, tmp_path, loaders=loaders, model=Several(), probe=SideBySide()).probe
    assert probe.side_by_side == [[(4, 8)] * 8, [(8, 16)] * 4, [(2, 4)] * 16]
    assert probe.validations == [0, 1, 2]
    assert all(probe.samples(epoch, loader=1) == list(range(64)) for epoch in range(3))


def test_sequential_is_refused_by_lightning(tmp_path):
    loaders = CombinedLoader(of_two(), "sequential")
    with pytest.raises(ValueError, match='does not support the `CombinedLoader\\(mode="sequential"\\)` mode'):
        run(CHANGES, tmp_path, loaders=loaders, model=Refused())


def test_the_proportion_is_the_users_whatever_the_sizes_between(tmp_path):
    loaders = of_two((64, 8), (64, 3))
    probe = run({0: 4, 1: 2, 2: 1, 3: 16, 4: 8}, tmp_path, loaders=loaders, model=Several(), probe=SideBySide(),
                max_epochs=6).probe  # fmt: skip
    sizes = [max(epoch) for epoch in probe.side_by_side]
    assert sizes == [(8, 3), (4, 2), (2, 1), (1, 1), (16, 6), (8, 3)]
    assert [loader.batch_sampler.batch_size for loader in loaders] == [8, 3]


def test_one_loader_under_two_names_is_changed_once(tmp_path):
    loader = DataLoader(Samples(), batch_size=8)
    probe = run(CHANGES, tmp_path, loaders={"a": loader, "b": loader}, model=Several(), probe=SideBySide()).probe
    assert [set(epoch) for epoch in probe.side_by_side] == [{(8, 8)}, {(16, 16)}, {(4, 4)}]


def test_a_second_loader_that_cannot_be_changed_is_refused(tmp_path):
    loaders = [DataLoader(Samples(), batch_size=8), DataLoader(Prepared(8), batch_size=None)]
    with pytest.raises(MisconfigurationException, match="cannot be changed in place"):
        run(CHANGES, tmp_path, loaders=loaders, model=Refused())


def test_an_owner_of_several_loaders(tmp_path):
    class Owner(Data):
        def train_dataloader(self):
            return {"a": DataLoader(Samples(), self.batch_size), "b": DataLoader(Samples(24), self.batch_size // 2)}

    probe = run(CHANGES, tmp_path, source="datamodule", data=Owner(), model=Several(), probe=SideBySide()).probe
    assert [set(epoch) for epoch in probe.side_by_side] == [{(8, 4)}, {(16, 8)}, {(4, 2)}]
    assert probe.validations == [0, 1, 2]


@pytest.mark.parametrize(("mode", "granted"), [("max_size_cycle", 16), ("max_size", 16), ("min_size", 14)])
def test_an_integer_interval_of_validation_is_held_to_the_loader_that_ends_the_epoch(mode, granted, tmp_path):
    loaders = CombinedLoader(of_two((64, 8), (24, 4)), mode)
    _, scheduler, probe, _ = run({0: 16}, tmp_path, loaders=loaders, model=Several(), probe=SideBySide(),
                                 val_check_interval=4)  # fmt: skip
    assert scheduler.decisions[0].batch_size == granted
    assert probe.validations == {16: [0, 0, 1, 2], 14: [0, 1, 2]}[granted]


def test_the_smallest_size_is_compared_with_each_loaders_share(tmp_path):
    loaders = of_two((64, 16), (8, 2))
    probe = run({0: 32}, tmp_path, loaders=loaders, model=Several(), probe=SideBySide(), min_batch_size=16).probe
    assert [set(epoch) for epoch in probe.side_by_side] == [{(16, 2)}, {(32, 4)}, {(32, 4)}]


# A loader whose position is in the checkpoint


def stateful_loader(batch_size=8):
    from torchdata import stateful_dataloader as torchdata

    return torchdata.StatefulDataLoader(Samples(), batch_size=batch_size, shuffle=True)


class StatefulOwner(Data):
    def train_dataloader(self):
        return stateful_loader(self.batch_size)


def run_stateful(root, source, **settings):
    loaders = stateful_loader() if source == "fit" else None
    return run(CHANGES, root, source=source, loaders=loaders, data=StatefulOwner(), **settings)


@pytest.mark.parametrize("source", ["fit", "datamodule"])
def test_a_stateful_loader(source, tmp_path):
    probe = run_stateful(tmp_path, source).probe
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    check_all_samples(probe)


@pytest.mark.parametrize("actuator", ["auto", "in_place"])
@pytest.mark.parametrize("source", ["fit", "datamodule"])
@pytest.mark.parametrize(
    ("steps", "left"),
    [
        (3, [Epoch(0, 8, 5, 40), Epoch(1, 16, 4, 64), Epoch(2, 4, 16, 64)]),
        (8, [Epoch(1, 16, 4, 64), Epoch(2, 4, 16, 64)]),
        (10, [Epoch(1, 16, 2, 32), Epoch(2, 4, 16, 64)]),
        (12, [Epoch(2, 4, 16, 64)]),
        (15, [Epoch(2, 4, 13, 52)]),
    ],
)
def test_a_stateful_loader_goes_on_after_any_batch(steps, left, source, actuator, tmp_path):
    # Lightning alone loses the epoch after a checkpoint of an epoch's last batch: it puts the loader back to
    # that epoch's end, where the next one finds no batch.
    checkpoints = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    whole = run_stateful(tmp_path, source, actuator=actuator, neighbours=[checkpoints], enable_checkpointing=True)
    resumed = run_stateful(tmp_path, source, actuator=actuator, ckpt_path=tmp_path / f"step={steps}.ckpt")
    assert resumed.probe.epochs == left
    assert [r.samples for r in resumed.scheduler.history] == [64, 64, 64]
    for epoch, seen in resumed.probe.seen.items():
        before = len(whole.probe.seen[epoch]) - len(seen)
        assert sorted(whole.probe.seen[epoch][:before] + seen) == list(range(64))


# A step that takes its batches itself


@pytest.mark.filterwarnings("ignore:Found `dataloader_iter` argument", "ignore:You are using the `dataloader_iter`")
@pytest.mark.parametrize("source", ["fit", "datamodule"])
def test_a_step_that_draws_from_the_loader(source, tmp_path):
    class Draws(Linear):
        def __init__(self):
            super().__init__()
            self.sizes = {}

        def training_step(self, dataloader_iter):
            batch, _, _ = next(dataloader_iter)
            self.sizes.setdefault(self.current_epoch, []).append(len(batch))
            return self.layer(batch).square().mean()

    class Blind(Probe):
        def on_train_batch_start(self, *_):
            pass  # the batch is not drawn yet

    model = Draws()
    _, scheduler, probe, _ = run(CHANGES, tmp_path, source=source, model=model, probe=Blind())
    assert model.sizes == {0: [8] * 8, 1: [16] * 4, 2: [4] * 16}
    assert probe.validations == [0, 1, 2]
    assert [(r.batch_size, r.samples, r.optimizer_steps) for r in scheduler.history] == [
        (8, 64, 8),
        (16, 64, 4),
        (4, 64, 16),
    ]


# Loaders that are taught


class TokenBudget(Sampler[list[int]]):
    """Packs texts into batches of at most so many tokens; text `i` has `1 + i % 7` of them."""

    def __init__(self, n: int, max_tokens: int) -> None:
        self.n, self.max_tokens = n, max_tokens

    def __iter__(self) -> Iterator[list[int]]:
        batch, tokens = [], 0
        for i in range(self.n):
            if batch and tokens + 1 + i % 7 > self.max_tokens:
                yield batch
                batch, tokens = [], 0
            batch.append(i)
            tokens += 1 + i % 7
        yield batch

    def __len__(self) -> int:
        return sum(1 for _ in self)


class InTokens:
    """The adapter of the docstring of `BatchSizeAdapter`."""

    counts_samples = False

    def get(self, loader):
        return loader.batch_sampler.max_tokens

    def set(self, loader, micro_batch_size):
        loader.batch_sampler.max_tokens = micro_batch_size

    def len(self, loader):
        return len(loader)


def test_a_token_budget(tmp_path, recwarn):
    assert isinstance(InTokens(), BatchSizeAdapter)
    loader = DataLoader(Samples(), batch_sampler=TokenBudget(64, 32))
    _, scheduler, probe, _ = run({0: 128, 1: 16}, tmp_path, loaders=loader, actuator=InPlaceActuator(InTokens()))
    batches = [len(TokenBudget(64, tokens)) for tokens in (32, 128, 16)]
    assert batches == [9, 2, 18]
    assert probe.training_batches == batches
    assert [(e.epoch, e.batches, e.samples) for e in probe.epochs] == [(t, n, 64) for t, n in enumerate(batches)]
    assert probe.validations == [0, 1, 2]
    check_all_samples(probe)
    # In tokens, 128 is not more than the 64 samples, and no step is taken for a partial one.
    assert [(r.batch_size, r.samples, r.optimizer_steps) for r in scheduler.history] == [
        (tokens, 64, n) for tokens, n in zip((32, 128, 16), batches, strict=True)
    ]
    assert all(record.gradient_norm is not None for record in scheduler.history)
    assert not [warning for warning in recwarn if "first batch" in str(warning.message)]
    assert loader.batch_sampler.max_tokens == 32


class Rows:
    """A loader of the user's own, without any batch sampler."""

    def __init__(self, n: int, rows: int) -> None:
        self.dataset, self.rows = Samples(n), rows

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self.rows)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.stack([self.dataset[i] for i in range(len(self.dataset))]).split(self.rows))


class InRows:
    counts_samples = True

    def get(self, loader):
        return loader.rows

    def set(self, loader, micro_batch_size):
        loader.rows = micro_batch_size

    def len(self, loader):
        return len(loader)


def test_a_loader_of_ones_own(tmp_path):
    actuator = InPlaceActuator(InRows())
    _, scheduler, probe, _ = run({**CHANGES, 2: 100}, tmp_path, loaders=Rows(64, 8), actuator=actuator)
    assert probe.epochs == GROWN_THEN_SHRUNK
    assert probe.validations == [0, 1, 2]
    check_all_samples(probe)
    assert scheduler.decisions[2].limits == "the data set has 64 samples"


def test_an_adapter_must_be_one():
    with pytest.raises(TypeError, match="`adapter` must have the methods `get`, `set` and `len`"):
        InPlaceActuator("batch_size")


def test_a_stream_that_gives_less_than_a_batch_is_counted_as_it_is(tmp_path):
    with pytest.warns(UserWarning, match="has 64 samples, and the loader's batch size is 128: it gives no more"):
        history = run({0: 128}, tmp_path, loaders=DataLoader(Stream(), 8)).scheduler.history
    assert [record.samples for record in history] == [64, 64, 64]

"""Two processes on the CPU: they change in the same epoch, see every sample once between them, and never hang."""

from __future__ import annotations

import json
import os
from functools import partial
from itertools import chain, product
from unittest.mock import patch

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from lightning_deba import statistics
from lightning_deba.meter import EpochMeter
from tests.processes import Processes
from tests.runs import Data, Linear, ModuleWithLoader, Samples, run
from tests.test_memory import Device
from tests.trials import test_noise_scale as noise_trials
from tests.trials.test_gradients import Net

RANK = int(os.environ.get("RANK", "0"))
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    return Processes(__name__, tmp_path_factory.mktemp("processes"))


def run_here(after, root, **settings):
    """A run of two ranks, seen from one of them. The loader's batch size is 8, so that of a step is 16."""
    _, scheduler, probe, _ = run(after, root, **{"strategy": "ddp", "devices": 2, **settings})
    return {
        "epochs": probe.epochs,
        "seen": list(probe.seen.values()),
        "validations": probe.validations,
        "training_batches": probe.training_batches,
        "sizes": [record.batch_size for record in scheduler.history],
        "steps": [record.optimizer_steps for record in scheduler.history],
        "skipped": [record.skipped_steps for record in scheduler.history],
        "history": [
            [*vars_of(record), record.loss, record.gradient_norm, record.component_variance]
            for record in scheduler.history
        ],
        "decisions": [[d.proposed, d.batch_size, d.reason, d.limits] for d in scheduler.decisions],
    }


def vars_of(record):
    return record.epoch, record.batch_size, record.micro_batch_size, record.world_size, record.samples


def agreeing(ranks):
    """Returns what the first rank tells, once it is sure that no rank has failed and all tell the same history."""
    assert not [rank["error"] for rank in ranks if "error" in rank]
    for rank in ranks[1:]:
        assert rank["history"] == ranks[0]["history"]
        assert rank["decisions"] == ranks[0]["decisions"]
    return ranks[0]


def check(ranks, expected, samples=64):
    """Compares with the batch sizes and steps of each epoch, and counts every sample of both ranks."""
    told = agreeing(ranks)
    assert list(zip(told["sizes"], told["steps"], strict=True)) == expected
    for rank in ranks:
        assert rank["epochs"] == [[t, size // 2, steps, samples // 2] for t, (size, steps) in enumerate(expected)]
        assert rank["training_batches"] == [steps for _, steps in expected]
        assert rank["validations"] == list(range(len(expected)))
    for seen in zip(*(rank["seen"] for rank in ranks), strict=True):
        assert sorted(chain(*seen)) == list(range(samples))


def refusals(ranks):
    """Returns the message that all ranks have stopped with."""
    assert all("error" in rank for rank in ranks), ranks
    assert len({rank["error"] for rank in ranks}) == 1
    return ranks[0]["error"]


# The change itself

CHANGES = {
    "grow": ({0: 32}, [(16, 4), (32, 2), (32, 2)]),
    "shrink": ({0: 8}, [(16, 4), (8, 8), (8, 8)]),
    "both": ({0: 32, 1: 8}, [(16, 4), (32, 2), (8, 8)]),
}
TWO = {"num_workers": 2, "multiprocessing_context": "forkserver"}
WORKERS = {"0": {}, "2": TWO, "persistent": TWO | {"persistent_workers": True}}
ACTUATORS = [("fit", "in_place"), *product(["module", "datamodule"], ["reload", "in_place"])]
CASES = {
    "-".join((change, source, actuator, workers)): (change, source, actuator, workers)
    for change, (source, actuator), workers in product(CHANGES, ACTUATORS, WORKERS)
    if workers == "0" or change == "both"
}


def changing(root, change, source, actuator, workers):
    return run_here(CHANGES[change][0], root, source=source, actuator=actuator, loader_args=WORKERS[workers])


SCENARIOS |= {name: partial(lambda root, case: changing(root, *case), case=case) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_both_ranks_change_in_the_same_epoch_and_lose_nothing(name, processes):
    change, *_ = CASES[name]
    check(processes.results(name), CHANGES[change][1])
    assert len((processes.root / name / "history.jsonl").read_text().splitlines()) == 3


@scenario
def with_a_logger(root):
    told = run_here({0: 32}, root, logger=CSVLogger(root))
    return told | {"files": sorted(str(path.relative_to(root)) for path in root.rglob("history.jsonl"))}


def test_the_history_is_written_by_one_rank(processes):
    ranks = processes.results("with_a_logger")
    check(ranks, CHANGES["grow"][1])
    directory = processes.root / "with_a_logger" / "lightning_logs"
    (path,) = directory.rglob("history.jsonl")
    assert [json.loads(line)["batch_size"] for line in path.read_text().splitlines()] == [16, 32, 32]


@scenario
def accumulated(root):
    return run_here({0: 64}, root, accumulate_grad_batches=2)


def test_the_batch_size_counts_all_ranks_and_micro_batches(processes):
    told = agreeing(processes.results("accumulated"))
    assert (told["sizes"], told["steps"]) == ([32, 64, 64], [2, 1, 1])
    assert [epoch[1:3] for epoch in told["epochs"]] == [[8, 4], [16, 2], [16, 2]]


class OneMoreForEachRank(IterableDataset):
    """11 samples on the first rank, 12 on the second."""

    def __iter__(self):
        yield from (torch.tensor([float(i), 1.0]) for i in range(11 + RANK))


@scenario
def uneven(root):
    torch.manual_seed(0)
    loader = DataLoader(OneMoreForEachRank(), batch_size=8)
    settings = {"strategy": "ddp", "devices": 2, "accumulate_grad_batches": 2, "max_epochs": 2}
    return run({}, root, model=Linear(lr=1e-3), loaders=loader, **settings).model.layer.weight.tolist()


def test_ranks_with_uneven_last_batches_take_the_same_step(processes):
    first, second = processes.results("uneven")
    assert first == second
    torch.manual_seed(0)
    layer = Linear().layer
    samples = torch.tensor([[float(i), 1.0] for rank in (0, 1) for i in range(11 + rank)])
    for _ in range(2):
        layer.zero_grad()
        layer(samples).square().mean().backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter -= 1e-3 * parameter.grad
    torch.testing.assert_close(torch.tensor(first), layer.weight.detach())


@scenario
def budget(root):
    # Four batches a rank, and so the last window has one.
    budget = {"max_samples": 64}
    return run_here({}, root, source="datamodule", accumulate_grad_batches=3, scheduler_args=budget)


def test_a_budget_counts_the_short_last_window(processes):
    told = agreeing(processes.results("budget"))
    assert [row[4] for row in told["history"]] == [64]


@scenario
def capped(root):
    return run_here({0: 64}, root, source="datamodule", scheduler_args={"max_micro_batch_size": 8})


def test_a_cap_holds_on_every_rank(processes):
    ranks = processes.results("capped")
    told = agreeing(ranks)
    assert (told["sizes"], told["steps"]) == ([16, 64, 64], [4, 1, 1])
    assert [rank["epochs"] for rank in ranks] == [[[0, 8, 4, 32], [1, 8, 4, 32], [2, 8, 4, 32]]] * 2


class UsesMemory(Linear):
    """The second rank's device is full at a micro-batch of 17; ours would take 90."""

    def __init__(self):
        super().__init__()
        self.device_memory = Device(fixed=0, per_sample=10, total=190 if RANK else 1000)

    def training_step(self, batch, batch_idx):
        self.device_memory.train(len(batch))
        return super().training_step(batch, batch_idx)


@scenario
def forecast(root):
    model = UsesMemory()
    with patch("lightning_deba.memory.reader_for", lambda _: model.device_memory):
        return run_here({0: 64}, root, model=model, source="datamodule")


def test_the_forecast_is_that_of_the_rank_with_the_least_memory(processes):
    told = agreeing(processes.results("forecast"))
    assert (told["sizes"], told["steps"]) == ([16, 64, 64], [4, 1, 1])
    assert [epoch[1] for epoch in told["epochs"]] == [8, 16, 16]


@scenario
def odd_samples(root):
    return run_here({0: 32}, root, loaders=DataLoader(Samples(65), batch_size=8, shuffle=True))


def test_with_an_odd_number_of_samples_each_rank_takes_as_many_steps(processes):
    """The sampler gives each rank 33 of 65 samples, one of them to both."""
    ranks = processes.results("odd_samples")
    told = agreeing(ranks)
    assert (told["sizes"], told["steps"]) == ([16, 32, 32], [5, 3, 3])
    assert [rank["epochs"] for rank in ranks] == [[[0, 8, 5, 33], [1, 16, 3, 33], [2, 16, 3, 33]]] * 2
    for seen in zip(*(rank["seen"] for rank in ranks), strict=True):
        assert set(chain(*seen)) == set(range(65))


class Normalized(Linear):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


@scenario
def batch_norm(root):
    return run_here({0: 20}, root, model=Normalized(), loaders=DataLoader(Samples(101), batch_size=8))


def test_the_last_batch_of_a_rank_is_never_one_sample(processes):
    told = agreeing(processes.results("batch_norm"))
    assert told["decisions"][0][:2] in ([20, 18], [20, 22])  # 51 samples a rank: ten a batch would leave one
    assert "BatchNorm" in told["decisions"][0][3]


@scenario
def stopped_by_samples(root):
    return run_here({0: 32}, root, scheduler_args={"max_samples": 96})


def test_the_ranks_stop_at_the_same_sample(processes):
    told = agreeing(processes.results("stopped_by_samples"))
    assert told["steps"] == [4, 1]


# Deciding


class OneNaN(Callback):
    def on_after_backward(self, trainer, module):
        if trainer.global_rank == 1 and trainer.global_step == 2:
            module.layer.weight.grad.fill_(float("nan"))


@scenario
def one_rank_has_a_nan(root):
    return run_here({0: 32}, root, neighbours=[OneNaN()])


def test_a_nan_on_one_rank_leads_to_one_decision(processes):
    told = agreeing(processes.results("one_rank_has_a_nan"))
    assert (told["sizes"], told["steps"]) == ([16, 32, 32], [4, 2, 2])


@scenario
def another_wish_on_each_rank(root):
    return run_here({0: (32, 8)[RANK]}, root)


def test_the_ranks_obey_the_first_one(processes):
    check(processes.results("another_wish_on_each_rank"), CHANGES["grow"][1])


class Wish(dict):
    """Parameters of a policy that cannot be written as JSON, which one rank alone would find out."""

    def __init__(self, *_):
        super().__init__({0: 32, "why": torch.sigmoid})


@scenario
def a_policy_with_a_function(root):
    return run_here(Wish(), root)


def test_what_one_rank_writes_does_not_part_it_from_the_others(processes):
    check(processes.results("a_policy_with_a_function"), CHANGES["grow"][1])
    described = json.loads((processes.root / "a_policy_with_a_function" / "run.json").read_text())
    assert "sigmoid" in described["policy"]["parameters"]["after"]["why"]


# Batch samplers


class Sorted(BatchSampler):
    """The user's own, which Lightning makes anew around its `DistributedSampler`."""

    def __iter__(self):
        yield from map(sorted, super().__iter__())


class Shares:
    """The user's own, which knows of ranks."""

    def __init__(self, batch_size, samples=64):
        self.batch_size, self.samples = batch_size, range(RANK, samples, 2)

    def __iter__(self):
        for first in range(0, len(self.samples), self.batch_size):
            yield list(self.samples[first : first + self.batch_size])

    def __len__(self):
        return -(-len(self.samples) // self.batch_size)


@scenario
def own_batch_sampler(root):
    loader = DataLoader(Samples(), batch_sampler=Sorted(SequentialSampler(Samples()), 8, False))
    return run_here({0: 32, 1: 8}, root, loaders=loader)


@scenario
def own_batch_sampler_for_ranks(root):
    loader = DataLoader(Samples(), batch_sampler=Shares(8))
    return run_here({0: 32, 1: 8}, root, loaders=loader, use_distributed_sampler=False)


@scenario
def own_batch_sampler_that_cannot_be_shared(root):
    return run_here({0: 32, 1: 8}, root, loaders=DataLoader(Samples(), batch_sampler=Shares(8)))


def test_an_own_batch_sampler_is_kept_and_changed(processes):
    ranks = processes.results("own_batch_sampler")
    check(ranks, CHANGES["both"][1])
    first, *_ = ranks[0]["seen"][1:]
    assert [first[:16], first[16:]] == [sorted(first[:16]), sorted(first[16:])] != [first, []]
    check(processes.results("own_batch_sampler_for_ranks"), CHANGES["both"][1])


def test_an_own_batch_sampler_that_lightning_cannot_share_is_refused_by_it(processes):
    assert "use_distributed_sampler=False" in refusals(processes.results("own_batch_sampler_that_cannot_be_shared"))


# Ranks that differ


class Refused(Linear):
    def training_step(self, batch, batch_idx):
        raise AssertionError("trained before refusing")


@scenario
def another_size_on_each_rank(root):
    return run_here({0: 32}, root, model=Refused(), loaders=DataLoader(Samples(), batch_size=(8, 4)[RANK]))


@scenario
def another_size_on_each_rank_of_a_module(root):
    class OfRank(ModuleWithLoader, Refused):
        pass

    return run_here({0: 32}, root, source="module", model=OfRank(batch_size=(8, 4)[RANK]))


def test_another_batch_size_on_each_rank_is_refused(processes):
    for name in ("another_size_on_each_rank", "another_size_on_each_rank_of_a_module"):
        message = refusals(processes.results(name))
        assert "MisconfigurationException: The ranks' training loaders have different batch sizes: 8, 4" in message


@scenario
def more_samples_on_one_rank(root):
    loader = DataLoader(Samples((64, 60)[RANK]), batch_size=8)
    return run_here({0: 32}, root, model=Refused(), loaders=loader, use_distributed_sampler=False)


def test_more_samples_on_one_rank_are_refused(processes):
    """Both have eight batches of eight, but not as many of every size."""
    message = refusals(processes.results("more_samples_on_one_rank"))
    assert "have 8, 8 batches and 64, 60 samples" in message
    assert "`use_distributed_sampler=True`" in message


class Parting(Data):
    """Gives one rank more, once it is asked again."""

    def train_dataloader(self):
        loader = super().train_dataloader()
        if self.built > 1 and RANK == 1:
            loader = DataLoader(Samples(80), batch_size=self.batch_size)
        return loader


@scenario
def more_samples_on_one_rank_after_a_reload(root):
    settings = {"use_distributed_sampler": False, "source": "datamodule", "data": Parting()}
    return run_here({0: 32}, root, **settings)


def test_more_samples_on_one_rank_after_a_reload_are_refused(processes):
    message = refusals(processes.results("more_samples_on_one_rank_after_a_reload"))
    assert "have 4, 5 batches and 64, 80 samples" in message


# Resume


def resuming(root, source):
    checkpoints = ModelCheckpoint(root, save_top_k=-1, filename="{epoch}")
    settings = {"source": source, "max_epochs": 4}
    after = {0: 32, 2: 8}
    whole = run_here(after, root / "whole", neighbours=[checkpoints], enable_checkpointing=True, **settings)
    resumed = [
        run_here(after, root / f"from{epoch}", ckpt_path=root / f"epoch={epoch}.ckpt", **settings)
        for epoch in (0, 1, 2)
    ]
    return {"whole": whole, "resumed": resumed}


RESUMING = {f"resume-{source}": source for source in ("fit", "datamodule")}
SCENARIOS |= {name: partial(resuming, source=source) for name, source in RESUMING.items()}


@pytest.mark.parametrize("name", RESUMING)
def test_a_resumed_run_goes_on_with_the_size_on_all_ranks(name, processes):
    ranks = processes.results(name)
    whole = agreeing([rank["whole"] for rank in ranks])
    assert (whole["sizes"], whole["steps"]) == ([16, 32, 32, 8], [4, 2, 2, 8])
    for epoch in (0, 1, 2):
        parts = [rank["resumed"][epoch] for rank in ranks]
        told = agreeing(parts)
        assert (told["sizes"], told["steps"]) == (whole["sizes"], whole["steps"])
        for rank, part in zip(ranks, parts, strict=True):
            assert part["epochs"] == rank["whole"]["epochs"][epoch + 1 :]
        for seen in zip(*(part["seen"] for part in parts), strict=True):
            assert sorted(chain(*seen)) == list(range(64))


# Gradients


def in_order(batch_size):
    return DataLoader(Samples(), batch_size=batch_size)


def shared(model, root, **settings):
    """Trains with a loader that gives each rank every second sample, in their order: Lightning's would shuffle."""
    settings = {"loaders": DataLoader(Samples(), batch_sampler=Shares(8)), **settings}
    return run_here({0: 32}, root, model=model, max_epochs=2, use_distributed_sampler=False, **settings)


def alone(model, root, batch_size=16):
    """The same training in one process."""
    return run({0: 32}, root, model=model, max_epochs=2, loaders=in_order(batch_size)).scheduler.history


def close_to(history, expected):
    signals = [[record.loss, record.gradient_norm, record.component_variance] for record in expected]
    assert [record[-3:] for record in history] == [pytest.approx(of_one, rel=1e-5) for of_one in signals]


@scenario
def averaged(root):
    return shared(Net(lr=0.1), root)


def test_an_averaged_gradient_is_that_of_the_whole_batch(processes, tmp_path):
    """A step has the same samples as in one process."""
    told = agreeing(processes.results("averaged"))
    close_to(told["history"], alone(Net(lr=0.1), tmp_path))


class Quiet(Net):
    def on_before_optimizer_step(self, optimizer):
        pass  # torch cannot flatten an unevenly sharded tensor


class Sharded(Quiet):
    """Its last layer has one row, which one of two ranks holds; of the first one's five, one rank holds three."""

    def __init__(self):
        super().__init__(lr=0.1)
        self.layer = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))

    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        if self.device_mesh is not None:
            for part in (self.layer[0], self.layer):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])


class Split(Quiet):
    """Each rank holds half of the hidden units, and all of the last bias."""

    def __init__(self):
        super().__init__(lr=0.1)

    def configure_model(self):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(self.layer, self.device_mesh["tensor_parallel"], plan)


class Whole(Sharded):
    def configure_model(self):
        pass


def parallel(data, tensor):
    return ModelParallelStrategy(data_parallel_size=data, tensor_parallel_size=tensor)


@scenario
def sharded(root):
    return shared(Sharded(), root, strategy=parallel(2, 1))


def test_under_fsdp2_the_signals_are_those_of_one_process(processes, tmp_path):
    told = agreeing(processes.results("sharded"))
    assert (told["sizes"], told["steps"]) == ([16, 32], [4, 2])
    close_to(told["history"], alone(Whole(), tmp_path))


class OneNaNInAShard(Callback):
    def on_after_backward(self, trainer, module):
        if trainer.global_rank == 1 and trainer.current_epoch == 0 and trainer.global_step == 3:
            module.layer[0].weight.grad.to_local().fill_(float("nan"))


@scenario
def one_shard_has_a_nan(root):
    return shared(Sharded(), root, neighbours=[OneNaNInAShard()], strategy=parallel(2, 1))


def test_a_nan_in_one_shard_is_one_on_all_ranks(processes):
    told = agreeing(processes.results("one_shard_has_a_nan"))
    assert told["sizes"] == [16, 32]
    assert told["skipped"] == [1, 2]  # and then the parameters have it


@scenario
def resumed_sharded(root):
    checkpoints = ModelCheckpoint(root, save_top_k=-1, filename="{epoch}")
    settings = {"strategy": parallel(2, 1), "enable_checkpointing": True}
    whole = shared(Sharded(), root / "whole", neighbours=[checkpoints], **settings)
    settings = {"strategy": parallel(2, 1), "ckpt_path": root / "epoch=0.ckpt"}
    return {"whole": whole, "resumed": shared(Sharded(), root / "resumed", **settings)}


def test_a_resumed_sharded_run_goes_on_with_the_size(processes):
    ranks = processes.results("resumed_sharded")
    whole, resumed = (agreeing([rank[part] for rank in ranks]) for part in ("whole", "resumed"))
    assert resumed["epochs"] == whole["epochs"][1:] == [[1, 16, 2, 32]]
    assert resumed["history"] == [pytest.approx(record) for record in whole["history"]]


@scenario
def split(root):
    return shared(Split(), root, loaders=in_order(8), strategy=parallel(1, 2))


def test_ranks_that_share_their_samples_count_them_once(processes, tmp_path):
    ranks = processes.results("split")
    told = agreeing(ranks)
    assert (told["sizes"], told["steps"]) == ([8, 32], [8, 2])
    assert [record[:5] for record in told["history"]] == [[0, 8, 8, 1, 64], [1, 32, 32, 1, 64]]
    assert ranks[0]["seen"] == ranks[1]["seen"]
    close_to(told["history"], alone(Net(lr=0.1), tmp_path, batch_size=8))


def sharded_gradients():
    """Returns gradients whole, and as they lie on the ranks: by name, with how many all-reduces they need."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

    chance = torch.Generator().manual_seed(0)
    whole = [torch.randn(shape, generator=chance) + 0.3 for shape in [(7, 5), (1,), (3, 4), (2, 1, 3)]]
    line, tall, wide = (init_device_mesh("cpu", shape) for shape in [(2,), (2, 1), (1, 2)])

    def laid(mesh, *placements):
        return [distribute_tensor(tensor, mesh, placements) for tensor in whole]

    halves = [DTensor.from_local(tensor * (RANK + 1) / 3, line, [Partial()]) for tensor in whole]
    return whole, {
        "rows": (laid(line, Shard(0)), 1),
        "whole": (laid(line, Replicate()), 0),
        "copies of rows": (laid(tall, Replicate(), Shard(0)), 1),
        "rows in one copy": (laid(wide, Replicate(), Shard(0)), 1),
        "split twice": (laid(wide, Shard(0), Shard(0)), 2),
        "rows and columns": (laid(tall, Shard(0), Replicate())[:2] + laid(line, Shard(0))[2:], 2),
        "plain among rows": ([whole[0], *laid(line, Shard(0))[1:3], whole[3]], 1),
        "one component": (laid(line, Shard(0))[1:2], 1),
        "summands": (halves, 0),
        "half precision": ([tensor.bfloat16() for tensor in laid(line, Shard(0))], 1),
    }


def statistics_of(gradients):
    return [
        statistics.component_count(gradients),
        statistics.component_sum(gradients).item(),
        statistics.gradient_norm(gradients).item(),
        statistics.component_variance(gradients).item(),
    ]


@scenario
def distributed_tensors(root):
    whole, cases = sharded_gradients()
    return {name: statistics_of(gradients) for name, (gradients, _) in cases.items()} | {
        "expected": statistics_of(whole),
        "expected of one component": statistics_of(whole[1:2]),
    }


def test_statistics_of_sharded_gradients_are_those_of_the_whole(processes):
    ranks = processes.results("distributed_tensors")
    assert not [rank["error"] for rank in ranks if "error" in rank]
    for rank in ranks:
        whole, one = rank.pop("expected"), rank.pop("expected of one component")
        for name, found in rank.items():
            expected = one if name == "one component" else whole
            assert found == pytest.approx(expected, rel=1e-2 if name == "half precision" else 1e-6, abs=1e-12), name


@scenario
def all_reduces(root):
    counts, all_reduce = {}, torch.distributed.all_reduce
    for name, (gradients, expected) in sharded_gradients()[1].items():
        calls = []
        statistics.distributed.all_reduce = lambda *args, **kwargs: calls.append(all_reduce(*args, **kwargs))  # noqa: B023
        statistics.squared_norm(gradients)
        counts[name] = [len(calls), expected]
    statistics.distributed.all_reduce = all_reduce
    return counts


def test_a_sharded_gradient_needs_one_all_reduce(processes):
    for rank in processes.results("all_reduces"):
        for name, (found, expected) in rank.items():
            assert found == expected, name


@scenario
def ranks_that_differ_in_what_is_whole(root):
    """The last step of an epoch may be a partial one for one rank alone."""
    gradients, _ = sharded_gradients()[1]["rows"]
    meter = EpochMeter(mean_every=2)
    for step in range(4):
        meter.count(8 if step < 3 or RANK == 0 else 5)
        meter.step(gradients, full_step=8)
    return meter.gradients.compute()


def test_a_step_that_counts_on_one_rank_alone_does_not_hang(processes):
    here, there = processes.results("ranks_that_differ_in_what_is_whole")
    assert (here[2], there[2]) == (4, 3)
    assert here[:2] == pytest.approx(there[:2])


# The noise scale


def noise_of(root, model=None, **settings):
    scheduler = noise_trials.fitted(
        root, **{"model": model, "devices": 2, "strategy": "ddp", "batch_size": 16, "max_epochs": 4, **settings}
    )
    return {
        "mode": scheduler._noise.meter.mode,
        "noise": [[r.gradient_squared, r.gradient_covariance] for r in scheduler.history],
    }


def check_noise(ranks, mode):
    assert not [rank["error"] for rank in ranks if "error" in rank]
    assert ranks[0] == ranks[1]
    assert ranks[0]["mode"] == mode
    squared, covariance = (sum(column) for column in zip(*ranks[0]["noise"], strict=True))
    assert covariance / squared == pytest.approx(noise_trials.TRUTH, rel=0.05)


class Weights(nn.Module):
    """The weights of a `Pulled`, in a module whose forward pass gathers them."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self):
        return torch.cat(list(self.parts))


class ShardedAndPulled(noise_trials.Pulled):
    def __init__(self):
        super().__init__()
        self.weights = Weights(self.weights)

    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        fully_shard(self.weights, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, batch_idx):
        assert all(part.to_local().numel() == part.numel() // 2 for part in self.parameters())
        return (self.weights() - batch).square().sum(1).mean() / 2


@scenario
def noise_sharded(root):
    return noise_of(root, ShardedAndPulled(), strategy=parallel(2, 1))


SCENARIOS |= {
    "noise_of_ranks": noise_of,
    "noise_accumulated": partial(noise_of, accumulate_grad_batches=2, batch_size=8),
}


def test_the_noise_scale_of_sharded_gradients_comes_from_steps(processes):
    check_noise(processes.results("noise_sharded"), "consecutive")


@pytest.mark.parametrize("name", ["noise_of_ranks", "noise_accumulated"])
def test_the_noise_scale_comes_from_the_ranks_own_gradients(name, processes):
    check_noise(processes.results(name), "ranks")

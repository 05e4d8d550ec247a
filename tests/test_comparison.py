"""A comparison: a grid of real runs, its measures against oracles, and what survives a kill."""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import os
import signal
import statistics
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Trainer

from lightning_deba import DEBA, BatchSizeScheduler, EpochRecord, Hold, read_history
from lightning_deba.baseline import fit_once
from lightning_deba.cli import comparing
from lightning_deba.comparison import (
    Arm,
    BSScheduler,
    Comparison,
    Grid,
    Interval,
    Job,
    Outcome,
    Run,
    compare,
    execute,
    interval_of_median,
    load_runs,
    measure,
    summarize,
    verdict,
    write_csv,
)
from lightning_deba.comparison.job import model_and_data, scheduler_of
from lightning_deba.comparison.measures import area_under, reached
from lightning_deba.comparison.watch import HookClock, Watch
from lightning_deba.policies import AdaBatch, Chain
from lightning_deba.vision import DigitsDataModule, ImageClassifier
from tests.datasets import write_cifar

CONFIGS = Path(__file__).parents[1] / "configs" / "compare"
HOLD = {"class_path": "lightning_deba.Hold"}
IMAGES = {"train_samples": 64, "val_samples": 20, "image_size": 16}
TINY = {"class_path": "lightning_deba.vision.ImageClassifier", "init_args": {"model_name": "test_resnet", "lr": 0.01}}
EPOCHS = 3


def grid(arms=None, models=None, **changes) -> Grid:
    given_ = {
        "models": models or {"tiny": TINY},
        "data": {"class_path": "lightning_deba.vision.DigitsDataModule", "init_args": IMAGES},
        "arms": arms or {"fixed": {"batch_size": 16, "policy": HOLD}},
        "seeds": 1,
        "epochs": EPOCHS,
        "trainer_args": {"accelerator": "cpu"},
    }
    return Grid.from_dict({**given_, **changes})


class Fragile(ImageClassifier):
    """Dies as if its process were killed, once, at the start of an epoch; it notes each epoch that it begins."""

    def __init__(self, diary: str = "", dies_at: int = -1, fails: bool = False, in_chans: int = 1) -> None:
        super().__init__("test_resnet", 10, in_chans, lr=0.01)
        self.diary, self.dies_at, self.fails = diary, dies_at, fails

    def on_train_epoch_start(self) -> None:
        if self.fails:
            raise RuntimeError("no such\n luck")
        begun = Path(self.diary).read_text().split() if Path(self.diary).exists() else []
        Path(self.diary).write_text(" ".join([*begun, str(self.current_epoch)]))
        if self.current_epoch == self.dies_at and str(self.dies_at) not in begun:
            os.kill(os.getpid(), signal.SIGKILL)


# Real runs


def test_a_run_equals_a_single_fit(tmp_path):
    arms = {"fixed": {"batch_size": 16, "policy": HOLD}, "doubles": {"batch_size": 8, "policy": AdaBatch(every=1)}}
    found = compare(grid(arms), tmp_path / "grid", workers=0)
    assert found.failures == []
    for run, policy, size in zip(found.runs, (Hold(), AdaBatch(every=1)), (16, 8), strict=True):
        history = fit_once(
            lambda: ImageClassifier("test_resnet", in_chans=1, lr=0.01),
            DigitsDataModule(batch_size=size, **IMAGES),
            BatchSizeScheduler(policy, min_batch_size=size),
            epochs=EPOCHS,
            seed=0,
            directory=tmp_path / run.arm,
            # Validation is part of it: its loader, too, draws from the global generator.
            trainer_args={"accelerator": "cpu", "limit_val_batches": 1.0, "num_sanity_val_steps": 0},
        )
        kept = read_history(tmp_path / "grid" / "runs" / "tiny" / run.arm / "seed-0").history
        assert [replace(record, seconds=0) for record in kept] == [replace(record, seconds=0) for record in history]
        assert run.batch_sizes == [record.batch_size for record in history]
        assert run.seconds == [record.seconds for record in kept]
        assert len(run.accuracies) == len(run.processor_seconds) == EPOCHS
        assert all(seconds > 0 for seconds in run.processor_seconds)
        assert 0 < run.callback_seconds < sum(run.processor_seconds)
        assert run.test_accuracy is not None
        assert 0 <= run.test_accuracy <= 1
    assert [row.final_batch_size for row in found.rows] == [16, 32]


def test_a_preset_is_changed_in_what_the_arm_says(tmp_path):
    arms = {"eager": {"batch_size": 16, "changes": {"cooldown": 0, "window": None}}, "odd": {"batch_size": 16}}
    arms["odd"]["changes"] = {"patience": 3}
    found = compare(grid(arms), tmp_path, workers=0)
    told = json.loads((tmp_path / "runs/tiny/eager/seed-0/run.json").read_text())
    policy = str(told["policy"])
    assert "0.779" in policy
    assert "0.258" in policy
    (failure,) = found.failures
    assert "`changes` of arm 'odd' do not fit" in failure.error


@pytest.fixture(scope="module")
def accident(tmp_path_factory):
    """A grid in a process of its own, in which one run is killed and one fails; then the same call once more."""
    root = tmp_path_factory.mktemp("accident")
    model = {"class_path": "tests.test_comparison.Fragile"}
    arms = {
        "dies": {"batch_size": 16, "policy": HOLD, "model": {"diary": str(root / "dies"), "dies_at": 2}},
        "fails": {"batch_size": 16, "policy": HOLD, "model": {"fails": True}},
        "lives": {"batch_size": 16, "policy": HOLD, "model": {"diary": str(root / "lives")}},
    }
    wanted = grid(arms, {"fragile": model}, baseline="lives")
    first = compare(wanted, root, workers=1)
    before = {path: path.stat().st_mtime_ns for path in root.glob("runs/fragile/lives/seed-0/*")}
    told: list[Outcome] = []
    second = compare(wanted, root, workers=1, on_outcome=told.append)
    return root, first, second, before, told


def test_a_killed_process_and_a_failing_arm_cost_their_runs_alone(accident):
    root, first, _, _, _ = accident
    assert [run.arm for run in first.runs] == ["lives"]
    assert {outcome.job.arm: outcome.error for outcome in first.failures} == {
        "dies": "the process died, exit code -9",
        "fails": "RuntimeError: no such luck",
    }
    assert (root / "runs/fragile/fails/seed-0/error.txt").read_text() == "RuntimeError: no such luck\n"


def test_an_interrupted_grid_goes_on_and_repeats_nothing(accident):
    root, _, second, before, told = accident
    assert [run.arm for run in second.runs] == ["dies", "lives"]
    assert [outcome.job.arm for outcome in second.failures] == ["fails"]
    assert (root / "dies").read_text() == "0 1 2 2"
    assert (root / "lives").read_text() == "0 1 2"
    assert before == {path: path.stat().st_mtime_ns for path in root.glob("runs/fragile/lives/seed-0/*")}
    assert len(before) >= 3
    assert sorted(outcome.job.arm for outcome in told) == ["dies", "fails", "lives"]
    assert not (root / "runs/fragile/dies/seed-0/error.txt").exists()
    assert not list(root.rglob("*.ckpt"))


def test_what_was_resumed_has_every_epoch_once(accident):
    _, _, second, _, _ = accident
    dies, lives = second.runs
    assert (dies.samples, dies.steps) == (lives.samples, lives.steps)
    assert len(dies.accuracies) == len(dies.processor_seconds) == len(dies.seconds) == EPOCHS
    # Up to the kill it is the same run.
    assert dies.accuracies[:2] == lives.accuracies[:2]


def test_the_overhead_is_that_of_the_callback_s_hooks(monkeypatch):
    clock, seconds = HookClock("BatchSizeScheduler"), iter([10.0, 10.5, 20.0, 22.0])
    monkeypatch.setattr(time, "process_time", lambda: next(seconds))
    for action in (
        "[Callback]BatchSizeScheduler.on_train_batch_end",
        "[Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end",
        "run_training_batch",
        "[Callback]BatchSizeScheduler.on_train_epoch_end",
    ):
        with clock.profile(action):
            pass
    assert clock.seconds == 0.5 + 2.0


def test_what_a_job_has_noted_is_gone_on_with():
    watch, resumed = Watch("val/accuracy"), Watch("val/accuracy")
    watch.accuracies, watch.processor_seconds, watch.callback_seconds = [0.5], [2.0], 0.1
    resumed.load_state_dict(watch.state_dict())
    assert resumed.state_dict() == watch.state_dict()
    assert resumed.callback_seconds == 0.1


def test_a_profiler_of_the_grid_s_own_is_left_to_it(tmp_path):
    wanted = grid(epochs=1, trainer_args={"accelerator": "cpu", "profiler": "simple"})
    found = compare(wanted, tmp_path, workers=0)
    assert [(run.callback_seconds, row.overhead) for run, row in zip(found.runs, found.rows, strict=True)] == [
        (None, None)
    ]
    assert "overhead" not in {summary.measure for summary in found.summary()}


def test_an_engine_of_ones_own_carries_out_plain_data(tmp_path):
    sent = []

    def remote(jobs, root):
        for job in jobs:
            sent.append(json.loads(json.dumps(job.to_dict())))
            yield execute(type(job)(**sent[-1]), root)

    found = compare(grid(epochs=1), tmp_path, engine=remote)
    assert [(run.arm, run.seed) for run in found.runs] == [("fixed", 0)]
    assert compare(grid(epochs=1), tmp_path, engine=remote).runs == found.runs
    assert len(sent) == 1


def test_a_directory_of_another_grid_is_refused(tmp_path):
    compare(grid(epochs=1), tmp_path, workers=0)
    with pytest.raises(ValueError, match="holds a run of tiny/fixed/seed-0 with other arguments"):
        compare(grid(epochs=2), tmp_path, workers=0)


def test_a_failed_run_may_be_mended_in_place(tmp_path):
    broken = {"fixed": {"batch_size": 16, "policy": {"class_path": "lightning_deba.Held"}}}
    (failure,) = compare(grid(broken, epochs=1), tmp_path, workers=0).failures
    assert "Held" in failure.error
    assert compare(grid(epochs=1), tmp_path, workers=0).failures == []


def test_an_interruption_leaves_no_process_behind(tmp_path):
    def interrupt(outcome):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(grid(epochs=1, seeds=2), tmp_path, workers=1, on_outcome=interrupt)
    assert multiprocessing.active_children() == []
    assert len(load_runs(tmp_path)) == 1


def test_a_metric_that_is_not_logged_is_named(tmp_path):
    (failure,) = compare(grid(epochs=1, metric="f1"), tmp_path, workers=0).failures
    assert "logs no 'val/f1'; it logs" in failure.error


def test_the_command_prints_a_table_and_writes_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    words = ["--config", str(CONFIGS / "digits.yaml"), "--workers", "0", "--epochs", "1", "--seeds", "[0, 1]"]
    words += ["--data.train_samples", "32", "--data.val_samples", "20"]
    comparing.run([*words, "-o", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "fixed_16" in printed
    assert "deba" in printed
    assert "none" in printed  # in one epoch no policy acts, and the accuracies are the same
    with (tmp_path / "out" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["arm"], row["seed"], row["steps"]) for row in rows] == [
        ("test_resnet", arm, seed, "2") for seed in "01" for arm in ("fixed_16", "deba")
    ]


def test_the_command_tells_of_failures_after_the_table(tmp_path, capsys):
    words = ["--config", str(CONFIGS / "digits.yaml"), "--workers", "0", "--seeds", "1", "--metric", "f1"]
    with pytest.raises(ValueError, match="2 of 2 runs failed, the first test_resnet/fixed_16/seed-0"):
        comparing.run([*words, "--epochs", "1", "-o", str(tmp_path)])
    assert "failed" in capsys.readouterr().out


# Grids


@pytest.mark.parametrize(
    ("name", "models", "arms", "seeds"),
    [
        ("digits", 1, 2, 2),
        ("paper", 6, 2, 3),
        ("strong", 3, 18, 3),
        ("rates", 6, 3, 1),
        ("ablations", 2, 8, 3),
        ("cifar10", 6, 8, 5),
        ("cifar100", 6, 8, 5),
    ],
)
def test_each_file_is_a_grid_of_the_size_that_it_states(name, models, arms, seeds):
    config = comparing._parser().parse_args(["--config", str(CONFIGS / f"{name}.yaml")]).as_dict()
    found = comparing.grid_of(config)
    assert (len(found.models), len(found.arms), len(found.seeds)) == (models, arms, seeds)
    jobs = found.jobs()
    assert len(jobs) == len({str(job) for job in jobs}) == models * arms * seeds
    assert found.reference == {"cifar10": "fixed_64", "cifar100": "fixed_64", "rates": "rate_01"}.get(name, "fixed_16")
    plain = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    assert (found.models, found.arms) == (plain["models"], Grid.from_dict(plain).arms)
    assert found.data["init_args"] == {**found.data["init_args"], **plain["data"]["init_args"]}


def test_grids_that_share_a_folder_share_their_runs():
    """Nothing that they have in common is trained twice, or refused as another run."""
    jobs: dict[str, Job] = {}
    for name in ("paper", "strong", "ablations"):
        for job in Grid.from_dict(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())).jobs():
            assert jobs.setdefault(str(job), job) == job
    assert len(jobs) == 216


@pytest.mark.parametrize("name", ["paper", "strong", "rates", "ablations"])
def test_each_arm_of_a_file_can_be_built(name):
    jobs = Grid.from_dict(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())).jobs()
    for job in {job.arm: job for job in jobs}.values():
        model, data = model_and_data(job)
        assert scheduler_of(job, model).min_batch_size == 16
        assert data.batch_size == job.data["init_args"]["batch_size"]


@pytest.mark.parametrize("classes", [10, 100])
def test_the_full_size_grids_run_dry(classes, tmp_path, monkeypatch):
    folder = write_cifar(tmp_path, classes, monkeypatch)
    plain = yaml.safe_load((CONFIGS / f"cifar{classes}.yaml").read_text())
    plain["data"]["init_args"] |= {"data_dir": str(folder), "num_workers": 0, "persistent_workers": False}
    jobs = [job for job in Grid.from_dict(plain).jobs() if job.seed == 0]
    one_of_each = {job.model: job for job in jobs if job.arm == "deba"} | {
        job.arm: job for job in jobs if job.model == "mobilenetv3"
    }
    for job in one_of_each.values():
        model, data = model_and_data(replace(job, data=_smaller(job.data)))
        scheduler = scheduler_of(job, model)
        trainer = Trainer(accelerator="cpu", fast_dev_run=1, callbacks=[scheduler], enable_model_summary=False)
        trainer.fit(model, datamodule=data)
        assert trainer.global_step == 1


def _smaller(data):
    """The batch of the arm would take a CPU a minute through a ViT-B; what is shown is that it is all there."""
    return {**data, "init_args": {**data["init_args"], "batch_size": 2, "eval_batch_size": 2}}


def test_every_file_is_looked_at_here():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == {
        "digits",
        "paper",
        "strong",
        "rates",
        "ablations",
        "cifar10",
        "cifar100",
    }


def test_a_scheduler_of_bs_scheduler_decides_as_it_does_alone():
    from bs_scheduler import IncreaseBSOnPlateau
    from torch.utils.data import DataLoader

    losses = [1.0, 0.9, 0.9, 0.9, 0.5, 0.5, 0.5, 0.5, 0.1]
    loader = DataLoader(range(4096), batch_size=16)
    alone = IncreaseBSOnPlateau(loader, patience=1, max_batch_size=2048)
    policy = BSScheduler(kind="IncreaseBSOnPlateau", arguments={"patience": 1})
    history: list[EpochRecord] = []
    for epoch, loss in enumerate(losses):
        size = policy(history).batch_size if history else 16
        assert size == loader.batch_sampler.batch_size
        history.append(EpochRecord(epoch, size, size, loss=loss))
        alone.step(metrics=loss)
    assert policy(history).batch_size == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "StepLR"}, "`kind` of BSScheduler must be one of .*StepBS.*, got 'StepLR'"),
        ({"kind": "StepBS", "arguments": {"size": 2}}, "size"),
    ],
)
def test_what_is_no_scheduler_of_bs_scheduler_is_refused(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BSScheduler(**arguments)


def test_arms_hold_plain_data():
    chain = Arm(batch_size=8, policy=Chain((DEBA(cooldown=2), Hold())))
    assert json.loads(json.dumps(chain.policy)) == chain.policy
    first, second = grid({"a": chain}).jobs()[0].policy["init_args"]["policies"]
    assert first["init_args"]["cooldown"] == 2
    assert second["class_path"].endswith("Hold")


def test_each_model_may_have_arguments_of_its_own():
    arm = Arm(batch_size=8, policy=Hold(), model={"lr": 0.1, "pretrained": False}, by_model={"small": {"lr": 0.4}})
    one, other = grid({"a": arm}, {"tiny": TINY, "small": TINY}).jobs()
    asked = TINY["init_args"] | {"pretrained": False}
    assert (one.module["init_args"], other.module["init_args"]) == (asked | {"lr": 0.1}, asked | {"lr": 0.4})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": {}}, "`arms` must name one or more"),
        ({"arms": {"a/b": {"batch_size": 1}}}, "got 'a/b'"),
        ({"arms": {"..": {"batch_size": 1}}}, "got '..'"),
        ({"arms": {"a": {"size": 1}}}, "`arms.a` has no field `size`"),
        ({"arms": {"a": {}}}, "`batch_size` of `arms.a` is missing"),
        ({"arms": {"a": {"batch_size": 0}}}, "`batch_size` must be a whole number of at least 1, got 0"),
        (
            {"arms": {"a": {"batch_size": 1, "policy": HOLD, "changes": {"window": 3}}}},
            "`changes` are made to a preset",
        ),
        ({"arms": {"a": {"batch_size": 1, "scheduler": {"preset": "vit"}}}}, "has no `preset`"),
        ({"arms": {"a": {"batch_size": 1, "policy": len}}}, "`policy` must be a frozen dataclass"),
        (
            {"arms": {"a": {"batch_size": 1, "by_model": {"vgg": {"lr": 1.0}}}}},
            "name models of the grid, .*, got 'vgg'",
        ),
        ({"arms": {"a": {"batch_size": 1, "by_model": {"vgg": 0.1}}}}, "map a model's name to its arguments, got 0.1"),
        ({"models": {"a": {"model_name": "resnet18"}}}, "`models.a` must have a `class_path`"),
        ({"seeds": [1, 1]}, "`seeds` must be one or more different ones"),
        ({"seeds": 0}, "`seeds` must be one or more"),
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1"),
        ({"baseline": "b"}, "`baseline` must be one of the arms fixed, got 'b'"),
        ({"epoch": 1}, "`the grid` has no field `epoch`"),
        ({"arms": {16: {"batch_size": 16}}}, "for folders, got 16: write '16'"),
        ({"trainer_args": {"check_val_every_n_epoch": 2}}, "validated after each epoch, got check_val_every_n_epoch=2"),
        ({"trainer_args": {"limit_val_batches": 0}}, "validated after each epoch, got limit_val_batches=0"),
    ],
)
def test_what_is_no_grid_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Grid.from_dict({**{f: getattr(grid(), f) for f in ("models", "data", "arms", "seeds", "epochs")}, **changes})


# Measures


def a_run(arm="a", seed=0, seconds=(1.0, 2.0, 1.0), accuracies=(0.5, 0.8, 0.7), **changes) -> Run:
    given_ = {
        "model": "m",
        "processor_seconds": [2 * s for s in seconds],
        "samples": [100] * len(seconds),
        "steps": [10] * len(seconds),
        "batch_sizes": [16] * (len(seconds) - 1) + [32],
        "test_accuracy": 0.6,
    }
    return Run(arm=arm, seed=seed, seconds=seconds, accuracies=accuracies, **{**given_, **changes})


def test_the_measures_of_a_run_by_hand():
    (row,) = measure([a_run()], "a", target=0.75)
    assert (row.val_accuracy, row.test_accuracy, row.final_batch_size) == (0.7, 0.6, 32)
    assert (row.seconds, row.processor_seconds, row.samples, row.steps) == (4.0, 8.0, 300, 30)
    assert row.overhead is None
    assert measure([a_run(callback_seconds=0.4)], "a")[0].overhead == pytest.approx(0.05)
    assert (row.seconds_to_target, row.processor_seconds_to_target, row.samples_to_target) == (3.0, 6.0, 200)
    # 0 in the first second, 0.5 in the next two, 0.8 in the last; the final 0.7 comes at the horizon itself.
    assert row.area == pytest.approx((0 + 0.5 * 2 + 0.8 * 1) / 4)
    assert row.processor_area == pytest.approx(row.area)


def test_the_baseline_gives_target_and_horizon():
    runs = [a_run("base", 0), a_run("base", 1, accuracies=(0.4, 0.6, 0.6)), a_run("fast", 0, seconds=(0.5, 0.5, 0.5))]
    rows = measure(runs, "base")
    assert {row.target for row in rows} == {0.6}
    assert [row.seconds_to_target for row in rows] == [3.0, 3.0, 1.0]
    # It ends after 1.5 of the baseline's 4 seconds, and keeps what it has.
    assert rows[2].area == pytest.approx((0.5 * 0.5 + 0.8 * 0.5 + 0.7 * 2.5) / 4)


def test_a_target_that_is_missed_is_infinitely_far_and_empty_in_the_file(tmp_path):
    (row,) = measure([a_run(test_accuracy=None)], "a", target=0.9)
    assert row.seconds_to_target == math.inf
    write_csv([row], tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        (cells,) = csv.DictReader(file)
    assert (cells["seconds_to_target"], cells["test_accuracy"], cells["val_accuracy"]) == ("", "", "0.7")
    found = {s.measure: s for s in summarize(measure([a_run(), a_run("b")], "a", 0.9), "a")}
    assert found["seconds_to_target"].difference == Interval(0.0, -math.inf, math.inf)  # neither is ahead


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 1)), min_size=1, max_size=8),
    st.floats(0.1, 100),
)
def test_the_area_against_a_slow_oracle(epochs, horizon):
    seconds, accuracies = zip(*epochs, strict=True)

    def accuracy_at(time):
        done = [a for i, a in enumerate(accuracies) if sum(seconds[: i + 1]) <= time]
        return done[-1] if done else 0.0

    times = [horizon * (i + 0.5) / 2000 for i in range(2000)]
    oracle = statistics.fmean(accuracy_at(time) for time in times)
    assert area_under(seconds, accuracies, horizon) == pytest.approx(oracle, abs=len(epochs) / 1000)


def test_a_target_reached_at_once_costs_an_epoch():
    assert reached([3.0, 1.0], [0.9, 0.1], 0.9) == 3.0


def exact_interval(values, level):
    """All n**n resamples, each as likely as the others."""
    medians = sorted(statistics.median(sample) for sample in product(values, repeat=len(values)))
    cut = math.floor((1 - level) / 2 * len(medians))
    return medians[cut], medians[-1 - cut]


@pytest.mark.parametrize("values", [(1.0, 2.0), (3.0, 1.0, 2.0), (1.0, 5.0, 2.0, 9.0)])
def test_the_bootstrap_against_all_resamples(values):
    assert interval_of_median(values, 0.9)[1:] == exact_interval(values, 0.9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8), st.floats(-1e3, 1e3))
def test_properties_of_an_interval(values, shift):
    found = interval_of_median(values, draws=200)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    wider = interval_of_median(values, level=0.98, draws=200)
    assert wider.low <= found.low
    assert wider.high >= found.high
    assert found == interval_of_median(values, draws=200)
    moved = interval_of_median([value + shift for value in values], draws=200)
    assert moved == pytest.approx([bound + shift for bound in found], abs=1e-6)


@pytest.mark.parametrize("values", [[], [1.0, math.nan]])
def test_no_numbers_have_no_interval(values):
    with pytest.raises(ValueError, match="`values` must be one number or more"):
        interval_of_median(values)


def test_infinite_values_have_a_median():
    assert interval_of_median([1.0, 2.0, math.inf]).value == 2.0
    assert interval_of_median([-math.inf, math.inf]).value == -math.inf


def test_differences_are_paired_by_seed():
    # Seeds differ by far more than arms do: only pairs show it.
    runs = [a_run("base", s, accuracies=(0.1 * s, 0.1 * s, 0.1 * s)) for s in range(1, 6)]
    runs += [a_run("better", s, accuracies=(0, 0, 0.1 * s + 0.01)) for s in range(1, 6)]
    runs += [a_run("alike", s, accuracies=(0, 0, 0.1 * s + 0.01 * (s - 3))) for s in range(1, 6)]
    found = {s.arm: s for s in summarize(measure(runs, "base"), "base", measures=["val_accuracy"])}
    assert found["base"].difference is None
    assert found["better"].difference == pytest.approx((0.01, 0.01, 0.01))
    assert (found["better"].pairs, found["better"].verdict, found["alike"].verdict) == (5, "more", "none")
    assert found["better"].median.low < found["base"].median.value


def test_one_pair_shows_no_difference():
    runs = [a_run("base", 0), a_run("base", 1), a_run("other", 1, seconds=(9.0, 9.0, 9.0)), a_run("other", 7)]
    (found,) = [s for s in summarize(measure(runs, "base"), "base", measures=["seconds"]) if s.arm == "other"]
    assert (found.runs, found.pairs, found.verdict) == (2, 1, "none")


@pytest.mark.parametrize(
    ("low", "high", "word"), [(0.1, 2, "more"), (-2, -0.1, "less"), (0, 1, "none"), (-1, 0, "none")]
)
def test_a_difference_whose_interval_contains_zero_is_none(low, high, word):
    assert verdict(Interval((low + high) / 2, low, high)) == word


def test_a_thousand_results_are_read_and_summarized(tmp_path):
    for model, arm, seed in product("abcde", "0123456789", range(20)):
        folder = tmp_path / "runs" / model / arm / f"seed-{seed}"
        folder.mkdir(parents=True)
        accuracy = 0.5 + int(arm) / 100 + seed / 1000
        run = a_run(arm, seed, model=model, accuracies=(0.1, 0.2, accuracy))
        (folder / "result.json").write_text(json.dumps(run.to_dict()))
    runs = load_runs(tmp_path)
    assert len(runs) == 1000
    found = summarize(measure(runs, "0"), "0", measures=["val_accuracy", "seconds"])
    assert len(found) == 5 * 10 * 2
    assert {s.verdict for s in found if s.arm != "0" and s.measure == "val_accuracy"} == {"more"}
    assert {s.verdict for s in found if s.arm != "0" and s.measure == "seconds"} == {"none"}


def test_the_table_shows_what_is_certain():
    runs = [a_run(arm, s, (t, t, t + 0.1 * s)) for arm, t in (("fixed", 2.0), ("deba", 1.0)) for s in (0, 1, 2)]
    arms = {name: Arm(batch_size=16, policy=Hold()) for name in ("fixed", "deba")}
    shown = comparing.table(Comparison(grid(arms, {"m": TINY}), runs))
    columns = {str(column.header): list(column.cells) for column in shown.columns}
    assert columns["arm"][1:] == ["fixed", "deba"]
    assert columns["CPU seconds"][1:] == ["12.2", "6.2\n-6 (-6 to -6)"]
    assert columns["test accuracy"][2] == "0.6\nnone"
    assert "once in 4 times" in str(shown.caption)


@pytest.mark.parametrize("text", ["{", "{}", "[]", json.dumps({**a_run().to_dict(), "steps": [1]})])
def test_a_result_that_cannot_be_read_is_named(text, tmp_path):
    folder = tmp_path / "runs" / "m" / "a" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(text)
    with pytest.raises(ValueError, match=r"seed-0/result.json' cannot be read"):
        load_runs(tmp_path)


class Downloaded(DigitsDataModule):
    """Takes its time to get what is not there, and notes who does."""

    def __init__(self, folder: str = "", batch_size: int = 16) -> None:
        super().__init__(batch_size=batch_size, **IMAGES)
        self.folder = Path(folder)

    def prepare_data(self) -> None:
        assert self.trainer is not None  # as in any other fit
        if not (self.folder / "data").exists():
            with (self.folder / "downloads.txt").open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(1)
            (self.folder / "data").touch()


def test_data_are_downloaded_once(tmp_path):
    data = {"class_path": "tests.test_comparison.Downloaded", "init_args": {"folder": str(tmp_path)}}
    assert compare(grid(data=data, epochs=1, seeds=2), tmp_path / "runs", workers=2).failures == []
    assert len((tmp_path / "downloads.txt").read_text().splitlines()) == 1

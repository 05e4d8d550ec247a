"""Where jobs are carried out, what that costs when it goes wrong, and that it changes no result."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

from lightning_deba import read_history
from lightning_deba.cli import comparing
from lightning_deba.comparison import LocalEngine, RayEngine, cluster, compare, load_runs, local, lock
from lightning_deba.comparison.job import epochs_done
from lightning_deba.comparison.watch import Watch
from lightning_deba.policies import AdaBatch
from lightning_deba.vision import ImageClassifier
from tests.test_comparison import CONFIGS, EPOCHS, HOLD, grid

TIMES = ("seconds", "processor_seconds")


class Diarist(ImageClassifier):
    """Notes each epoch that it begins, its process and its GPU; it may leave, wait, or fail its test once."""

    def __init__(self, diary: str = "", leaves_at: int = -1, waits: bool = False, untested: bool = False) -> None:
        super().__init__("test_resnet", 10, 1, lr=0.01)
        self.diary, self.leaves_at, self.waits, self.untested = Path(diary), leaves_at, waits, untested

    def on_train_epoch_start(self) -> None:
        begun = self.diary.read_text().split() if self.diary.exists() else []
        self.diary.write_text(" ".join([*begun, str(self.current_epoch)]))
        if self.current_epoch == self.leaves_at and str(self.leaves_at) not in begun:
            os._exit(3)
        if self.waits:
            self.diary.with_name("pid").write_text(f"{os.getpid()}\n")
            time.sleep(600)

    def on_train_end(self) -> None:
        self.diary.with_name("gpu").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))

    def on_test_start(self) -> None:
        told = self.diary.with_name("told")
        if self.untested and not told.exists():
            told.touch()
            raise RuntimeError("no test today")


def diarist(**arguments):
    return {"class_path": "tests.test_engines.Diarist", "init_args": {**arguments, "diary": str(arguments["diary"])}}


def result_of(root, arm="fixed", model="tiny"):
    """What a run left but for its times, which are there."""
    result = json.loads((root / "runs" / model / arm / "seed-0" / "result.json").read_text())
    assert all(len(result.pop(name)) == EPOCHS for name in TIMES)
    assert result.pop("callback_seconds") > 0
    return result


# On a Ray cluster


@pytest.fixture(scope="module")
def accident(tmp_path_factory):
    """A grid on a Ray of the engine's own, of which one process dies; the same call once more on a Ray of the caller's.

    The caller's stays for the other tests of this module.
    """
    root = tmp_path_factory.mktemp("accident")
    arms = {
        "doubles": {"batch_size": 8, "policy": AdaBatch(every=1), "model": {"diary": str(root / "doubles")}},
        "leaves": {"batch_size": 16, "policy": HOLD, "model": {"diary": str(root / "leaves"), "leaves_at": 1}},
    }
    wanted = grid(arms, {"tiny": diarist(diary="")})
    first = compare(wanted, root, engine=RayEngine(workers=2))
    assert not ray.is_initialized()
    before = {path: path.stat().st_mtime_ns for path in (root / "runs/tiny/doubles/seed-0").iterdir()}
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    try:
        second = compare(wanted, root, engine=RayEngine())
        yield root, wanted, first, second, before
    finally:
        ray.shutdown()


def test_a_task_that_dies_costs_its_run_alone(accident):
    _, _, first, _, _ = accident
    assert [run.arm for run in first.runs] == ["doubles"]
    (failure,) = first.failures
    assert failure.job.arm == "leaves"
    assert failure.error.startswith("the process died: ")


def test_a_resumed_grid_repeats_nothing_on_ray(accident):
    root, _, _, second, before = accident
    assert second.failures == []
    assert [run.arm for run in second.runs] == ["doubles", "leaves"]
    assert (root / "doubles").read_text() == "0 1 2"
    assert (root / "leaves").read_text() == "0 1 1 2"
    assert before == {path: path.stat().st_mtime_ns for path in (root / "runs/tiny/doubles/seed-0").iterdir()}
    assert not list(root.rglob("*.ckpt"))
    assert not list(root.glob(".probe-*"))
    assert "Lightning" in (root / "runs/tiny/doubles/seed-0.txt").read_text()


def test_ray_and_this_process_have_the_same_results(accident, tmp_path):
    root, wanted, *_ = accident
    compare(wanted, tmp_path, engine=LocalEngine(workers=0))  # none leaves again: the diaries say that one has
    assert result_of(root, "doubles") == result_of(tmp_path, "doubles")
    assert result_of(tmp_path, "doubles")["batch_sizes"] == [8, 16, 32]


@pytest.mark.usefixtures("accident")
def test_the_command_runs_on_ray(tmp_path, capsys):
    words = ["--config", str(CONFIGS / "digits.yaml"), "--engine", "ray", "--workers", "1", "--epochs", "1"]
    words += ["--seeds", "1", "--data.train_samples", "32", "--data.val_samples", "20", "-o", str(tmp_path)]
    comparing.run(words)
    assert "2/2 runs" in capsys.readouterr().out
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 3


@pytest.mark.usefixtures("accident")
def test_an_interruption_cancels_the_tasks_and_leaves_the_caller_its_ray(tmp_path):
    model, pid = diarist(diary=tmp_path / "diary", waits=True), tmp_path / "pid"

    def interrupt():
        while not (pid.exists() and pid.read_text().endswith("\n")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        compare(grid(models={"tiny": model}), tmp_path, engine=RayEngine())
    thread.join()
    with pytest.raises(ProcessLookupError):
        _wait_for_the_end_of(int(pid.read_text()))
    assert load_runs(tmp_path) == []
    assert ray.is_initialized()


def _wait_for_the_end_of(pid):
    for _ in range(600):  # Ray has to reap it
        os.kill(pid, 0)
        time.sleep(0.05)


@pytest.mark.usefixtures("accident")
def test_storage_that_a_node_does_not_see_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "touch", lambda path: None)  # the probe is on no storage at all
    with pytest.raises(ValueError, match=f"`directory` '{tmp_path}' must be on storage that all nodes .* share"):
        compare(grid(), tmp_path, engine=RayEngine())
    assert not list(tmp_path.glob("runs/*"))


def test_a_node_that_joins_later_is_held_to_it_too(tmp_path):
    (job,) = grid().jobs()
    assert "does not see" in cluster._carry_out(job, tmp_path / "elsewhere" / ".probe").error
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("accident")
def test_an_address_beside_an_initialized_ray_is_refused(tmp_path):
    with pytest.raises(ValueError, match="leave `address` out, got 'auto'"):
        compare(grid(), tmp_path, engine=RayEngine("auto"))


def test_without_ray_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning-deba\[cluster\]'"):
        RayEngine()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "`workers` of RayEngine must be 1 or more, .* got 0"),
        ({"gpus_per_job": -1}, "`gpus_per_job` must be 0 or more, got -1"),
    ],
)
def test_what_no_cluster_can_do_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RayEngine(**arguments)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--address", "auto"], "`address` is that of a Ray cluster, got 'auto': add `--engine ray`"),
        (["--gpus_per_job", "1"], "`gpus_per_job` is for a Ray cluster, got 1.0: add `--engine ray`"),
        (["--engine", "ray", "--workers", "0"], "`workers` of RayEngine must be 1 or more"),
    ],
)
def test_arguments_of_another_engine_are_refused(words, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        comparing.run(["--config", str(CONFIGS / "digits.yaml"), *words, "-o", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_workers_beside_an_engine_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`workers` are those of the default engine"):
        compare(grid(), tmp_path, workers=1, engine=LocalEngine(1))


# On this machine


@pytest.mark.parametrize(
    ("workers", "visible", "devices"),
    [
        (4, ["0", "1"], ["0", "1", "0", "1"]),
        (2, ["3", "1", "0"], ["3", "1"]),
        (2, ["GPU-8932f937"], ["GPU-8932f937", "GPU-8932f937"]),
        (2, [], [None, None]),
        (0, ["0"], []),
    ],
)
def test_workers_get_the_gpus_in_turn(workers, visible, devices):
    assert local.devices_for(workers, visible) == devices


@pytest.mark.parametrize(
    ("named", "there", "visible"),
    [(None, 2, ["0", "1"]), ("3,1", 2, ["3", "1"]), ("3,-1,1", 1, ["3"]), ("", 0, []), (None, 0, [])],
)
def test_only_gpus_that_are_visible_are_dealt_out(named, there, visible, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert local._visible() == visible


def test_by_default_there_is_a_process_for_each_gpu(monkeypatch):
    monkeypatch.setattr(local, "_visible", lambda: ["7", "5", "3"])
    assert LocalEngine().workers == 3
    monkeypatch.setattr(local, "_visible", list)
    assert LocalEngine().workers == local._cores()


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from lightning_deba.comparison import compare\nfrom tests.test_comparison import grid\n"
        f"print([failed.error for failed in compare(grid(), {str(tmp_path)!r}, workers=1).failures])\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."}
    )
    assert 'a script has to call `compare` below `if __name__ == "__main__":`' in done.stdout


def test_a_process_sees_its_gpu_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_visible", lambda: ["7", "5"])
    found = compare(grid(models={"tiny": diarist(diary=tmp_path / "diary")}, epochs=1), tmp_path, workers=1)
    assert found.failures == []
    assert (tmp_path / "gpu").read_text() == "7"
    assert "Lightning" in (tmp_path / "runs/tiny/fixed/seed-0.txt").read_text()


# One job, stopped between its last epoch and its result


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    root = tmp_path_factory.mktemp("unbroken")
    compare(grid(models={"tiny": diarist(diary=root / "diary")}), root, workers=0)
    return root


def test_a_run_that_is_trained_is_only_tested(unbroken, tmp_path):
    wanted = grid(models={"tiny": diarist(diary=tmp_path / "diary", untested=True)})
    (failure,) = compare(wanted, tmp_path, workers=0).failures
    assert failure.error == "RuntimeError: no test today"
    assert compare(wanted, tmp_path, workers=0).failures == []
    assert (tmp_path / "diary").read_text() == "0 1 2"
    assert result_of(tmp_path) == result_of(unbroken)
    assert result_of(tmp_path)["test_accuracy"] is not None
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("where", "epochs"),
    [
        ("on_fit_end", "0 1 2"),
        ("state_dict", "0 1 2 2"),  # the history has an epoch that no checkpoint holds
    ],
)
def test_a_run_that_was_killed_while_it_ended_goes_on(where, epochs, unbroken, tmp_path, monkeypatch):
    wanted, original = grid(models={"tiny": diarist(diary=tmp_path / "diary")}), getattr(Watch, where)

    def killed(watch, *arguments):
        if len(watch.accuracies) == EPOCHS:
            raise RuntimeError("killed")
        return original(watch, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Watch, where, killed)
        assert len(compare(wanted, tmp_path, workers=0).failures) == 1
    (job,) = wanted.jobs()
    assert len(read_history(job.directory(tmp_path)).history) == EPOCHS
    (run,) = compare(wanted, tmp_path, workers=0).runs
    assert (tmp_path / "diary").read_text() == epochs
    (whole,) = load_runs(unbroken)
    assert (run.samples, run.steps, run.accuracies[:2]) == (whole.samples, whole.steps, whole.accuracies[:2])
    assert len(run.accuracies) == len(run.processor_seconds) == len(run.seconds) == EPOCHS
    history = read_history(job.directory(tmp_path)).history
    assert [record.seconds for record in history] == run.seconds
    kept = {path.name for path in job.directory(tmp_path).iterdir()}
    assert kept == {"history.jsonl", "job.json", "result.json", "run.json"}


def test_a_trained_run_of_another_grid_is_refused(tmp_path):
    compare(grid(models={"tiny": diarist(diary=tmp_path / "diary", untested=True)}, epochs=1), tmp_path, workers=0)
    with pytest.raises(ValueError, match="holds a run of tiny/fixed/seed-0 with other arguments"):
        compare(grid(epochs=2), tmp_path, workers=0)


# Progress


def test_the_epochs_of_a_job_are_counted_from_its_files(tmp_path):
    (job,) = grid().jobs()
    folder = job.directory(tmp_path)
    assert epochs_done(job, tmp_path) == 0
    folder.mkdir(parents=True)
    (folder / "history.jsonl").write_text('{"epoch": 0}\n{"epoch": 1}\n{"epo')
    assert epochs_done(job, tmp_path) == 2
    (folder / "history.jsonl").write_text("{}\n" * 7)  # of more epochs than are asked for now
    assert epochs_done(job, tmp_path) == EPOCHS
    (folder / "history.jsonl").unlink()
    (folder / "result.json").write_text("{}")
    assert epochs_done(job, tmp_path) == EPOCHS


def test_the_bar_counts_epochs_and_those_of_failed_runs_as_over(tmp_path, capsys):
    arms = {"fixed": {"batch_size": 16, "policy": HOLD}, "odd": {"batch_size": 16, "changes": {"patience": 3}}}
    comparing._with_progress(grid(arms), LocalEngine(0), tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "2/2 runs" in printed
    assert f"{2 * EPOCHS}/{2 * EPOCHS} epochs" in printed


# One comparison at a time


def test_a_second_comparison_in_the_same_directory_is_refused(tmp_path):
    told = []

    def second(outcome):
        with pytest.raises(BlockingIOError) as refused:
            compare(grid(epochs=1), tmp_path, workers=0)
        told.append(str(refused.value))

    compare(grid(epochs=1), tmp_path, workers=0, on_outcome=second)
    (message,) = told
    assert message.startswith(f"`directory` '{tmp_path}' is in use by another comparison, process {os.getpid()} on ")
    assert compare(grid(epochs=1), tmp_path, workers=0).failures == []


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    code = (
        "import os, pathlib, runpy, signal, sys\n"
        "with runpy.run_path(sys.argv[1])['locked'](pathlib.Path(sys.argv[2])):\n"
        "    print('locked', flush=True)\n"
        "    signal.pause()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, lock.__file__, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError, match=f"process {holder.pid} on "), lock.locked(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    assert str(holder.pid) in (tmp_path / lock.NAME).read_text()  # it had no time to tidy up
    with lock.locked(tmp_path):
        assert str(os.getpid()) in (tmp_path / lock.NAME).read_text()


def test_where_nothing_can_be_locked_nobody_is_kept_out(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with lock.locked(tmp_path), lock.locked(tmp_path):
        pass

"""What the loggers, the hyper-parameters and the terminal get of a fit, read back from what was really written."""

from __future__ import annotations

import csv
import inspect
import io
import json
import logging
import re
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import rich
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from lightning_deba import DEBA, BatchSizeScheduler, Grant, journal
from tests.runs import Data, Linear, Sizes, run, trainer_of

ALWAYS_CALM = DEBA(confidence_threshold=10, stability_threshold=10, cooldown=2)
"""Grows from 8 to 12 after epoch 1 and to 18 after epoch 3."""


class Own(Linear):
    """A module with hyper-parameters of its own, and a number that it validates."""

    def __init__(self, lr: float = 1e-4, depth: int = 3) -> None:
        super().__init__(lr)
        self.save_hyperparameters()


@dataclass
class Read:
    """What one logger has of a run.

    `metrics` holds step and value of each number, `rows` the numbers that were logged together.
    """

    metrics: dict[str, list[tuple[int, float]]]
    parameters: dict[str, str]
    decisions: list[str]
    rows: list[dict[str, float]] = field(default_factory=list)


def fit(root: Path, logger: Any, policy: Any = ALWAYS_CALM, **settings: Any) -> BatchSizeScheduler:
    scheduler = BatchSizeScheduler(policy, min_batch_size=1, max_batch_size=512)
    trainer_of([scheduler], root, logger=logger, max_epochs=4, **settings).fit(Own(), datamodule=Data())
    return scheduler


def from_rows(rows: list[dict[str, float]], step: str) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name in row.keys() - {step}:
            found.setdefault(name, []).append((int(row[step]), row[name]))
    return found


# TensorBoard


def tensorboard_in(root: Path) -> TensorBoardLogger:
    return TensorBoardLogger(root, version="run")


def read_tensorboard(logger: TensorBoardLogger) -> Read:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    logger.experiment.close()
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    told = HParamsPluginData.FromString(
        events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    ).session_start_info.hparams
    parameters = {name: str(value.ListFields()[0][1]) for name, value in told.items()}
    texts = events.Tensors("deba/decision/text_summary")
    return Read(
        {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]},
        parameters,
        [event.tensor_proto.string_val[0].decode() for event in texts],
    )


# CSV


def csv_in(root: Path) -> CSVLogger:
    return CSVLogger(root, version="run")


def read_csv(logger: CSVLogger) -> Read:
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    parameters = yaml.safe_load((Path(logger.log_dir) / "hparams.yaml").read_text())
    return Read(from_rows(rows, "step"), flat(parameters), [], rows)


def flat(nested: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in nested.items():
        found |= flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": str(value)}
    return found


# Weights & Biases, offline


def wandb_in(root: Path) -> WandbLogger:
    import wandb

    return WandbLogger(
        save_dir=root, offline=True, settings=wandb.Settings(console="off", x_disable_stats=True, silent=True)
    )


def records_of(path: Path) -> Iterator[Any]:
    """Reads the file of an offline run: blocks of 32 kB, in which a record may be in several chunks."""
    from wandb.proto import wandb_internal_pb2

    raw, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(raw):
        if (left := -at % 32768) and left < 7:
            at += left  # the end of a block is too small for a chunk's head
            continue
        _, size, kind = struct.unpack("<IHB", raw[at : at + 7])
        record += raw[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last chunk
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def read_wandb(logger: WandbLogger) -> Read:
    import wandb

    directory = Path(logger.experiment.dir)
    wandb.teardown()  # what it was told is on disk when its process has ended
    records = list(records_of(next(directory.parent.glob("*.wandb"))))
    items = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    named = [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in item} for item in items]
    rows = [{n: v for n, v in row.items() if not n.startswith(("_", "deba/decisions"))} for row in named]
    config = {i.key: json.loads(i.value_json) for record in records for i in record.config.update if i.key}
    (*_, last) = sorted(directory.rglob("*.table.json"), key=lambda path: len(path.read_bytes()))
    table = json.loads(last.read_text())
    assert table["columns"] == ["epoch", "before", "proposed", "batch size", "reason", "limits"]
    decisions = [
        journal.sentence(before, Grant(epoch, proposed, size, reason, limits))
        for epoch, before, proposed, size, reason, limits in table["data"]
    ]
    charted = {record.metric.name for record in records if record.metric.step_metric == "samples_seen"}
    assert {"batch_size", "grad/norm", "deba/confidence"} <= charted
    assert not any("val_loss" in name for name in charted)
    return Read(from_rows(rows, "trainer/global_step"), flat(config), decisions, rows)


# MLflow


def mlflow_in(root: Path, **more: Any) -> MLFlowLogger:
    return MLFlowLogger(tracking_uri=f"file:{root / 'mlruns'}", **more)


def read_mlflow(logger: MLFlowLogger) -> Read:
    from mlflow import MlflowClient

    client = MlflowClient(logger._tracking_uri)
    told = client.get_run(logger.run_id).data
    metrics = {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(logger.run_id, name)]
        for name in told.metrics
    }
    path = client.download_artifacts(logger.run_id, "deba/decisions.txt")
    return Read(metrics, told.params, Path(path).read_text().splitlines())


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Read]]] = {
    "tensorboard": (tensorboard_in, read_tensorboard),
    "csv": (csv_in, read_csv),
    "wandb": (wandb_in, read_wandb),
    "mlflow": (mlflow_in, read_mlflow),
}


@pytest.fixture(scope="module", autouse=True)
def _nothing_leaves_this_folder(tmp_path_factory):
    """No logger sends anything anywhere, or writes into the home directory."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "HOME",
            "WANDB_DIR",
            "WANDB_CACHE_DIR",
            "WANDB_CONFIG_DIR",
            "WANDB_DATA_DIR",
            "WANDB_ARTIFACT_DIR",
        ):
            patch.setenv(name, str(home))
        for name, value in {
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }.items():
            patch.setenv(name, value)
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
        yield


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Callable[[str], tuple[BatchSizeScheduler, Read]]:
    """One run a logger, and what was read back of it."""
    known: dict[str, tuple[BatchSizeScheduler, Read]] = {}

    def of(kind: str) -> tuple[BatchSizeScheduler, Read]:
        if kind not in known:
            make, read = KINDS[kind]
            logger = make(tmp_path_factory.mktemp(kind))
            known[kind] = fit(tmp_path_factory.mktemp("run"), logger), read(logger)
        return known[kind]

    return of


# The same everywhere


@pytest.mark.parametrize("kind", KINDS)
def test_every_logger_gets_the_same_numbers_at_the_same_steps(kind, told):
    scheduler, read = told(kind)
    history, decisions = scheduler.history, scheduler.decisions
    assert [record.batch_size for record in history] == [8, 8, 12, 12]
    ends = [7, 15, 21, 27]  # 8, 8, 6 and 6 steps, counted from 0
    expected = {
        "batch_size": [8, 8, 12, 12],
        "grad/norm": [record.gradient_norm for record in history],
        "grad/component_variance": [record.component_variance for record in history],
        "lr/effective": [1e-4] * 4,
    }
    for name, values in expected.items():
        assert [step for step, _ in read.metrics[name]] == ends, name
        assert [value for _, value in read.metrics[name]] == pytest.approx(values, rel=1e-5), name
    signals = [decided.signals["confidence"] for decided in decisions if decided.signals]
    assert read.metrics["deba/confidence"] == [
        (step, pytest.approx(value, rel=1e-5)) for step, value in zip(ends[-len(signals) :], signals, strict=True)
    ]
    assert dict(read.metrics["samples_seen"]) == dict(zip(ends, [64, 128, 192, 256], strict=True))
    ours = {name for name in read.metrics if name.startswith(("deba/", "grad/", "lr/")) or name.endswith("_seen")}
    assert ours == {
        *expected.keys() - {"batch_size"},
        "samples_seen",
        *(f"deba/{name}" for name in ("confidence", "gradient_norm_variation", "loss_variation")),
    }


@pytest.mark.parametrize("kind", ["csv", "wandb"])
def test_samples_stand_in_the_row_of_what_was_measured_and_of_what_was_validated(kind, told):
    rows = told(kind)[1].rows
    for name in ("grad/norm", "val_loss"):
        assert [row["samples_seen"] for row in rows if name in row] == [64, 128, 192, 256]


@pytest.mark.parametrize("kind", KINDS)
def test_hyper_parameters_stand_beside_the_user_s_own(kind, told):
    parameters = told(kind)[1].parameters
    assert (float(parameters["lr"]), float(parameters["depth"])) == (1e-4, 3)
    ours = {name.removeprefix("batch_size_scheduler/"): value for name, value in parameters.items() if "/" in name}
    assert (ours["policy/name"], ours["actuator"], ours["lr_scaling"]) == ("DEBA", "ReloadActuator", "none")
    numbers = {name: float(ours[name]) for name in ("policy/confidence_threshold", "policy/cooldown", "max_batch_size")}
    assert numbers == {"policy/confidence_threshold": 10, "policy/cooldown": 2, "max_batch_size": 512}


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "mlflow"])
def test_a_change_is_told_as_text_and_a_hold_is_not(kind, told):
    scheduler, read = told(kind)
    assert read.decisions == [
        journal.sentence(before, scheduler.decisions[epoch]) for epoch, before in ((1, 8), (3, 12))
    ]
    assert read.decisions[0].startswith("After epoch 1: batch size 8 -> 12. ")


def test_a_limit_is_told_when_it_is_first_met(tmp_path):
    logger = tensorboard_in(tmp_path)
    fit(tmp_path, logger, Sizes({0: 64, 1: 100, 2: 100, 3: 100}))
    (grown, held) = read_tensorboard(logger).decisions
    assert grown == "After epoch 0: batch size 8 -> 64. the trial wants 64 after epoch 0"
    assert held.startswith("After epoch 1: batch size 64 stays (100 was proposed; the data set has 64 samples)")


# Hyper-parameters


def test_the_preset_is_told_with_its_source(tmp_path):
    logger = csv_in(tmp_path)
    scheduler = BatchSizeScheduler(preset="resnet18", min_batch_size=1)
    trainer_of([scheduler], tmp_path, logger=logger, max_epochs=1).fit(Linear(), datamodule=Data())
    parameters = read_csv(logger).parameters
    assert parameters["batch_size_scheduler/preset/name"] == scheduler.preset.name
    assert parameters["batch_size_scheduler/preset/source"] == scheduler.preset.source
    threshold = scheduler.preset.policy.confidence_threshold
    assert float(parameters["batch_size_scheduler/policy/confidence_threshold"]) == threshold


def test_a_user_s_own_of_the_same_name_stays(tmp_path):
    class Named(Linear):
        def __init__(self, batch_size_scheduler="mine"):
            super().__init__()
            self.save_hyperparameters()

    loggers = [tensorboard_in(tmp_path), csv_in(tmp_path)]
    run({0: 16}, tmp_path, model=Named(), logger=loggers)
    assert read_tensorboard(loggers[0]).parameters == {"batch_size_scheduler": "mine"}
    assert read_csv(loggers[1]).parameters == {"batch_size_scheduler": "mine"}


def test_what_is_saved_for_no_logger_goes_to_none(tmp_path):
    class Secret(Linear):
        def __init__(self, token="secret"):
            super().__init__()
            self.save_hyperparameters(logger=False)

    logger = csv_in(tmp_path)
    run({0: 16}, tmp_path, model=Secret(), logger=logger)
    assert "token" not in read_csv(logger).parameters
    assert "batch_size_scheduler/max_batch_size" in read_csv(logger).parameters


@pytest.mark.skipif(
    "enable_autolog_hparams" not in inspect.signature(Trainer).parameters, reason="Lightning has it from 2.5.1 on"
)
def test_without_autolog_no_hyper_parameters_are_told(tmp_path):
    logger = csv_in(tmp_path)
    fit(tmp_path, logger, enable_autolog_hparams=False)
    assert (Path(logger.log_dir) / "metrics.csv").exists()
    assert not (Path(logger.log_dir) / "hparams.yaml").exists()


def test_without_a_logger_there_are_the_run_s_own_files_alone(tmp_path):
    fit(tmp_path, False)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["history.jsonl", "run.json"]


class Noted(Logger):
    """A logger of another kind, which notes its calls; `fails` names those that it cannot do."""

    def __init__(self, fails: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.fails, self.calls = fails, []

    name, version = "noted", "0"

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.fails:
            raise OSError(f"no room for the {call}")

    def log_hyperparams(self, params, *args, **kwargs):
        self._note("hyper-parameters")

    def log_metrics(self, metrics, step=None):
        self.calls.append("metrics")


@journal.log_decision.register
def _(logger: Noted, told, step):
    logger._note("decision")


def test_another_kind_of_logger_can_be_taught(tmp_path):
    logger = Noted()
    fit(tmp_path, logger)
    # Lightning hands over the user's hyper-parameters after the scheduler's.
    assert logger.calls[:2] == ["hyper-parameters"] * 2
    assert logger.calls.count("decision") == 2


@pytest.mark.parametrize("what", ["hyper-parameters", "decision"])
def test_a_logger_that_fails_costs_no_run(what, tmp_path):
    logger = Noted((what,))
    with pytest.warns(UserWarning, match=f"Noted did not take the {what} of the batch size: no room"):
        _, scheduler, *_ = run({0: 16}, tmp_path, logger=logger)
    assert [record.batch_size for record in scheduler.history] == [8, 16, 16]


def test_only_the_first_rank_tells(tmp_path, monkeypatch):
    logger = Noted()
    scheduler = fit(tmp_path, logger)
    trainer, (record, *_) = trainer_of([], logger=logger), scheduler.history
    monkeypatch.setattr(Trainer, "is_global_zero", False)
    logger.calls.clear()
    journal.log_hyper_parameters(trainer, {})
    journal.tell_loggers(trainer, [record], [Grant(0, 16, 16, "up")], [])
    assert logger.calls == []


def test_a_resumed_fit_tells_nothing_twice(tmp_path):
    saved = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    first = [tensorboard_in(tmp_path), mlflow_in(tmp_path)]
    run({0: 16, 1: 4}, tmp_path, model=Own(), logger=first, neighbours=[saved], enable_checkpointing=True, max_epochs=2)
    again = [tensorboard_in(tmp_path), mlflow_in(tmp_path, run_id=first[1].run_id)]
    with pytest.warns(UserWarning, match="MLFlowLogger did not take the hyper-parameters"):  # it never changes one
        run({0: 16, 1: 4}, tmp_path, model=Own(), logger=again, ckpt_path=tmp_path / "epoch=0.ckpt",
            scheduler_args={"max_batch_size": 100})  # fmt: skip
    for read in (read_tensorboard(first[0]), read_mlflow(again[1])):
        told = list(dict.fromkeys(read.decisions))
        changes = ["After epoch 0: batch size 8 -> 16", "After epoch 1: batch size 16 -> 4"]
        assert [line.split(".")[0] for line in told] == changes
        assert float(read.parameters["batch_size_scheduler/max_batch_size"]) == 2048
        assert dict(read.metrics["samples_seen"]) == {7: 64, 11: 128, 27: 192}
    assert len(read_mlflow(again[1]).decisions) == 2


# In the terminal


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def before(shown: str, text: str) -> str:
    """What stands in a line of the terminal when a text is written there."""
    line = ""
    for part in re.split(r"(\r|\x1b\[2K)", shown[: shown.index(text)].rpartition("\n")[2]):
        if part == "\x1b[2K":  # erases the line
            line = ""
        elif part != "\r":  # written over what was there
            line = part + line[len(part) :]
    return line.strip()


@contextmanager
def a_terminal() -> Iterator[Terminal]:
    """A terminal that shows standard output, errors and Lightning's log, as one is."""
    terminal = Terminal()
    named = [h for name in ("lightning", "lightning.pytorch") for h in logging.getLogger(name).handlers]
    old = [(handler, handler.setStream(terminal)) for handler in named if type(handler) is logging.StreamHandler]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, terminal)
        patch.setattr(rich, "_console", None)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": "120"}.items():
            patch.setenv(name, value)
        yield terminal
    for handler, stream in old:
        handler.setStream(stream)


@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar])
def test_a_decision_stands_above_a_bar_that_stays_whole(bar, tmp_path):
    with a_terminal() as terminal:
        run({0: 16}, tmp_path, neighbours=[bar()], enable_progress_bar=True)
    shown = re.sub(r"\x1b\[(A|[0-9;]*m)", "", terminal.getvalue())  # colours and steps upwards aside
    told = "After epoch 0: batch size 8 -> 16. the trial wants 16 after epoch 0"
    assert shown.count(told) == 1
    assert before(shown, told) == ""
    assert shown[shown.index(told) + len(told) :].lstrip("\r").startswith("\n")
    assert re.search(r"batch_size[:=] ?16\.0", shown)
    assert before(shown, "epoch  batch  steps") == ""  # the table at the end


class Elsewhere(Noted):
    """Of a run in a folder that other runs share."""

    def __init__(self, root, version):
        super().__init__()
        self.root, self.version = root, version

    @property
    def save_dir(self):
        return self.root


def test_runs_that_share_a_folder_have_one_each_for_their_history(tmp_path):
    for version in ("first", 2):
        run({0: 16}, tmp_path, logger=Elsewhere(tmp_path / "shared", version))
    shared = tmp_path / "shared" / "noted"
    assert sorted(path.parent for path in shared.rglob("history.jsonl")) == [shared / "first", shared / "version_2"]


def test_a_logger_without_a_folder_has_its_history_below_that_of_the_trainer(tmp_path):
    run({0: 16}, tmp_path, logger=Noted())
    assert len((tmp_path / "noted" / "0" / "history.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "noted" / "0" / "report.html").exists()

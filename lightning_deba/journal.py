"""What a fit tells of itself: to its loggers, to the terminal, and in the files of its run.

Numbers go to every logger under the same names, with `samples_seen` in the same row, so that a chart can be drawn
against it. A decision goes as text where a logger has a place for one, and where it says something new: the batch
size changes, or a limit is met for the first time. All decisions are in ``history.jsonl`` and on the report page.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from functools import singledispatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rich
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from tqdm import tqdm  # type: ignore[import-untyped]

from lightning_deba.actuators import user_parameters
from lightning_deba.policies import BatchSizePolicy
from lightning_deba.presets import Preset
from lightning_deba.records import EpochRecord, Grant, History, RunWriter

__all__ = ["announce", "describe", "hyper_parameters", "log_decision", "log_hyper_parameters", "metrics", "sentence"]

PREFIX = "batch_size_scheduler"
"""Under which the hyper-parameters of the scheduler stand beside the user's own."""

Told = Sequence[tuple[int, Grant]]
"""Decisions that say something new, each with the batch size before it."""


# What ran


def describe(policy: BatchSizePolicy | None, preset: Preset | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Describes a run in plain data, for its ``run.json``.

    Args:
        policy: What decides.
        preset: Where it comes from, if from a preset.
        settings: What else the run was set to, by name.

    Example:
        >>> from lightning_deba import DEBA
        >>> run = describe(DEBA(cooldown=9), None, {"max_batch_size": 512, "lr_scaling": abs})
        >>> run["policy"]["name"], run["policy"]["parameters"]["cooldown"], run["max_batch_size"], run["lr_scaling"]
        ('DEBA', 9, 512, 'abs')
    """
    parameters: dict[str, Any] = asdict(policy) if is_dataclass(policy) and not isinstance(policy, type) else {}
    run: dict[str, Any] = {
        "version": 1,
        "policy": {"name": getattr(policy, "__name__", type(policy).__name__), "parameters": parameters},
        "preset": preset and {"name": preset.name, "source": preset.source, "note": preset.note},
        **settings,
        "versions": {name: version(name) for name in ("lightning-deba", "lightning", "torch")},
    }
    plain: dict[str, Any] = json.loads(json.dumps(run, default=_named))
    return plain


def _named(value: Any) -> str:
    """Names what JSON cannot hold, such as a function; a name is the same in the next run, an address is not."""
    return str(getattr(value, "__qualname__", None) or repr(value))


def hyper_parameters(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns of a described run what was chosen, to stand beside a user's own hyper-parameters.

    Example:
        >>> from lightning_deba import DEBA
        >>> found = hyper_parameters(describe(DEBA(cooldown=9), None, {"max_batch_size": 512}))
        >>> found["policy"]["name"], found["policy"]["cooldown"], found["max_batch_size"], "preset" in found
        ('DEBA', 9, 512, False)
    """
    chosen = {name: value for name, value in run.items() if name not in ("version", "versions", "model", "preset")}
    chosen["policy"] = {"name": run["policy"]["name"], **run["policy"]["parameters"]}
    if run["preset"] is not None:
        chosen["preset"] = {name: run["preset"][name] for name in ("name", "source")}
    return chosen


def log_hyper_parameters(trainer: Trainer, run: Mapping[str, Any]) -> None:
    """Hands the scheduler's hyper-parameters to every logger, unless the Trainer is told to hand over none.

    It comes before Lightning hands over the user's, and brings those along: of a run TensorBoard shows the
    hyper-parameters that come first, and no others. A user's own of the same name goes before the scheduler's.
    """
    if not trainer.is_global_zero or not getattr(trainer, "enable_autolog_hparams", True):  # from 2.5.1 on
        return
    parameters = {PREFIX: hyper_parameters(run), **user_parameters(trainer)}
    for logger in trainer.loggers:
        with _costs_no_run(logger, "hyper-parameters"):
            logger.log_hyperparams(parameters)


# What was measured and decided


def metrics(history: History, decided: Grant, lr_factor: float | None) -> dict[str, float]:
    """Returns what the loggers get of the last epoch, by name; what was not measured is left out.

    Args:
        history: The records up to that epoch.
        decided: What was granted at its end.
        lr_factor: What the scheduler multiplies the learning rate by, if it does.

    Example:
        >>> metrics([EpochRecord(0, 32, 32, samples=64)], Grant(0, 48, 48, "calm", signals={"confidence": 0.9}), None)
        {'batch_size': 32.0, 'samples_seen': 64.0, 'deba/confidence': 0.9}
    """
    record = history[-1]
    found = {
        "batch_size": record.batch_size,
        "samples_seen": sum(past.samples for past in history),
        "grad/norm": record.gradient_norm,
        "grad/component_variance": record.component_variance,
        "grad/noise_scale": _noise_scale_of(record),
        "lr/effective": record.learning_rate,
        "lr/factor": lr_factor,
        **{f"deba/{name}": value for name, value in decided.signals.items()},
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _noise_scale_of(record: EpochRecord) -> float | None:
    """Returns an epoch's noise scale; where it is undetermined there is none."""
    squared, covariance = record.gradient_squared, record.gradient_covariance
    if squared is None or covariance is None or squared <= 0:
        return None
    return max(0.0, covariance) / squared


def sentence(before: int, decided: Grant) -> str:
    """Writes what was decided for people.

    Example:
        >>> sentence(64, Grant(epoch=4, proposed=96, batch_size=80, reason="calm", limits="`max_batch_size` is 80"))
        'After epoch 4: batch size 64 -> 80 (96 was proposed; `max_batch_size` is 80). calm'
        >>> sentence(64, Grant(epoch=4, proposed=64, batch_size=64, reason="cooldown"))
        'After epoch 4: batch size 64 stays. cooldown'
    """
    change = f"{before} -> {decided.batch_size}" if decided.batch_size != before else f"{before} stays"
    asked = f" ({decided.proposed} was proposed; {decided.limits})" if decided.limits else ""
    return f"After epoch {decided.epoch}: batch size {change}{asked}. {decided.reason}"


def tell_loggers(trainer: Trainer, history: History, decisions: Sequence[Grant], names: Sequence[str]) -> None:
    """Has the last epoch's metrics charted against samples, and its decision written down where it says something new.

    Args:
        trainer: Whose loggers are told.
        history: The records of the run.
        decisions: Their grants.
        names: Of the metrics.
    """
    if not trainer.is_global_zero or not trainer.loggers:
        return
    from lightning_deba.report.tables import decision_rows  # brings matplotlib, which the page needs in the end

    rows = decision_rows(history, decisions)
    told = [(row.before, decided) for row, decided in zip(rows, decisions, strict=True) if row.notable]
    # Where Lightning logs an epoch's metrics: at its last step, counted from 0.
    step = sum(record.optimizer_steps for record in history) - 1
    for logger in trainer.loggers:
        with _costs_no_run(logger, "decision"):
            chart_by_samples(logger, names)
            if rows[-1].notable:
                log_decision(logger, told, step)


@singledispatch
def chart_by_samples(logger: Logger, names: Sequence[str]) -> None:
    """Makes `samples_seen` the axis of charts, where the logger holds such a thing; elsewhere a chart is set to it."""


@chart_by_samples.register
def _(logger: WandbLogger, names: Sequence[str]) -> None:
    for name in names:
        if name != "samples_seen":
            logger.experiment.define_metric(name, step_metric="samples_seen")


@singledispatch
def log_decision(logger: Logger, told: Told, step: int) -> None:
    """Writes the last decision as text; a logger without a place for text gets none.

    Args:
        logger: One of Lightning's. Another kind is taught by ``log_decision.register``.
        told: The decisions that say something new, up to this one.
        step: The step that the epoch's metrics are logged at.
    """


@log_decision.register
def _(logger: TensorBoardLogger, told: Told, step: int) -> None:
    logger.experiment.add_text("deba/decision", sentence(*told[-1]), step)


@log_decision.register
def _(logger: WandbLogger, told: Told, step: int) -> None:
    columns = ["epoch", "before", "proposed", "batch size", "reason", "limits"]
    data = [[d.epoch, before, d.proposed, d.batch_size, d.reason, d.limits] for before, d in told]
    logger.log_table("deba/decisions", columns, data, step=step)


@log_decision.register
def _(logger: MLFlowLogger, told: Told, step: int) -> None:
    text = "".join(sentence(*decision) + "\n" for decision in told)
    logger.experiment.log_text(str(logger.run_id), text, "deba/decisions.txt")


@contextmanager
def _costs_no_run(logger: Logger, what: str) -> Iterator[None]:
    """Turns an error into a warning: training is worth more than what is told of it."""
    try:
        yield
    except Exception as error:
        rank_zero_warn(f"{type(logger).__name__} did not take the {what} of the batch size: {error}")


# The run's own directory


def run_directory(trainer: Trainer) -> Path:
    """Returns the directory of this very run, as `ModelCheckpoint` finds it. Every rank has to call this.

    Lightning's ``log_dir`` is a run's own with the loggers for TensorBoard and CSV; with others it is one that runs
    share, or none.
    """
    logger = trainer.logger
    if logger is None or isinstance(logger, TensorBoardLogger | CSVLogger):
        return Path(trainer.log_dir or trainer.default_root_dir)
    version = f"version_{logger.version}" if isinstance(logger.version, int) else logger.version
    parts = (str(part) for part in (logger.name, version) if part is not None)
    found: Path = trainer.strategy.broadcast(Path(logger.save_dir or trainer.default_root_dir).joinpath(*parts))
    return found


# In the terminal


def announce(text: str) -> None:
    """Writes a line to Lightning's log, above a progress bar if there is one."""
    with _beside_progress_bars():
        rank_zero_info(text)


def show(trainer: Trainer, writer: RunWriter, history: History, decisions: Sequence[Grant]) -> None:
    """Shows a run that has ended as a table, and writes the report page beside its history."""
    try:
        from lightning_deba import report  # matplotlib is imported only where a figure is made

        if trainer.progress_bar_callback is not None:
            with _beside_progress_bars():
                rich.print(report.summary_table(history, decisions))
        if trainer.loggers:
            announce(f"Report: {report.write_report([writer.directory])}")
    except Exception as error:  # a page must not cost a run
        rank_zero_warn(f"The report could not be written ({error}). The history is '{writer.path}'.")


@contextmanager
def _beside_progress_bars() -> Iterator[None]:
    """Keeps progress bars whole while lines are written.

    Those of tqdm are taken away meanwhile. Those of Rich move down for what is written to `sys.stderr`, but a
    log's handler holds the stream that was there before them.
    """
    below_rich = getattr(sys.stderr, "rich_proxied_file", None)
    handlers = [h for h in _stream_handlers() if below_rich is not None and h.stream is below_rich]
    with tqdm.external_write_mode():
        for handler in handlers:
            handler.setStream(sys.stderr)
        try:
            yield
        finally:
            for handler in handlers:
                handler.setStream(below_rich)


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    """Returns the handlers to which Lightning's log comes."""
    found: list[logging.Handler] = []
    logger: logging.Logger | None = logging.getLogger("lightning.pytorch")
    while logger is not None:
        found += logger.handlers
        logger = logger.parent if logger.propagate else None
    return [handler for handler in found if isinstance(handler, logging.StreamHandler)]

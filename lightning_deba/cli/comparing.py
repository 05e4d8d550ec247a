"""The command that compares policies on a grid of arms, models and seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveInt
from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import LightningArgumentParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

# Imported so that ``--data DigitsDataModule`` needs no module's name.
from lightning_deba import vision  # noqa: F401
from lightning_deba.comparison import (
    Comparison,
    Engine,
    Grid,
    LocalEngine,
    Outcome,
    RayEngine,
    Summary,
    compare,
    write_comparison_report,
    write_csv,
)
from lightning_deba.comparison.job import epochs_done

TIMES = ("processor_seconds", "processor_seconds_to_target")
"""What the printed table shows beside the accuracy; the CSV file has all measures."""
ENOUGH = 5
"""Seeds from which on the sign of a difference means something by itself."""
MEMORY = 3600.0
"""Seconds of the past that the time left is told from: an epoch may take minutes."""


def run(args: list[str]) -> None:
    """Runs ``compare``: trains what is missing of a grid, prints a table and writes ``results.csv``."""
    config = _parser().parse_args(args).as_dict()
    grid, engine, output = grid_of(config), engine_of(config), Path(config["output"])
    output.mkdir(parents=True, exist_ok=True)
    found = _with_progress(grid, engine, output)
    _show(found, output)
    if found.failures:
        job, error = found.failures[0]
        raise ValueError(f"{len(found.failures)} of {len(grid.jobs())} runs failed, the first {job}: {error}")


def _show(found: Comparison, output: Path) -> None:
    """Prints the table, and writes what is kept of it: the place for every file beside the runs."""
    write_csv(found.rows, output / "results.csv")
    Console().print(table(found))
    print(output / "results.csv")
    grid, base = found.grid, found.grid.reference
    if any(run.arm == base for run in found.runs):
        print(write_comparison_report(found.runs, output, baseline=base, target=grid.target, jobs=grid.jobs()))


def grid_of(config: Mapping[str, Any]) -> Grid:
    """Builds the grid that the command's arguments tell of."""
    return Grid.from_dict({field.name: config[field.name] for field in fields(Grid)})


def engine_of(config: Mapping[str, Any]) -> Engine:
    """Builds the engine that the command's arguments tell of.

    Raises:
        ValueError: If an argument of a cluster is given without one.
        ImportError: If Ray is asked for and not installed.

    Example:
        >>> engine_of({"engine": "local", "workers": None, "address": "auto", "gpus_per_job": 0.0})
        Traceback (most recent call last):
            ...
        ValueError: `address` is that of a Ray cluster, got 'auto': add `--engine ray`, or leave it out.
    """
    if config["engine"] == "ray":
        return RayEngine(config["address"], config["workers"], gpus_per_job=config["gpus_per_job"])
    if config["address"] is not None:
        raise ValueError(
            f"`address` is that of a Ray cluster, got {config['address']!r}: add `--engine ray`, or leave it out."
        )
    if config["gpus_per_job"]:
        raise ValueError(
            f"`gpus_per_job` is for a Ray cluster, got {config['gpus_per_job']}: add `--engine ray`, or leave it out; "
            "processes on this machine get a GPU each, in turn."
        )
    return LocalEngine(config["workers"])


def _parser() -> LightningArgumentParser:
    parser = LightningArgumentParser(
        prog="lightning-deba compare",
        usage="lightning-deba compare --config configs/compare/digits.yaml [options]",
        description="Train every arm (a policy and its first batch size) with every model and seed, and tell what "
        "differs from the baseline. Stopped anywhere, the same command goes on where it was; no run is repeated.",
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", help="YAML file with the arguments below; it may be repeated.")
    # A bare `dict` is left as it is; in one of `Any` the classes would get all their defaults.
    parser.add_argument("--models", type=dict, default={}, help="Models by name: class_path and init_args.")
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    parser.add_argument(
        "--arms",
        type=dict,
        default={},
        help="Arms by name: batch_size; policy, or changes of the model's preset; arguments of scheduler and model.",
    )
    parser.add_argument("--seeds", type=PositiveInt | list[NonNegativeInt], default=3, help="Seeds, or how many.")
    parser.add_argument("--epochs", type=PositiveInt, default=25, help="Epochs of each run.")
    parser.add_argument("--baseline", type=str | None, default=None, help="Arm to compare with; the first by default.")
    parser.add_argument("--target", type=float | None, default=None, help="Validation accuracy whose time is taken.")
    parser.add_argument("--metric", type=str, default="accuracy", help="What the model logs under val/ and test/.")
    parser.add_argument("--trainer_args", type=dict, default={}, help="Further arguments of the Trainer.")
    parser.add_argument("-o", "--output", default="comparison", help="Folder of the runs and of results.csv.")
    parser.add_argument(
        "--workers",
        type=NonNegativeInt | None,
        default=None,
        help="Runs at a time, each on one thread; by default as many as there are GPUs, or else cores, here or in the "
        "cluster.",
    )
    parser.add_argument(
        "--engine",
        type=Literal["local", "ray"],
        default="local",
        help="Where to run: in processes on this machine, or on a Ray cluster whose nodes share the output folder.",
    )
    parser.add_argument(
        "--address",
        type=str | None,
        default=None,
        help="Address of the Ray cluster, such as `auto`; without one Ray is started on this machine.",
    )
    parser.add_argument("--gpus_per_job", type=NonNegativeFloat, default=0.0, help="GPUs of each run on Ray.")
    return parser


def _with_progress(grid: Grid, engine: Engine, output: Path) -> Comparison:
    jobs, ended = grid.jobs(), set[str]()  # of a run that has failed nothing is to come either

    def epochs() -> int:
        return sum(job.epochs if str(job) in ended else epochs_done(job, output) for job in jobs)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), speed_estimate_period=MEMORY) as progress:
        # What was done earlier is no sign of how fast it goes.
        task = progress.add_task("runs", completed=epochs(), total=sum(job.epochs for job in jobs))

        def update() -> None:
            progress.update(task, completed=epochs(), description=f"{len(ended)}/{len(jobs)} runs")

        def show(outcome: Outcome) -> None:
            ended.add(str(outcome.job))
            if outcome.error:
                progress.console.print(f"{outcome.job} failed: {outcome.error}", markup=False)

        with _every_second(update):
            return compare(grid, output, engine=engine, on_outcome=show)


@contextmanager
def _every_second(action: Callable[[], None]) -> Iterator[None]:
    """Does something again and again in the meantime, and once in the end."""
    over = Event()

    def repeat() -> None:
        while not over.wait(1.0):
            action()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        action()


def table(found: Comparison) -> Table:
    """Lays out a comparison: a row an arm, with what differs from the baseline for certain."""
    reference, summaries = found.grid.reference, found.summary()
    tested = any(summary.measure == "test_accuracy" for summary in summaries)
    columns = ("test_accuracy" if tested else "val_accuracy", *TIMES)
    shown = Table(title="Medians over seeds", caption=_caption(reference, summaries))
    for name in ("arm", "runs", *(name.replace("processor_", "CPU ").replace("_", " ") for name in columns), "at last"):
        shown.add_column(name)
    by_arm: dict[tuple[str, str], dict[str, Summary]] = {}
    for summary in summaries:
        by_arm.setdefault((summary.model, summary.arm), {})[summary.measure] = summary
    for model in dict.fromkeys(model for model, _ in by_arm):
        shown.add_section()
        shown.add_row(f"[bold]{model}")
        for arm, mine in ((arm, mine) for (other, arm), mine in by_arm.items() if other == model):
            last = mine["final_batch_size"]
            cells = (_cell(mine.get(name)) for name in columns)
            shown.add_row(arm, str(last.runs), *cells, f"{last.median.value:g}")
    return shown


def _caption(reference: str, summaries: Sequence[Summary]) -> str:
    pairs = max((summary.pairs for summary in summaries), default=0)
    chance = f" Of {pairs} seeds, chance alone makes all differ alike once in {2 ** (pairs - 1)} times."
    return (
        f"Below: the difference from {reference}, seed by seed, and its 90 % interval; none where that contains 0."
        + (chance if 2 <= pairs < ENOUGH else "")
    )


def _cell(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    value = "never" if math.isinf(summary.median.value) else _number(summary.median.value, ".3g")
    if summary.difference is None:
        return value
    middle, low, high = (_number(bound, "+.2g") for bound in summary.difference)
    return f"{value}\n{'none' if summary.verdict == 'none' else f'{middle} ({low} to {high})'}"


def _number(value: float, digits: str) -> str:
    """Writes a number with a few digits, but every one before the point.

    Example:
        >>> _number(-0.0123, "+.2g"), _number(-245.0, "+.2g"), _number(1234.5, ".3g")
        ('-0.012', '-245', '1,234')
    """
    if not 100 <= abs(value) < math.inf:
        return f"{value:{digits}}"
    return f"{value:+,.0f}" if digits.startswith("+") else f"{value:,.0f}"

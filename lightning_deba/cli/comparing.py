"""The command that compares policies on a grid of arms, models and seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import LightningArgumentParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

# Imported so that ``--data DigitsDataModule`` needs no module's name.
from lightning_deba import vision  # noqa: F401
from lightning_deba.comparison import Comparison, Grid, Outcome, Summary, compare, write_csv

TIMES = ("processor_seconds", "processor_seconds_to_target")
"""What the printed table shows beside the accuracy; the CSV file has all measures."""
ENOUGH = 5
"""Seeds from which on the sign of a difference means something by itself."""


def run(args: list[str]) -> None:
    """Runs ``compare``: trains what is missing of a grid, prints a table and writes ``results.csv``."""
    config = _parser().parse_args(args).as_dict()
    output, workers = Path(config.pop("output")), config.pop("workers")
    config.pop("config")
    grid = Grid.from_dict(config)
    output.mkdir(parents=True, exist_ok=True)
    found = _with_progress(grid, output, workers)
    write_csv(found.rows, output / "results.csv")
    Console().print(table(found))
    print(output / "results.csv")
    if found.failures:
        job, error = found.failures[0]
        raise ValueError(f"{len(found.failures)} of {len(grid.jobs())} runs failed, the first {job}: {error}")


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
        "--workers", type=NonNegativeInt | None, default=None, help="Processes of one thread; the cores by default."
    )
    return parser


def _with_progress(grid: Grid, output: Path, workers: int | None) -> Comparison:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("runs", total=len(grid.jobs()))

        def show(outcome: Outcome) -> None:
            progress.advance(task)
            if outcome.error:
                progress.console.print(f"{outcome.job} failed: {outcome.error}", markup=False)

        return compare(grid, output, workers=workers, on_outcome=show)


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
    value = "never" if math.isinf(summary.median.value) else f"{summary.median.value:.3g}"
    if summary.difference is None:
        return value
    middle, low, high = (f"{bound:+.2g}" for bound in summary.difference)
    return f"{value}\n{'none' if summary.verdict == 'none' else f'{middle} ({low} to {high})'}"

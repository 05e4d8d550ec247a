"""The command that characterizes a model under a fixed batch size."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

# Imported so that ``--model ImageClassifier`` and ``--data DigitsDataModule`` need no module's name.
from lightning_deba import vision  # noqa: F401
from lightning_deba.baseline import characterize
from lightning_deba.characterization import Characterization
from lightning_deba.presets import preset_from, preset_to_yaml
from lightning_deba.records import read_history
from lightning_deba.throughput import LADDER


def run(args: list[str]) -> None:
    """Runs ``characterize``: trains with a fixed batch size, and writes a profile, a preset and a page."""
    parser = _parser()
    config = parser.parse_args(args)
    output = Path(config.output)
    _check_writable(output)
    if config.threads:
        torch.set_num_threads(config.threads)
    directory = output.with_suffix("") if output.suffix else output.with_name(output.name + "_runs")
    with _Epochs(config.epochs, config.seeds, directory) as progress:
        try:
            found = characterize(
                lambda: parser.instantiate_classes(config).model,
                parser.instantiate_classes(config).data,
                epochs=config.epochs,
                seeds=config.seeds,
                directory=directory,
                batch_sizes=config.batch_sizes,
                trainer_args=config.trainer_args,
                callbacks=[progress],
                about={name: config[name].as_dict() for name in ("model", "data")},
            )
        except MisconfigurationException as error:
            raise ValueError(str(error)) from error
    command = f"lightning-deba characterize {' '.join(args)}"
    _write(replace(found, about={**found.about, "command": command}), output)


def _parser() -> LightningArgumentParser:
    parser = LightningArgumentParser(
        prog="lightning-deba characterize",
        usage="lightning-deba characterize --config configs/characterize.yaml [options]",
        description="Train with a fixed batch size, once a seed, and tell what suits the architecture: a profile, a "
        "preset to use at once, and a page. Stopped anywhere, the same command goes on where it was.",
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", help="YAML file with the arguments below; it may be repeated.")
    parser.add_lightning_class_args(LightningModule, "model", subclass_mode=True)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    for name in ("num_classes", "in_chans"):
        parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")
    parser.add_argument("--epochs", type=PositiveInt, default=100, help="Epochs of each run.")
    parser.add_argument("--seeds", type=PositiveInt, default=3, help="How many runs.")
    parser.add_argument(
        "--batch_sizes", type=list[int], default=list(LADDER), help="Sizes whose throughput is measured."
    )
    parser.add_argument("-o", "--output", default="profile.json", help="Where to write; the preset and page go beside.")
    parser.add_argument("--threads", type=PositiveInt | None, default=None, help="Threads that torch uses on the CPU.")
    parser.add_argument("--trainer_args", type=dict[str, Any], default={}, help="Further arguments of the Trainer.")
    return parser


def _check_writable(output: Path) -> None:
    """Refuses an output that cannot be written before hours are spent on it."""
    folder = output.parent
    if output.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"`output` must be a file in a folder that can be written to, got '{output}'.")
    if output.suffix in (".yaml", ".html"):
        raise ValueError(
            f"`output` is the profile, beside which the preset and the page go as .yaml and .html: write "
            f"'{output.with_suffix('.json')}', got '{output}'."
        )


class _Epochs(Callback):
    """A progress bar over the epochs of all runs, those that were done before included."""

    def __init__(self, epochs: int, seeds: int, directory: Path) -> None:
        self._columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._total = epochs * seeds
        self._done = sum(len(read_history(directory / f"seed-{seed}", running=True).history) for seed in range(seeds))

    def __enter__(self) -> _Epochs:
        self._progress = Progress(*self._columns)
        self._task = self._progress.add_task("epochs with a fixed batch size", total=self._total, completed=self._done)
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Moves on by an epoch."""
        self._progress.advance(self._task)


def _write(found: Characterization, output: Path) -> None:
    """Writes the profile, the preset and the page, and prints what was found."""
    name = f"{found.profile.architecture}_own"
    epochs = [len(run) for run in found.profile.histories]
    source = (
        f"lightning-deba characterize: {len(epochs)} runs of {min(epochs)} epochs with a fixed batch of "
        f"{found.profile.batch_size}; {output.name}"
    )
    preset = preset_to_yaml(preset_from(found, name, source))
    output.write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
    output.with_suffix(".yaml").write_text(preset, encoding="utf-8")
    Console().print(summary(found))
    from lightning_deba.report import write_profile_report  # matplotlib is imported only where a figure is made

    page = write_profile_report(found, output.with_suffix(".html"), preset=preset)
    for path in (output, output.with_suffix(".yaml"), page):
        print(path)


def summary(found: Characterization) -> Table:
    """Lays out what a characterization found."""
    table = Table.grid("field", "value", padding=(0, 2, 0, 0))
    intervals = found.intervals
    rows: Sequence[tuple[str, object]] = (
        ("verdict", found.verdict.word),
        ("", found.verdict.reason),
        ("", found.verdict.risk),
        ("architecture", found.profile.architecture),
        ("stability score", f"{found.profile.score:.2f}"),
        *(
            (name.replace("_", " "), f"{getattr(found.policy, name):g} (90 %: {low:.2g} to {high:.2g})")
            for name, (low, high) in intervals.items()
        ),
        ("cooldown", f"{found.policy.cooldown} epochs"),
    )
    for name, value in rows:
        table.add_row(name, str(value))
    return table

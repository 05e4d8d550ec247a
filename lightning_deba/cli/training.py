"""The commands that train: Lightning's own command line, with defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.memory import garbage_collection_cuda

# Imported so that ``--model ImageClassifier`` and ``--data DigitsDataModule`` need no module's name.
from lightning_deba import BatchSizeScheduler, vision  # noqa: F401
from lightning_deba.memory import is_out_of_memory

DEFAULTS = Path(__file__).with_name("defaults.yaml")
"""What is trained when nothing is said; a ``--config`` is laid over it."""


class TrainingCLI(LightningCLI):
    """Trains any LightningModule on any LightningDataModule.

    Where the data have ``num_classes`` and ``in_chans`` and the model takes such arguments, it gets them.
    """

    def __init__(self, args: list[str]) -> None:
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_kwargs={
                "prog": "lightning-deba",
                "exit_on_error": False,
                **{command: _parser_settings(command) for command in self.subcommands()},
            },
            args=args,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Returns the commands, and which arguments of the Trainer's methods are not theirs."""
        return {name: skip for name, skip in LightningCLI.subcommands().items() if name != "predict"}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links what the model has to know of the data, and adds what belongs to no object."""
        for name in ("num_classes", "in_chans"):
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")
        parser.add_argument(
            "--threads",
            type=PositiveInt | None,
            default=None,
            help="Threads that torch uses on the CPU; all cores by default. For a small network 1 is as fast, and "
            "where others use the cores too it is much faster.",
        )

        parser.add_argument(
            "--on_oom",
            type=Literal["stop", "resume"],
            default="stop",
            help="What `fit` does out of memory. It stops, and says how to go on; or it goes on by itself from the "
            "checkpoint that was saved, with half the micro-batch size, at most three times.",
        )

    def before_instantiate_classes(self) -> None:
        """Sets the number of threads."""
        if threads := self.config[self.subcommand].threads:
            torch.set_num_threads(threads)

    def fit(self, **arguments: Any) -> None:
        """Runs `Trainer.fit`, and goes on out of memory where `on_oom` says so."""
        for _ in range(3 if self.config.fit.on_oom == "resume" else 0):
            try:
                self.trainer.fit(**arguments)
            except Exception as error:
                scheduler = _scheduler_of(self.trainer)
                if not is_out_of_memory(error) or scheduler is None:
                    raise
                way_on = scheduler.out_of_memory
                if way_on is None or way_on.checkpoint is None:
                    raise
            else:
                return
            # The error is gone by now, and with it what its frames held of the memory.
            garbage_collection_cuda()
            scheduler.max_micro_batch_size = way_on.max_micro_batch_size
            arguments["ckpt_path"] = str(way_on.checkpoint)
            rank_zero_info(f"Going on from there with `max_micro_batch_size={way_on.max_micro_batch_size}`.")
        self.trainer.fit(**arguments)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses the words that were passed, without Lightning's warning that there is a command line as well."""
        self.config = parser.parse_args(args)


def _parser_settings(command: str) -> dict[str, Any]:
    return {
        "usage": f"lightning-deba {command} [--config FILE ...] [options]",
        "description": "--print_config shows all that is set, by default or otherwise; --model.help=ImageClassifier, "
        "--data.help=DigitsDataModule and the like tell the arguments of a class.",
        "default_config_files": [str(DEFAULTS)],
        "exit_on_error": False,
    }


def _scheduler_of(trainer: Any) -> BatchSizeScheduler | None:
    return next((callback for callback in trainer.callbacks if isinstance(callback, BatchSizeScheduler)), None)


def train(args: list[str]) -> None:
    """Runs ``fit``, ``validate`` or ``test``.

    Raises:
        ValueError: If it cannot work, with the reason.
        argparse.ArgumentError: If the arguments cannot be read.
    """
    try:
        TrainingCLI(args)
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error

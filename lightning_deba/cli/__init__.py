"""usage: lightning-deba COMMAND [options]

Adaptive batch sizes for PyTorch Lightning.

To train, with Lightning:
  fit           train; alone it trains a small network on handwritten digits
  validate      evaluate on the validation images
  test          evaluate on the test images
  characterize  train with a fixed batch size, and tell which preset suits and whether it pays
  compare       train a grid of policies x models x seeds, and tell which differences are real

To look at what is known:
  presets       list the presets; `presets show MODEL` shows the one for a model
  policies      list the policies
  replay        what would another preset have decided in a recorded run?
  report        write one HTML page about one run or several
  watch         follow a run in the terminal

`lightning-deba COMMAND --help` explains a command. JSONARGPARSE_DEBUG=true shows the trace of an error.
"""  # noqa: D415  # it is what `--help` prints

from __future__ import annotations

import os
import sys
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from functools import partial

from lightning_deba.cli import commands
from lightning_deba.cli.errors import in_one_line

__all__ = ["main"]


def _train(command: str, args: list[str]) -> None:
    from lightning_deba.cli.training import train  # imports Lightning, which the other commands do without

    train([command, *args])


def _characterize(args: list[str]) -> None:
    from lightning_deba.cli.characterizing import run  # imports Lightning as well

    run(args)


def _compare(args: list[str]) -> None:
    from lightning_deba.cli.comparing import run  # likewise

    run(args)


def _watch(args: list[str]) -> None:
    from lightning_deba.cli.watching import watch  # imports the report, and that matplotlib

    watch(args)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    **{command: partial(_train, command) for command in ("fit", "validate", "test")},
    "characterize": _characterize,
    "compare": _compare,
    "presets": commands.presets,
    "policies": commands.list_of_policies,
    "replay": commands.replay,
    "report": commands.report,
    "watch": _watch,
}


def _look_here_too() -> None:
    """Lets a model or data of the user's be found in the current folder, which a console script does not look into."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # at the end, where it hides no package


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        args: The words after ``lightning-deba``; those of the command line by default.

    Returns:
        0, or 2 after an error, of which one line on stderr tells.

    Raises:
        SystemExit: With code 0, after the help of a command.
    """
    command, *rest = list(sys.argv[1:] if args is None else args) or [""]
    if command in ("-h", "--help", ""):
        print(str(__doc__).strip())
        return 0 if command else 2
    try:
        if command not in COMMANDS:
            raise ValueError(f"no command {command!r}; the commands are {', '.join(COMMANDS)}")
        _look_here_too()
        COMMANDS[command](rest)
    except (ArgumentError, ImportError, OSError, ValueError) as error:
        if os.environ.get("JSONARGPARSE_DEBUG") == "true":
            raise
        print(f"lightning-deba: {in_one_line(str(error))}", file=sys.stderr)
        return 2
    return 0

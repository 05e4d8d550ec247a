"""Runs every trial with every contender, and prints the README's table: `python -m tests.rivals`."""

from __future__ import annotations

import logging
import warnings

import torch

from tests.rivals.contenders import CONTENDERS
from tests.rivals.trials import ROWS, column, label


def table() -> str:
    """Returns the table, in Markdown."""
    columns = [[label(row) for row in ROWS], *(column(contender) for contender in CONTENDERS)]
    head = ["", *(contender.name for contender in CONTENDERS)]
    rows = [head, *zip(*columns, strict=True)]
    first, *others = ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join([first, "|---" * len(head) + "|", *others])


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(table())

"""How a job is carried out in a process that does nothing else meanwhile, whoever started it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from lightning_deba.comparison.grid import Job
from lightning_deba.comparison.job import Outcome, execute

__all__ = ["execute_aside"]


def execute_aside(job: Job, root: Path) -> Outcome:
    """Carries a job out on one thread; what it prints goes to ``seed-N.txt`` beside its directory."""
    torch.set_num_threads(1)
    directory = job.directory(root)
    with _printing_into(directory.with_name(f"{directory.name}.txt")):  # beside it, for the directory may be cleared
        return execute(job, root)


@contextmanager
def _printing_into(path: Path) -> Iterator[None]:
    """Sends what is printed to a file, by libraries that hold on to the standard streams as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        with path.open("a", encoding="utf-8") as file:
            for number in kept:
                os.dup2(file.fileno(), number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, stream in kept.items():
            os.dup2(stream, number)
            os.close(stream)

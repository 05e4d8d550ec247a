"""Carries jobs out in processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from lightning_deba.comparison.grid import Job
from lightning_deba.comparison.job import Outcome, execute, failed
from lightning_deba.comparison.worker import execute_aside

__all__ = ["LocalEngine", "devices_for"]

_DEVICES = "CUDA_VISIBLE_DEVICES"
_GUARD = 'a script has to call `compare` below `if __name__ == "__main__":`'


class LocalEngine:
    """Processes on this machine, each of one thread, each with one job at a time.

    What a run prints goes to ``seed-N.txt`` beside its directory. A process that dies costs its job alone. Where there
    are GPUs, each process sees one of them: of those in ``CUDA_VISIBLE_DEVICES`` where that is set, else of all.

    Args:
        workers: How many; by default one for each GPU, and where there is none, for each core. 0 for none beside
            this process.

    Raises:
        ValueError: If `workers` is below 0.

    Example:
        >>> LocalEngine(workers=2).workers
        2
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 0:
            raise ValueError(f"`workers` must be 0 or more, got {workers}.")
        self.workers = len(_visible()) or _cores() if workers is None else workers

    def __call__(self, jobs: Sequence[Job], root: Path, /) -> Iterator[Outcome]:
        """Carries out the jobs, and tells of each as it ends."""
        if self.workers == 0:
            for job in jobs:
                yield execute(job, root)
            return
        waiting, seats = deque(jobs), {}  # type: deque[Job], dict[Connection, _Seat]
        devices = deque(devices_for(self.workers, _visible()))
        try:
            while waiting or seats:
                while waiting and devices:
                    seat = _Seat(root, waiting.popleft(), devices.popleft())
                    seats[seat.connection] = seat
                for connection in wait(list(seats)):
                    seat = seats[connection]  # type: ignore[index]
                    yield seat.outcome(root)
                    if seat.alive and waiting:
                        seat.take(waiting.popleft())
                    else:
                        del seats[seat.connection]
                        seat.close()
                        devices.append(seat.device)
        finally:
            for seat in seats.values():
                seat.close()


def devices_for(workers: int, visible: Sequence[str]) -> list[str | None]:
    """Deals the GPUs out to the workers, in turn.

    Args:
        workers: How many workers there are.
        visible: The names of the GPUs that may be used, as in ``CUDA_VISIBLE_DEVICES``.

    Returns:
        For each worker the name of its GPU; ``None`` where there are none.

    Example:
        >>> devices_for(3, ["0", "1"]), devices_for(2, [])
        (['0', '1', '0'], [None, None])
    """
    return [visible[worker % len(visible)] if visible else None for worker in range(workers)]


def _visible() -> list[str]:
    """Returns the names of the GPUs that this process may use."""
    count = torch.cuda.device_count()  # of those that the variable names, the ones that are there
    named = os.environ.get(_DEVICES)
    return [str(index) for index in range(count)] if named is None else named.split(",")[:count]


class _Seat:
    """A process, and the job that it has."""

    def __init__(self, root: Path, job: Job, device: str | None) -> None:
        self.device = device
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self.connection, theirs = context.Pipe()
        # No daemon, which could not have the workers of a DataLoader.
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, root, device), daemon=False)
        self.process.start()
        theirs.close()  # so that its end is noticed
        self.alive, self.has_worked = True, False
        self.take(job)

    def take(self, job: Job) -> None:
        self.job = job
        try:
            self.connection.send(job)
        except OSError:
            self.alive = False  # it has died in between, as `outcome` will find out

    def outcome(self, root: Path) -> Outcome:
        """Returns how the job ended, or the process."""
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join()
            # Without the guard it imports the script, comes to `compare` once more, and Python refuses.
            hint = "" if self.has_worked or self.process.exitcode != 1 else f"; {_GUARD}"
            return failed(self.job, root, f"the process died, exit code {self.process.exitcode}{hint}")
        self.has_worked = True
        return outcome

    def close(self) -> None:
        """Ends the process, in the middle of its job if need be: whatever it had, a later one goes on from."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(connection: Connection, root: Path, device: str | None) -> None:
    """Carries out the jobs that come, until there are no more or the parent is gone."""
    if device is not None:
        os.environ[_DEVICES] = device  # in time: torch looks when it first needs a GPU
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        connection.send(execute_aside(job, root))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)  # at once: a grid that is started anew must not find this run going on

"""Runs functions in several real processes that talk by gloo, one process a rank, as a cluster starts them.

Most of a start is imports. So one set of processes runs all scenarios of a test module, one after the other, and keeps
what each returns on each rank. One that hangs is ended with all that come after it, and shows where every thread stood.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SECONDS = 120.0  # for one scenario, on a machine that does something else as well

Scenario = Callable[[Path], Any]
"""Gets a directory of its own, the same on all ranks, and returns what can be written as JSON."""


class Processes:
    """The ranks that have run a module's ``SCENARIOS``, a dictionary from names to functions.

    Args:
        module: The module's name.
        root: A directory.
        ranks: How many processes.
    """

    def __init__(self, module: str, root: Path, ranks: int = 2) -> None:
        self.root, self.ranks = root, ranks
        for name in import_module(module).SCENARIOS:
            (root / name).mkdir()
        port = _free_port()
        processes = [_start(module, root, rank, ranks, port) for rank in range(ranks)]
        try:
            self._watch(processes)
        finally:
            for process in processes:
                _signal(process, signal.SIGKILL)
                process.wait()

    def _watch(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Waits until all have ended, or no scenario has for long."""
        done, since = 0, time.monotonic()
        while any(process.poll() is None for process in processes):
            time.sleep(0.1)
            if (now_done := len(list(self.root.glob("*/rank*.json")))) > done:
                done, since = now_done, time.monotonic()
            if time.monotonic() - since > SECONDS:
                for process in processes:
                    _signal(process, signal.SIGUSR1)
                time.sleep(1.0)  # for what they have to say
                return

    def results(self, name: str) -> list[Any]:
        """Returns what the scenario returned on each rank; an exception is a dictionary with "error"."""
        files = [self.root / name / f"rank{rank}.json" for rank in range(self.ranks)]
        if not all(file.exists() for file in files):
            output = "\n".join((self.root / f"rank{rank}.txt").read_text()[-5000:] for rank in range(self.ranks))
            raise AssertionError(f"'{name}' did not end on every rank; the ranks said last:\n{output}")
        return [json.loads(file.read_text()) for file in files]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _start(module: str, root: Path, rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
    env = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "trial",
        "OMP_NUM_THREADS": "1",
    }
    with (root / f"rank{rank}.txt").open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.processes", module, str(root)],
            cwd=ROOT,
            env=os.environ | env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that a signal reaches the workers of its loaders, too
        )


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _run_all(module: str, root: Path) -> None:
    # A process with gloo's threads must not be forked: once in a thousand times the child hangs before it begins.
    # Loaders with workers have to be given `multiprocessing_context="forkserver"`.
    multiprocessing.set_forkserver_preload(["tests.processes", "tests.runs"])
    for name, scenario in import_module(module).SCENARIOS.items():
        print(f"-- {name}", flush=True)
        faulthandler.unregister(signal.SIGUSR1)  # each end of a fit puts Python's own handlers back
        faulthandler.register(signal.SIGUSR1)
        try:
            result = scenario(root / name)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        (root / name / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    _run_all(sys.argv[1], Path(sys.argv[2]))

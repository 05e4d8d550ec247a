"""Carries jobs out on a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lightning_deba.comparison.grid import Job
from lightning_deba.comparison.job import Outcome, failed
from lightning_deba.comparison.worker import execute_aside

if TYPE_CHECKING:
    from ray import ObjectRef

__all__ = ["RayEngine"]

_OBJECTS = 80 * 2**20
"""Bytes that an own Ray keeps for objects: what goes to and fro is a job and its outcome."""
_PATIENCE = 30.0
"""Seconds in which the runs that are interrupted have to end."""


class RayEngine:
    """Tasks on a `Ray <https://docs.ray.io>`_ cluster, each of one CPU and one thread, each with one job.

    The directory of the comparison must be on storage that all nodes share, under the same path, and this package and
    the modules of the models must be importable on all of them. A node that does not see the directory is named, and
    nothing is started. A task that dies costs its job alone, and is tried again at the next call, as anywhere. What a
    run prints goes to ``seed-N.txt`` beside its directory.

    Where Ray is initialized already, it is used, and stays. Else it is initialized for the time of the jobs.

    Args:
        address: Of the cluster, such as ``"auto"`` for the one that this machine belongs to. Left out, it is that of
            the variable ``RAY_ADDRESS``, and where that is not set, Ray is started on this machine.
        workers: At most so many jobs at a time; by default as many as the cluster has room for.
        gpus_per_job: GPUs of each job; ``0.5`` lets two share one.

    Raises:
        ValueError: If `workers` is below 1 or `gpus_per_job` below 0.
        ImportError: If Ray is not installed.

    Example:
        >>> RayEngine(workers=0)
        Traceback (most recent call last):
            ...
        ValueError: `workers` of RayEngine must be 1 or more, or None for as many as the cluster takes, got 0.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, *, gpus_per_job: float = 0.0) -> None:
        if workers is not None and workers < 1:
            raise ValueError(
                f"`workers` of RayEngine must be 1 or more, or None for as many as the cluster takes, got {workers}."
            )
        if gpus_per_job < 0:
            raise ValueError(f"`gpus_per_job` must be 0 or more, got {gpus_per_job}.")
        try:
            import ray  # noqa: F401
        except ImportError as error:
            raise ImportError("RayEngine needs Ray: pip install 'lightning-deba[cluster]'") from error
        self.address, self.workers, self.gpus_per_job = address, workers, gpus_per_job

    def __call__(self, jobs: Sequence[Job], root: Path, /) -> Iterator[Outcome]:
        """Carries out the jobs, and tells of each as it ends.

        Raises:
            ValueError: If a node of the cluster does not see `root`, or Ray is initialized and `address` given.
        """
        if jobs:
            with _connected(self.address), _probe(root.absolute()) as probe:
                _check_storage(probe)
                yield from self._outcomes(jobs, probe)

    def _outcomes(self, jobs: Sequence[Job], probe: Path) -> Iterator[Outcome]:
        import ray

        # A job that is tried again would only die again; and what it left is gone on with at the next call.
        task = ray.remote(num_cpus=1, num_gpus=self.gpus_per_job, max_retries=0)(_carry_out)
        waiting, running = deque(jobs), {}  # type: deque[Job], dict[ObjectRef[Outcome], Job]
        try:
            while waiting or running:
                while waiting and len(running) < (self.workers or len(jobs)):
                    job = waiting.popleft()
                    running[task.remote(job, probe)] = job
                (ended, *_), _ = ray.wait(list(running))
                yield _outcome(ended, running.pop(ended), probe.parent)
        finally:
            _cancel(list(running))


def _carry_out(job: Job, probe: Path) -> Outcome:
    """Carries a job out, in a worker of Ray."""
    if not probe.exists():  # a node may have joined later
        return Outcome(job, f"node {socket.gethostname()} does not see '{probe.parent}'")
    return execute_aside(job, probe.parent)


def _outcome(ended: ObjectRef[Outcome], job: Job, root: Path) -> Outcome:
    """Returns how the job ended, or its process."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        outcome: Outcome = ray.get(ended)
    except RayTaskError as error:
        return failed(job, root, str(error).strip().splitlines()[-1])  # the lines before are a trace
    except RayError as error:
        return failed(job, root, f"the process died: {str(error).strip().splitlines()[0]}")
    return outcome


def _cancel(running: Sequence[ObjectRef[Outcome]]) -> None:
    """Ends jobs, in the middle if need be, and waits for that: whatever they had, later ones go on from."""
    import ray

    for reference in running:
        ray.cancel(reference, force=True)
    if running:
        ray.wait(list(running), num_returns=len(running), timeout=_PATIENCE)


# Ray itself, and the storage


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Initializes Ray where it is not, and shuts down only what it has started."""
    import ray

    if ray.is_initialized():
        if address is not None:
            raise ValueError(f"Ray is initialized already: leave `address` out, got {address!r}.")
        yield
        return
    own = address is None and "RAY_ADDRESS" not in os.environ
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    settings: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECTS} if own else {}
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **settings)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _probe(root: Path) -> Iterator[Path]:
    """Gives a file in the directory by which a worker knows it, while there is work."""
    root.mkdir(parents=True, exist_ok=True)
    probe = root / f".probe-{uuid4().hex}"  # a name that no node has looked for and found missing
    probe.touch()
    try:
        yield probe
    finally:
        probe.unlink(missing_ok=True)


def _check_storage(probe: Path) -> None:
    """Refuses a directory that a node with CPUs does not see."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(os.path.exists)  # needs nothing of this package, whose import takes seconds
    every: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node for node in every if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    seen = ray.get([look.options(scheduling_strategy=strategy).remote(str(probe)) for strategy in there])
    if blind := [node["NodeManagerHostname"] for node, sees in zip(nodes, seen, strict=True) if not sees]:
        raise ValueError(
            f"`directory` '{probe.parent}' must be on storage that all nodes of the cluster share, but "
            f"{', '.join(blind)} cannot see it. Name one that is, such as a folder of a network file system."
        )

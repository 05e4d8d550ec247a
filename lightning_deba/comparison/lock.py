"""One comparison at a time in a directory."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["in_turn", "locked"]

NAME = ".lock"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds a directory, for two that work in the same one would train the same runs into each other's files.

    The lock is the operating system's. It ends with its process, however that dies, so that none is ever stale. Where
    there is no such lock, on Windows and on some network file systems, nobody is kept out.

    Args:
        directory: The directory; made if need be.

    Raises:
        BlockingIOError: If another one holds it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with locked(Path(directory)):
        ...         (Path(directory) / NAME).read_text() == f"process {os.getpid()} on {socket.gethostname()}"
        True
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / NAME).open("a+", encoding="utf-8") as file:
        if not _lock(file.fileno()):
            file.seek(0)
            raise BlockingIOError(
                f"`directory` '{directory}' is in use by another comparison, {file.read() or 'just started'}. "
                "Wait until it has ended, or name another directory."
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            _unlock(file.fileno())  # before it is closed, for a forked process may have it open as well


@contextlib.contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Waits for those that hold a file, and holds it: what is done here is done by one process after the other.

    Args:
        path: The file; made if need be.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with in_turn(Path(directory) / ".data"):
        ...         print("alone")
        alone
    """
    with path.open("a", encoding="utf-8") as file:
        _lock(file.fileno(), wait=True)
        try:
            yield
        finally:
            _unlock(file.fileno())


def _lock(file: int, wait: bool = False) -> bool:
    """Tries to lock a file, or waits until it can; what cannot be locked at all counts as locked."""
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True


def _unlock(file: int) -> None:
    if sys.platform != "win32":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)

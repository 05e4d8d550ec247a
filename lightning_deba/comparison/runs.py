"""Results of runs as they are stored: a file in each run's folder, or one file of JSON lines for all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["Run", "load_runs", "shipped_runs", "write_runs"]

_SHIPPED = ("lightning_deba.comparison", "evidence", "fashion_mnist.jsonl")


@dataclass(frozen=True, kw_only=True)
class Run:
    """The stored result of one run; the sequences have one number an epoch.

    Attributes:
        model: The model's name in the grid.
        arm: The arm's name.
        seed: The seed.
        seconds: Seconds of training, validation not counted.
        processor_seconds: Processor seconds of training in the training process, likewise.
        samples: Samples trained on.
        steps: Optimizer steps.
        batch_sizes: Batch size.
        accuracies: Accuracy on the validation data at the epoch's end.
        test_accuracy: Accuracy on the test data in the end; ``None`` where there are none.
        callback_seconds: How many of the processor seconds were spent in the callback's hooks; ``None`` where that
            was not measured.
    """

    model: str
    arm: str
    seed: int
    seconds: Sequence[float]
    processor_seconds: Sequence[float]
    samples: Sequence[int]
    steps: Sequence[int]
    batch_sizes: Sequence[int]
    accuracies: Sequence[float]
    test_accuracy: float | None = None
    callback_seconds: float | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Model, arm and seed, which no other run of a comparison shares."""
        return self.model, self.arm, self.seed

    def to_dict(self) -> dict[str, Any]:
        """Returns the run as plain data."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Run:
        """Builds a run from plain data, which is checked, since it comes from a file.

        Raises:
            ValueError: If a field is missing or holds something else, or the sequences are not of one length.

        Example:
            >>> Run.from_dict({"model": "resnet18", "arm": "deba", "seed": -1})
            Traceback (most recent call last):
                ...
            ValueError: no result of a run: `seed` must be a whole number of at least 0, got -1
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"no result of a run: it must be a JSON object, got {type(data).__name__}")
        for name in ("model", "arm"):
            _check(name, data, isinstance(data.get(name), str) and data[name], "a name")
        _check("seed", data, _is_whole(data.get("seed"), 0), "a whole number of at least 0")
        for name, (holds, expected) in _SERIES.items():
            values = data.get(name)
            _check(name, data, isinstance(values, Sequence) and all(map(holds, values)), f"a list of {expected}")
        tested = data.get("test_accuracy")
        _check("test_accuracy", data, tested is None or _is_number(tested), "a number, or null")
        spent = data.get("callback_seconds")
        _check("callback_seconds", data, spent is None or _is_time(spent), "seconds, not below 0, or null")
        lengths = {len(data[name]) for name in _SERIES}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"no result of a run: its epochs count differently, {sorted(lengths)}")
        known: dict[str, Any] = {f.name: data.get(f.name) for f in fields(cls)}
        return cls(**known)


def _check(name: str, data: Mapping[str, Any], holds: object, expected: str) -> None:
    if not holds:
        got = repr(data[name]) if name in data else "nothing"
        got = got if len(got) <= 80 else got[:79] + "…"
        raise ValueError(f"no result of a run: `{name}` must be {expected}, got {got}")


def _is_number(value: object) -> bool:
    """Tells whether a value is a number; one that is not a number, as a metric may be, is one, too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isinf(value)


def _is_time(value: object) -> bool:
    return _is_number(value) and value >= 0  # type: ignore[operator]  # it is a number


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


_SERIES = {
    "seconds": (_is_time, "seconds, none below 0"),
    "processor_seconds": (_is_time, "seconds, none below 0"),
    "samples": (lambda value: _is_whole(value, 0), "whole numbers of at least 0"),
    "steps": (lambda value: _is_whole(value, 0), "whole numbers of at least 0"),
    "batch_sizes": (lambda value: _is_whole(value, 1), "whole numbers of at least 1"),
    "accuracies": (_is_number, "numbers"),
}


def load_runs(path: str | Path) -> list[Run]:
    """Reads results: all under the directory of a comparison, or those of a file that `write_runs` wrote.

    Args:
        path: The directory, or the file.

    Returns:
        The runs, ordered by model, arm and seed.

    Raises:
        FileNotFoundError: If there is neither.
        ValueError: If a result cannot be read; of a file, the line is named.

    Example:
        >>> import tempfile
        >>> shipped = shipped_runs()
        >>> load_runs(write_runs(shipped, Path(tempfile.mkdtemp()) / "runs.jsonl")) == shipped
        True
    """
    path = Path(path)
    if path.is_file():
        return _parse(path.read_text(encoding="utf-8", errors="replace"), str(path))
    if not path.exists():
        raise FileNotFoundError(
            f"`path` must be the directory of a comparison or a file of results, got '{path}', which does not exist. "
            "Run `lightning-deba compare -o DIRECTORY` first."
        )
    return _ordered(map(_load, sorted(path.glob("runs/*/*/seed-*/result.json"))))


def _load(path: Path) -> Run:
    try:
        return Run.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"'{path}' cannot be read: {error}. Without it, that run is made again.") from error


def shipped_runs() -> list[Run]:
    """Returns the results that come with the package, of which the README tells.

    They are of small networks on 800 images of Fashion-MNIST: of the grids ``paper.yaml``, ``strong.yaml`` and
    ``ablations.yaml`` in ``configs/compare``, which say how they were made.

    Example:
        >>> "fixed_16" in {run.arm for run in shipped_runs()}
        True
    """
    package, *parts = _SHIPPED
    return _parse(files(package).joinpath(*parts).read_text(encoding="utf-8"), parts[-1])


def _parse(text: str, name: str) -> list[Run]:
    """Reads JSON lines, of which each must be the result of another run."""
    lines: dict[tuple[str, str, int], int] = {}
    runs = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            run = Run.from_dict(json.loads(line))
            if run.key in lines:
                raise ValueError(f"line {lines[run.key]} has the result of {'/'.join(map(str, run.key))} already")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"'{name}', line {number} cannot be read: {error}.") from error
        lines[run.key] = number
        runs.append(run)
    return _ordered(runs)


def _ordered(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.key)


def write_runs(runs: Iterable[Run], path: str | Path) -> Path:
    """Writes results into one file of JSON lines, a run a line, ordered by model, arm and seed.

    Seconds keep four digits, and metrics six decimals. The same runs give the same bytes, so that the file can be
    kept under version control, and what comes to it is seen.

    Args:
        runs: The results.
        path: The file, such as ``runs.jsonl``.

    Returns:
        The file.

    Raises:
        ValueError: If two are of the same model, arm and seed.

    Example:
        >>> import tempfile
        >>> run = Run(model="resnet18", arm="deba", seed=0, seconds=[2.57240], processor_seconds=[2.4], samples=[800],
        ...           steps=[50], batch_sizes=[16], accuracies=[0.106])
        >>> print(write_runs([run], Path(tempfile.mkdtemp()) / "runs.jsonl").read_text()[:57])
        {"model":"resnet18","arm":"deba","seed":0,"seconds":[2.57
    """
    ordered = _ordered(runs)
    for run, other in pairwise(ordered):
        if run.key == other.key:
            raise ValueError(
                f"`runs` must be of different models, arms or seeds, got {'/'.join(map(str, run.key))} twice."
            )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(_rounded(run), separators=(",", ":")) + "\n" for run in ordered)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def _rounded(run: Run) -> dict[str, Any]:
    """Returns a run as plain data, with no digit that says nothing."""

    def four(value: float) -> float:
        return float(f"{value:.4g}")

    return {
        **run.to_dict(),
        "seconds": [*map(four, run.seconds)],
        "processor_seconds": [*map(four, run.processor_seconds)],
        "accuracies": [round(value, 6) for value in run.accuracies],
        "test_accuracy": None if run.test_accuracy is None else round(run.test_accuracy, 6),
        "callback_seconds": None if run.callback_seconds is None else four(run.callback_seconds),
    }

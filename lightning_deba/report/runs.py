"""Runs as they lie on disk: a history, and what `run.json` tells about it. All of it is data to be checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_deba.records import EpochRecord, Grant, read_history
from lightning_deba.report.series import clean, signal_thresholds

__all__ = ["Run", "read_runs"]

# Whole numbers beyond this are no longer exact as floats, and belong to no training.
_LARGEST = 2**53
_SETTINGS = ("model", "actuator", "min_batch_size", "max_batch_size", "multiple_of", "dry_run")


@dataclass(frozen=True, slots=True)
class Run:
    """One run, checked and ready to be shown.

    Attributes:
        name: A name that tells it from the other runs of the report.
        history: Its records, in order; never empty.
        decisions: Its grants, in order.
        problems: One sentence for each thing that could not be read.
        about: What `run.json` tells, by section: "policy", "parameters", "preset", "settings" and
            "versions". Plain values, any of which may be missing.
    """

    name: str
    history: list[EpochRecord]
    decisions: list[Grant] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    about: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def thresholds(self) -> dict[str, float]:
        """The policy's thresholds by the signals' names."""
        return signal_thresholds(self.about.get("parameters", {}))

    @property
    def window(self) -> int | None:
        """The number of records behind DEBA's median."""
        window = self.about.get("parameters", {}).get("window", 15)
        return window if window is None or (type(window) is int and window >= 2) else 15


def read_runs(paths: Sequence[Path | str]) -> list[Run]:
    """Reads runs and names them so that they can be told apart.

    Args:
        paths: Directories that hold a ``history.jsonl`` each, or the files themselves.

    Raises:
        FileNotFoundError: If one of them holds no history.
        ValueError: If there are none, one is given twice, or nothing can be read from one.
    """
    if not paths:
        raise ValueError("`runs` must name at least one run's directory, got none. Pass its log directory.")
    directories = [_directory(Path(path)) for path in paths]
    if twice := [path for path in directories if directories.count(path) > 1]:
        raise ValueError(f"`runs` must be different runs, got '{twice[0]}' twice. Pass it once.")
    return [_read(*pair) for pair in zip(paths, _distinct(directories), strict=True)]


def _read(path: Path | str, place: str) -> Run:
    """Reads one run, `place` being the part of its path that no other run has."""
    history, decisions, problems = read_history(path)
    sane = [record for record in history if 0 < record.batch_size <= _LARGEST and _sane(record)]
    if len(sane) < len(history):
        problems.append(f"{len(history) - len(sane)} of its epochs hold counts that no training can have")
    if not sane:
        raise ValueError(f"No epoch of '{path}' holds plausible counts. Pass another run.")
    about = _about(_directory(Path(path)) / "run.json", problems)
    words = (about["policy"].get("name"), about["preset"].get("name") or about["settings"].get("model"), place)
    return Run(
        name=clean(" · ".join(str(word) for word in words if word), 80),
        history=sane,
        decisions=[g for g in decisions if max(g.proposed, g.batch_size) <= _LARGEST and g.epoch >= 0],
        problems=[clean(problem) for problem in problems],
        about=about,
    )


def _sane(record: EpochRecord) -> bool:
    """Tells whether every count of a record can be drawn."""
    counts = (record.epoch, record.samples, record.optimizer_steps, record.seconds)
    return all(not count < 0 and not _LARGEST < count < math.inf for count in counts)


def _directory(path: Path) -> Path:
    """Returns the directory of a run, given that or its history file."""
    path = path.resolve()
    return path.parent if path.is_file() else path


def _distinct(paths: Sequence[Path]) -> list[str]:
    """Returns what tells directories apart: their paths without the parts that all of them share.

    Example:
        >>> _distinct([Path("/logs/fixed/version_0"), Path("/logs/deba/version_0")])
        ['fixed', 'deba']
    """
    if len(paths) == 1:
        return [paths[0].name]
    parts = [path.parts for path in paths]
    while all(len(p) > 1 and p[0] == parts[0][0] for p in parts):
        parts = [p[1:] for p in parts]
    while all(len(p) > 1 and p[-1] == parts[0][-1] for p in parts):
        parts = [p[:-1] for p in parts]
    return ["/".join(p) for p in parts]


def _about(path: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Reads `run.json` into sections of plain values, and adds to `problems` what is wrong with it."""
    data: Any = {}
    if path.is_file():
        try:
            data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"`run.json` cannot be read: {error}")
    if not isinstance(data, dict):
        problems.append(f"`run.json` must hold a JSON object, got {type(data).__name__}")
        data = {}
    policy = _section(data, "policy", problems)
    parameters = _section(policy, "parameters", problems)
    policy.pop("parameters", None)
    return {
        "policy": _plain(policy),
        "parameters": _plain(parameters),
        "preset": _plain(_section(data, "preset", problems)),
        "settings": _plain({name: data[name] for name in _SETTINGS if data.get(name) is not None}),
        "versions": _plain(_section(data, "versions", problems)),
    }


def _section(data: Mapping[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    """Returns a section of `run.json`, empty where it is missing or no object."""
    section = data.get(name)
    if section is not None and not isinstance(section, dict):
        problems.append(f"`{name}` of `run.json` must be a JSON object, got {type(section).__name__}")
    return dict(section) if isinstance(section, dict) else {}


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps numbers as they are, and turns whatever else is not text into its JSON text."""
    plain: dict[str, Any] = {}
    for name, value in list(section.items())[:50]:
        if isinstance(value, int) and abs(value) > _LARGEST:
            value = "a number beyond all measure"
        if not (value is None or isinstance(value, bool | int | float)):
            value = clean(value if isinstance(value, str) else json.dumps(value))
        plain[clean(name, 60)] = value
    return plain

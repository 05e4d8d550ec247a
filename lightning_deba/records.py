"""What was measured and what was decided: plain numbers, frozen, to and from JSON lines.

A `record` is what was measured in one epoch and holds nothing derived. A `history` is the ordered list of
the records of one run. A `decision` is what a policy proposes, and a `grant` is what became of it. All four
are data: they need neither torch nor Lightning, so a history can be read and replayed anywhere.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from itertools import count
from operator import index
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

__all__ = ["Decision", "EpochRecord", "Grant", "History", "HistoryFile", "RunWriter", "read_history"]


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """What was measured in one training epoch.

    A number that could not be measured is ``None``; one that was measured and is not finite (a diverged
    loss, say) stays ``nan`` or ``inf``, so that nothing is hidden from whoever reads the history.

    Attributes:
        epoch: Index of the epoch, from 0.
        batch_size: Samples per optimizer step, over all ranks and accumulated micro-batches.
        micro_batch_size: Samples per forward pass on one device.
        accumulation: Micro-batches per optimizer step.
        world_size: Number of ranks that draw samples of their own; those of a tensor-parallel group count once.
        optimizer_steps: Optimizer steps taken, the partial last one included.
        skipped_steps: Optimizer steps whose gradient was not finite and therefore not measured.
        samples: Samples trained on, over all ranks.
        seconds: Wall-clock seconds spent training, validation not counted.
        loss: Mean training loss, weighted by samples.
        gradient_norm: Mean over the full optimizer steps of the Euclidean norm of the gradient.
        component_variance: Mean over the full optimizer steps of the variance over the components of the
            flattened gradient (see `lightning_deba.statistics.component_variance`).
        learning_rate: Learning rate of the first parameter group at the epoch's last optimizer step.
        gradient_squared: Estimate of ``|G|^2``, the squared norm of the true gradient; it may be negative.
        gradient_covariance: Estimate of ``tr(Sigma)``, the trace of the covariance of the gradients of single
            samples; it may be negative. Both are means over the epoch, and there where the noise scale is measured.
        noise_scale_error: Relative standard error of ``|G|^2 / tr(Sigma)``.

    Example:
        >>> record = EpochRecord(epoch=0, batch_size=64, micro_batch_size=64, optimizer_steps=16,
        ...                      samples=1000, loss=0.5)
        >>> EpochRecord.from_dict(record.to_dict()) == record
        True
    """

    epoch: int
    batch_size: int
    micro_batch_size: int
    accumulation: int = 1
    world_size: int = 1
    optimizer_steps: int = 0
    skipped_steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    loss: float | None = None
    gradient_norm: float | None = None
    component_variance: float | None = None
    learning_rate: float | None = None
    gradient_squared: float | None = None
    gradient_covariance: float | None = None
    noise_scale_error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the record as a dictionary of plain numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EpochRecord:
        """Builds a record from a dictionary, which is checked, since it may come from a file.

        Raises:
            ValueError: If a field is missing, unknown, or not a number of the right kind.
        """
        return cls(**_numbers(cls, data))


History = Sequence[EpochRecord]
"""The ordered records of one run."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy proposes, and why.

    Attributes:
        batch_size: The proposed batch size. Bounds, rounding and feasibility are not the policy's business.
        reason: A sentence with the numbers in it.
        signals: The derived quantities behind the reason by name, for loggers and figures. Not compared.

    Raises:
        ValueError: If `batch_size` is below 1.
        TypeError: If it is no whole number.

    Example:
        >>> Decision(48, "calm for 5 epochs").batch_size
        48
    """

    batch_size: int
    reason: str
    signals: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "batch_size", index(self.batch_size))  # also of numpy
        except TypeError:
            raise TypeError(
                f"`batch_size` of a decision must be a whole number, got {self.batch_size!r}: write `round(...)`."
            ) from None
        if self.batch_size < 1:
            raise ValueError(
                f"`batch_size` of a decision must be at least 1, got {self.batch_size}. "
                "A policy that has nothing to say returns the last record's batch size."
            )


@dataclass(frozen=True, slots=True)
class Grant:
    """A decision and what became of it.

    Attributes:
        epoch: The epoch at whose end the decision was taken.
        proposed: The batch size that the policy proposed.
        batch_size: The batch size granted to the next epoch.
        reason: The policy's reason.
        limits: Why `batch_size` differs from `proposed`; empty where it does not.
        signals: The policy's signals. Not compared.

    Example:
        >>> Grant(epoch=4, proposed=96, batch_size=64, reason="calm", limits="`max_batch_size` is 64").limits
        '`max_batch_size` is 64'
    """

    epoch: int
    proposed: int
    batch_size: int
    reason: str
    limits: str = ""
    signals: Mapping[str, float] = field(default_factory=dict, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns the grant as a dictionary of plain data."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "signals": {name: float(value) for name, value in self.signals.items()}
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Grant:
        """Builds a grant from a dictionary, which is checked, since it may come from a file.

        Raises:
            ValueError: If a field is missing, unknown, or of the wrong kind.
        """
        if "reason" not in data:
            raise ValueError("`reason` of Grant is missing")
        words = {"reason": data["reason"], "limits": data.get("limits", "")}
        signals = data.get("signals", {})
        if not all(isinstance(word, str) for word in words.values()) or not isinstance(signals, Mapping):
            raise ValueError("`reason` and `limits` of a grant must be texts, and `signals` a mapping")
        numbers = {name: value for name, value in data.items() if name not in (*words, "signals")}
        return cls(
            **_numbers(cls, numbers),
            **words,
            signals={str(name): _number(str(name), value) for name, value in signals.items()},
        )


def to_line(record: EpochRecord, grant: Grant | None = None) -> str:
    """Writes one epoch as one line of JSON, without the line's end.

    JSON has no word for numbers that are not finite: they are written as the strings ``"nan"``, ``"inf"``
    and ``"-inf"``, which `from_line` reads back.

    Example:
        >>> from_line(to_line(EpochRecord(0, 8, 8, loss=float("inf"))))[0].loss
        inf
    """
    data = record.to_dict()
    if grant is not None:
        data["decision"] = grant.to_dict()
    return json.dumps(_strict(data), allow_nan=False)


def from_line(line: str) -> tuple[EpochRecord, Grant | None]:
    """Reads what `to_line` wrote.

    Raises:
        ValueError: If the line is not JSON or not an epoch's record.
    """
    try:
        data = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested without end") from error
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, got {type(data).__name__}")
    decision = data.pop("decision", None)
    if decision is not None and not isinstance(decision, dict):
        raise ValueError(f"`decision` must be a JSON object, got {type(decision).__name__}")
    return EpochRecord.from_dict(data), None if decision is None else Grant.from_dict(decision)


Row = TypeVar("Row", EpochRecord, Grant)


class HistoryFile(NamedTuple):
    """What could be read of a history file.

    Attributes:
        history: The records, in order.
        decisions: The grants, in order; an epoch without a decision has none.
        problems: One sentence for each line that could not be read.
    """

    history: list[EpochRecord]
    decisions: list[Grant]
    problems: list[str]


def read_history(path: str | Path, *, running: bool = False) -> HistoryFile:
    """Reads a ``history.jsonl``. Readable lines are used, the rest is named in `problems`.

    Args:
        path: The file, or the directory of a run that holds a ``history.jsonl``.
        running: Whether it may be in the middle of being written. Then a last line without its end is left for the
            next time, and no file, or an empty one, is a run before its first epoch's end.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If not one line of it can be read.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "history.jsonl"
        >>> _ = path.write_text(to_line(EpochRecord(0, 32, 32), Grant(0, 48, 48, "increase: calm")))
        >>> read_history(path).decisions[0].reason
        'increase: calm'
    """
    path = Path(path)
    if path.is_dir():
        path = path / "history.jsonl"
    try:
        # A file cut off in the middle of a character must not cost the lines before it.
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        if not running:
            raise FileNotFoundError(
                f"No history at '{path}'. A run writes `history.jsonl` into its log directory: pass that."
            ) from None
        lines = []
    read = HistoryFile([], [], [])
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record, grant = from_line(line)
        except ValueError as error:
            if not (running and number == len(lines)):
                read.problems.append(f"line {number} of '{path}' is not an epoch's record: {error}")
            continue
        read.history.append(record)
        if grant is not None:
            read.decisions.append(grant)
    if not read.history and (read.problems or not running):
        found = read.problems[0] if read.problems else "the file is empty"
        raise ValueError(f"No epoch can be read from '{path}': {found}.")
    return read


class RunWriter:
    """Writes a run's ``history.jsonl``, one line an epoch, and its ``run.json``, which says what ran.

    Every line is on disk when `append` returns. Another run's history in the same directory is kept, under
    the name ``history-1.jsonl`` and so on.

    Args:
        directory: The run's log directory; made if need be.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     writer = RunWriter(directory)
        ...     writer.begin({"policy": "Hold"}, [], [])
        ...     writer.append(EpochRecord(0, 32, 32), Grant(0, 32, 32, "fixed batch size"))
        ...     read_history(directory).decisions[0].reason
        'fixed batch size'
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.path = self.directory / "history.jsonl"

    def begin(self, run: Mapping[str, Any], history: History, decisions: Sequence[Grant]) -> None:
        """Starts the files of a run; a resumed one brings the epochs that it goes on from.

        Args:
            run: What ran, as plain data.
            history: The records up to now.
            decisions: Their grants.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = [to_line(record, grant) + "\n" for record, grant in zip(history, decisions, strict=True)]
        if self.path.exists() and not "".join(lines).startswith(
            self.path.read_text(encoding="utf-8", errors="replace")
        ):
            self.path.rename(self._free_name())
        write_whole(self.path, "".join(lines))
        write_whole(self.directory / "run.json", json.dumps(_strict(run), indent=2, allow_nan=False) + "\n")

    def append(self, record: EpochRecord, grant: Grant) -> None:
        """Adds an epoch."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_line(record, grant) + "\n")

    def _free_name(self) -> Path:
        names = (self.directory / f"history-{number}.jsonl" for number in count(1))
        return next(name for name in names if not name.exists())


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that it is either the old one or the new one, whenever the process is killed."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def to_columns(rows: Sequence[EpochRecord] | Sequence[Grant]) -> dict[str, list[Any]]:
    """Turns records, or grants, into one list a field: the compact form for checkpoints.

    Example:
        >>> to_columns([Grant(0, 48, 48, "calm"), Grant(1, 48, 48, "cooldown")])["reason"]
        ['calm', 'cooldown']
    """
    dicts = [row.to_dict() for row in rows]
    return {name: [row[name] for row in dicts] for name in (dicts[0] if dicts else ())}


def from_columns(kind: type[Row], columns: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Reads what `to_columns` wrote.

    Raises:
        ValueError: If the columns are not of one length, or a row is not of this kind.
    """
    rows = zip(*columns.values(), strict=True)
    return [kind.from_dict(dict(zip(columns, row, strict=True))) for row in rows]


def _numbers(cls: type[EpochRecord] | type[Grant], data: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the numeric fields of `cls` in `data` against the kinds that the class declares."""
    kinds = {f.name: str(f.type) for f in fields(cls)}
    if unknown := sorted(set(data) - set(kinds)):
        raise ValueError(f"unknown field `{unknown[0]}` of {cls.__name__}")
    required = (f.name for f in fields(cls) if f.default is MISSING and "int" in str(f.type))
    if missing := [name for name in required if name not in data]:
        raise ValueError(f"`{missing[0]}` of {cls.__name__} is missing")
    numbers: dict[str, Any] = {}
    for name, value in data.items():
        if value is None and "None" in kinds[name]:
            numbers[name] = None
        elif kinds[name] == "int":
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"`{name}` must be a whole number, got {value!r}")
            numbers[name] = value
        else:
            numbers[name] = _number(name, value)
    return numbers


def _number(name: str, value: Any) -> float:
    """Reads a number, or one of the three texts that stand for what JSON cannot write."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    if isinstance(value, float):  # a checkpoint holds nan and inf as they are
        return value
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    raise ValueError(f"`{name}` must be a number, got {value!r}")


def _strict(value: Any) -> Any:
    """Replaces every number that is not finite by its text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value

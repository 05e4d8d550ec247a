"""What is to be run: a grid of arms, models and seeds, and each of its jobs as plain data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from lightning_deba.policies import BatchSizePolicy

__all__ = ["Arm", "Grid", "Job"]

_NAME = re.compile(r"[\w+=-][\w.+=-]*")  # it becomes a folder
_SMALLEST = 16  # the scheduler's own `min_batch_size`


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the ways to train that are compared.

    Args:
        batch_size: The first batch size, which a policy may change.
        policy: The policy, or its class as jsonargparse writes it, ``{"class_path": ..., "init_args": {...}}``. Left
            out, it is that of the preset of each model.
        changes: Parameters in which the policy differs from that of the preset, such as ``{"cooldown": 0}``.
        scheduler: Further arguments of `BatchSizeScheduler`. Its `min_batch_size` is never above `batch_size` by
            default, so that a small fixed batch stays as small.
        model: Further arguments of the model, such as the learning-rate schedule that belongs to a policy.
        by_model: Further arguments of one model each, by its name in the grid, such as the learning rate that suits it.

    Raises:
        ValueError: If it is no way to train.

    Example:
        >>> from lightning_deba import Hold
        >>> Arm(batch_size=16, policy=Hold()).policy
        {'class_path': 'lightning_deba.policies.base.Hold', 'init_args': {}}
    """

    batch_size: int
    policy: Mapping[str, Any] | BatchSizePolicy | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    by_model: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_whole("batch_size", self.batch_size, 1)
        for name in ("changes", "scheduler", "model", "by_model"):
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"`{name}` of an arm must map names to values, got {getattr(self, name)!r}.")
        if odd := [value for value in self.by_model.values() if not isinstance(value, Mapping)]:
            raise ValueError(f"`by_model` of an arm must map a model's name to its arguments, got {odd[0]!r}.")
        if self.policy is not None and self.changes:
            raise ValueError(
                "`changes` are made to a preset's policy: write them into `policy`, or leave `policy` out."
            )
        if taken := {"policy", "preset"} & set(self.scheduler):
            raise ValueError(f"`scheduler` of an arm has no `{min(taken)}`: write `policy` and `changes` beside it.")
        object.__setattr__(self, "policy", _plain(self.policy))


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run as plain data, which any process on any machine can carry out.

    Attributes:
        model: The model's name in the grid.
        arm: The arm's name.
        seed: The seed of everything.
        module: The LightningModule, as jsonargparse writes a class.
        data: The LightningDataModule, likewise.
        policy: The policy, likewise; ``None`` for that of the model's preset.
        changes: Parameters in which the policy differs from the preset's.
        scheduler: Further arguments of the scheduler.
        epochs: Epochs to train.
        trainer_args: Further arguments of the Trainer.
        metric: Name of the accuracy that the module logs, without ``val/`` or ``test/``.
    """

    model: str
    arm: str
    seed: int
    module: Mapping[str, Any]
    data: Mapping[str, Any]
    policy: Mapping[str, Any] | None
    changes: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    epochs: int
    trainer_args: Mapping[str, Any]
    metric: str

    def __str__(self) -> str:
        return f"{self.model}/{self.arm}/seed-{self.seed}"

    def directory(self, root: Path) -> Path:
        """Returns the folder of the run, under that of the comparison."""
        return root / "runs" / self.model / self.arm / f"seed-{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the job as it reads once written as JSON.

        Raises:
            TypeError: If an argument is no plain data.
        """
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Arms x models x seeds, on the same data for as many epochs.

    Args:
        models: LightningModules by name, as jsonargparse writes a class. Names become folders.
        data: The LightningDataModule, likewise; it has a `batch_size`. What it tells of ``num_classes`` and
            ``in_chans`` goes to the model.
        arms: Arms by name.
        seeds: The seeds.
        epochs: Epochs of each run.
        baseline: The arm that the others are compared with; the first by default.
        target: Validation accuracy whose time is taken. By default the level at which the worst run
            of the baseline ends, see `measure`.
        metric: Name of the accuracy that the module logs under ``val/`` and ``test/``.
        trainer_args: Further arguments of every Trainer that trains; what it trains on, the test takes as well.

    Raises:
        ValueError: If there is nothing to run, or names make no folders.

    Example:
        >>> resnet = {"class_path": "lightning_deba.vision.ImageClassifier", "init_args": {"model_name": "resnet18"}}
        >>> digits = {"class_path": "lightning_deba.vision.DigitsDataModule"}
        >>> arms = {f"fixed_{size}": Arm(batch_size=size, policy=_HOLD) for size in (16, 64)}
        >>> grid = Grid(models={"resnet18": resnet}, data=digits, arms=arms, seeds=[0, 1], epochs=5)
        >>> [str(job) for job in grid.jobs()][:3]
        ['resnet18/fixed_16/seed-0', 'resnet18/fixed_64/seed-0', 'resnet18/fixed_16/seed-1']
    """

    models: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, Any]
    arms: Mapping[str, Arm]
    seeds: Sequence[int]
    epochs: int
    baseline: str | None = None
    target: float | None = None
    metric: str = "accuracy"
    trainer_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in ("models", "arms"):
            names = getattr(self, kind)
            if not isinstance(names, Mapping) or not names:
                raise ValueError(f"`{kind}` must name one or more, got {names!r}.")
            if odd := [name for name in names if not isinstance(name, str) or not _NAME.fullmatch(name)]:
                hint = "" if isinstance(odd[0], str) else f": write '{odd[0]}'"
                raise ValueError(
                    f"`{kind}` have names of letters, digits and ._+=-, for folders, got {odd[0]!r}{hint}."
                )
        for name, spec in (*((f"models.{name}", spec) for name, spec in self.models.items()), ("data", self.data)):
            if not isinstance(spec, Mapping) or "class_path" not in spec:
                raise ValueError(f"`{name}` must have a `class_path`, and may have `init_args`, got {spec!r}.")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"`seeds` must be one or more different ones, got {list(self.seeds)}.")
        for seed in self.seeds:
            _check_whole("seeds", seed, 0)
        _check_whole("epochs", self.epochs, 1)
        for name, needed in (("check_val_every_n_epoch", 1), ("limit_val_batches", None)):
            value = self.trainer_args.get(name)
            if value is not None and (value != needed if needed else value == 0):
                raise ValueError(
                    f"`trainer_args` must leave the accuracy to be validated after each epoch, got {name}={value!r}."
                )
        for name, arm in self.arms.items():
            if unknown := [model for model in arm.by_model if model not in self.models]:
                raise ValueError(
                    f"`by_model` of `arms.{name}` must name models of the grid, {', '.join(self.models)}, "
                    f"got {unknown[0]!r}."
                )
        if self.baseline is not None and self.baseline not in self.arms:
            raise ValueError(f"`baseline` must be one of the arms {', '.join(self.arms)}, got {self.baseline!r}.")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Grid:
        """Builds a grid from plain data, as a YAML file holds it; `seeds` may be their number.

        Raises:
            ValueError: If a field is missing, unknown, or cannot be right.

        Example:
            >>> Grid.from_dict({"arms": {"fixed": {"batch": 16}}})  # doctest: +ELLIPSIS
            Traceback (most recent call last):
                ...
            ValueError: `arms.fixed` has no field `batch`; the fields are batch_size, policy, changes, ...
        """
        arms = data.get("arms")
        if isinstance(arms, Mapping):
            arms = {
                name: arm if isinstance(arm, Arm) else _from(Arm, arm, f"arms.{name}") for name, arm in arms.items()
            }
        seeds = data.get("seeds", ())
        seeds = range(seeds) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
        grid: Grid = _from(cls, {**data, "arms": arms, "seeds": seeds}, "the grid")
        return grid

    @property
    def reference(self) -> str:
        """The name of the arm that the others are compared with."""
        return self.baseline or next(iter(self.arms))

    def jobs(self) -> list[Job]:
        """Returns the runs; those of all arms for one seed come together, so that an unfinished grid has pairs."""
        return [
            Job(
                model=model,
                arm=name,
                seed=seed,
                module=_with(module, {**arm.model, **arm.by_model.get(model, {})}),
                data=_with(self.data, {"batch_size": arm.batch_size}),
                policy=arm.policy,  # type: ignore[arg-type]  # `Arm` has made it plain
                changes=arm.changes,
                scheduler={"min_batch_size": min(_SMALLEST, arm.batch_size), **arm.scheduler},
                epochs=self.epochs,
                trainer_args=self.trainer_args,
                metric=self.metric,
            )
            for seed in self.seeds
            for model, module in self.models.items()
            for name, arm in self.arms.items()
        ]


_HOLD = {"class_path": "lightning_deba.Hold"}


def _with(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"class_path": spec["class_path"], "init_args": {**(spec.get("init_args") or {}), **arguments}}


def _plain(value: Any) -> Any:
    """Writes frozen dataclasses, such as the policies and those inside a `Chain`, as jsonargparse writes a class."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        arguments = {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.init}
        return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"`policy` must be a frozen dataclass or plain data, to go to another process, got {value!r}.")


def _from(cls: type[Any], data: Any, name: str) -> Any:
    known = {f.name: f for f in fields(cls)}
    if not isinstance(data, Mapping):
        raise ValueError(f"`{name}` must map fields to values, got {data!r}.")
    if unknown := [key for key in data if key not in known]:
        raise ValueError(f"`{name}` has no field `{unknown[0]}`; the fields are {', '.join(known)}.")
    needed = [key for key, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    if missing := [key for key in needed if data.get(key) is None]:
        raise ValueError(f"`{missing[0]}` of `{name}` is missing.")
    return cls(**data)


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {value!r}.")

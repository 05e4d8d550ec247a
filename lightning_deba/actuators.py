"""How a decision is carried out in Lightning. The only room that knows the insides of a `Trainer`.

A loader's batch size is a micro-batch size: samples per forward pass on one device. The faces here speak of the
batch size in this project's sense, samples per optimizer step, and divide by ranks and accumulation.

Changing a loader's batch size between two epochs is not enough: Lightning has counted the batches of an
epoch when it set the loader up, and ends the epoch, validates and draws its progress bar by that count. So
either Lightning sets the loader up anew (`ReloadActuator`) or it is recounted (`InPlaceActuator`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.combined_loader import _SUPPORTED_MODES
from lightning.pytorch.utilities.parsing import _lightning_get_all_attr_holders
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import IterableDataset

from lightning_deba.limits import Limits, LoaderLimits

__all__ = ["BatchSizeActuator", "BatchSizeAdapter", "InPlaceActuator", "ReloadActuator", "choose_actuator"]


@runtime_checkable
class BatchSizeActuator(Protocol):
    """Changes the batch size of a running fit, between two epochs.

    The scheduler calls `check` once before the loader is built, `request` at an epoch's end, `settle` before
    the first batch of every epoch, and `release` when the fit is over.
    """

    def check(self, trainer: Trainer) -> None:
        """Refuses what cannot work.

        Raises:
            MisconfigurationException: With the remedy.
        """

    def batch_size(self, trainer: Trainer) -> int:
        """Returns the batch size that the live loader has."""
        ...

    def limits(self, trainer: Trainer) -> tuple[LoaderLimits, ...]:
        """Returns what each live loader allows, the one that `batch_size` speaks of first."""
        ...

    def request(self, trainer: Trainer, batch_size: int) -> None:
        """Asks for a batch size from the next epoch on."""

    def settle(self, trainer: Trainer, batch_size: int) -> None:
        """Makes sure that the live loader has this batch size."""

    def release(self, trainer: Trainer) -> None:
        """Leaves the Trainer, the owner of the loader and the user's own loaders as the fit found them."""


@runtime_checkable
class BatchSizeAdapter(Protocol):
    """Teaches `InPlaceActuator` a kind of loader, such as one whose sampler packs tokens.

    The batch size is then in the adapter's unit: where ``get`` returns tokens, ``min_batch_size`` and
    ``max_batch_size`` are tokens, and so is all that a policy sees and says. Samples are still counted.

    Attributes:
        counts_samples: Whether the unit is samples. If not, neither the size of the data set bounds the batch
            size, nor is a batch's length compared with it.

    Example:
        >>> class TokenBudget:
        ...     counts_samples = False
        ...
        ...     def get(self, loader):
        ...         return loader.batch_sampler.max_tokens
        ...
        ...     def set(self, loader, micro_batch_size):
        ...         loader.batch_sampler.max_tokens = micro_batch_size
        ...
        ...     def len(self, loader):
        ...         return len(loader)
        >>> actuator = InPlaceActuator(TokenBudget())
    """

    counts_samples: bool

    def get(self, loader: Any) -> int | None:
        """Returns the micro-batch size of a loader, or ``None`` where it has none that can be set."""
        ...

    def set(self, loader: Any, micro_batch_size: int) -> None:
        """Sets the micro-batch size of a loader from its next iteration on."""

    def len(self, loader: Any) -> int | None:
        """Returns the number of micro-batches of the loader's next iteration; ``None`` without a length."""
        ...


class BatchSamplerAdapter:
    """The micro-batch size of a `torch.utils.data.DataLoader` is that of its batch sampler.

    The batch sampler is asked for it anew at each iteration, also by persistent workers and for an
    `IterableDataset`, whose batch sampler only says how many items to take.
    """

    counts_samples = True

    def get(self, loader: Any) -> int | None:
        """Returns the batch sampler's ``batch_size``."""
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        return size if isinstance(size, int) else None

    def set(self, loader: Any, micro_batch_size: int) -> None:
        """Sets it, and what the loader itself remembers of it."""
        loader.batch_sampler.batch_size = micro_batch_size
        if loader.__dict__.get("batch_size") is not None:
            # `DataLoader` forbids the assignment, but its length reads this where the data set is iterable.
            loader.__dict__["batch_size"] = micro_batch_size

    def len(self, loader: Any) -> int | None:
        """Returns the loader's own length."""
        return sized_len(loader)


class InPlaceActuator:
    """Rewrites the live loaders and recounts Lightning's numbers.

    Keeps persistent workers and the order of the samples, calls no code of the user, and works for loaders
    passed to `Trainer.fit`, under several processes, too. An owner's attribute, where there is one, follows.
    Loaders that are drawn from side by side keep the proportion that their sizes had when the fit began.

    Args:
        adapter: Where a loader keeps its batch size. By default in its batch sampler.
        batch_arg_name: Attribute of the datamodule or module that is kept in step, if there is one.

    Raises:
        TypeError: If `adapter` is not a `BatchSizeAdapter`.
    """

    def __init__(self, adapter: BatchSizeAdapter | None = None, batch_arg_name: str = "batch_size") -> None:
        if not isinstance(adapter, BatchSizeAdapter | None):
            raise TypeError(
                "`adapter` must have the methods `get`, `set` and `len` and the attribute `counts_samples` of a "
                f"`BatchSizeAdapter`, got {adapter!r}."
            )
        self.adapter = adapter or BatchSamplerAdapter()
        self.batch_arg_name = batch_arg_name
        self._owner = _Owner(batch_arg_name)
        self._first_sizes: list[int] = []  # of the loaders as the fit found them

    def check(self, trainer: Trainer) -> None:
        """Finds nothing to refuse before the loaders are there."""
        self._first_sizes = []
        self._owner.remember(trainer)

    def batch_size(self, trainer: Trainer) -> int:
        """Returns the batch size of the first live loader.

        Raises:
            MisconfigurationException: If one of the loaders has none that can be rewritten.
        """
        return self._sizes(trainer)[0] * _micro_batches_per_step(trainer)

    def limits(self, trainer: Trainer) -> tuple[LoaderLimits, ...]:
        """Returns what each live loader allows."""
        return _limits_of(_loaders(trainer), self._first_sizes or self._sizes(trainer), self.adapter)

    def request(self, trainer: Trainer, batch_size: int) -> None:
        """Rewrites the live loaders at once: the epoch that ends here has taken its last batch."""
        self.settle(trainer, batch_size)

    def settle(self, trainer: Trainer, batch_size: int) -> None:
        """Rewrites the live loaders where they have another batch size.

        Raises:
            MisconfigurationException: If the length of a loader does not follow its batch size.
        """
        if not self._first_sizes:
            self._first_sizes = self._look(trainer)
        before, micro = self._sizes(trainer)[0], micro_batch_size(trainer, batch_size)
        if micro == before:
            return
        self._owner.set(trainer, micro)
        for loader, limits in zip(_loaders(trainer), self.limits(trainer), strict=True):
            self._rewrite(loader, limits, before, micro)
        _recount(trainer, self.adapter)

    def release(self, trainer: Trainer) -> None:
        """Gives the loaders and their owner the batch size back that they had before the fit."""
        if self._first_sizes:
            for loader, size in zip(_loaders(trainer), self._first_sizes, strict=True):
                self.adapter.set(loader, size)
        self._first_sizes = []
        self._owner.put_back()

    def _look(self, trainer: Trainer) -> list[int]:
        """Returns the sizes of the loaders, once it is sure that they can be changed."""
        sizes = self._sizes(trainer)
        if self.adapter.counts_samples:
            for loader, limits in zip(_loaders(trainer), self.limits(trainer), strict=True):
                _check_length_follows(loader, replace(limits, ratio=1.0), self.adapter)
        return sizes

    def _rewrite(self, loader: Any, limits: LoaderLimits, before: int, micro: int) -> None:
        told_its_length = self.adapter.len(loader) == limits.micro_batches(before)
        self.adapter.set(loader, limits.micro_batch_size(micro))
        if told_its_length and self.adapter.len(loader) != limits.micro_batches(micro):
            _begin_batch_sampler(loader)

    def _sizes(self, trainer: Trainer) -> list[int]:
        return [self._size(loader) for loader in _loaders(trainer)]

    def _size(self, loader: Any) -> int:
        size = self.adapter.get(loader)
        if size is None:
            raise MisconfigurationException(
                f"The batch size of `{type(loader).__name__}` cannot be changed in place: its batch sampler has no "
                "`batch_size`. Give your datamodule or module a `batch_size` that its `train_dataloader` uses, with "
                '`actuator="reload"`, or pass `actuator=InPlaceActuator(adapter)` with a `BatchSizeAdapter` for this '
                "loader."
            )
        return size


class ReloadActuator:
    """Sets ``batch_size`` on the owner of the loader and has Lightning reload the loader, once.

    The owner is the datamodule or the module whose ``train_dataloader`` builds the loader; the attribute and
    the hyper-parameter of that name are both set. The reload is asked for by the public attribute
    ``Trainer.reload_dataloaders_every_n_epochs``, which is put back before validation could see it.

    Args:
        batch_arg_name: The attribute, as in Lightning's `BatchSizeFinder`.
    """

    def __init__(self, batch_arg_name: str = "batch_size") -> None:
        self.batch_arg_name = batch_arg_name
        self._owner = _Owner(batch_arg_name)
        self._reload_every: int | None = None  # the user's setting, while ours stands in its place
        self._validated_at: float | None = None  # by the clock of a Trainer that validates by time
        self._before: tuple[int | None, int] | None = None  # length and micro-batch size before a reload
        self._adapter = BatchSamplerAdapter()
        self._in_place = InPlaceActuator(batch_arg_name=batch_arg_name)  # for an owner that ignores its attribute
        self._ignored = False

    def check(self, trainer: Trainer) -> None:
        """Refuses a loader without an owner that has the attribute."""
        if self._owner.get(trainer) is None:
            raise MisconfigurationException(
                f"There is no `{self.batch_arg_name}` to set: neither the datamodule nor the module builds the "
                "training loader and has an attribute or hyper-parameter of that name, a positive int that can be "
                'set. Give it one that its `train_dataloader` uses, or pass `actuator="in_place"`.'
            )
        self._ignored = False
        self._owner.remember(trainer)
        self._in_place.check(trainer)

    def batch_size(self, trainer: Trainer) -> int:
        """Returns the batch size of the live loader, or of its owner where the loader does not tell."""
        micro = self._adapter.get(_loaders(trainer)[0])
        return (micro or self._owner.get(trainer) or 0) * _micro_batches_per_step(trainer)

    def limits(self, trainer: Trainer) -> tuple[LoaderLimits, ...]:
        """Returns what each live loader allows; their proportion is that of the owner's ``train_dataloader``."""
        if self._ignored:
            return self._in_place.limits(trainer)
        loaders = _loaders(trainer)
        return _limits_of(loaders, [self._adapter.get(loader) for loader in loaders], self._adapter)

    def request(self, trainer: Trainer, batch_size: int) -> None:
        """Sets the owner's attribute and asks for one reload."""
        if self._ignored:
            self._in_place.request(trainer, batch_size)
            return
        if batch_size == self.batch_size(trainer):
            return
        self._before = self._adapter.len(_loaders(trainer)[0]), micro_batch_size(trainer, self.batch_size(trainer))
        self._owner.set(trainer, micro_batch_size(trainer, batch_size))
        self._validated_at = getattr(trainer, "_last_val_time", None)
        if self._reload_every is None:
            self._reload_every = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]

    def settle(self, trainer: Trainer, batch_size: int) -> None:
        """Puts the Trainer's setting back, and sees whether the new loader obeyed."""
        self._put_setting_back(trainer)
        _check_not_empty(trainer)
        self._check_obeyed(trainer, micro_batch_size(trainer, batch_size))
        if self.batch_size(trainer) == batch_size:
            return
        if not self._ignored:
            rank_zero_warn(
                f"`{self._owner.name(trainer)}.train_dataloader` does not use `{self.batch_arg_name}`: its loader has "
                f"a batch size of {self.batch_size(trainer)} after the reload, not {batch_size}. The live loader is "
                "changed in place, now and at every later change."
            )
            self._ignored = True
        self._in_place.settle(trainer, batch_size)

    def release(self, trainer: Trainer) -> None:
        """Puts the Trainer's setting and the owner's attribute back."""
        self._put_setting_back(trainer)
        self._in_place.release(trainer)
        self._owner.put_back()

    def _put_setting_back(self, trainer: Trainer) -> None:
        if self._reload_every is not None:
            trainer.reload_dataloaders_every_n_epochs = self._reload_every  # type: ignore[attr-defined]
            self._reload_every = None
        if self._validated_at is not None:
            # The reload has set that clock to zero; with a change in every interval no validation would come.
            trainer._last_val_time = self._validated_at  # type: ignore[attr-defined]
            self._validated_at = None

    def _check_obeyed(self, trainer: Trainer, micro: int) -> None:
        """Refuses a reloaded loader that tells no size and is as long as the one before."""
        before, self._before = self._before, None
        loader = _loaders(trainer)[0]
        if before is None or self._adapter.get(loader) is not None:
            return
        length, size = before
        samples = LoaderLimits(_samples(loader))
        if length == self._adapter.len(loader) and samples.micro_batches(size) != samples.micro_batches(micro):
            raise MisconfigurationException(
                f"`{self._owner.name(trainer)}.train_dataloader` does not use `{self.batch_arg_name}`: its loader has "
                f"{length} batches with {size} and, reloaded, with {micro}, and has no batch size that could be "
                f"changed in place. Use `self.{self.batch_arg_name}` in `train_dataloader`."
            )


class _Owner:
    """The datamodule or module that builds the training loader, and its attribute for the batch size.

    Lightning looks for the attribute on the module, on the datamodule, and in the hyper-parameters of both.
    """

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute
        self._as_found: list[tuple[Any, Any]] = []  # who holds the attribute, and the user's value

    def name(self, trainer: Trainer) -> str:
        return type(trainer.fit_loop._data_source.instance).__name__

    def get(self, trainer: Trainer) -> int | None:
        values = (value for _, value in self._holders(trainer))
        return next((value for value in values if isinstance(value, int) and value > 0), None)

    def set(self, trainer: Trainer, micro_batch_size: int) -> None:
        for holder, _ in self._holders(trainer):
            self._assign(holder, micro_batch_size)

    def remember(self, trainer: Trainer) -> None:
        self._as_found = self._holders(trainer)

    def put_back(self) -> None:
        for holder, value in self._as_found:
            self._assign(holder, value)

    def _holders(self, trainer: Trainer) -> list[tuple[Any, Any]]:
        """Returns who holds the attribute in a way that it can be set, and the present values."""
        if not trainer.fit_loop._data_source.is_module():
            return []
        holders = _lightning_get_all_attr_holders(trainer.lightning_module, self.attribute)
        found = [(h, h[self.attribute] if isinstance(h, dict) else getattr(h, self.attribute)) for h in holders]
        return [(holder, value) for holder, value in found if self._assign(holder, value)]

    def _assign(self, holder: Any, value: Any) -> bool:
        """Returns whether it could be set; a property may be read-only."""
        try:
            if isinstance(holder, dict):
                holder[self.attribute] = value
            else:
                setattr(holder, self.attribute, value)
        except (AttributeError, TypeError):
            return False
        return True


def choose_actuator(name: str, trainer: Trainer) -> BatchSizeActuator:
    """Returns the actuator of that name.

    Args:
        name: "reload", "in_place", or "auto": the first where a datamodule or module owns the training loader
            and has a ``batch_size``, else the second.
        trainer: A Trainer that knows its data.

    Raises:
        MisconfigurationException: If there is no such name.
    """
    if name == "auto":
        name = "reload" if _Owner("batch_size").get(trainer) else "in_place"
    if name == "reload":
        return ReloadActuator()
    if name == "in_place":
        return InPlaceActuator()
    raise MisconfigurationException(
        f'`actuator` must be "auto", "reload", "in_place" or a `BatchSizeActuator`, got {name!r}.'
    )


def set_before_loading(trainer: Trainer, batch_arg_name: str, batch_size: int) -> None:
    """Sets a restored batch size on the owner before anything builds the loader.

    ``configure_optimizers`` may ask for ``estimated_stepping_batches``, which does.
    """
    _Owner(batch_arg_name).set(trainer, micro_batch_size(trainer, batch_size))


def limits_of(
    trainer: Trainer, loaders: tuple[LoaderLimits, ...], minimum: int, maximum: int, multiple_of: int
) -> Limits:
    """Reads off a Trainer what it allows, around what its loaders allow and the scheduler's own bounds."""
    by_batches = trainer.check_val_every_n_epoch is not None and trainer.limit_val_batches > 0
    interval = getattr(trainer, "val_check_interval", None) if by_batches else None
    combined = trainer.fit_loop._combined_loader
    return Limits(
        minimum=minimum,
        maximum=maximum,
        multiple_of=multiple_of,
        world_size=data_ranks(trainer),
        accumulation=trainer.accumulate_grad_batches,
        loaders=loaders,
        needs_two_samples=any(isinstance(m, _BatchNorm) for m in trainer.lightning_module.modules()),
        limit_batches=trainer.limit_train_batches,
        needs_batches=interval if isinstance(interval, int) else 0,
        longest_counts=combined is not None and combined._mode != "min_size",
    )


def check_lightning(trainer: Trainer) -> None:
    """Refuses a Lightning whose insides are not those that this room was written for."""
    needed = ("_combined_loader", "_data_fetcher", "_data_source", "max_batches")
    if missing := [name for name in needed if not hasattr(trainer.fit_loop, name)]:
        raise MisconfigurationException(
            f"This Lightning has no `fit_loop.{missing[0]}`, which a change of the batch size needs. "
            "lightning_deba supports lightning>=2.5,<3: install one of these."
        )


def finish_resumed_epoch(trainer: Trainer) -> None:
    """Makes Lightning see that an epoch which had taken its last batch is over, whatever the next one's size.

    Lightning tells by comparing the batches done with ``num_training_batches``. Where the checkpoint is of an
    epoch's last batch, or of its end under ``max_steps``, that number is already the next epoch's, and a part
    of the epoch would be trained again.
    """
    loop = trainer.fit_loop
    progress = loop.epoch_loop.batch_progress
    ended = loop.restarted_on_epoch_end or loop.epoch_loop.restarted_on_train_batch_end
    if not (ended and progress.is_last_batch):
        return
    if loop.max_batches != float("inf"):
        batches = int(loop.max_batches)
        for stage in ("ready", "started", "processed", "completed"):
            setattr(progress.current, stage, batches)
    fetcher, combined = loop._data_fetcher, loop._combined_loader
    if fetcher is not None and combined is not None and combined._state_dicts():
        iter(fetcher)  # a stateful loader was put back to where that epoch ended, and has nothing left to give


def reload_if_requested(trainer: Trainer) -> None:
    """Reloads the loader now where `ReloadActuator.request` has asked for it; else Lightning does nothing."""
    trainer.fit_loop.setup_data()


def data_ranks(trainer: Trainer) -> int:
    """Returns how many ranks draw samples of their own; those of a tensor-parallel group share theirs."""
    shares = trainer.distributed_sampler_kwargs or {}
    return int(shares.get("num_replicas", trainer.world_size))


def check_ranks_agree(trainer: Trainer, actuator: BatchSizeActuator) -> None:
    """Refuses ranks whose loaders differ. Every rank has to call this.

    Gradients are averaged over ranks, not over samples, so ranks with other batch sizes would weigh their samples
    differently; and a rank with more batches than the others would wait for them forever.
    """
    if trainer.world_size == 1:
        return
    micro = actuator.batch_size(trainer) / _micro_batches_per_step(trainer)
    here = [micro, trainer.num_training_batches, actuator.limits(trainer)[0].samples or 0]
    sizes, batches, samples = zip(*_gathered(trainer, here), strict=True)
    if len(set(sizes)) > 1:
        raise MisconfigurationException(
            f"The ranks' training loaders have different batch sizes: {_listed(sizes)}, from rank 0 on. Give every "
            "rank the same one: gradients are averaged over ranks, and samples would weigh differently."
        )
    if len(set(batches)) > 1 or len(set(samples)) > 1:
        raise MisconfigurationException(
            f"The ranks' training loaders have {_listed(batches)} batches and {_listed(samples)} samples, from rank 0 "
            "on. Give every rank as many samples as the others, as Lightning's `use_distributed_sampler=True` does: "
            "after a change of the batch size one rank would have a batch more, and wait for the others forever."
        )


def _gathered(trainer: Trainer, here: list[float]) -> list[list[float]]:
    """Returns the numbers of every rank. A sum of rows is what every strategy can do."""
    rows = torch.zeros(trainer.world_size, len(here), device=trainer.strategy.root_device)
    rows[trainer.global_rank] = torch.tensor(here)
    there = trainer.strategy.reduce(rows, reduce_op="sum")
    assert isinstance(there, torch.Tensor)
    gathered: list[list[float]] = there.tolist()
    return gathered


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `torch.compile` has compiled a module or a part of it."""
    return getattr(module, "_compiler_ctx", None) is not None or any(
        part._compiled_call_impl is not None or hasattr(part, "_orig_mod") for part in module.modules()
    )


def skips_training(trainer: Trainer) -> bool:
    """Whether the running epoch only passes batches forward, as StochasticWeightAveraging's last one for BatchNorm."""
    return bool(trainer.fit_loop._skip_backward)


def _loaders(trainer: Trainer) -> list[Any]:
    """Returns the live training loaders, flat, as Lightning has set them up."""
    combined = trainer.fit_loop._combined_loader
    assert combined is not None, "the training loader is not set up yet"
    return combined.flattened


def _micro_batches_per_step(trainer: Trainer) -> int:
    return data_ranks(trainer) * trainer.accumulate_grad_batches


def micro_batch_size(trainer: Trainer, batch_size: int) -> int:
    """Divides a batch size among ranks and accumulated micro-batches.

    Raises:
        MisconfigurationException: If it does not divide, as after a resume on another number of devices.
    """
    micro, rest = divmod(batch_size, _micro_batches_per_step(trainer))
    if rest or not micro:
        raise MisconfigurationException(
            f"A batch size of {batch_size} cannot be divided among {data_ranks(trainer)} ranks x "
            f"{trainer.accumulate_grad_batches} accumulated micro-batches = {_micro_batches_per_step(trainer)}. "
            "Choose `devices` and `accumulate_grad_batches` whose product divides it, as in the run that set it."
        )
    return micro


def _recount(trainer: Trainer, adapter: BatchSizeAdapter) -> None:
    """Repeats what Lightning counts when it sets up a training loader (`_FitLoop.setup_data`)."""
    loop = trainer.fit_loop
    combined = loop._combined_loader
    assert combined is not None
    combined.limits = [
        _parse_num_batches(RunningStage.TRAINING, _or_inf(adapter.len(dl)), trainer.limit_train_batches)
        for dl in combined.flattened
    ]
    batches = _SUPPORTED_MODES[combined._mode]["iterator"](combined.flattened, combined.limits)
    loop.max_batches = _or_inf(sized_len(batches))
    interval = getattr(trainer, "val_check_interval", None)  # which a Trainer that validates by time has not
    if isinstance(interval, float) and loop.max_batches != float("inf"):
        trainer.val_check_batch = max(1, int(loop.max_batches * interval))
    _check_not_empty(trainer)
    _begin_anew(trainer)


def _check_not_empty(trainer: Trainer) -> None:
    """Refuses an epoch without batches, which Lightning would take for the end of the fit."""
    if trainer.fit_loop.max_batches == 0:
        raise MisconfigurationException(
            "No batch is left in an epoch: the training loader drops its only one, which is not full. Lower "
            "`max_batch_size`, or build the loader with `drop_last=False`."
        )


def _begin_anew(trainer: Trainer) -> None:
    """Makes a new iterator where one was made with the old size, and nothing of it has been used."""
    loop = trainer.fit_loop
    fetcher, combined = loop._data_fetcher, loop._combined_loader
    assert fetcher is not None
    assert combined is not None
    if fetcher.fetched <= len(getattr(fetcher, "batches", ())):
        combined._load_state_dicts(combined._state_dicts())  # a loader that was resumed in its middle stays there
        iter(fetcher)


def _or_inf(length: int | None) -> int | float:
    return float("inf") if length is None else length


def _samples(loader: Any) -> int | None:
    """Returns the samples that a loader draws in an epoch, on one rank."""
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return sized_len(dataset if sampler is None or isinstance(dataset, IterableDataset) else sampler)


def _limits_of(loaders: list[Any], sizes: Sequence[int | None], adapter: BatchSizeAdapter) -> tuple[LoaderLimits, ...]:
    first = sizes[0]
    return tuple(
        _limits_of_one(loader, size / first, adapter) if size and first else LoaderLimits(None, counts_samples=False)
        for loader, size in zip(loaders, sizes, strict=True)
    )


def _limits_of_one(loader: Any, ratio: float, adapter: BatchSizeAdapter) -> LoaderLimits:
    if not adapter.counts_samples:
        return LoaderLimits(None, ratio=ratio, counts_samples=False)
    drop_last = bool(getattr(getattr(loader, "batch_sampler", None), "drop_last", False))
    return LoaderLimits(_samples(loader), drop_last, ratio)


def _check_length_follows(loader: Any, limits: LoaderLimits, adapter: BatchSizeAdapter) -> None:
    """Refuses a loader whose length stays the same whatever its batch size.

    Lightning ends an epoch by the length, so such a loader would lose samples or validations.
    """
    size, length = adapter.get(loader), adapter.len(loader)
    assert size is not None
    others = [other for other in (2 * size, size // 2) if other]
    should_follow = any(limits.micro_batches(other) != limits.micro_batches(size) for other in others)
    if should_follow and all(_length_at(loader, other, adapter) == length for other in others):
        raise MisconfigurationException(
            f"The length of `{type(getattr(loader, 'batch_sampler', loader)).__name__}` does not follow its "
            f"`batch_size`: it is {length} with {size} and with {others[0]}. Compute it from `self.batch_size` in "
            "`__len__`, or give your datamodule or module a `batch_size` that its `train_dataloader` uses, with "
            '`actuator="reload"`.'
        )


def _length_at(loader: Any, size: int, adapter: BatchSizeAdapter) -> int | None:
    """Returns the length that a loader would have with another batch size."""
    present = adapter.get(loader)
    assert present is not None
    adapter.set(loader, size)
    length = adapter.len(loader)
    adapter.set(loader, present)
    return length


def _begin_batch_sampler(loader: Any) -> None:
    """Begins an iteration of the batch sampler, since some know their next length only then.

    Those count the batches given and those to come: at an epoch's end, the batches of the epoch that is over.
    """
    with torch.random.fork_rng(devices=[]):
        next(iter(loader.batch_sampler), None)

"""The live loaders are rewritten, and Lightning's numbers recounted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer

from lightning_deba.actuators.faces import BatchSamplerAdapter, BatchSizeAdapter
from lightning_deba.actuators.internals import (
    limits_of_loaders,
    loaders_of,
    micro_batch_size,
    micro_batches_per_step,
    recount,
)
from lightning_deba.actuators.owner import Owner
from lightning_deba.limits import LoaderLimits


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

    Example:
        >>> from lightning_deba import BatchSizeScheduler
        >>> scheduler = BatchSizeScheduler(actuator=InPlaceActuator(batch_arg_name="train_batch_size"))
    """

    def __init__(self, adapter: BatchSizeAdapter | None = None, batch_arg_name: str = "batch_size") -> None:
        if not isinstance(adapter, BatchSizeAdapter | None):
            raise TypeError(
                "`adapter` must have the methods `get`, `set` and `len` and the attribute `counts_samples` of a "
                f"`BatchSizeAdapter`, got {adapter!r}."
            )
        self.adapter = adapter or BatchSamplerAdapter()
        self.batch_arg_name = batch_arg_name
        self._owner = Owner(batch_arg_name)
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
        return self._sizes(trainer)[0] * micro_batches_per_step(trainer)

    def limits(self, trainer: Trainer) -> tuple[LoaderLimits, ...]:
        """Returns what each live loader allows."""
        return limits_of_loaders(loaders_of(trainer), self._first_sizes or self._sizes(trainer), self.adapter)

    def request(self, trainer: Trainer, batch_size: int) -> None:
        """Rewrites the live loaders at once: no further batch is taken with the old size."""
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
        for loader, limits in zip(loaders_of(trainer), self.limits(trainer), strict=True):
            self._rewrite(loader, limits, before, micro)
        recount(trainer, self.adapter)

    def release(self, trainer: Trainer) -> None:
        """Gives the loaders and their owner the batch size back that they had before the fit."""
        if self._first_sizes:
            for loader, size in zip(loaders_of(trainer), self._first_sizes, strict=True):
                self.adapter.set(loader, size)
        self._first_sizes = []
        self._owner.put_back()

    def _look(self, trainer: Trainer) -> list[int]:
        """Returns the sizes of the loaders, once it is sure that they can be changed."""
        sizes = self._sizes(trainer)
        if self.adapter.counts_samples:
            for loader, limits in zip(loaders_of(trainer), self.limits(trainer), strict=True):
                _check_length_follows(loader, replace(limits, ratio=1.0), self.adapter)
        return sizes

    def _rewrite(self, loader: Any, limits: LoaderLimits, before: int, micro: int) -> None:
        told_its_length = self.adapter.len(loader) == limits.micro_batches(before)
        self.adapter.set(loader, limits.micro_batch_size(micro))
        if told_its_length and self.adapter.len(loader) != limits.micro_batches(micro):
            _begin_batch_sampler(loader)

    def _sizes(self, trainer: Trainer) -> list[int]:
        return [self._size(loader) for loader in loaders_of(trainer)]

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

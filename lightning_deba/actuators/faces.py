"""What an actuator is, and what teaches it a kind of loader."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Trainer

from lightning_deba.limits import LoaderLimits


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
        """Asks for a batch size from the next batch on: at an epoch's end, or where a run goes on from a checkpoint."""

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
        >>> from lightning_deba import InPlaceActuator
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

"""How a decision is carried out in Lightning. The only room that knows the insides of a `Trainer`.

A loader's batch size is a micro-batch size: samples per forward pass on one device. The faces here speak of the
batch size in this project's sense, samples per optimizer step, and divide by ranks and accumulation.

Changing a loader's batch size between two epochs is not enough: Lightning has counted the batches of an
epoch when it set the loader up, and ends the epoch, validates and draws its progress bar by that count. So
either Lightning sets the loader up anew (`ReloadActuator`) or it is recounted (`InPlaceActuator`).
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from lightning.fabric.utilities.data import sized_len
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.combined_loader import _SUPPORTED_MODES
from lightning.pytorch.utilities.parsing import lightning_getattr, lightning_hasattr, lightning_setattr
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_deba.limits import Limits, LoaderLimits

__all__ = ["BatchSizeActuator", "BatchSizeAdapter", "InPlaceActuator", "ReloadActuator", "choose_actuator"]


@runtime_checkable
class BatchSizeActuator(Protocol):
    """Changes the batch size of a running fit, between two epochs.

    The scheduler calls `check` once before the loader is built, `request` at an epoch's end and `settle` before
    the first batch of every epoch.
    """

    def check(self, trainer: Trainer) -> None:
        """Refuses what cannot work.

        Raises:
            MisconfigurationException: With the remedy.
        """

    def batch_size(self, trainer: Trainer) -> int:
        """Returns the batch size that the live loader has."""
        ...

    def request(self, trainer: Trainer, batch_size: int) -> None:
        """Asks for a batch size from the next epoch on."""

    def settle(self, trainer: Trainer, batch_size: int) -> None:
        """Makes sure that the live loader has this batch size."""

    def release(self, trainer: Trainer) -> None:
        """Puts back what `request` has changed on the Trainer, as when the fit ends first."""


class BatchSizeAdapter(Protocol):
    """Teaches `InPlaceActuator` a kind of loader, such as one whose sampler packs tokens.

    Pass it as ``BatchSizeScheduler(actuator=InPlaceActuator(adapter))``.
    """

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

    Args:
        adapter: Where a loader keeps its batch size. By default in its batch sampler.
        batch_arg_name: Attribute of the datamodule or module that is kept in step, if there is one.
    """

    def __init__(self, adapter: BatchSizeAdapter | None = None, batch_arg_name: str = "batch_size") -> None:
        self.adapter = adapter or BatchSamplerAdapter()
        self.batch_arg_name = batch_arg_name

    def check(self, trainer: Trainer) -> None:
        """Finds nothing to refuse before the loader is there."""

    def batch_size(self, trainer: Trainer) -> int:
        """Returns the batch size of the first live loader.

        Raises:
            MisconfigurationException: If it has none that can be rewritten.
        """
        return self._micro_batch_size(trainer) * _micro_batches_per_step(trainer)

    def request(self, trainer: Trainer, batch_size: int) -> None:
        """Rewrites the live loaders at once: the epoch that ends here has taken its last batch."""
        self.settle(trainer, batch_size)

    def settle(self, trainer: Trainer, batch_size: int) -> None:
        """Rewrites the live loaders where they have another batch size."""
        micro = micro_batch_size(trainer, batch_size)
        _set_owner(trainer, self.batch_arg_name, micro)
        before = self._micro_batch_size(trainer)
        if micro == before:
            return
        for loader in _loaders(trainer):
            size = self.adapter.get(loader)
            if size is not None:
                # Loaders that are drawn from side by side keep the proportion that the user gave them.
                self.adapter.set(loader, max(1, round(size * micro / before)))
        _recount(trainer, self.adapter)

    def release(self, trainer: Trainer) -> None:
        """Has changed nothing on the Trainer."""

    def _micro_batch_size(self, trainer: Trainer) -> int:
        loader = _loaders(trainer)[0]
        size = self.adapter.get(loader)
        if size is None:
            raise MisconfigurationException(
                f"The batch size of `{type(loader).__name__}` cannot be changed in place: its batch sampler has no "
                "`batch_size`. Give your datamodule or module a `batch_size` that its `train_dataloader` uses, or "
                "pass `actuator=InPlaceActuator(adapter)` with a `BatchSizeAdapter` for this loader."
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
        self._reload_every: int | None = None  # the user's setting, while ours stands in its place
        self._fallback = InPlaceActuator(batch_arg_name=batch_arg_name)

    def check(self, trainer: Trainer) -> None:
        """Refuses a loader without an owner that has the attribute."""
        if not _has_owner(trainer, self.batch_arg_name):
            raise MisconfigurationException(
                f"There is no `{self.batch_arg_name}` to set: neither the datamodule nor the module builds the "
                "training loader and has an attribute or hyper-parameter of that name. Give it one that its "
                '`train_dataloader` uses, or pass `actuator="in_place"`.'
            )

    def batch_size(self, trainer: Trainer) -> int:
        """Returns the batch size of the live loader, or of its owner where the loader does not tell."""
        micro = self._fallback.adapter.get(_loaders(trainer)[0])
        if micro is None:
            micro = int(lightning_getattr(trainer.lightning_module, self.batch_arg_name) or 0)
        return micro * _micro_batches_per_step(trainer)

    def request(self, trainer: Trainer, batch_size: int) -> None:
        """Sets the owner's attribute and asks for one reload."""
        if batch_size == self.batch_size(trainer):
            return
        _set_owner(trainer, self.batch_arg_name, micro_batch_size(trainer, batch_size))
        if self._reload_every is None:
            self._reload_every = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]

    def settle(self, trainer: Trainer, batch_size: int) -> None:
        """Puts the Trainer's setting back, and sees whether the new loader obeyed."""
        self.release(trainer)
        if self.batch_size(trainer) == batch_size:
            return
        owner = type(trainer.fit_loop._data_source.instance).__name__
        rank_zero_warn(
            f"`{owner}.train_dataloader` does not use `{self.batch_arg_name}`: its loader has a batch size of "
            f"{self.batch_size(trainer)} after the reload, not {batch_size}. The live loader is changed in place."
        )
        self._fallback.settle(trainer, batch_size)

    def release(self, trainer: Trainer) -> None:
        """Puts the Trainer's setting back."""
        if self._reload_every is not None:
            trainer.reload_dataloaders_every_n_epochs = self._reload_every  # type: ignore[attr-defined]
            self._reload_every = None


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
        name = "reload" if _has_owner(trainer, "batch_size") else "in_place"
    if name == "reload":
        return ReloadActuator()
    if name == "in_place":
        return InPlaceActuator()
    raise MisconfigurationException(
        f'`actuator` must be "auto", "reload", "in_place" or a `BatchSizeActuator`, got {name!r}.'
    )


def set_before_loading(trainer: Trainer, module: LightningModule, batch_arg_name: str, batch_size: int) -> None:
    """Sets a restored batch size on the owner before anything builds the loader.

    ``configure_optimizers`` may ask for ``estimated_stepping_batches``, which does.
    """
    if trainer.fit_loop._data_source.is_module() and lightning_hasattr(module, batch_arg_name):
        lightning_setattr(module, batch_arg_name, micro_batch_size(trainer, batch_size))


def limits_of(trainer: Trainer, minimum: int, maximum: int, multiple_of: int) -> Limits:
    """Reads off a Trainer whose loaders are live what it allows, around the scheduler's own bounds."""
    loaders = _loaders(trainer)
    sizes = [BatchSamplerAdapter().get(loader) for loader in loaders]
    first = sizes[0] or 1
    by_batches = trainer.check_val_every_n_epoch is not None and trainer.limit_val_batches > 0
    interval = trainer.val_check_interval if by_batches else None
    return Limits(
        minimum=minimum,
        maximum=maximum,
        multiple_of=multiple_of,
        world_size=trainer.world_size,
        accumulation=trainer.accumulate_grad_batches,
        loaders=tuple(_limits_of_loader(dl, (size or first) / first) for dl, size in zip(loaders, sizes, strict=True)),
        needs_two_samples=any(isinstance(m, _BatchNorm) for m in trainer.lightning_module.modules()),
        limit_batches=trainer.limit_train_batches,
        needs_batches=interval if isinstance(interval, int) else 0,
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
    if ended and progress.is_last_batch and loop.max_batches != float("inf"):
        batches = int(loop.max_batches)
        for stage in ("ready", "started", "processed", "completed"):
            setattr(progress.current, stage, batches)


def reload_if_requested(trainer: Trainer) -> None:
    """Reloads the loader now where `ReloadActuator.request` has asked for it; else Lightning does nothing."""
    trainer.fit_loop.setup_data()


def _loaders(trainer: Trainer) -> list[Any]:
    """Returns the live training loaders, flat, as Lightning has set them up."""
    combined = trainer.fit_loop._combined_loader
    assert combined is not None, "the training loader is not set up yet"
    return combined.flattened


def _micro_batches_per_step(trainer: Trainer) -> int:
    return trainer.world_size * trainer.accumulate_grad_batches


def micro_batch_size(trainer: Trainer, batch_size: int) -> int:
    """Divides a batch size among ranks and accumulated micro-batches.

    Raises:
        MisconfigurationException: If it does not divide, as after a resume on another number of devices.
    """
    micro, rest = divmod(batch_size, _micro_batches_per_step(trainer))
    if rest or not micro:
        raise MisconfigurationException(
            f"A batch size of {batch_size} cannot be divided among {trainer.world_size} ranks x "
            f"{trainer.accumulate_grad_batches} accumulated micro-batches = {_micro_batches_per_step(trainer)}. "
            "Choose `devices` and `accumulate_grad_batches` whose product divides it, as in the run that set it."
        )
    return micro


def _has_owner(trainer: Trainer, batch_arg_name: str) -> bool:
    source = trainer.fit_loop._data_source
    return source.is_module() and lightning_hasattr(trainer.lightning_module, batch_arg_name)


def _set_owner(trainer: Trainer, batch_arg_name: str, micro_batch_size: int) -> None:
    if _has_owner(trainer, batch_arg_name):
        lightning_setattr(trainer.lightning_module, batch_arg_name, micro_batch_size)


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
    timed = getattr(trainer, "_val_check_time_interval", None) is not None
    if isinstance(trainer.val_check_interval, float) and not timed and loop.max_batches != float("inf"):
        trainer.val_check_batch = max(1, int(loop.max_batches * trainer.val_check_interval))
    fetcher = loop._data_fetcher
    assert fetcher is not None
    if fetcher.fetched <= len(getattr(fetcher, "batches", ())):
        # Nothing of this iterator has been used: it was made for the epoch to come, with the old size.
        iter(fetcher)


def _or_inf(length: int | None) -> int | float:
    return float("inf") if length is None else length


def _limits_of_loader(loader: Any, ratio: float) -> LoaderLimits:
    sampler = getattr(loader, "batch_sampler", None)
    samples = sized_len(getattr(sampler, "sampler", None))
    if samples is None:
        samples = sized_len(getattr(loader, "dataset", None))
    return LoaderLimits(samples, bool(getattr(sampler, "drop_last", False)), ratio)

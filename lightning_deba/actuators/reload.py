"""The owner of the loader is given the batch size, and Lightning reloads the loader once."""

from __future__ import annotations

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_deba.actuators.faces import BatchSamplerAdapter
from lightning_deba.actuators.in_place import InPlaceActuator
from lightning_deba.actuators.internals import (
    ask_for_reload,
    check_not_empty,
    limits_of_loaders,
    loaders_of,
    micro_batch_size,
    micro_batches_per_step,
    samples_of,
)
from lightning_deba.actuators.owner import Owner
from lightning_deba.limits import LoaderLimits


class ReloadActuator:
    """Sets ``batch_size`` on the owner of the loader and has Lightning reload the loader, once.

    The owner is the datamodule or the module whose ``train_dataloader`` builds the loader; the attribute and
    the hyper-parameter of that name are both set. The reload is asked for by the public attribute
    ``Trainer.reload_dataloaders_every_n_epochs``, which is put back before validation could see it.

    Args:
        batch_arg_name: The attribute, as in Lightning's `BatchSizeFinder`.

    Example:
        >>> from lightning_deba import BatchSizeScheduler
        >>> scheduler = BatchSizeScheduler(actuator=ReloadActuator(batch_arg_name="train_batch_size"))
    """

    def __init__(self, batch_arg_name: str = "batch_size") -> None:
        self.batch_arg_name = batch_arg_name
        self._owner = Owner(batch_arg_name)
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
        micro = self._adapter.get(loaders_of(trainer)[0])
        return micro * micro_batches_per_step(trainer) if micro else self.owned_batch_size(trainer)

    def owned_batch_size(self, trainer: Trainer) -> int:
        """Returns the batch size that the owner holds, also before there is a loader."""
        return (self._owner.get(trainer) or 0) * micro_batches_per_step(trainer)

    def limits(self, trainer: Trainer) -> tuple[LoaderLimits, ...]:
        """Returns what each live loader allows; their proportion is that of the owner's ``train_dataloader``."""
        if self._ignored:
            return self._in_place.limits(trainer)
        loaders = loaders_of(trainer)
        return limits_of_loaders(loaders, [self._adapter.get(loader) for loader in loaders], self._adapter)

    def request(self, trainer: Trainer, batch_size: int) -> None:
        """Sets the owner's attribute and asks for one reload."""
        if self._ignored:
            self._in_place.request(trainer, batch_size)
            return
        if batch_size == self.batch_size(trainer):
            return
        self._before = self._adapter.len(loaders_of(trainer)[0]), micro_batch_size(trainer, self.batch_size(trainer))
        self._owner.set(trainer, micro_batch_size(trainer, batch_size))
        self._validated_at = getattr(trainer, "_last_val_time", None)
        if self._reload_every is None:
            self._reload_every = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        ask_for_reload(trainer)

    def settle(self, trainer: Trainer, batch_size: int) -> None:
        """Puts the Trainer's setting back, and sees whether the new loader obeyed."""
        self._put_setting_back(trainer)
        check_not_empty(trainer)
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
        loader = loaders_of(trainer)[0]
        if before is None or self._adapter.get(loader) is not None:
            return
        length, size = before
        samples = LoaderLimits(samples_of(loader))
        if length == self._adapter.len(loader) and samples.micro_batches(size) != samples.micro_batches(micro):
            raise MisconfigurationException(
                f"`{self._owner.name(trainer)}.train_dataloader` does not use `{self.batch_arg_name}`: its loader has "
                f"{length} batches with {size} and, reloaded, with {micro}, and has no batch size that could be "
                f"changed in place. Use `self.{self.batch_arg_name}` in `train_dataloader`."
            )

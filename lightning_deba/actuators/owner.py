"""Who builds the training loader, and under which name it keeps the batch size."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.parsing import _lightning_get_all_attr_holders

from lightning_deba.actuators.internals import micro_batch_size


class Owner:
    """The datamodule or module that builds the training loader, and its attribute for the batch size.

    Lightning looks for the attribute on the module, on the datamodule, and in the hyper-parameters of both; what counts
    is that of the one who builds the loader.
    """

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute
        self._as_found: list[tuple[Any, Any]] = []  # who holds the attribute, and the user's value

    def name(self, trainer: Trainer) -> str:
        """Returns the name of its class."""
        return type(trainer.fit_loop._data_source.instance).__name__

    def get(self, trainer: Trainer) -> int | None:
        """Returns the micro-batch size that it holds; ``None`` where there is none that can be set."""
        values = (value for _, value in self._holders(trainer))
        return next((value for value in values if isinstance(value, int) and value > 0), None)

    def set(self, trainer: Trainer, micro_batch_size: int) -> None:
        """Sets it wherever it is held."""
        for holder, _ in self._holders(trainer):
            self._assign(holder, micro_batch_size)

    def remember(self, trainer: Trainer) -> None:
        """Notes the user's value."""
        self._as_found = self._holders(trainer)

    def put_back(self) -> None:
        """Gives the user's value back."""
        for holder, value in self._as_found:
            self._assign(holder, value)

    def _holders(self, trainer: Trainer) -> list[tuple[Any, Any]]:
        """Returns who holds the attribute in a way that it can be set, and the present values."""
        if not trainer.fit_loop._data_source.is_module():
            return []
        builder = trainer.fit_loop._data_source.instance
        own = (builder, getattr(builder, "hparams", None))
        holders = _lightning_get_all_attr_holders(trainer.lightning_module, self.attribute)
        holders = sorted(holders, key=lambda holder: not any(holder is mine for mine in own))
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


def set_before_loading(trainer: Trainer, batch_arg_name: str, batch_size: int) -> None:
    """Sets a restored batch size on the owner before anything builds the loader.

    ``configure_optimizers`` may ask for ``estimated_stepping_batches``, which does.

    Args:
        trainer: A Trainer that knows its data.
        batch_arg_name: The owner's attribute.
        batch_size: In samples per optimizer step; the owner gets its micro-batch size.
    """
    Owner(batch_arg_name).set(trainer, micro_batch_size(trainer, batch_size))

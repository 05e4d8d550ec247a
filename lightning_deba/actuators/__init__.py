"""How a decision is carried out in Lightning. The only room that knows the insides of a `Trainer`.

A loader's batch size is a micro-batch size: samples per forward pass on one device. The faces here speak of the
batch size in this project's sense, samples per optimizer step, and divide by ranks and accumulation.

Changing a loader's batch size between two epochs is not enough: Lightning has counted the batches of an
epoch when it set the loader up, and ends the epoch, validates and draws its progress bar by that count. So
either Lightning sets the loader up anew (`ReloadActuator`) or it is recounted (`InPlaceActuator`).
"""

from __future__ import annotations

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer

from lightning_deba.actuators.faces import BatchSizeActuator, BatchSizeAdapter
from lightning_deba.actuators.in_place import InPlaceActuator
from lightning_deba.actuators.internals import (
    at_least_2_6,
    check_lightning,
    data_ranks,
    finish_resumed_epoch,
    go_on_by_steps,
    is_compiled,
    is_cut_off,
    is_fitting,
    is_inside_epoch,
    is_loaded,
    is_tuning,
    limits_of,
    may_begin_short,
    micro_batch_size,
    reload_if_requested,
    skips_training,
    user_parameters,
)
from lightning_deba.actuators.owner import Owner, set_before_loading
from lightning_deba.actuators.ranks import check_ranks_agree, mean_over_ranks, smallest_over_ranks
from lightning_deba.actuators.reload import ReloadActuator

__all__ = [
    "BatchSizeActuator",
    "BatchSizeAdapter",
    "InPlaceActuator",
    "ReloadActuator",
    "at_least_2_6",
    "check_lightning",
    "check_ranks_agree",
    "choose_actuator",
    "data_ranks",
    "finish_resumed_epoch",
    "go_on_by_steps",
    "is_compiled",
    "is_cut_off",
    "is_fitting",
    "is_inside_epoch",
    "is_loaded",
    "is_tuning",
    "limits_of",
    "may_begin_short",
    "mean_over_ranks",
    "micro_batch_size",
    "reload_if_requested",
    "set_before_loading",
    "skips_training",
    "smallest_over_ranks",
    "user_parameters",
]


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
        name = "reload" if Owner("batch_size").get(trainer) else "in_place"
    if name == "reload":
        return ReloadActuator()
    if name == "in_place":
        return InPlaceActuator()
    raise MisconfigurationException(
        f'`actuator` must be "auto", "reload", "in_place" or a `BatchSizeActuator`, got {name!r}.'
    )

"""What the scheduler refuses, with the remedy, and what it warns of."""

from __future__ import annotations

from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    ThroughputMonitor,
)
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch.optim import LBFGS

from lightning_deba import actuators
from lightning_deba.learning_rate import BY_GAIN
from lightning_deba.limits import Limits
from lightning_deba.presets import Preset, architecture_in
from lightning_deba.records import EpochRecord


def check_arguments(
    policy: Any, preset: Any, minimum: int, maximum: int, multiple_of: int, max_micro_batch_size: int | None
) -> None:
    """Refuses arguments that cannot be right."""
    if policy is not None and preset is not None:
        raise ValueError("`policy` and `preset` were both given; a preset is a policy with a name: give one.")
    if policy is not None and (isinstance(policy, type) or not callable(policy)):
        raise TypeError(
            f"`policy` must be a callable `history -> Decision` such as `DEBA()`, got {policy!r}. "
            "A model's name goes to `preset`."
        )
    if not 1 <= minimum <= maximum:
        raise ValueError(f"`min_batch_size` must be from 1 to `max_batch_size`, got {minimum} and {maximum}.")
    if not 1 <= multiple_of <= maximum:
        raise ValueError(f"`multiple_of` must be from 1 to `max_batch_size` ({maximum}), got {multiple_of}.")
    if max_micro_batch_size is not None and max_micro_batch_size < 1:
        raise ValueError(f"`max_micro_batch_size` must be at least 1 sample, got {max_micro_batch_size}.")


def check_coupling(schedule_by: str, lr_scaling: object, max_samples: int | None) -> None:
    """Refuses settings of schedule and budget that cannot be right."""
    if schedule_by not in ("samples", "gain", "steps"):
        raise ValueError(f'`schedule_by` must be "samples", "gain" or "steps", got {schedule_by!r}.')
    if schedule_by == "gain" and lr_scaling not in BY_GAIN:
        raise ValueError(
            '`schedule_by="gain"` is the clock of a rate that goes by the gain as well, got '
            f"`lr_scaling={lr_scaling!r}`. "
            'Take `lr_scaling="adascale"`, for Adam "adamscale", or leave `schedule_by` at "samples".'
        )
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"`max_samples` must be at least 1, got {max_samples}.")


def check_accumulation(trainer: Trainer, automatic: bool, max_micro_batch_size: int | None) -> None:
    """Refuses a cap where Lightning cannot accumulate."""
    if max_micro_batch_size is None:
        return
    if not automatic:
        raise MisconfigurationException(
            f"`max_micro_batch_size` is {max_micro_batch_size}, and under manual optimization Lightning does not "
            "accumulate. Accumulate in your `training_step`, or leave it out and set `max_batch_size` to what fits."
        )
    if any(isinstance(optimizer, LBFGS) for optimizer in trainer.optimizers):
        raise MisconfigurationException(
            f"`max_micro_batch_size` is {max_micro_batch_size}, and LBFGS evaluates one micro-batch several times a "
            "step, so it cannot accumulate. Leave it out and set `max_batch_size` to what fits."
        )


def check_neighbours(trainer: Trainer) -> None:
    """Refuses whoever changes the batch size or the accumulation as well."""
    remedies: dict[type, str] = {
        BatchSizeFinder: "it ends a fit's epochs early when it runs inside one. Use "
        "`Tuner(Trainer()).scale_batch_size` before `fit`, or leave it out",
        GradientAccumulationScheduler: "it sets the accumulation, which is part of the batch size, at every epoch. "
        "Leave it out, and give its schedule as a policy",
    }
    if not actuators.at_least_2_6():
        remedies[ThroughputMonitor] = (
            "below Lightning 2.6 it fails when a batch is smaller than the one before. Leave it out"
        )
    for other in getattr(trainer, "callbacks", []):
        for kind, remedy in remedies.items():
            if isinstance(other, kind):
                raise MisconfigurationException(
                    f"`BatchSizeScheduler` cannot work beside `{type(other).__name__}`: {remedy}."
                )
    if isinstance(trainer.strategy, FSDPStrategy):
        raise MisconfigurationException(
            "`BatchSizeScheduler` cannot measure gradients under `FSDPStrategy`, where each rank holds a part of them "
            "that does not tell what it is a part of. Use `ModelParallelStrategy`, with `fully_shard`, or "
            '`strategy="ddp"`.'
        )
    if isinstance(trainer.strategy, DeepSpeedStrategy):
        raise MisconfigurationException(
            "`BatchSizeScheduler` cannot work under the DeepSpeed strategy, whose engine fixes the batch size when "
            'it is built. Use `strategy="ddp"` or `ModelParallelStrategy`.'
        )


def check_optimizer(trainer: Trainer, index: int) -> None:
    """Refuses the number of an optimizer that is not there."""
    count = len(trainer.optimizers)
    if index >= count:
        raise MisconfigurationException(
            f"`optimizer_index` is {index}, and `configure_optimizers` has returned {count} optimizer(s). "
            f"Give a number from 0 to {count - 1}."
        )


def warn_of_another_architecture(preset: Preset, module: LightningModule) -> None:
    """Speaks up where a preset that was named is meant for another architecture than the model's."""
    architecture = architecture_in(module)
    if architecture is not None and preset.architectures and preset.name != "generic" and not preset.fits(architecture):
        rank_zero_warn(
            f"The preset `{preset.name}` is meant for {', '.join(preset.architectures[:3])}, and the model is "
            f"{architecture}: thresholds may not transfer."
        )


def check_data(limits: Limits) -> None:
    """Refuses a data set that is smaller than the smallest batch size."""
    samples = [int(dl.samples * limits.world_size / dl.ratio) for dl in limits.loaders if dl.samples is not None]
    if samples and min(samples) < limits.minimum:
        raise MisconfigurationException(
            f"`min_batch_size` is {limits.minimum}, and the data set has {min(samples)} samples: no batch size is "
            f"feasible. Give `min_batch_size={max(1, min(samples) // 4)}`, or more data."
        )


def check_first_batch(samples: int, micro: int, limits: Limits, may_be_short: bool) -> bool:
    """Tells whether batches can be believed to hold their samples in the first dimension; warns where it is odd."""
    whole = limits.loaders[0].samples
    if samples == (micro if whole is None else min(micro, whole)):
        return True
    if samples < micro and may_be_short:
        rank_zero_warn(
            f"The epoch's first batch has {samples} samples, and the loader's batch size is {micro}: it gives no more, "
            "does not use that size, or the batch's first dimension is not that of the samples."
        )
        return True
    rank_zero_warn(
        f"The epoch's first batch has {samples} samples by its first dimension, and the loader's batch size is "
        f"{micro}, by which they are counted. If the batch really has another size, have the loader use its own."
    )
    return False


def warn_of_first_size(batch_size: int, minimum: int, maximum: int) -> None:
    """Warns where the run begins outside of the bounds of what it may change to."""
    if batch_size < minimum:
        rank_zero_warn(
            f"The first batch size is {batch_size}, below `min_batch_size` ({minimum}): the first growth will go to "
            f"that at least. Give `min_batch_size={batch_size}` or less if it is not meant to."
        )
    elif batch_size > maximum:
        rank_zero_warn(
            f"The first batch size is {batch_size}, above `max_batch_size` ({maximum}): it cannot grow. Give a larger "
            "`max_batch_size` if it is meant to."
        )


def warn_of_what_is_missing(record: EpochRecord, optimizer_index: int) -> None:
    """Speaks up after the first epoch, before a whole run goes by without a signal."""
    if not record.optimizer_steps:
        rank_zero_warn(
            f"No step of optimizer {optimizer_index} was seen in epoch {record.epoch}, so no gradient was "
            "measured. Under manual optimization, step what `self.optimizers()` returns: Lightning hides the steps "
            "of `use_pl_optimizer=False` from callbacks. `optimizer_index` names another optimizer."
        )
    elif record.gradient_norm is None:
        rank_zero_warn(
            f"No gradient of epoch {record.epoch} was measured: of its {record.optimizer_steps} steps none was whole "
            "and finite. An epoch's last one may have fewer samples, and is left out. A policy that needs it, such as "
            "DEBA, holds without it. Lower the batch size, or give more data."
        )
    if record.loss is None:
        rank_zero_warn(
            f"The loss of epoch {record.epoch} was not measured, since `training_step` returned neither it nor a "
            'dict with "loss". Return it, under manual optimization as well: a policy that needs the loss, such as '
            "DEBA, holds without it."
        )

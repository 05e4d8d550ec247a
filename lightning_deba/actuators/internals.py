"""The insides of a Trainer: what it holds, counts and allows. Nothing outside this package looks there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.data import sized_len
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.combined_loader import _SUPPORTED_MODES
from packaging.version import Version
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import IterableDataset

from lightning_deba.actuators.faces import BatchSizeAdapter
from lightning_deba.limits import Limits, LoaderLimits


def check_lightning(trainer: Trainer) -> None:
    """Refuses a Lightning whose insides are not those that this room was written for."""
    needed = ("_combined_loader", "_data_fetcher", "_data_source", "max_batches")
    if missing := [name for name in needed if not hasattr(trainer.fit_loop, name)]:
        raise MisconfigurationException(
            f"This Lightning has no `fit_loop.{missing[0]}`, which a change of the batch size needs. "
            "lightning_deba supports lightning>=2.5,<3: install one of these."
        )


def at_least_2_6() -> bool:
    """Whether this is Lightning 2.6 or later."""
    return Version(lightning.__version__) >= Version("2.6")


def loaders_of(trainer: Trainer) -> list[Any]:
    """Returns the live training loaders, flat, as Lightning has set them up."""
    combined = trainer.fit_loop._combined_loader
    assert combined is not None, "the training loader is not set up yet"
    return combined.flattened


def data_ranks(trainer: Trainer) -> int:
    """Returns how many ranks draw samples of their own; those of a tensor-parallel group share theirs."""
    shares = trainer.distributed_sampler_kwargs or {}
    return int(shares.get("num_replicas", trainer.world_size))


def user_parameters(trainer: Trainer) -> dict[str, Any]:
    """Returns the hyper-parameters that Lightning is about to log; those saved with ``logger=False`` are not."""
    owners = [owner for owner in (trainer.lightning_module, getattr(trainer, "datamodule", None)) if owner is not None]
    saved = (owner.hparams_initial.items() for owner in owners if owner._log_hyperparams)
    return {name: value for items in saved for name, value in items if name != "_class_path"}


def micro_batches_per_step(trainer: Trainer) -> int:
    """Returns how many micro-batches make an optimizer step, over all ranks."""
    return data_ranks(trainer) * trainer.accumulate_grad_batches


def micro_batch_size(trainer: Trainer, batch_size: int) -> int:
    """Divides a batch size among ranks and accumulated micro-batches.

    Args:
        trainer: A Trainer that knows its ranks and its accumulation.
        batch_size: In samples per optimizer step.

    Raises:
        MisconfigurationException: If it does not divide, as after a resume on another number of devices.
    """
    micro, rest = divmod(batch_size, micro_batches_per_step(trainer))
    if rest or not micro:
        raise MisconfigurationException(
            f"A batch size of {batch_size} cannot be divided among {data_ranks(trainer)} ranks x "
            f"{trainer.accumulate_grad_batches} accumulated micro-batches = {micro_batches_per_step(trainer)}. "
            "Choose `devices` and `accumulate_grad_batches` whose product divides it, as in the run that set it."
        )
    return micro


def is_fitting(trainer: Trainer) -> bool:
    """Whether a Trainer is to fit, and not to test or to validate."""
    return trainer.state.fn == TrainerFn.FITTING


def is_loaded(trainer: Trainer) -> bool:
    """Whether the training loader has been built."""
    return trainer.fit_loop._combined_loader is not None


def is_inside_epoch(trainer: Trainer) -> bool:
    """Whether a restored run goes on behind the first batch of an epoch."""
    loop = trainer.fit_loop.epoch_loop
    return loop.restarting and loop.batch_progress.current.ready > 0 and not loop.batch_progress.is_last_batch


def may_begin_short(trainer: Trainer) -> bool:
    """Whether an epoch's first batch may be short: it is the only one, or of a stream that workers share out."""
    loader = loaders_of(trainer)[0]
    shared = isinstance(getattr(loader, "dataset", None), IterableDataset) and getattr(loader, "num_workers", 0) > 1
    return shared or bool(trainer.is_last_batch)


def is_cut_off(trainer: Trainer) -> bool:
    """Whether the epoch that ends has not come to its last batch, as where ``max_steps`` ends the fit."""
    ended = trainer.should_stop or trainer.fit_loop.epoch_loop._is_training_done
    return bool(ended) and not trainer.is_last_batch


def skips_training(trainer: Trainer) -> bool:
    """Whether the running epoch only passes batches forward, as StochasticWeightAveraging's last one for BatchNorm."""
    return bool(trainer.fit_loop._skip_backward)


def is_tuning(trainer: Trainer) -> bool:
    """Whether this is no fit but a search by Lightning's `Tuner`, which leaves before the first epoch."""
    finders = [c for c in getattr(trainer, "callbacks", []) if isinstance(c, BatchSizeFinder | LearningRateFinder)]
    return any(finder._early_exit for finder in finders)


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `torch.compile` has compiled a module or a part of it."""
    return getattr(module, "_compiler_ctx", None) is not None or any(
        part._compiled_call_impl is not None or hasattr(part, "_orig_mod") for part in module.modules()
    )


def limits_of(trainer: Trainer, loaders: tuple[LoaderLimits, ...], bounds: Limits) -> Limits:
    """Reads off a Trainer what it allows, and adds it to what its loaders allow and the scheduler's own bounds.

    Args:
        trainer: A Trainer whose loaders are set up.
        loaders: What each of them allows.
        bounds: The scheduler's own.
    """
    # Below 2.6 Lightning compares the interval with the batches even where no validation batch is wanted.
    validates = trainer.limit_val_batches > 0 or not at_least_2_6()
    by_batches = trainer.check_val_every_n_epoch is not None and validates
    interval = getattr(trainer, "val_check_interval", None) if by_batches else None
    combined = trainer.fit_loop._combined_loader
    return replace(
        bounds,
        world_size=data_ranks(trainer),
        loaders=loaders,
        needs_two_samples=any(isinstance(m, _BatchNorm) for m in trainer.lightning_module.modules()),
        limit_batches=trainer.limit_train_batches,
        needs_batches=interval if isinstance(interval, int) else 0,
        longest_counts=combined is not None and combined._mode != "min_size",
    )


def limits_of_loaders(
    loaders: list[Any], sizes: Sequence[int | None], adapter: BatchSizeAdapter
) -> tuple[LoaderLimits, ...]:
    """Returns what each loader allows, by the proportion of their sizes."""
    first = sizes[0]
    return tuple(
        _limits_of_one(loader, size / first, adapter) if size and first else LoaderLimits(None, counts_samples=False)
        for loader, size in zip(loaders, sizes, strict=True)
    )


def _limits_of_one(loader: Any, ratio: float, adapter: BatchSizeAdapter) -> LoaderLimits:
    if not adapter.counts_samples:
        return LoaderLimits(None, ratio=ratio, counts_samples=False)
    drop_last = bool(getattr(getattr(loader, "batch_sampler", None), "drop_last", False))
    return LoaderLimits(samples_of(loader), drop_last, ratio)


def samples_of(loader: Any) -> int | None:
    """Returns the samples that a loader draws in an epoch, on one rank."""
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return sized_len(dataset if sampler is None or isinstance(dataset, IterableDataset) else sampler)


def recount(trainer: Trainer, adapter: BatchSizeAdapter) -> None:
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
    check_not_empty(trainer)
    _begin_anew(trainer)


def check_not_empty(trainer: Trainer) -> None:
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


def ask_for_reload(trainer: Trainer) -> None:
    """Has Lightning build the training loader anew before the next batch, also where it was built in this epoch."""
    trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]
    trainer.fit_loop._last_train_dl_reload_epoch = float("-inf")


def reload_if_requested(trainer: Trainer) -> None:
    """Reloads the loader now where `ReloadActuator.request` has asked for it; else Lightning does nothing."""
    trainer.fit_loop.setup_data()


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
        _set_batches_done(trainer, int(loop.max_batches))
    fetcher, combined = loop._data_fetcher, loop._combined_loader
    if fetcher is not None and combined is not None and combined._state_dicts():
        iter(fetcher)  # a stateful loader was put back to where that epoch ended, and has nothing left to give


def go_on_by_steps(trainer: Trainer, accumulation: int) -> None:
    """Makes an epoch that is resumed in its middle have the optimizer steps left that it had.

    Lightning counts micro-batches, of which a step had `accumulation` when the checkpoint was written. One that was
    in the middle of a step begins that step again: its gradient was not saved.

    Args:
        trainer: A Trainer that has loaded a checkpoint and not trained yet.
        accumulation: Micro-batches per optimizer step when it was written.
    """
    loop = trainer.fit_loop
    progress = loop.epoch_loop.batch_progress
    # The batch at whose end the checkpoint was written is counted only when the epoch goes on.
    to_come = int(loop.epoch_loop.restarted_on_train_batch_end)
    if not progress.is_last_batch:
        steps = (progress.current.completed + to_come) // accumulation
        _set_batches_done(trainer, steps * trainer.accumulate_grad_batches - to_come)


def _set_batches_done(trainer: Trainer, batches: int) -> None:
    for stage in ("ready", "started", "processed", "completed"):
        setattr(trainer.fit_loop.epoch_loop.batch_progress.current, stage, batches)

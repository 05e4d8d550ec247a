"""The scheduler: a Lightning callback that measures, asks the policy, and has the actuator act."""

from __future__ import annotations

import math
from collections.abc import Mapping
from inspect import signature
from typing import Any, Literal, get_args

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torch.optim import Optimizer

from lightning_deba import actuators, journal, memory
from lightning_deba.accumulation import SampleMean
from lightning_deba.actuators import BatchSizeActuator, ReloadActuator
from lightning_deba.checks import (
    check_accumulation,
    check_arguments,
    check_coupling,
    check_data,
    check_first_batch,
    check_neighbours,
    check_optimizer,
    warn_of_another_architecture,
    warn_of_first_size,
    warn_of_what_is_missing,
)
from lightning_deba.coupling import Coupling, ScheduleBy
from lightning_deba.learning_rate import BY_GAIN, LRScaling
from lightning_deba.limits import Limits, accumulation_for, grant
from lightning_deba.memory import MemoryWatch, OutOfMemory
from lightning_deba.meter import EpochMeter
from lightning_deba.noise import NoiseScaleMode, NoiseWatch
from lightning_deba.noise_meter import NoiseMeans, NoiseMode, NoiseScaleMeter
from lightning_deba.policies import BatchSizePolicy, Hold
from lightning_deba.policies.base import needs_noise_scale
from lightning_deba.presets import Preset, match_preset, preset_for
from lightning_deba.records import Decision, EpochRecord, Grant, RunWriter, from_columns, to_columns

__all__ = ["BatchSizeScheduler"]

STATE_VERSION = 2  # 1 had neither the noise scale in its records nor accumulation and ranks


class BatchSizeScheduler(Callback):
    """Adapts the batch size while training, between epochs.

    On each optimizer step it measures the gradient; at each epoch's end it makes a record of what was
    measured, asks the policy, grants what is feasible, and changes the training loader for the next epoch.
    The model and the validation loaders are left alone; so is the learning rate, but for `lr_scaling`.

    Args:
        policy: Decides: any ``history -> Decision``, such as `DEBA` or `Hold`.
        preset: Instead of a policy, a model's name ("resnet18", "resnet18.a1_in1k"), a preset's name, the path of
            a YAML file that ``lightning-deba characterize`` wrote, or a `Preset`. With neither, the preset is found
            from the timm or torchvision model in the module.
        actuator: How the loader is changed. "reload" sets ``batch_size`` on the datamodule or module and
            has Lightning reload the loader; "in_place" rewrites the live loader; "auto" takes the first
            where there is such an attribute. Or a `BatchSizeActuator`.
        min_batch_size: Smallest batch size to go to, in samples per optimizer step over all ranks.
        max_batch_size: Largest batch size to go to, likewise.
        multiple_of: Batch sizes to go to are multiples of this.
        max_micro_batch_size: Largest micro-batch size, in samples per forward pass on one device. A larger batch
            size is made by accumulation, its gradient being the mean over its samples. Left out, it is forecast on
            CUDA from the memory that training has used, and elsewhere there is none.
        dry_run: Decides and logs, and changes nothing.
        lr_scaling: How the learning rate follows the batch size: "none" as in the paper, "linear", "sqrt", a function
            from the ratio to the first batch size to a factor, or "adascale" and for Adam "adamscale", which go by
            the noise scale and have it measured. See `learning_rate.ScaledSteps` and `learning_rate.adascale_gain`.
        scale_beta2: Whether Adam's second beta keeps its half-life in samples.
        schedule_by: What a step-wise learning-rate schedule counts: "samples", so that it keeps its shape and
            its end whatever the batch size does; "gain", AdaScale's clock, by which a larger batch gets on by what it
            gains, so that the schedule takes more epochs than it was sized for; or "steps", as Lightning does.
        max_samples: Ends the training after so many samples.
        noise_scale: Measures the gradient noise scale by comparing mean gradients over different numbers of samples:
            of the "ranks", of the "micro_batches" of a step, or of "consecutive" steps; "auto" takes the first that
            there is. Left out, it is measured where the policy needs it. It costs about 1 % of a step, and a copy of
            the gradient at most.
        optimizer_index: Which optimizer's gradient is measured, where there are several. The steps of the others
            are not counted.

    Raises:
        ValueError: If an argument cannot be right, or the preset is not known.
        TypeError: If `policy` cannot be called.

    Attributes:
        history: The records, one an epoch.
        decisions: The grants, one an epoch: proposed and granted size, and the reasons.
        out_of_memory: How to go on, after a fit that has run out of memory; else ``None``.

    Example:
        >>> from lightning_deba import DEBA, BatchSizeScheduler
        >>> scheduler = BatchSizeScheduler(policy=DEBA(confidence_threshold=1.05, stability_threshold=0.15))
        >>> trainer = Trainer(callbacks=[scheduler], logger=False, accelerator="cpu")
    """

    def __init__(
        self,
        policy: BatchSizePolicy | None = None,
        *,
        preset: str | Preset | None = None,
        actuator: Literal["auto", "reload", "in_place"] | BatchSizeActuator = "auto",
        min_batch_size: int = 16,
        max_batch_size: int = 2048,
        multiple_of: int = 1,
        max_micro_batch_size: int | None = None,
        dry_run: bool = False,
        lr_scaling: LRScaling = "none",
        scale_beta2: bool = False,
        schedule_by: ScheduleBy = "samples",
        max_samples: int | None = None,
        noise_scale: NoiseScaleMode | None = None,
        optimizer_index: int = 0,
    ) -> None:
        check_arguments(policy, preset, min_batch_size, max_batch_size, multiple_of, max_micro_batch_size)
        check_coupling(schedule_by, lr_scaling, max_samples)
        if noise_scale not in (None, "auto", *get_args(NoiseMode)):
            raise ValueError(
                f'`noise_scale` must be None, "auto", "ranks", "micro_batches" or "consecutive", got {noise_scale!r}.'
            )
        if optimizer_index < 0:
            raise ValueError(f"`optimizer_index` must be 0 or more, got {optimizer_index}.")
        self.preset = match_preset(preset) if isinstance(preset, str) else preset
        self.policy = policy
        self.actuator = actuator
        self.min_batch_size = min_batch_size
        self.max_batch_size = max_batch_size
        self.multiple_of = multiple_of
        self.max_micro_batch_size = max_micro_batch_size
        self.dry_run = dry_run
        self.lr_scaling = lr_scaling
        self.scale_beta2 = scale_beta2
        self.schedule_by = schedule_by
        self.max_samples = max_samples
        self.noise_scale = noise_scale
        self.optimizer_index = optimizer_index
        self.out_of_memory: OutOfMemory | None = None
        self._meter = EpochMeter()
        self._sample_mean = SampleMean()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.history: list[EpochRecord] = []
        self.decisions: list[Grant] = []
        self._batch_size: int | None = None  # of the running epoch; from the decision on, of the next
        self._samples = 0  # in the running micro-batch
        self._batch_idx = 0
        self._step: int | None = None  # the Trainer's `global_step` when a gradient was last measured
        self._counts_samples = True  # else the batch size is in another unit, such as tokens
        self._batches_tell: bool | None = None  # how many samples they hold; else the loader's size is believed
        self._epoch: int | None = None  # that the meter is in
        self._cut_off: dict[str, Any] | None = None  # the state inside an epoch that has ended before its last batch
        self._restores = True  # else a checkpoint is loaded for a test
        self._actuator: BatchSizeActuator | None = None
        self._policy: BatchSizePolicy | None = None
        self._writer: RunWriter | None = None
        self._coupling = Coupling(self.lr_scaling, self.scale_beta2, self.schedule_by)
        self._accumulation = 1  # what the user has set
        self._running_accumulation: int | None = None  # as `_batch_size`
        self._ranks: int | None = None
        self._memory: MemoryWatch | None = None
        self._noise: NoiseWatch | None = None
        self._forecast: int | None = None  # of the largest micro-batch size
        self._meter.reset()

    # Before the first batch

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses what cannot work, and finds the preset and the actuator."""
        if stage != "fit" or actuators.is_tuning(trainer):
            return
        actuators.check_lightning(trainer)
        check_neighbours(trainer)
        if trainer.current_epoch == 0:
            self._begin_anew()
        self._policy = self.policy or self._find_preset(pl_module).policy
        self.out_of_memory = None
        needed = needs_noise_scale(self._policy) or self.lr_scaling in BY_GAIN
        wanted = self.noise_scale or ("auto" if needed else None)
        self._noise = None if wanted is None else self._noise or NoiseWatch(wanted)
        self._accumulation = trainer.accumulate_grad_batches
        self._actuator = (
            actuators.choose_actuator(self.actuator, trainer) if isinstance(self.actuator, str) else self.actuator
        )
        self._actuator.check(trainer)
        if self._batch_size is None and self._cap is not None and isinstance(self._actuator, ReloadActuator):
            self._batch_size = self._actuator.owned_batch_size(trainer)
        if self._batch_size is not None:
            self._set_before_loading(trainer, self._batch_size)

    def _find_preset(self, pl_module: LightningModule) -> Preset:
        if self.preset is None:
            self.preset = preset_for(pl_module)
            rank_zero_info(f"Preset `{self.preset.name}` for the batch size. {self.preset.note}")
        else:
            warn_of_another_architecture(self.preset, pl_module)
        return self.preset

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Sets the owner's batch size before anything can build the loader, such as `configure_optimizers`."""
        self._restores = actuators.is_fitting(trainer)
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if self._actuator is None or state is None or state["batch_size"] is None:
            return
        if memory.reader_for(trainer.strategy.root_device) is not None:
            self._forecast = state.get("forecast")
        # A schedule that asks how many steps there will be gets the answer that it got when the run began.
        first = next(iter(state["history"].get("batch_size", ())), state["batch_size"])
        parts = actuators.data_ranks(trainer) * self._accumulation_for(trainer, first)
        has_asked = trainer.strategy.restore_checkpoint_after_setup  # that is after `configure_optimizers`
        if not actuators.is_loaded(trainer):
            self._set_before_loading(trainer, state["batch_size"] if has_asked or first % parts else first)

    def _set_before_loading(self, trainer: Trainer, batch_size: int) -> None:
        trainer.accumulate_grad_batches = self._accumulation_for(trainer, batch_size)
        name = getattr(self._actuator, "batch_arg_name", "batch_size")
        actuators.set_before_loading(trainer, name, batch_size)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sets a restored batch size before the loader is built, and tells the loggers what the fit is run with."""
        if self._actuator is None:
            return
        if self._batch_size is not None and not actuators.is_loaded(trainer):
            self._set_before_loading(trainer, self._batch_size)
        journal.log_hyper_parameters(trainer, self._run(pl_module))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the first batch size from the loader, or gives a restored one to it."""
        check_optimizer(trainer, self.optimizer_index)
        check_accumulation(trainer, pl_module.automatic_optimization, self.max_micro_batch_size)
        actuators.check_ranks_agree(trainer, self._acting)
        found = self._acting.batch_size(trainer)
        if self._batch_size is None:
            self._batch_size = found
        accumulation, ranks = self._running_accumulation, self._ranks  # of a checkpoint
        self._ranks = actuators.data_ranks(trainer)
        self._split(trainer, self._batch_size)
        if found != self._batch_size:  # `configure_optimizers` had the loader built, with the run's first size
            self._acting.request(trainer, self._batch_size)
            actuators.reload_if_requested(trainer)
        self._acting.settle(trainer, self._batch_size)
        self._couple(trainer, pl_module)
        if self.history or self._meter.optimizer_steps:
            self._resume(trainer, accumulation, ranks)
        elif not isinstance(self._policy, Hold):
            warn_of_first_size(found, self.min_batch_size, self.max_batch_size)
        self._watch_memory(pl_module)
        limits = self._limits(trainer)
        check_data(limits)
        self._counts_samples = limits.loaders[0].counts_samples
        if actuators.is_compiled(pl_module):
            rank_zero_info(_COMPILED)
        self._begin_files(trainer, pl_module)
        self._begin_noise(trainer)
        self._meter.start()

    def _begin_noise(self, trainer: Trainer) -> None:
        if self._noise is not None:
            self._noise.begin(trainer, trainer.optimizers[self.optimizer_index], self._running_batch_size)

    def _accumulation_for(self, trainer: Trainer, batch_size: int) -> int:
        return accumulation_for(batch_size, actuators.data_ranks(trainer), self._accumulation, self._cap)

    def _split(self, trainer: Trainer, batch_size: int) -> None:
        """Sets how many micro-batches make an optimizer step."""
        micro_batches = self._running_accumulation = self._accumulation_for(trainer, batch_size)
        if micro_batches != trainer.accumulate_grad_batches:
            trainer.accumulate_grad_batches = micro_batches
            micro = f"{micro_batches} micro-batches of {actuators.micro_batch_size(trainer, batch_size)}"
            journal.announce(f"A step of {batch_size} samples takes {micro} on a device.")

    def _watch_memory(self, pl_module: LightningModule) -> None:
        reader = memory.reader_for(pl_module.device)
        if self.max_micro_batch_size is None and reader is not None and pl_module.automatic_optimization:
            self._memory = MemoryWatch(reader)
            self._memory.start()

    def _couple(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets the learning rate and its schedule follow the batch size."""
        if self.max_samples is not None and self.max_samples < self._running_batch_size:
            raise MisconfigurationException(
                f"`max_samples` is {self.max_samples}, which is less than one batch of {self._running_batch_size}."
            )
        resumed = bool(self.history or self._meter.optimizer_steps) or actuators.is_inside_epoch(trainer)
        self._coupling.begin(trainer, pl_module, self._running_batch_size, self.history, resumed=resumed)

    def _resume(self, trainer: Trainer, accumulation: int | None, ranks: int | None) -> None:
        """Goes on inside an epoch, or takes the decision of one whose last batch was saved, and whose end was not."""
        if accumulation is not None and trainer.lightning_module.automatic_optimization:
            actuators.go_on_by_steps(trainer, accumulation)
            self._meter.begin_step_again()
        if ranks is not None:
            self._meter.go_on_with_ranks(ranks, actuators.data_ranks(trainer))
        epoch = len(self.history) if self._epoch is None else self._epoch
        if self._meter.samples and trainer.current_epoch > epoch:
            self._close_epoch(trainer, epoch)
            actuators.reload_if_requested(trainer)
            self._acting.settle(trainer, self._running_batch_size)
            self._coupling.follow(self._running_batch_size, self.history)
        actuators.finish_resumed_epoch(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sees that the loader has the size that was granted."""
        if actuators.skips_training(trainer):
            return
        self._acting.settle(trainer, self._running_batch_size)
        actuators.check_ranks_agree(trainer, self._acting)
        self._coupling.follow(self._running_batch_size, self.history)
        self._sample_mean.reset()
        self._cut_off = None
        self._begin_noise(trainer)
        self._start()

    def _start(self) -> None:
        self._meter.start()
        if self._memory is not None:
            self._memory.start()

    # Measuring

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Counts samples."""
        if actuators.skips_training(trainer):
            return
        micro = actuators.micro_batch_size(trainer, self._running_batch_size)
        samples = _samples_in(batch, micro)
        if batch_idx == 0 or (self._batches_tell is None and not trainer.is_last_batch):
            self._batches_tell = self._do_batches_tell(trainer, samples, micro)
        self._samples, self._batch_idx = micro if self._batches_tell is False else samples, batch_idx
        self._epoch = trainer.current_epoch
        self._meter.count(self._samples)
        if batch_idx == 0:
            pl_module.log("batch_size", float(self._running_batch_size), prog_bar=True, logger=False, batch_size=1)

    def _do_batches_tell(self, trainer: Trainer, samples: int, micro: int) -> bool:
        if not self._counts_samples:
            return True
        return check_first_batch(samples, micro, self._limits(trainer), actuators.may_begin_short(trainer))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Weighs a micro-batch by its samples."""
        if self._noise is not None:
            self._noise.before_backward(trainer, self._batch_idx, _loss_scale(trainer, pl_module.device))
        if self._accumulates(trainer, pl_module):
            micro = actuators.micro_batch_size(trainer, self._running_batch_size)
            # Of several ranks only the last batch may be short: all of them then know when to add their samples up.
            alone = actuators.data_ranks(trainer) == 1
            self._sample_mean.weigh(loss, self._samples if alone or trainer.is_last_batch else micro, micro)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Looks at what has been accumulated."""
        if self._noise is not None:
            self._noise.after_backward(trainer, self._batch_idx)

    def _accumulates(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        """Whether several micro-batches of samples make a step; a batch in tokens is no matter of samples."""
        return self._counts_samples and pl_module.automatic_optimization and trainer.accumulate_grad_batches > 1

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Measures the gradient: accumulated, averaged over ranks, unscaled and not yet clipped."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self._accumulates(trainer, pl_module):
            samples = self._sample_mean.samples
            if trainer.is_last_batch:
                samples = actuators.mean_over_ranks(trainer, samples)
            self._sample_mean.close(gradients, trainer.accumulate_grad_batches, samples)
        if optimizer is not trainer.optimizers[self.optimizer_index] or trainer.global_step == self._step:
            return  # another one's step, or one that looks at its gradient again before it is done, as LBFGS does
        self._step = trainer.global_step
        # Lightning has unscaled them; only optimizers that do it themselves see scaled ones.
        scaled = getattr(optimizer, "_step_supports_amp_scaling", False)
        scale = _loss_scale(trainer, pl_module.device) if scaled else 1.0
        self._meter.step(
            gradients,
            full_step=self._running_batch_size // actuators.data_ranks(trainer) if self._may_be_short(trainer) else 0,
            scale=scale,
            learning_rate=self._coupling.rate(optimizer),
        )
        if self._noise is not None:
            self._noise.step(self._running_batch_size, scale, counts=self._meter.whole)

    def _may_be_short(self, trainer: Trainer) -> bool:
        """Whether it can be told that a step has fewer samples than the others."""
        return self._counts_samples and (self._batches_tell is not False or trainer.is_last_batch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measures the loss."""
        if actuators.skips_training(trainer):
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            # Lightning has divided the loss of automatic optimization for the accumulation.
            micro_batches = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._meter.loss(loss * micro_batches, self._samples)
        # By the loader's count: what a batch holds may be no samples.
        steps = (batch_idx + 1) // trainer.accumulate_grad_batches
        self._coupling.advance(pl_module, self._of_budget(steps * self._running_batch_size), trainer.is_last_batch)
        # Not within a step, whose gradient would be lost.
        ends = trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if ends and self.max_samples is not None and self._samples_seen(trainer) >= self.max_samples:
            trainer.should_stop = True

    def _of_budget(self, samples: int) -> int:
        """Bounds samples of the running epoch by `max_samples`: a schedule that was sized by it must not overrun."""
        if self.max_samples is None:
            return samples
        return min(samples, self.max_samples - self._samples_before)

    @property
    def _samples_before(self) -> int:
        return sum(past.samples for past in self.history)

    def _samples_seen(self, trainer: Trainer) -> int:
        """Counts the samples up to now, over all ranks, of which each has to ask."""
        here = actuators.mean_over_ranks(trainer, self._meter.samples)
        return self._samples_before + round(here * actuators.data_ranks(trainer))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the time."""
        self._meter.pause()
        if self._memory is not None:
            self._memory.pause()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs beside what was validated after how many samples it was."""
        if self._actuator is not None and not trainer.sanity_checking:
            pl_module.log("samples_seen", float(self._samples_seen(trainer)), batch_size=1, sync_dist=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets the time run again."""
        if self._actuator is not None and not trainer.sanity_checking:
            self._start()

    # Deciding and acting

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Records, decides and acts. Checkpoints of this epoch's end are written later, with the new size."""
        if self.history and self.history[-1].epoch >= trainer.current_epoch:
            return  # a resumed run comes through the end of a finished epoch once more
        if not self._meter.samples:
            return  # nothing was trained on: there is nothing to decide from
        # A run that is stopped inside an epoch, as by `max_steps`, goes on inside it.
        self._cut_off = self.state_dict() if actuators.is_cut_off(trainer) else None
        self._close_epoch(trainer, trainer.current_epoch)
        if self._writer is not None:
            self._writer.append(self.history[-1], self.decisions[-1])
        metrics = journal.metrics(self.history, self.decisions[-1], self._coupling.factor)
        journal.tell_loggers(trainer, self.history, self.decisions, list(metrics))
        pl_module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)

    def _close_epoch(self, trainer: Trainer, epoch: int) -> None:
        """Turns what was measured into a record, a decision, and a request to the actuator."""
        if self._memory is not None:
            fits = self._memory.forecast(actuators.micro_batch_size(trainer, self._running_batch_size))
            smallest = actuators.smallest_over_ranks(trainer, math.inf if fits is None else fits)
            self._forecast = None if math.isinf(smallest) else int(smallest)
        record, decided = trainer.strategy.broadcast(self._decide(trainer, epoch), src=0)
        self._meter.reset()
        if self._noise is not None:
            self._noise.meter.reset()
        self._coupling.end_epoch()
        if not self.history:
            warn_of_what_is_missing(record, self.optimizer_index)
        self.history.append(record)
        self.decisions.append(decided)
        if decided.batch_size != record.batch_size:
            journal.announce(journal.sentence(record.batch_size, decided))
        self._split(trainer, decided.batch_size)
        if (decided.batch_size, trainer.accumulate_grad_batches) != (record.batch_size, record.accumulation):
            self._acting.request(trainer, decided.batch_size)
        self._batch_size = decided.batch_size

    def _decide(self, trainer: Trainer, epoch: int) -> tuple[EpochRecord, Grant]:
        """Makes this epoch's record, from numbers that all ranks share, and its grant."""
        self._meter.pause()
        noise = self._measured_noise(trainer)
        record = EpochRecord(
            epoch=epoch,
            batch_size=self._running_batch_size,
            micro_batch_size=actuators.micro_batch_size(trainer, self._running_batch_size),
            accumulation=trainer.accumulate_grad_batches,
            world_size=actuators.data_ranks(trainer),
            **self._meter.compute(lambda sums: _add_over_ranks(trainer, sums))._asdict(),
            gradient_squared=noise.gradient_squared,
            gradient_covariance=noise.gradient_covariance,
            noise_scale_error=noise.noise_scale_error,
        )
        decision = _ask(self._policy, [*self.history, record])
        granted, limits = grant(decision.batch_size, record.batch_size, self._limits(trainer))
        if self.dry_run and granted != record.batch_size:
            granted, limits = record.batch_size, f"dry run: {granted} would be granted"
        return record, Grant(
            epoch=record.epoch,
            proposed=decision.batch_size,
            batch_size=granted,
            reason=decision.reason,
            limits=limits,
            signals=decision.signals,
        )

    def _measured_noise(self, trainer: Trainer) -> NoiseMeans:
        if self._noise is None:
            return NoiseMeans(None, None, None, 0)
        return NoiseScaleMeter.means(_add_over_ranks(trainer, self._noise.meter.sums).tolist())

    # When the fit ends

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shows the history as a table, and writes the report page beside it."""
        self._cut_off = None  # to Lightning, that epoch is over from now on
        if self._writer is not None and self.history:
            journal.show(trainer, self._writer, self.history, self.decisions)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leaves the Trainer as it was; of a run that is out of memory, a checkpoint to go on from."""
        if self._actuator is not None and self._batch_size is not None and memory.is_out_of_memory(exception):
            self._save_what_is_there(trainer, pl_module)
        self._release(trainer)

    def _save_what_is_there(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves a run that is out of memory, and says how to go on."""
        micro = actuators.micro_batch_size(trainer, self._running_batch_size)
        if micro == 1 or not pl_module.automatic_optimization:
            rank_zero_warn(f"Out of memory with {micro} samples in a forward pass. `max_batch_size` bounds them.")
            return
        path = None
        if trainer.world_size == 1:  # the other ranks may be waiting in a collective call, and never come to this one
            path = journal.run_directory(trainer) / "out_of_memory.ckpt"
            trainer.save_checkpoint(path)
        self.out_of_memory = OutOfMemory(micro // 2, path)
        rank_zero_warn(f"Out of memory with {micro} samples in a forward pass. {self.out_of_memory.advice}")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves the Trainer as it was."""
        self._release(trainer)
        self._actuator = None

    def _release(self, trainer: Trainer) -> None:
        if self._actuator is not None:
            trainer.accumulate_grad_batches = self._accumulation
            self._actuator.release(trainer)
        self._coupling.remove()
        if self._noise is not None:
            self._noise.remove()
        self._memory = None

    # State

    def state_dict(self) -> dict[str, Any]:
        """Returns plain data: the history, the decisions, the batch size, and the running epoch's sums."""
        return self._cut_off or {
            "version": STATE_VERSION,
            "batch_size": self._batch_size,
            "history": to_columns(self.history),
            "decisions": to_columns(self.decisions),
            "meter": self._meter.state_dict(),
            "clock": self._coupling.state_dict(),
            "accumulation": self._running_accumulation,
            "ranks": self._ranks,
            "epoch": self._epoch,
            "forecast": self._forecast,
            "noise": None if self._noise is None else self._noise.meter.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a `state_dict`; what was found stands while a checkpoint is tested.

        Raises:
            ValueError: If it is of a later version, or its history cannot be read.
        """
        if not self._restores:
            self._restores = True
            return
        if state_dict.get("version") not in range(1, STATE_VERSION + 1):
            raise ValueError(
                f"The checkpoint's BatchSizeScheduler state has version {state_dict.get('version')!r}; this release "
                f"reads versions 1 to {STATE_VERSION}. Install the lightning-deba that wrote it, or a later one."
            )
        self.history = from_columns(EpochRecord, state_dict["history"])
        self.decisions = from_columns(Grant, state_dict["decisions"])
        self._batch_size = state_dict["batch_size"]
        self._meter.load_state_dict(state_dict["meter"])
        self._coupling.load_state_dict(state_dict["clock"])
        self._running_accumulation = state_dict.get("accumulation")
        self._ranks = state_dict.get("ranks")
        self._epoch = state_dict.get("epoch")
        self._cut_off = None
        if self._noise is not None and (state := state_dict.get("noise")) is not None:
            self._noise.meter.load_state_dict(state)

    # What the hooks share

    @property
    def _acting(self) -> BatchSizeActuator:
        assert self._actuator is not None, "`setup` comes first"
        return self._actuator

    @property
    def _running_batch_size(self) -> int:
        assert self._batch_size is not None, "`on_train_start` comes first"
        return self._batch_size

    def _limits(self, trainer: Trainer) -> Limits:
        bounds = Limits(
            self.min_batch_size,
            self.max_batch_size,
            self.multiple_of,
            accumulation=self._accumulation,
            max_micro_batch_size=self._cap,
        )
        return actuators.limits_of(trainer, self._acting.limits(trainer), bounds)

    @property
    def _cap(self) -> int | None:
        forecast = None if self.dry_run else self._forecast
        return forecast if self.max_micro_batch_size is None else self.max_micro_batch_size

    def _begin_files(self, trainer: Trainer, pl_module: LightningModule) -> None:
        directory = journal.run_directory(trainer)
        if getattr(trainer, "fast_dev_run", False) or not trainer.is_global_zero:
            return
        self._writer = RunWriter(directory)
        self._writer.begin(self._run(pl_module), self.history, self.decisions)

    def _run(self, pl_module: LightningModule) -> dict[str, Any]:
        """Describes the run in plain data."""
        names = signature(BatchSizeScheduler).parameters.keys() - {"policy", "preset", "actuator"}
        settings = {name: getattr(self, name) for name in sorted(names)}
        made_of = {"model": type(pl_module).__name__, "actuator": type(self._acting).__name__}
        return journal.describe(self._policy, self.preset if self.policy is None else None, made_of | settings)


_COMPILED = (
    "The model is compiled, and a new batch size is a new shape for it. With `dynamic` left at its default, or True, "
    "`torch.compile` compiles once more at the first change and never again; with `dynamic=False`, once for each "
    "size: `multiple_of` keeps the sizes few."
)


def _samples_in(batch: Any, expected: int) -> int:
    """Counts the samples of a micro-batch; one that holds no tensor has as many as it should."""
    try:
        return extract_batch_size(batch)
    except (MisconfigurationException, RecursionError):
        return expected


def _loss_scale(trainer: Trainer, device: torch.device) -> float | Tensor:
    """Returns what a loss is multiplied by before it is propagated, without waiting for the device."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None:
        return 1.0
    scaled: Tensor = scaler.scale(torch.ones((), device=device))
    return scaled


def _add_over_ranks(trainer: Trainer, sums: Tensor) -> Tensor:
    added = trainer.strategy.reduce(sums.to(trainer.strategy.root_device), reduce_op="sum")
    assert isinstance(added, Tensor)
    # The ranks of a tensor-parallel group have all measured the same samples.
    return added * actuators.data_ranks(trainer) / trainer.world_size


def _ask(policy: BatchSizePolicy | None, history: list[EpochRecord]) -> Decision:
    assert policy is not None, "`setup` comes first"
    decision = policy(history)
    if not isinstance(decision, Decision):
        raise TypeError(
            f"`policy` must return a `Decision(batch_size, reason)`, got {decision!r} from {policy!r}. "
            "To hold, return the last record's batch size."
        )
    return decision

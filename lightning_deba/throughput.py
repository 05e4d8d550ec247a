"""Measures how long an optimizer step takes at each batch size, on the machine that will train."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.seed import isolate_rng

from lightning_deba.characterization import ThroughputCurve
from lightning_deba.memory import is_out_of_memory, reader_for

__all__ = ["measure_throughput"]

LADDER = (16, 32, 64, 128, 256, 512, 1024, 2048)


def measure_throughput(
    module: LightningModule,
    datamodule: LightningDataModule,
    batch_sizes: Sequence[int] = LADDER,
    *,
    warmup: int = 2,
    steps: int = 5,
    rounds: int = 2,
    batch_arg_name: str = "batch_size",
    trainer_args: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> ThroughputCurve:
    """Times forward, backward and optimizer step over a ladder of batch sizes.

    The steps are those of a real `Trainer` on a copy of the module, always with the same batch, so neither loading
    counts, nor do weights, buffers, optimizers, metrics or the state of the random generators change. The sizes take
    turns, so that a machine that slows down meets them all; each gets its median.

    Args:
        module: The module.
        datamodule: The data. Its batch size is changed for the while, and put back.
        batch_sizes: Samples in a batch on one device. Sizes that the data set cannot fill are left out; the first
            that does not fit in memory is the curve's `ceiling`, and no larger one is tried.
        warmup: Steps at the start of each turn that are not timed.
        steps: Steps that are.
        rounds: Turns of each size.
        batch_arg_name: Attribute of the datamodule with the batch size.
        trainer_args: Further arguments of the `Trainer`, such as ``{"precision": "bf16-mixed"}``.
        clock: Returns seconds; ``time.process_time`` leaves out what others do on a shared CPU.

    Returns:
        The curve.

    Raises:
        ValueError: If less than two of the sizes could be timed, or the loader does not follow the attribute.
        AttributeError: If the datamodule has no such attribute.

    Example:
        >>> from lightning_deba.vision import DigitsDataModule, ImageClassifier
        >>> data = DigitsDataModule(image_size=16)
        >>> curve = measure_throughput(ImageClassifier("test_resnet", in_chans=1), data, (8, 16), rounds=1)
        >>> sorted(curve.seconds), data.batch_size
        ([8, 16], 64)
    """
    seconds: dict[int, list[float]] = {}
    peaks: dict[int, int] = {}
    ceiling, device = None, ""
    with isolate_rng():
        batches = _batches(datamodule, sorted(set(batch_sizes)), batch_arg_name)
        for _ in range(rounds):
            for size, batch in batches.items():
                if ceiling is not None and size >= ceiling:
                    continue
                stopwatch = _Stopwatch(warmup, clock)
                trainer = _trainer(stopwatch, trainer_args)
                try:
                    trainer.fit(copy.deepcopy(module), _Repeated(batch, warmup + steps))
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    ceiling = size
                    continue
                device = str(trainer.strategy.root_device)
                seconds.setdefault(size, []).extend(stopwatch.seconds)
                if stopwatch.peak is not None:
                    peaks[size] = stopwatch.peak
    return ThroughputCurve(
        seconds={size: statistics.median(times) for size, times in seconds.items() if size != ceiling},
        peak_memory=peaks or None,
        ceiling=ceiling,
        device=device,
    )


class _Repeated:
    """A loader that gives the same batch so many times; a list would be many loaders to Lightning."""

    def __init__(self, batch: Any, times: int) -> None:
        self._batch, self._times = batch, times

    def __len__(self) -> int:
        return self._times

    def __iter__(self) -> Iterator[Any]:
        return repeat(self._batch, self._times)


class _Stopwatch(Callback):
    """Times the steps after the warm-up, and waits for the device on either side of each."""

    def __init__(self, warmup: int, clock: Callable[[], float]) -> None:
        self.seconds: list[float] = []
        self.peak: int | None = None
        self._warmup, self._clock, self._began = warmup, clock, 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        reader = reader_for(pl_module.device)
        if reader is not None:
            reader.reset_peak()
        _wait_for(pl_module.device)
        self._began = self._clock()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        _wait_for(pl_module.device)
        if batch_idx >= self._warmup:
            self.seconds.append(self._clock() - self._began)
        if (reader := reader_for(pl_module.device)) is not None:
            self.peak = max(self.peak or 0, reader.peak())


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _trainer(stopwatch: _Stopwatch, trainer_args: Mapping[str, Any] | None) -> Trainer:
    return Trainer(
        **{
            **(trainer_args or {}),
            "max_epochs": 1,
            "max_steps": -1,
            "limit_train_batches": None,  # what is there are the few steps to be timed
            "overfit_batches": 0,
            "fast_dev_run": False,
            "limit_val_batches": 0,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [stopwatch],
        }
    )


def _batches(datamodule: LightningDataModule, sizes: Sequence[int], batch_arg_name: str) -> dict[int, Any]:
    """Draws one batch of each size that the data set can fill."""
    before = getattr(datamodule, batch_arg_name)
    datamodule.prepare_data()
    datamodule.setup("fit")
    batches = {}
    try:
        for size in sizes:
            setattr(datamodule, batch_arg_name, size)
            loader = datamodule.train_dataloader()
            samples = sized_len(getattr(loader, "dataset", None))
            if samples is not None and samples < size:
                break
            batches[size] = next(iter(loader))
            if (found := extract_batch_size(batches[size])) != size:
                raise ValueError(
                    f"`{type(datamodule).__name__}.train_dataloader` does not use `{batch_arg_name}`: with {size} its "
                    f"batch has {found} samples. Use `self.{batch_arg_name}`, or give its name as `batch_arg_name`."
                )
    finally:
        setattr(datamodule, batch_arg_name, before)
    return batches

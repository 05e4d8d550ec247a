"""How large a micro-batch may get before memory runs out, and what to do once it has.

The forecast is a pure function of what was seen; `CUDAMemory` is who looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from lightning.pytorch.utilities.memory import is_oom_error

__all__ = [
    "CUDAMemory",
    "MemoryReader",
    "MemoryWatch",
    "OutOfMemory",
    "is_out_of_memory",
    "largest_micro_batch_size",
    "reader_for",
]

SAFETY_SHARE = 0.9
"""Share of the memory that a forecast uses: the allocator needs room for what it has cut up."""


def largest_micro_batch_size(peaks: Mapping[int, int], available: int, share: float = SAFETY_SHARE) -> int | None:
    """Forecasts the largest micro-batch size that fits.

    Peak memory is taken as linear in the micro-batch size: weights, gradients and optimizer state stay, activations
    grow with the samples. Through the two largest sizes seen runs the line ``peak(m) = a + b m``, and the forecast
    is the largest m with ``peak(m) <= share x available``. From one size alone the line goes through zero, which
    takes the fixed part for activations and so errs on the safe side. A size that has trained fits, unless others have
    taken memory since.

    Args:
        peaks: Peak bytes by micro-batch size.
        available: Bytes that this process could have in all, what it holds already included.
        share: Share of those to use.

    Returns:
        The size, at least 1; ``None`` where nothing was seen, or memory does not grow with the size.

    Example:
        >>> largest_micro_batch_size({32: 3_000, 64: 5_000}, available=20_000)
        272
        >>> largest_micro_batch_size({32: 3_000}, available=20_000)
        192
    """
    seen = sorted((size, peak) for size, peak in peaks.items() if size > 0 and peak > 0)
    if not seen:
        return None
    size, peak = seen[-1]
    fits = size if peak <= available else 1
    before, peak_before = seen[-2] if len(seen) > 1 else (0, 0)
    slope = (peak - peak_before) / (size - before)
    if slope <= 0:
        return None
    return max(fits, size + int((share * available - peak) // slope))


class MemoryReader(Protocol):
    """Reads a device's memory."""

    def reset_peak(self) -> None:
        """Begins anew with the peak."""

    def peak(self) -> int:
        """Returns the largest number of bytes in use since `reset_peak`."""
        ...

    def available(self) -> int:
        """Returns the bytes that this process could have in all: what is free, and what it holds."""
        ...


class CUDAMemory:
    """The memory of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset_peak(self) -> None:
        """Begins anew with the peak."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Returns the largest number of bytes allocated since `reset_peak`."""
        return int(torch.cuda.max_memory_allocated(self.device))

    def available(self) -> int:
        """Returns the bytes that are free, and those that torch's allocator holds."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free + torch.cuda.memory_reserved(self.device))


def reader_for(device: torch.device) -> MemoryReader | None:
    """Returns who reads a device's memory; ``None`` where there is no forecast, as on the CPU."""
    return CUDAMemory(device) if device.type == "cuda" else None


class MemoryWatch:
    """Watches the peak memory of training, and forecasts the largest micro-batch size after each epoch.

    Args:
        reader: Who reads the memory.

    Attributes:
        peaks: Peak bytes by micro-batch size, of all epochs up to now.
    """

    def __init__(self, reader: MemoryReader) -> None:
        self.peaks: dict[int, int] = {}
        self._reader = reader
        self._peak = 0  # of this epoch's training up to the last pause

    def start(self) -> None:
        """Begins to watch."""
        self._reader.reset_peak()

    def pause(self) -> None:
        """Looks away, as during a validation, whose batches are others."""
        self._peak = max(self._peak, self._reader.peak())

    def forecast(self, micro_batch_size: int) -> int | None:
        """Takes the epoch's peak down, and forecasts from all that was seen and from what is free now."""
        self.pause()
        self.peaks[micro_batch_size] = max(self._peak, self.peaks.get(micro_batch_size, 0))
        self._peak = 0
        return largest_micro_batch_size(self.peaks, self._reader.available())


class OutOfMemory(NamedTuple):
    """How to go on after a fit that has run out of memory.

    Attributes:
        max_micro_batch_size: The cap to go on with.
        checkpoint: Where the run was saved; ``None`` where it could not be, as under several processes.
    """

    max_micro_batch_size: int
    checkpoint: Path | None

    @property
    def advice(self) -> str:
        """What to write, in Python and on the command line."""
        cap, path = self.max_micro_batch_size, self.checkpoint or "..."
        saved = f"The run is saved: go on from '{path}'" if self.checkpoint else "Go on from your last checkpoint"
        return (
            f"{saved} with `BatchSizeScheduler(max_micro_batch_size={cap})`, which keeps the batch size, and "
            f'`trainer.fit(..., ckpt_path="{path}")`; or on the command line with '
            f"`lightning-deba fit ... --trainer.callbacks.max_micro_batch_size {cap} --ckpt_path {path}`."
        )


# What Lightning's `is_oom_error` does not know.
_TEXTS = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "HIP out of memory",
    "HIPBLAS_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
    "XPU out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether an error says that a device has no memory left.

    Example:
        >>> is_out_of_memory(RuntimeError("HIP out of memory. Tried to allocate 2 GiB"))
        True
        >>> is_out_of_memory(RuntimeError("shapes do not match"))
        False
    """
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError)
        or is_oom_error(error)
        or (isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS))
    )

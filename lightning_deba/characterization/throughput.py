"""The throughput curve: how long an optimizer step takes at each batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

__all__ = ["ThroughputCurve"]


@dataclass(frozen=True)
class ThroughputCurve:
    """Seconds of an optimizer step by batch size, as measured on one machine.

    Attributes:
        seconds: Median seconds of a step (forward, backward, optimizer) by micro-batch size.
        peak_memory: Peak bytes by micro-batch size, where the device tells.
        ceiling: The smallest size tried that did not fit in memory, if there was one.
        device: What it was measured on.

    Raises:
        ValueError: If there are fewer than two sizes, or a number is not positive.

    Example:
        >>> curve = ThroughputCurve({16: 0.018, 32: 0.026, 64: 0.042})
        >>> a, b, residual = curve.fit()
        >>> round(a, 6), round(b, 6), round(residual, 6)
        (0.01, 0.0005, 0.0)
        >>> round(curve.speedup(16, 64), 3)
        1.714
    """

    seconds: Mapping[int, float]
    peak_memory: Mapping[int, int] | None = None
    ceiling: int | None = None
    device: str = ""

    def __post_init__(self) -> None:
        if len(self.seconds) < 2:
            raise ValueError(f"`seconds` must hold at least two batch sizes, got {len(self.seconds)}.")
        if any(size < 1 or not 0 < value < math.inf for size, value in self.seconds.items()):
            raise ValueError(f"`seconds` must map batch sizes to positive seconds, got {dict(self.seconds)}.")

    def fit(self) -> tuple[float, float, float]:
        """Fits ``time(B) = a + b B`` by least squares of the relative errors.

        Returns:
            a in seconds, b in seconds per sample, neither below 0, and the root mean square of the relative
            residuals.
        """
        rows = [(1 / value, size / value) for size, value in self.seconds.items()]
        # Normal equations of (a + b B) / time = 1.
        aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
        ya, yb = sum(x for x, _ in rows), sum(x for _, x in rows)
        determinant = aa * bb - ab * ab
        a, b = (ya * bb - yb * ab) / determinant, (yb * aa - ya * ab) / determinant
        if a < 0:
            a, b = 0.0, yb / bb
        elif b < 0:
            a, b = ya / aa, 0.0
        errors = [a * x + b * y - 1 for x, y in rows]
        return a, b, math.sqrt(sum(error * error for error in errors) / len(errors))

    def seconds_per_sample(self, batch_size: float) -> float:
        """Returns seconds of training per sample, between the sizes measured by a straight line in ``log B``.

        Beyond the largest size it is that of the largest; below the smallest, by the fit.
        """
        sizes = sorted(self.seconds)
        if batch_size < sizes[0]:
            a, b, _ = self.fit()
            scale = self.seconds[sizes[0]] / (a + b * sizes[0])
            return scale * (a + b * batch_size) / batch_size
        for low, high in pairwise(sizes):
            if batch_size <= high:
                share = math.log(batch_size / low) / math.log(high / low)
                return (1 - share) * self.seconds[low] / low + share * self.seconds[high] / high
        return self.seconds[sizes[-1]] / sizes[-1]

    def speedup(self, before: float, after: float) -> float:
        """Returns by what factor an epoch is faster with the batch size `after` than with `before`."""
        return self.seconds_per_sample(before) / self.seconds_per_sample(after)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data; the keys are texts, as JSON has them."""
        return {
            "seconds": {str(size): value for size, value in self.seconds.items()},
            "peak_memory": self.peak_memory and {str(size): value for size, value in self.peak_memory.items()},
            "ceiling": self.ceiling,
            "device": self.device,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ThroughputCurve:
        """Reads what `to_dict` wrote.

        Raises:
            ValueError: If it is not a throughput curve.
        """
        try:
            peaks = data.get("peak_memory")
            return cls(
                seconds={int(size): float(value) for size, value in data["seconds"].items()},
                peak_memory=peaks and {int(size): int(value) for size, value in peaks.items()},
                ceiling=None if data.get("ceiling") is None else int(data["ceiling"]),
                device=str(data.get("device", "")),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"a throughput curve must have `seconds` by batch size ({error})") from error

"""What a machine and a data set allow: from the batch size that a policy proposes to the one that is granted.

Pure functions of plain numbers. A policy knows nothing of bounds; they are applied here, in one place.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Limits", "LoaderLimits", "accumulation_for", "grant"]


@dataclass(frozen=True)
class LoaderLimits:
    """What one training loader allows, on one rank.

    Attributes:
        samples: Samples an epoch on this rank, or ``None`` where the loader has no length.
        drop_last: Whether an incomplete last micro-batch is left out.
        ratio: Its micro-batch size as a share of the first loader's.
        counts_samples: Whether its micro-batch size is one in samples. One in tokens, say, cannot be compared
            with what a data set or a batch holds: then `samples` is ``None``.
    """

    samples: int | None
    drop_last: bool = False
    ratio: float = 1.0
    counts_samples: bool = True

    def micro_batches(self, micro_batch_size: int) -> float:
        """Returns the number of micro-batches in an epoch; ``inf`` where the loader has no length."""
        if self.samples is None:
            return math.inf
        whole, rest = divmod(self.samples, self.micro_batch_size(micro_batch_size))
        return whole if self.drop_last or not rest else whole + 1

    def micro_batch_size(self, of_the_first: int) -> int:
        """Returns this loader's micro-batch size, given the first loader's."""
        return max(1, round(of_the_first * self.ratio))


@dataclass(frozen=True)
class Limits:
    """What the scheduler, the Trainer, the model and the data allow.

    Attributes:
        minimum: Smallest batch size granted.
        maximum: Largest batch size granted.
        multiple_of: Every batch size granted is a multiple of this.
        world_size: Number of ranks.
        accumulation: Micro-batches per optimizer step, at least: what the user has set.
        max_micro_batch_size: Largest micro-batch size of the first loader; more is accumulated.
        loaders: The training loaders.
        needs_two_samples: Whether a micro-batch of one sample breaks the model, as with BatchNorm.
        limit_batches: The Trainer's ``limit_train_batches``.
        needs_batches: Micro-batches that an epoch must have, as with an integer ``val_check_interval``.
        longest_counts: Whether an epoch is as long as its longest loader, not its shortest.

    Example:
        >>> Limits(16, 64, multiple_of=8).objections(100)
        ['`max_batch_size` is 64', '`multiple_of` is 8']
    """

    minimum: int
    maximum: int
    multiple_of: int = 1
    world_size: int = 1
    accumulation: int = 1
    max_micro_batch_size: int | None = None
    loaders: tuple[LoaderLimits, ...] = ()
    needs_two_samples: bool = False
    limit_batches: int | float = 1.0
    needs_batches: int = 0
    longest_counts: bool = False

    @property
    def step(self) -> int:
        """Every batch size granted is a multiple of this."""
        micro_batches = self.accumulation if self.max_micro_batch_size is None else 1
        return math.lcm(self.multiple_of, self.world_size * micro_batches)

    @property
    def largest(self) -> int:
        """No batch size above this can be granted: the bound, or what the smallest data set holds."""
        # A loader's size is rounded, so that one of half a sample too many fits as well.
        held = ((dl.samples + 0.5) * self.world_size / dl.ratio for dl in self.loaders if dl.samples is not None)
        return min([self.maximum, *(math.ceil(samples) for samples in held)])

    def objections(self, batch_size: int) -> list[str]:
        """Names everything that speaks against a batch size; empty where it can be granted."""
        found = []
        if batch_size < self.minimum:
            found.append(f"`min_batch_size` is {self.minimum}")
        if batch_size > self.maximum:
            found.append(f"`max_batch_size` is {self.maximum}")
        if batch_size % self.multiple_of:
            found.append(f"`multiple_of` is {self.multiple_of}")
        accumulation = fewest_micro_batches(batch_size, self.world_size, self.accumulation, self.max_micro_batch_size)
        micro, rest = divmod(batch_size, self.world_size * accumulation)
        if rest or not micro:
            capped = f" of at most {self.max_micro_batch_size}" if accumulation > self.accumulation else ""
            found.append(f"{self.world_size} ranks x {accumulation} micro-batches{capped} divide a step evenly")
        else:
            for loader in self.loaders:
                found += self._objections_of(loader, micro, accumulation)
            if 1 <= self._batches(micro) < self.needs_batches:
                found.append(f"`val_check_interval={self.needs_batches}` needs as many batches in an epoch")
        return found

    def _objections_of(self, loader: LoaderLimits, micro: int, accumulation: int) -> Iterator[str]:
        own = loader.micro_batch_size(micro)
        if self.needs_two_samples and loader.counts_samples and own == 1:
            yield "a micro-batch would have one sample, which BatchNorm cannot take"
        if loader.samples is not None:
            if own * accumulation > loader.samples:
                yield f"the data set has {loader.samples * self.world_size} samples"
                return
            if self.needs_two_samples and not loader.drop_last and own > 1 and loader.samples % own == 1:
                yield "the last batch would have one sample, which BatchNorm cannot take"
        # A loader without a length is limited by a number of batches all the same.
        if self._limited(loader, micro) < 1:
            yield f"`limit_train_batches={self.limit_batches}` would leave no batch"
        elif accumulation > self.accumulation and self._limited(loader, micro) < accumulation:
            yield f"`limit_train_batches={self.limit_batches}` would leave no whole step"

    def _limited(self, loader: LoaderLimits, micro: int) -> float:
        batches = loader.micro_batches(micro)
        if isinstance(self.limit_batches, int):
            return min(batches, self.limit_batches)
        return batches if math.isinf(batches) else int(batches * self.limit_batches)

    def _batches(self, micro: int) -> float:
        """Returns the micro-batches of an epoch that draws from all loaders side by side."""
        lengths = [self._limited(loader, micro) for loader in self.loaders]
        return (max if self.longest_counts else min)(lengths, default=math.inf)


def fewest_micro_batches(batch_size: int, world_size: int, accumulation: int, cap: int | None) -> int:
    """Returns the fewest micro-batches that make a step, none above `cap`, and not fewer than `accumulation`."""
    return accumulation if cap is None else max(accumulation, math.ceil(batch_size / (world_size * cap)))


def accumulation_for(batch_size: int, world_size: int, accumulation: int = 1, cap: int | None = None) -> int:
    """Returns how many micro-batches are accumulated for a batch size that is given.

    The fewest that keep the micro-batch size at or below `cap` and divide the step evenly.

    Args:
        batch_size: Samples per optimizer step.
        world_size: Number of ranks.
        accumulation: Micro-batches per step that the user has set: never fewer.
        cap: Largest micro-batch size, if there is one.

    Example:
        >>> accumulation_for(64, world_size=1, cap=32), accumulation_for(50, world_size=1, cap=16)
        (2, 5)
    """
    fewest = fewest_micro_batches(batch_size, world_size, accumulation, cap)
    if fewest == accumulation:
        return accumulation
    share = batch_size // world_size
    return next((number for number in range(fewest, share) if share % number == 0), max(share, 1))


def grant(proposed: int, current: int, limits: Limits) -> tuple[int, str]:
    """Grants the feasible batch size nearest to the proposed one, on the same side of the present one.

    So rounding and bounds never turn a growth into a shrink, and into a hold only where no size on that side
    is feasible. A hold is granted as it is: bounds limit where the batch size goes, not where the user began.

    Args:
        proposed: The batch size that a policy proposes.
        current: The present batch size.
        limits: What is allowed.

    Returns:
        The batch size granted, and why it differs from the proposed one (empty where it does not).

    Example:
        >>> grant(48, 32, Limits(16, 2048, multiple_of=32))
        (64, '`multiple_of` is 32')
        >>> grant(96, 64, Limits(16, 64))
        (64, '`max_batch_size` is 64')
    """
    if proposed == current:
        return current, ""
    reasons = limits.objections(proposed)
    if not reasons:
        return proposed, ""
    granted = next((size for size in _candidates(proposed, current, limits) if not limits.objections(size)), current)
    return granted, "; ".join(reasons)


def _candidates(proposed: int, current: int, limits: Limits) -> Iterator[int]:
    """Yields the multiples of the step between the present size and the bound, nearest to `proposed` first."""
    step, grows = limits.step, proposed > current
    low, high = (current + 1, limits.largest) if grows else (limits.minimum, current - 1)
    sizes = range(-(-low // step) * step, high + 1, step)
    if not sizes:
        return
    centre = min(max(proposed, sizes[0]), sizes[-1])
    below = (centre - sizes[0]) // step
    yield from heapq.merge(sizes[below::-1], sizes[below + 1 :], key=lambda size: abs(size - centre))

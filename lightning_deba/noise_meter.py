"""The meter of the gradient noise scale: two mean gradients over different numbers of samples, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lightning_deba.statistics import inner_product, squared_norm, two_batch_estimates

__all__ = ["NoiseMeans", "NoiseMode", "NoiseScaleMeter"]

NoiseMode = Literal["ranks", "micro_batches", "consecutive"]

Gradients = Sequence[Tensor | None]
"""The gradients of one optimizer's parameters, always in the same order; ``None``, as of a frozen one, is zero."""

_EVERY = {"ranks": 8, "micro_batches": 8, "consecutive": 16}  # each costs about as much
BLOCKS = 8  # at least; at most twice as many
_FEWEST_BLOCKS = 4  # whose scatter is no mere guess


class NoiseMeans(NamedTuple):
    """Means over what a `NoiseScaleMeter` has measured. The first three are fields of `EpochRecord`.

    Attributes:
        gradient_squared: Mean estimate of ``|G|^2``; it may be negative. ``None`` where nothing was measured.
        gradient_covariance: Mean estimate of ``tr(Sigma)``, likewise. Their ratio is the noise scale.
        noise_scale_error: Relative standard error of that ratio, and of its inverse, on which it is taken, as
            ``|G|^2`` may be near 0 by chance; ``None`` where too little was measured.
        samples: Measurements behind the means, over all ranks.
    """

    gradient_squared: float | None
    gradient_covariance: float | None
    noise_scale_error: float | None
    samples: int


class NoiseScaleMeter:
    """Estimates ``|G|^2`` and ``tr(Sigma)`` while training, from gradients that are there anyway.

    Each measurement compares mean gradients over fewer and over more samples; see
    `statistics.two_batch_estimates`. Where the two come from is the `mode`:

    - "ranks": the gradient of each rank, before the all-reduce, and the mean over the ranks.
    - "micro_batches": the two halves of an accumulated step, and the whole. The halves are the increments of
      ``.grad``, so that a copy at half time does for any number of micro-batches.
    - "consecutive": two steps in succession, and their mean. It needs neither ranks nor accumulation.

    Call `local` or `accumulated`, whichever the mode needs, while the gradient is made, and `step` before each
    optimizer step. Nothing waits for the device. A measurement that is not finite is left out.

    Numerator and denominator are averaged apart. The error of their ratio is that of a jackknife over 8 to 16
    blocks of consecutive measurements: blocks are joined in pairs, and their length doubles, when there are 16. What
    lasts over several measurements, such as a fall of ``|G|^2``, so counts as an error. Of less than 4 blocks there
    is none.

    Note:
        "consecutive" is biased. The second gradient is taken after the step that the first one made, so that in
        expectation ``|G|^2`` comes out smaller by ``lr (G'HG + tr(H Sigma)/B)`` for SGD at the rate lr, H being the
        Hessian. That is little while the gradient is large. Where plain SGD has come to rest at a minimum it is
        twice ``|G|^2``, as the steps go back and forth, and the estimate is negative, which is no noise scale at all.
        The two others compare gradients at one point, and have no such bias.

    Args:
        mode: As above.
        every: Every so many steps there is a measurement, beginning with the first step. Left out, it is 8, 8 and
            16 for the modes in their order, which costs about 1 % of the training of a small network, or less.

    Raises:
        ValueError: If there is no such mode, or `every` is below 1.

    Example:
        >>> meter = NoiseScaleMeter("consecutive", every=2)
        >>> for gradient in ([3.0, 4.0], [4.0, 3.0], [float("nan"), 0.0], [1.0, 1.0], [0.0, 5.0], [4.0, 3.0]):
        ...     meter.step([torch.tensor(gradient)], samples=16)
        >>> meter.compute()
        NoiseMeans(gradient_squared=19.5, gradient_covariance=88.0, noise_scale_error=None, samples=2)
    """

    def __init__(self, mode: NoiseMode, every: int | None = None) -> None:
        if mode not in _MODES:
            raise ValueError(f"`mode` must be one of {', '.join(map(repr, _MODES))}, got {mode!r}.")
        if every is not None and every < 1:
            raise ValueError(f"`every` must be at least 1, got {every}.")
        self.mode = mode
        self.every = _EVERY[mode] if every is None else every
        self.reset()

    def reset(self) -> None:
        """Forgets all steps, and gives the memory of the copy back."""
        self._earlier: _Part | None = None
        self._copies: list[Tensor | None] = []
        self._blocks: Tensor | None = None  # for each, sums of |G|^2, of tr(Sigma), and their number
        self._length = 1  # of a block, in measurements
        self._fed = 0  # measurements, those that were not finite or do not count included
        self._steps = 0

    @property
    def measuring(self) -> bool:
        """Whether the next `step` is part of a measurement. If it is not, it is all that has to be called."""
        return self._begins or self._earlier is not None

    @property
    def _begins(self) -> bool:
        return self._steps % self.every == 0

    @torch.no_grad()
    def local(self, gradients: Gradients, samples: int, scale: float | Tensor = 1.0) -> None:
        """Tells this rank's own gradient, before the all-reduce. Does nothing in another mode than "ranks".

        Args:
            gradients: The whole gradient of the step, or a part, such as a bucket of it. Parts add up.
            samples: The samples of this rank, of whose gradients it is the mean.
            scale: See `step`.
        """
        if self.mode == "ranks" and self._begins and (there := _present(gradients)):
            squared = squared_norm(there) / scale**2
            if self._earlier is not None:
                squared = self._earlier.squared + squared.to(self._earlier.squared)
            self._earlier = _Part([], squared, samples)

    @torch.no_grad()
    def accumulated(self, gradients: Gradients, done: int, of: int, scale: float | Tensor = 1.0) -> None:
        """Tells the sum after a micro-batch. Does nothing in another mode than "micro_batches".

        Args:
            gradients: What ``.grad`` holds: the mean over the micro-batches up to now, times ``done / of``.
            done: How many micro-batches that are, all of one size.
            of: How many make a step.
            scale: See `step`; it need not be the same there.
        """
        half_time = done == (of + 1) // 2 and done < of
        if self.mode == "micro_batches" and self._begins and half_time and (there := _present(gradients)):
            self._keep(_Part(gradients, squared_norm(there) / scale**2, done / of, scale))

    @torch.no_grad()
    def step(self, gradients: Gradients, samples: int, scale: float | Tensor = 1.0, counts: bool = True) -> None:
        """Tells the gradient of an optimizer step, just before it. None at all is no step.

        Args:
            gradients: The mean gradient over the step's samples: accumulated, and averaged over ranks.
            samples: Samples of the step, over all ranks.
            scale: What the gradients are still multiplied by, such as the loss scale of mixed precision.
            counts: Whether the step enters the means, as one of fewer samples must not. It is read all the
                same, since ranks that hold parts of a gradient have to read it together.

        Raises:
            ValueError: If `samples` is below 1 or, in mode "ranks", no more than those of one rank.
        """
        if samples < 1:
            raise ValueError(f"`samples` must be at least 1, got {samples}.")
        keeps = self.mode == "consecutive" and self._begins
        earlier, self._earlier = self._earlier, None
        if all(gradient is None for gradient in gradients):
            return
        self._steps += 1
        if not keeps and earlier is None:
            return
        now = _Part(gradients, squared_norm(_present(gradients)) / scale**2, samples, scale, counts)
        if earlier is not None and _comparable(earlier.gradients, gradients):
            earlier = earlier._replace(squared=earlier.squared.to(now.squared))
            self._add(_MODES[self.mode](earlier, now), earlier.counts and counts)
        if keeps:
            self._keep(now)

    def _keep(self, part: _Part) -> None:
        """Copies a gradient. Memory is used again, since new memory costs more time than the copy itself."""
        if len(self._copies) != len(part.gradients):
            self._copies = [None] * len(part.gradients)
        self._copies = [_copied(*pair) for pair in zip(part.gradients, self._copies, strict=True)]
        kept = [None if old is None else new for old, new in zip(part.gradients, self._copies, strict=True)]
        # A scaler changes its scale in place.
        scale = part.scale.clone() if isinstance(part.scale, Tensor) else part.scale
        self._earlier = part._replace(gradients=kept, scale=scale)

    def _add(self, norms: _Norms, counts: bool) -> None:
        squared, covariance = two_batch_estimates(*norms)
        row = torch.stack([squared, covariance, torch.ones_like(squared)])
        row = torch.where(row.isfinite().all(), row, torch.zeros_like(row))
        blocks = row.new_zeros(2 * BLOCKS, len(row)) if self._blocks is None else self._blocks.to(row)
        if self._fed == 2 * BLOCKS * self._length:
            joined = blocks.view(BLOCKS, 2, -1).sum(1)
            blocks = torch.cat([joined, torch.zeros_like(joined)])
            self._length *= 2
        if counts:
            blocks[self._fed // self._length] += row
        # Every rank counts alike, whatever enters its means, so that all have the same blocks.
        self._fed += 1
        self._blocks = blocks

    @property
    def sums(self) -> Tensor:
        """The sums of the blocks, on the device; they may be added over ranks and handed to `means`."""
        if self._blocks is None:
            return torch.zeros(2 * BLOCKS * 3, dtype=torch.float64)
        return self._blocks.flatten().clone()

    def compute(self) -> NoiseMeans:
        """Returns the means since `reset`. This waits for the device, once."""
        return self.means(self.sums.tolist())

    @staticmethod
    def means(sums: Sequence[float]) -> NoiseMeans:
        """Turns `sums`, of one rank or added over ranks, into means."""
        blocks = [block for block in zip(sums[0::3], sums[1::3], sums[2::3], strict=True) if block[2]]
        if not blocks:
            return NoiseMeans(None, None, None, 0)
        squared, covariance, count = (sum(column) for column in zip(*blocks, strict=True))
        error = _relative_error(blocks) if len(blocks) >= _FEWEST_BLOCKS else None
        return NoiseMeans(squared / count, covariance / count, error, round(count))

    def state_dict(self) -> dict[str, Any]:
        """Returns plain numbers. A gradient that waits for its second is not among them; that measurement is lost."""
        return {"sums": self.sums.tolist(), "length": self._length, "fed": self._fed, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a `state_dict`, whatever mode it was made in."""
        self.reset()
        self._blocks = torch.tensor(state["sums"], dtype=torch.float64).view(2 * BLOCKS, -1)
        self._length, self._fed, self._steps = state["length"], state["fed"], state["steps"]


class _Part(NamedTuple):
    """A gradient, and what is known of it."""

    gradients: Gradients
    squared: Tensor  # its squared norm, unscaled
    samples: float
    scale: float | Tensor = 1.0
    counts: bool = True


class _Norms(NamedTuple):
    """The arguments of `two_batch_estimates`."""

    small_squared: Tensor
    big_squared: Tensor
    b_small: float
    b_big: float


def _between_ranks(local: _Part, now: _Part) -> _Norms:
    """Takes this rank's norm; the mean over the ranks is taken when their sums are added."""
    return _Norms(local.squared, now.squared, local.samples, now.samples)


def _between_halves(half: _Part, now: _Part) -> _Norms:
    """Compares the halves of a step with the whole; `half` is the first one's share of it, in size and in samples."""
    share, rest, product = half.samples, 1 - half.samples, _product(half, now)
    first = half.squared / share**2  # as means over their own samples, which the increments are not
    second = (now.squared - 2 * product + half.squared) / rest**2
    # Samples: the harmonic mean of the halves, which of an odd number of micro-batches are not equal.
    return _Norms((first + second) / 2, now.squared, 2 * share * rest * now.samples, now.samples)


def _between_steps(before: _Part, now: _Part) -> _Norms:
    """Compares two steps with their mean over all their samples."""
    samples = before.samples + now.samples
    share, rest = before.samples / samples, now.samples / samples
    mean = share**2 * before.squared + 2 * share * rest * _product(before, now) + rest**2 * now.squared
    return _Norms((before.squared + now.squared) / 2, mean, 2 * share * rest * samples, samples)


_MODES: dict[str, Callable[[_Part, _Part], _Norms]] = {
    "ranks": _between_ranks,
    "micro_batches": _between_halves,
    "consecutive": _between_steps,
}


def _present(gradients: Gradients) -> list[Tensor]:
    return [gradient for gradient in gradients if gradient is not None]


def _comparable(earlier: Gradients, now: Gradients) -> bool:
    """Tells whether two gradients can be of the same parameters; of a rank's own only the norm is known."""
    if not earlier:
        return True
    return len(earlier) == len(now) and all(
        one is None or other is None or one.shape == other.shape for one, other in zip(earlier, now, strict=True)
    )


def _product(one: _Part, other: _Part) -> Tensor:
    """Returns the inner product of two gradients, unscaled. What only one of them has is zero in the other."""
    both = [(a, b) for a, b in zip(one.gradients, other.gradients, strict=True) if a is not None and b is not None]
    if not both:
        return torch.zeros_like(other.squared)
    product = inner_product([a for a, _ in both], [b for _, b in both])
    return product.to(other.squared) / one.scale / other.scale


def _copied(gradient: Tensor | None, memory: Tensor | None) -> Tensor | None:
    """Returns a copy, in `memory` if it fits; of no gradient the memory."""
    if gradient is None:
        return memory
    fits = memory is not None and not gradient.is_sparse and _kind(memory) == _kind(gradient)
    return memory.copy_(gradient) if memory is not None and fits else gradient.clone()


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.layout, tensor.shape, tensor.dtype, tensor.device


def _relative_error(blocks: Sequence[tuple[float, float, float]]) -> float | None:
    """Returns the relative standard error of ``|G|^2 / tr(Sigma)``, by the jackknife over blocks of unequal length.

    Source: Busing, Meijer and van der Leeden, Statistics and Computing 9 (1999), pages 3-8.
    """
    squared, covariance, count = (sum(column) for column in zip(*blocks, strict=True))
    try:
        ratio = squared / covariance
        without = [(squared - g) / (covariance - s) for g, s, _ in blocks]
        weights = [count / n for _, _, n in blocks]
        values = [h * ratio - (h - 1) * other for h, other in zip(weights, without, strict=True)]
        mean = sum(value / h for value, h in zip(values, weights, strict=True))
        squares = [(value - mean) ** 2 / (h - 1) for value, h in zip(values, weights, strict=True)]
        error = math.sqrt(sum(squares) / len(blocks)) / abs(ratio)
    except (ZeroDivisionError, OverflowError):
        return None
    return error if math.isfinite(error) else None

"""The gradient of an accumulated step as the mean over its own samples."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

__all__ = ["SampleMean"]


class SampleMean:
    """Weighs the micro-batches of one optimizer step by their samples.

    Lightning divides the loss of every micro-batch by the accumulation ``k`` and adds the gradients up. That is
    the mean over the step's samples only while there are ``k`` micro-batches of one size: a shorter last window
    comes out too small, and in it the samples of a smaller last micro-batch weigh more than the others.

    Here a micro-batch of ``m_i`` samples weighs ``m_i / m`` on its way back, m being those of a full one, and the sum,
    once it is complete, is multiplied by ``k m / sum_i m_i``. So it is ``sum_i m_i g_i / sum_i m_i``, ``g_i`` being the
    mean gradient of micro-batch i. In a window of full micro-batches both factors are 1, and nothing is touched. Over
    several ranks, whose gradients are averaged in between, ``sum_i m_i`` is the mean of theirs.

    Note:
        The loss has to be a mean over samples, as it is everywhere in this package.

    Example:
        >>> import torch
        >>> weight = torch.zeros(1, requires_grad=True)
        >>> mean = SampleMean()
        >>> for samples, gradient in [(4, 1.0), (1, 5.0)]:
        ...     loss = weight * gradient / 2
        ...     mean.weigh(loss, samples, full=4)
        ...     loss.sum().backward()
        >>> mean.close([weight.grad], accumulation=2, samples=mean.samples)
        >>> round(weight.grad.item(), 6)
        1.8

    Attributes:
        samples: Samples of the micro-batches since the last step.
    """

    def __init__(self) -> None:
        self._full = 1
        self.samples = 0.0

    def reset(self) -> None:
        """Forgets a window that was not closed."""
        self.samples = 0.0

    def weigh(self, loss: Tensor, samples: int, full: int) -> None:
        """Gives the gradient of a micro-batch its weight, before the backward pass.

        Args:
            loss: The loss that is about to be propagated, divided by the accumulation.
            samples: The micro-batch's samples.
            full: Those of a full one.
        """
        self._full = full
        self.samples += samples
        weight = samples / full
        if weight != 1.0 and loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]

    def close(self, gradients: Iterable[Tensor], accumulation: int, samples: float) -> None:
        """Makes the sum of a window a mean, in place, before the optimizer's step.

        Args:
            gradients: The gradients that were accumulated.
            accumulation: What Lightning has divided each loss by.
            samples: The window's `samples`; over several ranks the mean of theirs.
        """
        factor = accumulation * self._full / samples if samples else 1.0
        self.reset()
        if factor != 1.0:
            for gradient in gradients:
                gradient.mul_(factor)

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

    Here a micro-batch of ``m_i`` samples weighs ``m_i / m_1`` on its way back, and the sum, once it is complete, is
    multiplied by ``k m_1 / sum_i m_i``. So it is ``sum_i m_i g_i / sum_i m_i``, ``g_i`` being the mean gradient of
    micro-batch i. In a window of equal micro-batches both factors are 1, and nothing is touched.

    Note:
        The loss has to be a mean over samples, as it is everywhere in this package.

    Example:
        >>> import torch
        >>> weight = torch.zeros(1, requires_grad=True)
        >>> mean = SampleMean()
        >>> for samples, gradient in [(4, 1.0), (1, 5.0)]:
        ...     loss = weight * gradient / 2
        ...     mean.weigh(loss, samples)
        ...     loss.sum().backward()
        >>> mean.close([weight.grad], accumulation=2)
        >>> round(weight.grad.item(), 6)
        1.8
    """

    def __init__(self) -> None:
        self._samples: list[int] = []  # of the micro-batches since the last step

    def reset(self) -> None:
        """Forgets a window that was not closed."""
        self._samples.clear()

    def weigh(self, loss: Tensor, samples: int) -> None:
        """Gives the gradient of a micro-batch its weight, before the backward pass.

        Args:
            loss: The loss that is about to be propagated, divided by the accumulation.
            samples: The micro-batch's samples.
        """
        self._samples.append(samples)
        weight = samples / self._samples[0] if self._samples[0] else 1.0
        if weight != 1.0 and loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]

    def close(self, gradients: Iterable[Tensor], accumulation: int) -> None:
        """Makes the sum of a window a mean, in place, before the optimizer's step.

        Args:
            gradients: The gradients that were accumulated.
            accumulation: What Lightning has divided each loss by.
        """
        total = sum(self._samples)
        factor = accumulation * self._samples[0] / total if total else 1.0
        self._samples.clear()
        if factor != 1.0:
            for gradient in gradients:
                gradient.mul_(factor)

"""How large a step is: a factor on the learning rate, for as long as the optimizer's step lasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

__all__ = ["BY_GAIN", "LRScaling", "ScaledSteps", "adascale_gain", "scaling_rule"]

LRScaling = Literal["none", "linear", "sqrt", "adascale", "adamscale"] | Callable[[float], float]
"""A rule by name, or any function from the ratio of the batch sizes to the factor of the learning rate."""

BY_GAIN: dict[object, Callable[[float], float]] = {"adascale": lambda gain: gain, "adamscale": math.sqrt}
"""The rules that go by the gain of the larger batch, and not by the ratio alone: from the gain to the factor."""

_RULES: dict[str, Callable[[float], float]] = {
    "none": lambda ratio: 1.0,
    "linear": lambda ratio: ratio,
    "sqrt": math.sqrt,
}


def scaling_rule(rule: LRScaling) -> Callable[[float], float]:
    """Returns the function from the ratio B/B0 of the batch sizes to the factor of the learning rate.

    ``none``: 1, as in DEBA (arXiv 2511.03809). ``linear``: B/B0, for plain SGD (Goyal et al., arXiv 1706.02677).
    ``sqrt``: sqrt(B/B0), for Adam and its kin (Malladi et al., arXiv 2205.10287).

    Raises:
        ValueError: If there is no such rule.

    Example:
        >>> scaling_rule("sqrt")(4.0)
        2.0
    """
    if callable(rule):
        return rule
    if rule not in _RULES:
        raise ValueError(
            '`lr_scaling` must be "none", "linear", "sqrt", "adascale", "adamscale" or a function of the ratio, got '
            f"{rule!r}."
        )
    return _RULES[rule]


def adascale_gain(ratio: float, noise_scale: float | None, first_batch_size: int) -> float:
    """Returns the gain ``r`` of a step with a batch ``k`` times as large, in steps of the first batch size.

    ``r = (S + |G|^2) / (S / k + |G|^2) = (B_s + B0) / (B_s / k + B0)``, with ``S = tr(Sigma) / B0`` the variance of the
    gradient of the first batch size B0, and ``B_s = tr(Sigma) / |G|^2`` the noise scale. Between 1 and k: k where noise
    is all there is, 1 where there is none.

    Source: AdaScale (Johnson et al., arXiv 2007.05105), equation 4. For Adam its square root.

    Args:
        ratio: k, the ratio of the batch sizes.
        noise_scale: B_s in samples, or what it exceeds; ``None`` where nothing is known, and then nothing is gained.
        first_batch_size: B0.

    Example:
        >>> adascale_gain(4.0, 96.0, 32), adascale_gain(4.0, 0.0, 32), adascale_gain(4.0, None, 32)
        (2.2857142857142856, 1.0, 1.0)
    """
    if noise_scale is None:
        return 1.0
    return (noise_scale + first_batch_size) / (noise_scale / ratio + first_batch_size)


class ScaledSteps:
    """Multiplies the learning rate of optimizers for as long as one step lasts.

    The factor is put on just before a step and taken off just after it, so that no scheduler ever sees it: neither
    one that computes the rate anew and would lose it, nor one that multiplies the last rate and would apply it
    twice. A checkpoint holds the schedule's rate, also one of a step that has failed, and a resumed run applies the
    factor once.

    Attributes:
        factor: The factor of the learning rate.

    Args:
        optimizers: The optimizers.
        rule: From the ratio of the batch sizes to the factor.
        scale_beta2: Whether Adam's second beta becomes ``beta2 ** ratio`` for the step, which keeps its
            half-life in samples (arXiv 2507.07101).

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        >>> optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
        >>> steps = ScaledSteps([optimizer], scaling_rule("linear"))
        >>> steps.ratio = 4.0
        >>> optimizer.step()
        >>> optimizer.param_groups[0]["params"][0].item(), optimizer.param_groups[0]["lr"]
        (0.6000000238418579, 0.1)
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], rule: Callable[[float], float], scale_beta2: bool = False
    ) -> None:
        self._rule = rule
        self.ratio = 1.0
        self._scale_beta2 = scale_beta2
        self._kept: dict[Optimizer, list[tuple[int, str, Any, Any]]] = {}  # during a step
        self._handles: list[RemovableHandle] = []
        for optimizer in optimizers:
            if not hasattr(optimizer, "_optimizer_state_dict_post_hooks"):
                raise MisconfigurationException(
                    f"`lr_scaling` and `scale_beta2` need the hooks of `torch.optim.Optimizer`, which "
                    f"{type(optimizer).__name__} does not have, as it wraps another one. Leave them out, or take the "
                    "optimizer inside."
                )
            self._handles.append(optimizer.register_step_pre_hook(self._put_on))
            self._handles.append(optimizer.register_step_post_hook(self._take_off))
            self._handles.append(optimizer.register_state_dict_post_hook(self._leave_out))

    @property
    def ratio(self) -> float:
        """The ratio of the batch sizes; setting it asks the rule for the factor."""
        return self._ratio

    @ratio.setter
    def ratio(self, ratio: float) -> None:
        self._ratio = ratio
        self.factor = self._rule(ratio)

    def effective(self, optimizer: Optimizer) -> float | Tensor:
        """Returns the learning rate that the first group's parameters are stepped with, also during a step."""
        rate: float | Tensor = optimizer.param_groups[0]["lr"]
        return rate if optimizer in self._kept else rate * self.factor

    def remove(self) -> None:
        """Leaves the optimizers as they were."""
        for optimizer in list(self._kept):
            self._take_off(optimizer)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _put_on(self, optimizer: Optimizer, *_: Any) -> None:
        self._take_off(optimizer)  # nobody has, where the last step has failed
        kept = self._kept[optimizer] = []
        for index, group in enumerate(optimizer.param_groups):
            scaled = {"lr": group["lr"] * self.factor}
            if self._scale_beta2 and "betas" in group:
                beta1, beta2 = group["betas"]
                scaled["betas"] = (beta1, beta2**self.ratio)
            for name, value in scaled.items():
                kept.append((index, name, group[name], value))
                group[name] = value

    def _take_off(self, optimizer: Optimizer, *_: Any) -> None:
        _put_back(optimizer.param_groups, self._kept.pop(optimizer, ()))

    def _leave_out(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        # Lightning runs forward and backward pass inside a step, and saves what is there when they fail.
        _put_back(state["param_groups"], self._kept.get(optimizer, ()))


def _put_back(groups: Sequence[dict[str, Any]], kept: Iterable[tuple[int, str, Any, Any]]) -> None:
    for index, name, own, scaled in kept:
        # A step runs the closure, and so the user's code: what that has set meanwhile stands.
        if groups[index][name] is scaled:
            groups[index][name] = own

"""Pure functions on the gradients of one optimizer step. Nothing here waits for the device.

Every function takes the gradient as the sequence of tensors that belong to the parameters, and reads it where
it lies: no flattened copy is made. Tensors may be sparse, of half precision, and on several devices. They may be
sharded over ranks (`torch.distributed.tensor.DTensor`, as under FSDP2 and tensor parallelism): then each rank reads
its own part, the parts' sums are added by one all-reduce of one number, and every rank has to take part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

__all__ = ["component_count", "component_sum", "component_variance", "gradient_norm", "squared_norm"]

_Sharding = tuple[Any, tuple[int, ...]]  # a device mesh, and its dimensions that split a tensor
_WHOLE: _Sharding = (None, ())


def component_count(gradients: Sequence[Tensor]) -> int:
    """Returns n, the number of components of the whole gradient; a sparse one counts its zeros.

    Example:
        >>> component_count([torch.ones(2, 3), torch.ones(4)])
        10
    """
    return sum(gradient.numel() for gradient in gradients)


def squared_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Returns ``||g||^2``, the sum of the squares of all components.

    Args:
        gradients: Tensors of any shapes, at least one.

    Returns:
        A scalar on the device of the first gradient, accumulated in float32 or better within a tensor and in
        float64 between tensors, where the device has it.

    Raises:
        ValueError: If `gradients` is empty.

    Example:
        >>> squared_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]).item()
        25.0
    """
    return _sum_over_tensors(gradients, _squared_norms)


def component_sum(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the sum of all components, as a scalar on the device of the first gradient.

    Raises:
        ValueError: If `gradients` is empty.

    Example:
        >>> component_sum([torch.tensor([3.0]), torch.tensor([[-4.0]])]).item()
        -1.0
    """
    return _sum_over_tensors(gradients, _sums)


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the Euclidean norm ``||g||`` of the whole gradient.

    Source: N_t of DEBA (arXiv 2511.03809), there for one gradient vector an epoch.

    Args:
        gradients: Tensors of any shapes, at least one.

    Returns:
        A scalar on the device of the first gradient.

    Raises:
        ValueError: If `gradients` is empty.

    Example:
        >>> gradient_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]).item()
        5.0
    """
    return squared_norm(gradients).sqrt()


def component_variance(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the variance over the components of one flattened gradient.

    ``s2 = (1/n) sum_i (g_i - mean(g))^2 = ||g||^2 / n - mean(g)^2``

    Source: the "gradient variance" of DEBA (arXiv 2511.03809).

    Note:
        It is *not* what the rest of the field calls gradient variance, the trace of the covariance of the
        per-sample gradients: it says nothing about how much samples disagree. For real networks the mean
        is negligible, so that it is ``||g||^2 / n`` but for about one part in a million.

    Args:
        gradients: Tensors of any shapes, at least one.

    Returns:
        A scalar on the device of the first gradient. Its error is the rounding error of ``||g||^2 / n``.

    Raises:
        ValueError: If `gradients` is empty.

    Example:
        >>> component_variance([torch.tensor([3.0, 4.0])]).item()
        0.25
    """
    n = component_count(gradients)
    return squared_norm(gradients) / n - (component_sum(gradients) / n).square()


def _squared_norms(group: list[Tensor]) -> Tensor:
    dtype, rows = _accumulation_type(group[0]), list[Tensor]()
    if group[0].device.type == "cpu":
        # A norm on the CPU adds one component after the other: over millions of them float32 loses digits.
        group, rows = _in_rows(group)
    # One kernel for many tensors where the device has it, as in torch's own gradient clipping.
    norms = [torch.stack(torch._foreach_norm(group, 2, dtype))] if group else []
    norms += [torch.linalg.vector_norm(matrix, dim=1, dtype=dtype) for matrix in rows]
    return torch.cat(norms).to(total_type(norms[0].device)).square().sum()


def _in_rows(group: list[Tensor], length: int = 1 << 12) -> tuple[list[Tensor], list[Tensor]]:
    """Views the long tensors as matrices with rows of so many components; the short ones and the rests come first."""
    short, matrices = [], []
    for tensor in group:
        if tensor.numel() <= length:
            short.append(tensor)
            continue
        in_memory_order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        flat = tensor.permute(in_memory_order).reshape(-1)
        whole = flat.numel() - flat.numel() % length
        matrices.append(flat[:whole].view(-1, length))
        if whole < flat.numel():
            short.append(flat[whole:])
    return short, matrices


def _sums(group: list[Tensor]) -> Tensor:
    sums = [tensor.sum(dtype=_accumulation_type(tensor)) for tensor in group]
    return torch.stack(sums).to(total_type(group[0].device)).sum()


def _sum_over_tensors(gradients: Sequence[Tensor], reduce: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """Applies `reduce` to the gradients of each device and type, and adds up on the first one's device."""
    if not gradients:
        raise ValueError("`gradients` must hold at least one tensor, got none.")
    device = gradients[0].device
    totals = [
        _add_over_ranks(_add([reduce(group) for group in _groups(parts)], device), sharding)
        for sharding, parts in _by_sharding(gradients).items()
    ]
    return _add(totals, device)


def _add(totals: list[Tensor], device: torch.device) -> Tensor:
    there = [total.to(device, non_blocking=True) for total in totals]
    return there[0] if len(there) == 1 else torch.stack(there).sum()


def _add_over_ranks(total: Tensor, sharding: _Sharding) -> Tensor:
    mesh, split = sharding
    if split and total.device.type != mesh.device_type:
        total = total.to(mesh.device_type)  # gradients may be offloaded to where the ranks cannot talk
    for dimension in split:
        distributed.all_reduce(total, group=mesh.get_group(dimension))
    return total


def _by_sharding(gradients: Sequence[Tensor]) -> dict[_Sharding, list[Tensor]]:
    """Returns this rank's parts of the gradients, by how they are sharded. Under FSDP2 all are alike."""
    parts: dict[_Sharding, list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        # By its type a plain tensor is told in no time, and `torch.distributed.tensor` need not be imported.
        plain = type(gradient) is Tensor or not hasattr(gradient, "device_mesh")
        sharding, part = (_WHOLE, gradient) if plain else _part(gradient)
        parts[sharding].append(part)
    return parts


def _part(gradient: Any) -> tuple[_Sharding, Tensor]:
    """Returns this rank's part of a `DTensor`, after how it is sharded."""
    if any(placement.is_partial() for placement in gradient.placements):
        return _WHOLE, gradient.full_tensor()  # its summands lie on several ranks: none of them knows a component
    # A dimension that replicates adds nothing: each of its ranks holds the same components.
    split = tuple(i for i, placement in enumerate(gradient.placements) if not placement.is_replicate())
    sharding = (gradient.device_mesh, split) if split else _WHOLE
    return sharding, gradient.to_local()


def _groups(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Groups by device and type. A sparse gradient is represented by the values that it holds."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        # Uncoalesced values of one index are summands of one component.
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        groups[values.device, values.dtype].append(values)
    yield from groups.values()


def _accumulation_type(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def total_type(device: torch.device) -> torch.dtype:
    """Returns the type for totals on `device`: float64, or float32 on Apple's GPUs, which have no other."""
    return torch.float32 if device.type == "mps" else torch.float64

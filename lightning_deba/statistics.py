"""Pure functions on the gradients of one optimizer step. Nothing here waits for the device.

Every function takes the gradient as the sequence of tensors that belong to the parameters, and reads it where
it lies: no flattened copy is made. Tensors may be sparse, of half precision, and on several devices. They may be
sharded over ranks (`torch.distributed.tensor.DTensor`, as under FSDP2 and tensor parallelism): then each rank reads
its own part, the parts' sums are added by one all-reduce of one number, and every rank has to take part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

__all__ = [
    "component_count",
    "component_sum",
    "component_variance",
    "gradient_norm",
    "inner_product",
    "squared_norm",
    "two_batch_estimates",
]

_Number = TypeVar("_Number", float, Tensor)
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


def inner_product(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Returns ``<a, b>``, the sum over all components of the products of two gradients.

    Args:
        first: Tensors of any shapes, at least one.
        second: As many, of the same shapes. Each lies where its counterpart does, and is sharded as it is.

    Returns:
        A scalar on the device of the first tensor, accumulated in float32 or better within a part of a tensor
        and in float64 between the parts, where the device has it.

    Raises:
        ValueError: If there are no tensors, or the two have not the same shapes or are not sharded alike.

    Example:
        >>> inner_product([torch.tensor([3.0]), torch.ones(1, 2)], [torch.tensor([4.0]), torch.ones(1, 2)]).item()
        14.0
    """
    if not first or [tensor.shape for tensor in first] != [tensor.shape for tensor in second]:
        raise ValueError(
            "`first` and `second` must hold tensors of the same shapes, at least one, got "
            f"{[tuple(tensor.shape) for tensor in first]} and {[tuple(tensor.shape) for tensor in second]}."
        )
    ones, others = _by_sharding(first), _by_sharding(second)
    if {key: len(parts) for key, parts in ones.items()} != {key: len(parts) for key, parts in others.items()}:
        raise ValueError("`first` and `second` must be sharded alike.")
    device = first[0].device
    totals = [
        _add_over_ranks(_add(_products(parts, others[sharding]), device), sharding) for sharding, parts in ones.items()
    ]
    return _add(totals, device)


def two_batch_estimates(
    small_squared: _Number, big_squared: _Number, b_small: float, b_big: float
) -> tuple[_Number, _Number]:
    """Returns unbiased estimates of ``|G|^2`` and ``tr(Sigma)`` from mean gradients over two numbers of samples.

    ::

        |G|^2     = (b_big |g_big|^2 - b_small |g_small|^2) / (b_big - b_small)
        tr(Sigma) = (|g_small|^2 - |g_big|^2) / (1/b_small - 1/b_big)

    G is the true gradient and Sigma the covariance of the gradients of single samples. Both follow from
    ``E|g_b|^2 = |G|^2 + tr(Sigma)/b`` for the mean gradient ``g_b`` over b samples. They are linear in the squared
    norms: whether those are averaged first, or the estimates afterwards, is the same.

    Source: McCandlish et al., arXiv 1812.06162, appendix A.1.

    Note:
        Either may come out negative, and neither says anything alone: where the noise prevails, ``|G|^2`` is a
        small difference of large numbers. Average each over many steps, and only then divide. It is the ratio of
        the means that is the noise scale, not the mean of the ratios.

    Args:
        small_squared: ``|g_small|^2``, a number or a tensor.
        big_squared: ``|g_big|^2``, likewise.
        b_small: Samples behind the former.
        b_big: Samples behind the latter; more of them.

    Returns:
        ``|G|^2``, and ``tr(Sigma)`` for one sample. Their ratio is in samples.

    Raises:
        ValueError: If the sizes are not ``0 < b_small < b_big``.

    Example:
        >>> two_batch_estimates(small_squared=1 + 80 / 16, big_squared=1 + 80 / 64, b_small=16, b_big=64)
        (1.0, 80.0)
    """
    if not 0 < b_small < b_big:
        raise ValueError(f"`b_small` must be positive and below `b_big`, got {b_small} and {b_big}.")
    squared = (b_big * big_squared - b_small * small_squared) / (b_big - b_small)
    return squared, (small_squared - big_squared) / (1 / b_small - 1 / b_big)


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
        flat = tensor.permute(_memory_order(tensor)).reshape(-1)
        whole = flat.numel() - flat.numel() % length
        matrices.append(flat[:whole].view(-1, length))
        if whole < flat.numel():
            short.append(flat[whole:])
    return short, matrices


def _memory_order(tensor: Tensor) -> list[int]:
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)


def _products(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
    """Returns the sum of the products of the pairs, one for each device."""
    products: dict[torch.device, list[Tensor]] = defaultdict(list)
    for one, other in zip(map(_as_real, first), map(_as_real, second), strict=True):
        sparse = one.is_sparse or other.is_sparse
        products[one.device] += [_sparse_product(one, other)] if sparse else _dot_products(one, other)
    return [torch.stack(parts).to(total_type(device)).sum() for device, parts in products.items()]


def _as_real(tensor: Tensor) -> Tensor:
    """Takes a complex component for two real ones, as a gradient's norm does."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() and not tensor.is_sparse else tensor


def _dot_products(one: Tensor, other: Tensor) -> list[Tensor]:
    """Returns the dot products of the parts of two dense tensors; of half precision, a part at a time is copied."""
    dtype, length = torch.promote_types(_accumulation_type(one), other.dtype), 1 << 24
    if one.device.type == "cpu":
        # One sum on the CPU over millions of products loses digits in float32; with few bits in each, thousands do.
        length, dtype = 1 << 16, torch.float64 if one.dtype.itemsize < dtype.itemsize else dtype
    order = _memory_order(one)
    parts = zip(*(torch.split(tensor.permute(order).reshape(-1), length) for tensor in (one, other)), strict=True)
    return [torch.dot(part.to(dtype), other_part.to(dtype)) for part, other_part in parts]


def _sparse_product(one: Tensor, other: Tensor) -> Tensor:
    """Returns the dot product of two tensors of which at least one is sparse: a component that it lacks is zero."""
    if not one.is_sparse:
        one, other = other, one
    one = one.coalesce()
    dtype = torch.promote_types(_accumulation_type(one), other.dtype)
    there = other.coalesce().sparse_mask(one).coalesce() if other.is_sparse else other.sparse_mask(one)
    return (one.values().to(dtype) * there.values().to(dtype)).sum()


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

"""The statistics against NumPy's, on one flat float64 copy of what they read where it lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from lightning_deba.statistics import (
    component_count,
    component_sum,
    component_variance,
    gradient_norm,
    inner_product,
    squared_norm,
    two_batch_estimates,
)

STATISTICS = [squared_norm, component_sum, gradient_norm, component_variance]


def flat(gradients):
    return np.concatenate([gradient.to_dense().double().numpy().ravel() for gradient in gradients])


def check(gradients, rel=1e-6):
    """Compares with NumPy; where summands cancel, the error is measured against their size."""
    whole = flat(gradients)
    assert component_count(gradients) == whole.size
    assert squared_norm(gradients).item() == pytest.approx(np.sum(whole**2), rel=rel, abs=0)
    assert gradient_norm(gradients).item() == pytest.approx(np.linalg.norm(whole), rel=rel, abs=0)
    assert component_sum(gradients).item() == pytest.approx(whole.sum(), rel=0, abs=rel * np.abs(whole).sum())
    assert component_variance(gradients).item() == pytest.approx(whole.var(), rel=0, abs=rel * np.mean(whole**2))


def embedding_gradient():
    """Four rows of fifty, one of them met three times: sparse, and not coalesced."""
    embedding = torch.nn.Embedding(50, 8, sparse=True)
    (embedding(torch.tensor([3, 7, 7, 1, 7, 49])) * torch.randn(6, 8)).sum().backward()
    return embedding.weight.grad


def model_gradients(model, *shape):
    model(torch.randn(*shape)).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def convolutions():
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
    )
    return model_gradients(layers.to(memory_format=torch.channels_last), 4, 3, 9, 9)


GRADIENTS = {
    "one vector": lambda: [torch.randn(1000)],
    "many shapes": lambda: [torch.randn(7, 5), torch.randn(3), torch.randn(2, 3, 4, 5), torch.randn(1, 1)],
    "no dimension": lambda: [torch.randn(()), torch.randn(())],
    "an empty one among them": lambda: [torch.randn(0, 3), torch.randn(10)],
    "a linear layer's": lambda: model_gradients(torch.nn.Linear(30, 20), 8, 30),
    "channels last": convolutions,
    "transposed": lambda: [torch.randn(30, 20).t(), torch.randn(4, 5, 6).permute(2, 0, 1)],
    "strided": lambda: [torch.randn(100, 10)[::3, ::2], torch.randn(100)[1::7]],
    "expanded": lambda: [torch.randn(1, 5).expand(20, 5), torch.randn(()).expand(30)],
    "bfloat16": lambda: [torch.randn(30, 20).bfloat16(), torch.randn(20).bfloat16()],
    "float16": lambda: [torch.randn(30, 20).half(), torch.randn(20).half()],
    "float16, squares beyond its range": lambda: [(1e4 * torch.randn(300)).clamp(-6e4, 6e4).half()],
    "float64": lambda: [torch.randn(30, 20).double(), torch.randn(20).double()],
    "mixed types": lambda: [torch.randn(30).to(kind) for kind in (torch.float32, torch.float16, torch.float64) * 2],
    "sparse": lambda: [embedding_gradient().coalesce(), torch.randn(5)],
    "sparse, not coalesced": lambda: [embedding_gradient(), torch.randn(5)],
    "sparse, single values": lambda: [torch.randn(9, 9).relu().to_sparse()],
    "sparse, nothing in it": lambda: [torch.zeros(9, 9).to_sparse(), torch.randn(5)],
    "large": lambda: [1e6 * torch.randn(1000), 1e6 * torch.randn(30, 20)],
    "tiny": lambda: [1e-20 * torch.randn(1000), 1e-20 * torch.randn(30, 20)],
    "large and tiny": lambda: [1e6 * torch.randn(10), 1e-20 * torch.randn(1000)],
    "biased": lambda: [torch.randn(1000) + 1, torch.randn(30, 20) + 1],
    "all zero": lambda: [torch.zeros(10), torch.zeros(2, 3)],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_they_are_those_of_numpy(name):
    check(GRADIENTS[name]())


@given(
    shapes=st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=6),
    kind=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    mean=st.floats(-2, 2),
    seed=st.integers(0, 100),
)
def test_they_are_those_of_numpy_for_any_shapes(shapes, kind, scale, mean, seed):
    chance = torch.Generator().manual_seed(seed)
    gradients = [(scale * (torch.randn(shape, generator=chance) + mean)).to(kind) for shape in shapes]
    assume(component_count(gradients))
    check(gradients)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_tensor_of_millions_loses_no_digit(kind):
    check([torch.randn(4_000_000).to(kind)])


def test_many_tensors_lose_no_digit():
    check([torch.randn(1000) + 1 for _ in range(1000)])


def test_an_uncoalesced_value_is_a_summand_not_a_component():
    """Two entries of 3 and 4 at one place are a 7: the norm is 7, not 5."""
    gradient = torch.sparse_coo_tensor([[1, 1]], [3.0, 4.0], (10,), check_invariants=True)
    assert gradient_norm([gradient]).item() == 7
    assert component_variance([gradient]).item() == pytest.approx(4.9 - 0.49)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_total_is_one_float64(statistic, kind):
    total = statistic([torch.ones(3, dtype=kind)])
    assert (total.shape, total.dtype) == ((), torch.float64)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_what_is_not_finite_shows(statistic, bad):
    assert not statistic([torch.ones(5), torch.tensor([1.0, bad])]).isfinite()


@pytest.mark.parametrize("statistic", STATISTICS)
def test_no_gradient_at_all_is_refused(statistic):
    with pytest.raises(ValueError, match=r"^`gradients` must hold at least one tensor"):
        statistic([])


@pytest.mark.parametrize("statistic", STATISTICS)
def test_nothing_waits_for_the_device(statistic):
    """A meta tensor has no number to wait for: whoever asks for one raises."""
    gradients = [torch.ones(3, 4, device="meta"), torch.ones(5, device="meta", dtype=torch.float16)]
    assert statistic(gradients).is_meta


@pytest.mark.parametrize("layout", [torch.clone, torch.t, lambda gradient: gradient[:, ::2]], ids=["plain", "t", "::2"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_no_copy_is_made(statistic, layout):
    gradients = [layout(torch.zeros(100, 100)) for _ in range(10)]
    rows = sum(-(-gradient.numel() // 4096) for gradient in gradients)
    assert largest_allocation(statistic, gradients) <= 8 * rows
    assert largest_allocation(torch.cat, gradients) >= 4 * component_count(gradients)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_of_half_precision_no_more_than_one_tensor_is_copied_at_a_time(statistic, kind):
    """A CPU has no sum of half precision, so torch makes it a float32 one by one."""
    gradients = [torch.zeros(100, 100, dtype=kind) for _ in range(10)]
    assert largest_allocation(statistic, gradients) <= 4 * gradients[0].numel()


def another(gradients):
    """Other gradients of the same shapes, types and layouts."""
    return [torch.randn(gradient.shape).to(gradient.dtype).mul(gradient) for gradient in gradients]


def check_product(first, second, rel=1e-6):
    one, other = flat(first), flat(second)
    size = rel * np.linalg.norm(one) * np.linalg.norm(other)
    assert inner_product(first, second).item() == pytest.approx(one @ other, rel=0, abs=size)


@pytest.mark.parametrize("name", GRADIENTS)
def test_an_inner_product_is_that_of_numpy(name):
    gradients = GRADIENTS[name]()
    other = another(gradients)
    check_product(gradients, gradients)
    check_product(gradients, other)
    check_product(other, gradients)
    check_product(gradients, [gradient.to_dense().contiguous() for gradient in other])
    check_product([gradient.to_dense() for gradient in other], gradients)


def test_an_inner_product_of_sparse_gradients_is_that_of_what_both_hold():
    check_product([embedding_gradient()], [embedding_gradient()])
    one, other = (torch.sparse_coo_tensor(at, [3.0, 4.0], (10,), check_invariants=True) for at in ([[1, 1]], [[1, 2]]))
    assert inner_product([one], [other]).item() == 21
    assert inner_product([one], [torch.sparse_coo_tensor([[5]], [1.0], (10,), check_invariants=True)]).item() == 0


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_an_inner_product_of_millions_loses_no_digit(kind):
    gradient = [(torch.randn(4_000_000) + 1).to(kind)]
    check_product(gradient, gradient)
    assert inner_product(gradient, gradient).item() == pytest.approx(squared_norm(gradient).item(), rel=1e-6)


def test_an_inner_product_waits_for_no_device_and_shows_what_is_not_finite():
    gradients = [torch.ones(3, 4, device="meta"), torch.ones(5, device="meta", dtype=torch.float16)]
    assert inner_product(gradients, gradients).is_meta
    total = inner_product([torch.ones(3).half(), torch.ones(2)], [torch.ones(3), torch.ones(2)])
    assert (total.shape, total.dtype, total.item()) == ((), torch.float64, 5)
    assert not inner_product([torch.ones(2)], [torch.tensor([1.0, float("inf")])]).isfinite()


@pytest.mark.parametrize("layout", [torch.clone, torch.t], ids=["plain", "t"])
def test_an_inner_product_copies_nothing(layout):
    gradients = [layout(torch.zeros(400, 400)) for _ in range(10)]
    assert largest_allocation(lambda first: inner_product(first, first), gradients) <= 8 * 10 * 3
    half = [gradient.half() for gradient in gradients]
    assert largest_allocation(lambda first: inner_product(first, first), half) <= 8 * (1 << 16)


@pytest.mark.parametrize(
    "second", [[], [torch.ones(3)], [torch.ones(2), torch.ones(1)], [torch.ones(1, 3), torch.ones(2)]]
)
def test_gradients_of_other_shapes_have_no_inner_product(second):
    with pytest.raises(ValueError, match=r"^`first` and `second` must hold tensors of the same shapes"):
        inner_product([torch.ones(3), torch.ones(2)] if second else [], second)


@given(
    squared=st.floats(0, 1e3, allow_subnormal=False),
    covariance=st.floats(0, 1e6, allow_subnormal=False),
    small=st.floats(1, 1e4),
    ratio=st.floats(1.5, 100),
)
def test_two_batches_tell_what_is_behind_their_expectations(squared, covariance, small, ratio):
    """Solves the two equations ``E|g_b|^2 = |G|^2 + tr(Sigma)/b``."""
    big = ratio * small
    norms = squared + covariance / small, squared + covariance / big
    found = two_batch_estimates(*norms, small, big)
    assert found == pytest.approx((squared, covariance), rel=1e-6, abs=1e-6 * (norms[0] + covariance) + 1e-300)
    of_tensors = two_batch_estimates(*(torch.tensor(norm, dtype=torch.float64) for norm in norms), small, big)
    assert [tensor.item() for tensor in of_tensors] == pytest.approx(found, rel=1e-9, abs=1e-9 * norms[0] * small)


def test_the_estimates_may_be_negative_and_their_tensors_stay_on_the_device():
    assert two_batch_estimates(2.0, 4.0, 1, 2) == (6.0, -4.0)
    assert two_batch_estimates(4.0, 1.0, 1, 2) == (-2.0, 6.0)
    assert all(found.is_meta for found in two_batch_estimates(*torch.ones(2, device="meta"), 1, 2))


@pytest.mark.parametrize(("small", "big"), [(0, 2), (2, 2), (3, 2), (-1, 2)])
def test_two_batches_of_one_size_are_refused(small, big):
    with pytest.raises(ValueError, match=f"^`b_small` must be positive and below `b_big`, got {small} and {big}"):
        two_batch_estimates(1.0, 1.0, small, big)


def largest_allocation(function, gradients):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        function(gradients)
    return max(event.self_cpu_memory_usage for event in run.events())


def test_a_gradient_that_is_conjugated_lazily_is_taken_as_it_is():
    weight = torch.nn.Parameter(torch.tensor([1 + 2j, 3j]))
    (weight.conj() * torch.tensor([2 - 1j, 1 + 1j])).abs().sum().backward()
    assert inner_product([weight.grad], [weight.grad]).item() == pytest.approx(float(squared_norm([weight.grad])))


def test_complex_components_are_two_real_ones():
    one, other = torch.tensor([1 + 2j, 3j]), torch.tensor([2 - 1j, 1 + 1j])
    assert inner_product([one], [other]).item() == pytest.approx(float(torch.vdot(one, other).real))
    assert inner_product([one], [one]).item() == pytest.approx(float(squared_norm([one])))

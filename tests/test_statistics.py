"""The statistics against NumPy's, on one flat float64 copy of what they read where it lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from lightning_deba.statistics import component_count, component_sum, component_variance, gradient_norm, squared_norm

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


def largest_allocation(function, gradients):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        function(gradients)
    return max(event.self_cpu_memory_usage for event in run.events())

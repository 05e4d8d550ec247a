"""The gradient of accumulated micro-batches against that of the whole batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_deba.accumulation import SampleMean


def gradient_of_the_whole(model, data):
    model.zero_grad()
    model(data).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def accumulated(model, micro_batches, accumulation, full):
    """As Lightning does it: each loss is divided by `accumulation`, whatever the number of micro-batches."""
    model.zero_grad()
    mean = SampleMean()
    for batch in micro_batches:
        loss = model(batch).square().mean() / accumulation
        mean.weigh(loss, len(batch), full)
        loss.backward()
    gradients = [p.grad for p in model.parameters()]
    mean.close(gradients, accumulation, mean.samples)
    return gradients


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), more=st.integers(0, 3), seed=st.integers(0, 99))
def test_it_is_the_gradient_of_the_whole_batch(sizes, more, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    data = torch.randn(sum(sizes), 3, dtype=torch.float64)
    found = accumulated(model, data.split(sizes), accumulation=len(sizes) + more, full=max(sizes))
    for one, other in zip(found, gradient_of_the_whole(model, data), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-14)


@given(
    sizes=st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=2), min_size=2, max_size=4), seed=st.integers(0, 9)
)
def test_over_ranks_it_is_the_gradient_of_all_their_samples(sizes, seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 1).double()
    ranks = [torch.randn(sum(own), 3, dtype=torch.float64).split(own) for own in sizes]
    samples = sum(map(sum, sizes)) / len(ranks)
    sums, means = [], [SampleMean() for _ in ranks]
    for mean, batches in zip(means, ranks, strict=True):
        model.zero_grad()
        for batch in batches:
            loss = model(batch).square().mean() / 2
            mean.weigh(loss, len(batch), full=9)
            loss.backward()
        sums.append([p.grad.clone() for p in model.parameters()])
    averaged = [sum(parts) / len(ranks) for parts in zip(*sums, strict=True)]
    means[0].close(averaged, 2, samples)
    whole = gradient_of_the_whole(model, torch.cat([batch for batches in ranks for batch in batches]))
    for one, other in zip(averaged, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-14)


def test_equal_micro_batches_are_left_to_the_last_bit():
    model = torch.nn.Linear(2, 1)
    batches = torch.randn(4, 8, 2)
    found = [g.clone() for g in accumulated(model, batches, accumulation=4, full=8)]
    model.zero_grad()
    for batch in batches:
        (model(batch).square().mean() / 4).backward()
    assert all(torch.equal(g, p.grad) for g, p in zip(found, model.parameters(), strict=True))


def test_a_window_that_was_not_closed_is_forgotten():
    mean, weight = SampleMean(), torch.ones(1, requires_grad=True)
    mean.weigh(weight * 1, 4, full=4)
    mean.reset()
    mean.weigh(weight * 1, 2, full=2)
    gradient = torch.ones(1)
    mean.close([gradient], accumulation=1, samples=mean.samples)
    assert gradient.item() == 1.0


@pytest.mark.parametrize("samples", [0, 4])
def test_no_samples_and_no_micro_batch_leave_the_gradient(samples):
    mean, gradient = SampleMean(), torch.ones(1)
    if not samples:
        mean.weigh(torch.ones(1, requires_grad=True) * 1, 0, full=4)
    mean.close([gradient], accumulation=2, samples=mean.samples)
    assert gradient.item() == 1.0


def test_a_sparse_gradient_is_weighed_too():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    mean = SampleMean()
    for index in ([0, 1, 2, 3], [4]):
        loss = embedding(torch.tensor(index)).mean() / 4
        mean.weigh(loss, len(index), full=4)
        loss.backward()
    mean.close([embedding.weight.grad], accumulation=4, samples=mean.samples)
    torch.testing.assert_close(embedding.weight.grad.to_dense(), torch.full((5, 2), 0.1))

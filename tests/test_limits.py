"""`grant` against a search through all sizes, and every objection by its name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_deba.limits import Limits, LoaderLimits, accumulation_for, grant

loaders = st.builds(
    LoaderLimits,
    samples=st.none() | st.integers(20, 400),
    drop_last=st.booleans(),
    ratio=st.sampled_from([1.0, 1.0, 0.5, 2.0, 1 / 3]),
)
tokens = st.just(LoaderLimits(None, counts_samples=False))
limits = st.builds(
    Limits,
    minimum=st.integers(1, 20),
    maximum=st.integers(100, 300),
    multiple_of=st.sampled_from([1, 1, 1, 2, 5]),
    world_size=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    max_micro_batch_size=st.none() | st.integers(1, 60),
    loaders=st.lists(loaders | tokens, max_size=2).map(tuple),
    needs_two_samples=st.booleans(),
    limit_batches=st.sampled_from([1.0, 1.0, 0.5, 0.1, 1, 4]),
    needs_batches=st.sampled_from([0, 0, 3]),
    longest_counts=st.booleans(),
)
sizes = st.integers(1, 300)


def nearest(proposed, current, limits):
    """The nearest feasible size on the side of the proposal, by trying them all; the smaller of two."""
    side = range(current + 1, limits.maximum + 1) if proposed > current else range(1, current)
    feasible = [size for size in side if not limits.objections(size)]
    return min(feasible, key=lambda size: (abs(size - proposed), size), default=current)


def own_size(loader, micro):
    return max(1, round(micro * loader.ratio))


def an_epoch(loader, micro):
    """The micro-batch sizes of an epoch, dealt out one by one; without a length there is no last one."""
    own = own_size(loader, micro)
    if loader.samples is None:
        return [own] * 10_000  # a tenth of which still is more than the micro-batches of any step here
    dealt = [own] * (loader.samples // own)
    rest = loader.samples - sum(dealt)
    return dealt if loader.drop_last or not rest else [*dealt, rest]


def feasible(size, limits):
    """Whether epochs of full steps, of enough batches, and of none that breaks BatchNorm can be dealt out."""
    cap = limits.max_micro_batch_size or size
    accumulation = max(limits.accumulation, math.ceil(size / limits.world_size / cap))
    parts = limits.world_size * accumulation
    if not limits.minimum <= size <= limits.maximum or size % parts or size % limits.multiple_of:
        return False
    lengths = []
    for loader in limits.loaders:
        dealt = an_epoch(loader, size // parts)
        share = isinstance(limits.limit_batches, float)
        lengths.append(int(len(dealt) * limits.limit_batches) if share else min(len(dealt), limits.limit_batches))
        if accumulation > limits.accumulation and lengths[-1] < accumulation:
            return False
        if dealt[:accumulation] != [own_size(loader, size // parts)] * accumulation:
            return False
        if limits.needs_two_samples and loader.counts_samples and 1 in dealt:
            return False
    epoch = max if limits.longest_counts else min
    return min(lengths, default=1) >= 1 and epoch(lengths, default=1000) >= limits.needs_batches


# Accumulation --------------------------------------------------------------------------------------------------


@given(micro=st.integers(1, 60), parts=st.integers(1, 12), world=st.integers(1, 3), cap=st.integers(1, 60))
def test_a_given_size_is_made_of_the_fewest_micro_batches_that_fit(micro, parts, world, cap):
    size = micro * parts * world
    share = size // world
    fitting = [number for number in range(1, share + 1) if share % number == 0 and share // number <= cap]
    assert accumulation_for(size, world, cap=cap) == fitting[0]


def test_the_users_accumulation_stays_where_it_is_enough():
    assert accumulation_for(64, 1, accumulation=4, cap=32) == 4
    assert accumulation_for(256, 1, accumulation=4, cap=32) == 8
    assert accumulation_for(64, 2, accumulation=4) == 4


@pytest.mark.parametrize(("proposed", "granted"), [(64, 64), (53, 52), (97, 96), (32, 32), (65, 64), (31, 31)])
def test_what_is_granted_under_a_cap_is_the_nearest_that_micro_batches_can_make(proposed, granted):
    assert grant(proposed, 16, Limits(16, 2048, max_micro_batch_size=32))[0] == granted


# Grants --------------------------------------------------------------------------------------------------------


@settings(max_examples=500)
@given(proposed=sizes, current=sizes, limits=limits)
def test_the_granted_size_is_the_nearest_feasible_one_on_its_side(proposed, current, limits):
    granted, _ = grant(proposed, current, limits)
    assert granted == (current if proposed == current else nearest(proposed, current, limits))


@given(proposed=sizes, current=sizes, limits=limits)
def test_a_growth_never_shrinks_and_a_shrink_never_grows(proposed, current, limits):
    granted, _ = grant(proposed, current, limits)
    assert (granted - current) * (proposed - current) >= 0


@given(proposed=sizes, current=sizes, limits=limits)
def test_what_is_granted_is_feasible_or_the_present_size(proposed, current, limits):
    granted, _ = grant(proposed, current, limits)
    assert granted == current or not limits.objections(granted)


@given(proposed=sizes, current=sizes, limits=limits)
def test_a_difference_has_a_cause_and_a_cause_is_a_difference(proposed, current, limits):
    granted, cause = grant(proposed, current, limits)
    assert (granted != proposed) == bool(cause)
    assert granted == proposed or cause == "; ".join(limits.objections(proposed))


@given(current=sizes, limits=limits)
def test_a_hold_is_granted_as_it_is(current, limits):
    assert grant(current, current, limits) == (current, "")


@pytest.mark.parametrize(
    ("proposed", "current", "limits", "granted"),
    [
        (96, 64, Limits(16, 64), (64, "`max_batch_size` is 64")),
        (8, 16, Limits(16, 64), (16, "`min_batch_size` is 16")),
        (3000, 2000, Limits(16, 1024), (2000, "`max_batch_size` is 1024")),
        (38, 48, Limits(16, 64, multiple_of=32), (32, "`multiple_of` is 32")),
        (33, 32, Limits(16, 64, multiple_of=32), (64, "`multiple_of` is 32")),
        (31, 32, Limits(16, 64, multiple_of=32), (32, "`multiple_of` is 32")),
        (75, 50, Limits(16, 2048, loaders=(LoaderLimits(60),)), (60, "the data set has 60 samples")),
        (75, 60, Limits(16, 2048, loaders=(LoaderLimits(60),)), (60, "the data set has 60 samples")),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_some_grants(proposed, current, limits, granted):
    assert grant(proposed, current, limits) == granted


# Objections ----------------------------------------------------------------------------------------------------


@settings(max_examples=500)
@example(size=1, limits=Limits(1, 64, loaders=(LoaderLimits(64),), needs_two_samples=True))
@example(size=2, limits=Limits(1, 64, max_micro_batch_size=1, loaders=(LoaderLimits(None),), limit_batches=1))
@given(size=sizes, limits=limits)
def test_what_has_no_objection_is_what_an_epoch_can_be_dealt_with(size, limits):
    assert (limits.objections(size) == []) == feasible(size, limits)


CAUSES = {
    "`min_batch_size` is 16": (15, Limits(16, 64)),
    "`max_batch_size` is 64": (65, Limits(16, 64)),
    "`multiple_of` is 8": (36, Limits(16, 64, multiple_of=8)),
    "2 ranks x 3 micro-batches divide a step evenly": (20, Limits(16, 64, world_size=2, accumulation=3)),
    "1 ranks x 2 micro-batches of at most 32 divide a step evenly": (53, Limits(16, 64, max_micro_batch_size=32)),
    "the data set has 40 samples": (44, Limits(16, 64, world_size=2, accumulation=2, loaders=(LoaderLimits(20),))),
    "a micro-batch would have one sample, which BatchNorm cannot take": (
        16,
        Limits(16, 64, accumulation=16, loaders=(LoaderLimits(None),), needs_two_samples=True),
    ),
    "the last batch would have one sample, which BatchNorm cannot take": (
        32,
        Limits(16, 64, loaders=(LoaderLimits(97),), needs_two_samples=True),
    ),
    "`limit_train_batches=0.1` would leave no batch": (
        32,
        Limits(16, 64, loaders=(LoaderLimits(96),), limit_batches=0.1),
    ),
    "`val_check_interval=4` needs as many batches in an epoch": (
        32,
        Limits(16, 64, loaders=(LoaderLimits(96),), needs_batches=4),
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_every_objection_is_named(cause):
    size, limits = CAUSES[cause]
    assert limits.objections(size) == [cause]


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if "_batch_size`" not in cause])
def test_where_no_size_is_feasible_it_holds_and_says_why(cause):
    size, limits = CAUSES[cause]
    nothing_else = replace(limits, minimum=size, maximum=size)
    assert grant(size, size - 1, nothing_else) == (size - 1, cause)
    assert grant(size, size + 1, nothing_else) == (size + 1, cause)


def test_several_objections_are_all_named():
    limits = Limits(16, 64, multiple_of=8, world_size=2)
    assert grant(99, 64, limits) == (
        64,
        "`max_batch_size` is 64; `multiple_of` is 8; 2 ranks x 1 micro-batches divide a step evenly",
    )


def test_a_batch_that_is_left_out_breaks_no_batch_norm():
    assert not Limits(16, 64, loaders=(LoaderLimits(97, drop_last=True),), needs_two_samples=True).objections(32)


def test_a_loader_without_a_length_allows_everything():
    assert LoaderLimits(None).micro_batches(32) == math.inf
    assert not Limits(16, 64, loaders=(LoaderLimits(None),), limit_batches=0.1, needs_batches=9).objections(32)


def test_the_loaders_of_an_epoch_end_with_the_shortest_or_the_longest():
    limits = Limits(16, 64, loaders=(LoaderLimits(96), LoaderLimits(960)), needs_batches=4)
    assert limits.objections(32)
    assert not replace(limits, longest_counts=True).objections(32)


def test_one_token_is_not_one_sample():
    loader = LoaderLimits(None, counts_samples=False)
    assert not Limits(1, 64, loaders=(loader,), needs_two_samples=True).objections(1)


@given(st.integers(1, 200), st.booleans(), st.integers(1, 200))
def test_micro_batches_are_those_that_are_dealt(samples, drop_last, micro):
    loader = LoaderLimits(samples, drop_last)
    assert loader.micro_batches(micro) == len(an_epoch(loader, micro))

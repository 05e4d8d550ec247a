"""Policies built on the noise scale, or on the covariance, against slow accounts of the papers' own rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_deba.policies import CABS, DiveBatch, NormTest, SimiGrad
from lightning_deba.policies.simigrad import expected_cosine
from lightning_deba.records import EpochRecord
from tests.policies.runs import World, flat

covariances = st.floats(0.01, 1e4)
sizes = st.integers(1, 4096)


def two_epochs(covariance, size, square=1.0, **numbers):
    return [
        EpochRecord(epoch, size, size, gradient_squared=square, gradient_covariance=covariance, **numbers)
        for epoch in (18, 19)
    ]


# NormTest ------------------------------------------------------------------------------------------------------


@given(st.floats(0.01, 200), st.floats(0.1, 10), st.integers(1, 500), st.floats(0.2, 2))
def test_the_norm_test_grows_to_the_smallest_batch_that_passes(covariance, square, size, eta):
    passing = size
    while covariance / passing > eta**2 * square * (1 + 1e-12):
        passing += 1
    decided = NormTest(eta=eta)(two_epochs(covariance, size, square)).batch_size
    assert passing <= decided <= passing + 1  # the last digit of a float may make one sample


def test_the_norm_test_passes_or_grows():
    assert NormTest(eta=0.5)(two_epochs(100.0, 400)).batch_size == 400
    grown = NormTest(eta=0.5)(two_epochs(100.0, 399))
    assert grown.batch_size == 400
    assert grown.reason == (
        "increase: the gradient's error is 0.501 of its norm, noise scale 100 +- 0 (2 epochs), above 0.5"
    )
    assert NormTest(eta=0.5)(two_epochs(1.0, 400)).batch_size == 400  # grows only
    assert grown.signals["gradient_error"] == pytest.approx((100 / 399) ** 0.5)


def test_the_norm_test_on_its_way():
    assert flat(World(covariance=100.0).sizes(NormTest(), 10)) == [(32, 2), (400, 8)]
    assert flat(World(covariance=100.0, growth=2.0).sizes(NormTest(window=1), 6)) == [(32, 6)]  # no error to go by
    world = World(covariance=100.0, growth=2.0, error=0.1)
    assert world.sizes(NormTest(window=1), 6) == [32, 331, 652, 1303, 2606, 5211]  # five sixths are certain


def test_the_norm_test_does_not_jump_to_what_a_wild_estimate_says():
    wild = [
        EpochRecord(t, 32, 32, gradient_squared=g, gradient_covariance=100.0, noise_scale_error=e)
        for t, (g, e) in enumerate([(1.0, 0.1), (0.001, 90.0), (1.0, 0.1)])
    ]
    assert [NormTest()(wild[: end + 1]).batch_size for end in range(3)] == [331, 225, 269]  # for certain below 400
    unsure = World(covariance=100.0, error=0.9).epoch(0, 96)
    assert NormTest()([unsure]).reason.endswith("above 0.5, though not for certain")


def test_no_batch_is_large_enough_for_a_test_that_no_float_can_pass():
    assert NormTest(eta=1e-200)(two_epochs(100.0, 32)).reason.endswith("no batch is large enough for 1e-200")


# SimiGrad ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch_size", "noise"), [(64, 20.0), (64, 200.0), (512, 200.0)])
def test_the_expected_cosine_is_that_of_two_halves(batch_size, noise):
    rng, dimensions = np.random.default_rng(1), 2000
    gradient = rng.normal(size=dimensions)
    deviation = np.sqrt(noise * (gradient**2).sum() / dimensions)
    halves = gradient + deviation / np.sqrt(batch_size / 2) * rng.normal(size=(2, 200, dimensions))
    a, b = halves
    cosines = (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    assert expected_cosine(batch_size, noise) == pytest.approx(cosines.mean(), abs=0.01)


@given(covariances, sizes, st.floats(0.05, 0.95))
def test_simigrad_moves_towards_its_target_and_not_past_it(noise, size, target):
    at_target = 2 * noise * target / (1 - target)
    decided = SimiGrad(target=target)(two_epochs(noise, size)).batch_size
    if size * 1.1 + 1 < at_target:
        assert decided == max(size + 1, round(1.1 * size))
    elif size * 0.9 - 1 > at_target:
        assert decided == min(size - 1, round(0.9 * size))
    assert min(size, at_target) - 1e-6 <= decided <= max(size, at_target) + 1e-6


@given(covariances, sizes)
def test_simigrad_comes_to_rest_within_a_step_of_its_target(noise, start):
    sizes = World(covariance=noise, samples=1 << 20).sizes(SimiGrad(target=0.5), 160, start)  # a target at B = 2 B_s
    assert sizes[-1] == sizes[-2]
    goal = min(max(2 * noise, 1), 1 << 14)
    assert goal / 1.1 - 1 <= sizes[-1] <= goal / 0.9 + 1


def test_simigrad_on_its_way():
    assert flat(World(covariance=100.0).sizes(SimiGrad(), 10)) == [
        *[(32, 2), (35, 1), (38, 1), (42, 1), (46, 5)],  # the target is at 50, and 51 past it
    ]
    assert flat(World(covariance=100.0).sizes(SimiGrad(cooldown=2), 8, start=80)) == [
        (80, 2),
        (72, 2),
        (65, 2),
        (58, 2),
    ]


# CABS ----------------------------------------------------------------------------------------------------------


def authors_cabs(rows, decay):
    """The running averages of the authors' optimizer, with the bias of their start taken off."""
    covariance = loss = weight = 0.0
    for _, record_loss, record_covariance in rows:
        covariance = decay * covariance + (1 - decay) * record_covariance
        loss = decay * loss + (1 - decay) * record_loss
        weight = decay * weight + (1 - decay)
    return rows[-1][0] * (covariance / weight) / (loss / weight)


def coupled(rows, size=32):
    return [
        EpochRecord(epoch, size, size, learning_rate=rate, loss=loss, gradient_covariance=covariance)
        for epoch, (rate, loss, covariance) in enumerate(rows)
    ]


rows = st.lists(st.tuples(st.floats(1e-3, 1), st.floats(1e-2, 10), st.floats(0.1, 1e4)), min_size=1, max_size=12)


@given(rows, st.floats(0, 0.99))
def test_cabs_is_the_rule_of_the_authors(rows, decay):
    decided = CABS(decay=decay, dead_band=0)(coupled(rows))
    wanted = authors_cabs(rows, decay)
    assert decided.signals["cabs_batch_size"] == pytest.approx(wanted)
    assert abs(decided.batch_size - max(wanted, 1)) <= 0.5 + 1e-6 * wanted


@given(rows, st.integers(-10, 10))
def test_cabs_does_not_change_with_the_unit_of_the_loss(rows, power):
    k = 2.0**power  # gradients are larger by k, their covariance by k^2, and the fitting rate smaller by k
    other = [(rate / k, k * loss, k**2 * covariance) for rate, loss, covariance in rows]
    assert CABS()(coupled(other)).batch_size == CABS()(coupled(rows)).batch_size


def test_cabs_by_hand():
    decided = CABS()(coupled([(0.1, 0.5, 400.0)]))
    assert decided.batch_size == 80  # 0.1 * 400 / 0.5
    assert decided.reason == "increase: rate 0.1 x covariance over loss 800 asks for 80"
    # (0.95 * 400 + 800) / (0.95 * 0.5 + 0.4) = 1348.57
    assert CABS()(coupled([(0.1, 0.5, 400.0), (0.2, 0.4, 800.0)])).batch_size == 270
    assert CABS()(coupled([(0.1, 0.5, 170.0)])).batch_size == 32  # 34 is within 10 %
    assert CABS(dead_band=0)(coupled([(0.1, 0.5, 170.0)])).batch_size == 34
    assert CABS()(coupled([(0.1, 0.5, -170.0)])).batch_size == 1


def test_cabs_on_its_way():
    assert flat(World(covariance=400.0).sizes(CABS(), 6)) == [(32, 1), (80, 5)]
    assert flat(World(covariance=400.0, growth=1.1).sizes(CABS(cooldown=2), 12)) == [
        *[(32, 2), (84, 2), (93, 2), (104, 2), (117, 2), (133, 2)],
    ]


@pytest.mark.parametrize("loss", [0.0, -1.0])
def test_cabs_holds_where_the_loss_is_not_positive(loss):
    decided = CABS()(coupled([(0.1, loss, 400.0)]))
    assert (decided.batch_size, decided.reason) == (
        32,
        "hold: the rule divides by the mean loss, which is not positive",
    )


@pytest.mark.parametrize("name", ["loss", "learning_rate", "gradient_covariance"])
@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_cabs_leaves_out_what_was_not_measured_and_holds_at_the_end(name, missing):
    history = coupled([(0.1, 0.5, 400.0), (0.1, 0.4, 500.0), (0.1, 0.3, 600.0)])
    hole = replace(history[1], **{name: missing})
    assert CABS()([history[0], hole, history[2]]) == CABS()([history[0], history[2]])
    held = CABS()([history[0], hole])
    assert (held.batch_size, held.signals) == (32, {})
    assert f"the {name.replace('_', ' ')} of epoch 1" in held.reason


def test_cabs_holds_at_numbers_that_are_too_large():
    assert CABS()(coupled([(1e200, 1.0, 1e200)])).reason.endswith("is no finite number")
    assert CABS()(coupled([(0.1, 1e308, 1.0)] * 3)).batch_size == 32


# DiveBatch -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.floats(0.0, 2.0), st.floats(0.05, 2.0))
def test_divebatch_is_the_rule_of_the_paper(seed, n, mean, delta):
    gradients = mean + np.random.default_rng(seed).normal(size=(n, 5))
    diversity = (gradients**2).sum() / (gradients.sum(axis=0) ** 2).sum()
    square = (gradients.mean(axis=0) ** 2).sum()
    covariance = gradients.var(axis=0).sum()  # of the n samples themselves, so that the relation is exact
    decided = DiveBatch(delta=delta)(two_epochs(covariance, 2, square, samples=n))
    assert decided.signals["gradient_diversity"] == pytest.approx(diversity)
    assert decided.batch_size == pytest.approx(max(2, delta * n * diversity), abs=0.5 + 1e-6)


def test_divebatch_decides_every_20_epochs():
    assert flat(World(covariance=999.0).sizes(DiveBatch(), 60)) == [(32, 20), (100, 40)]
    # The noise scale of the middle one of 5 epochs is 193, 501 and 1298 after 10, 20 and 30.
    growing = World(covariance=99.0, growth=1.1).sizes(DiveBatch(every=10), 40)
    assert flat(growing) == [(32, 20), (50, 10), (129, 10)]
    assert DiveBatch()(two_epochs(999.0, 32)[:1]).reason == "hold until epoch 20"


@pytest.mark.parametrize(
    "numbers",
    [
        {"gradient_squared": float("nan")},
        {"gradient_covariance": float("nan")},
        {"gradient_covariance": float("inf")},
        {"gradient_squared": 0.0},
        {"gradient_squared": -1.0},
        {"gradient_squared": None},
        {"gradient_squared": 5e-324},
        {"gradient_covariance": 1.7e308, "gradient_squared": 1e-5},
    ],
)
def test_no_number_carries_divebatch_to_the_largest_size(numbers):
    history = [replace(record, **numbers) for record in two_epochs(999.0, 32)]
    decided = DiveBatch(delta=1.0)(history)
    assert decided.batch_size == 32
    assert decided.reason.startswith("hold: ")


def test_cabs_leaves_an_epoch_the_steps_to_find_its_way_back():
    run = [EpochRecord(0, 32, 32, samples=800, loss=2.75, learning_rate=0.1, gradient_covariance=13_719.0)]
    decision = CABS()(run)
    assert (decision.batch_size, decision.signals["cabs_batch_size"]) == (100, pytest.approx(498.9, rel=1e-3))
    assert "and more than 100 would leave an epoch less than 8 steps" in decision.reason


def test_simigrad_leaves_an_epoch_the_steps_to_find_its_way_back():
    run = [EpochRecord(t, 96, 96, samples=800, gradient_squared=1.0, gradient_covariance=1e4) for t in range(2)]
    decision = SimiGrad(target=0.01)(run)
    assert (decision.batch_size, "106 would leave an epoch less than 8 steps" in decision.reason) == (96, True)

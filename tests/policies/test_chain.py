"""A chain does what the first of its policies says that is not for holding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_deba.policies import DEBA, AdaBatch, Chain, Hold, Milestones, Plateau
from lightning_deba.records import Decision, EpochRecord
from tests.policies.runs import World, flat

RECORD = EpochRecord(0, 32, 32)


def saying(size, **signals):
    def somebody(history):
        return Decision(size, f"somebody wants {size}", signals)

    return somebody


@given(st.lists(st.sampled_from([16, 32, 64, 128]), min_size=1, max_size=6))
def test_the_first_that_moves_is_heard(wanted):
    decided = Chain([saying(size) for size in wanted])([RECORD])
    moves = [size for size in wanted if size != 32]
    assert decided.batch_size == (moves[0] if moves else 32)
    assert decided.reason.startswith(f"somebody: somebody wants {decided.batch_size}")


def test_where_all_hold_all_are_heard():
    assert Chain([Hold(), saying(32)])([RECORD]).reason == "Hold: fixed batch size; somebody: somebody wants 32"


def test_the_signals_are_those_of_all_the_first_before_the_others():
    decided = Chain([saying(64, a=1.0), saying(128, a=2.0, b=3.0)])([RECORD])
    assert decided.signals == {"a": 1.0, "b": 3.0}


def test_a_chain_of_one_is_that_policy():
    world = World()
    assert world.sizes(Chain([DEBA()]), 20) == world.sizes(DEBA(), 20)


def test_its_way():
    policy = Chain([Milestones(epochs={3: 100}), Plateau(patience=2), AdaBatch(every=2)])
    history, decisions = World().run(policy, 8)
    # AdaBatch at 2, the milestone at 3, AdaBatch at 4. At 6 and 8 it would double as well, but a plateau goes before.
    assert flat([record.batch_size for record in history]) == [(32, 2), (64, 1), (100, 1), (200, 2), (400, 2)]
    assert [decision.reason.split(":")[0] for decision in decisions] == [
        *["Milestones", "AdaBatch", "Milestones", "AdaBatch", "Milestones", "Plateau", "Milestones", "Plateau"],
    ]


def test_a_chain_may_be_in_a_chain():
    assert Chain([Chain([Hold()]), saying(64)])([RECORD]).batch_size == 64


def test_the_list_is_copied():
    mine = [Hold()]
    policy = Chain(mine)
    mine.append(saying(64))
    assert policy.policies == (Hold(),)


@pytest.mark.parametrize("policies", [[], (), None, 3, [Hold], [Hold(), 64], "Hold", Hold()])
def test_what_is_no_sequence_of_policies_is_refused(policies):
    with pytest.raises(ValueError, match=r"^`policies` of Chain must be one policy or more"):
        Chain(policies)

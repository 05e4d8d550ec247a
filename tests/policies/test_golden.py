"""What every policy decides on recorded runs, against what is stored by ``python -m tests.policies.test_golden``.

A failure here means that a rule has changed. If it was meant to, write the file anew and look at its difference.
"""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from lightning_deba import EpochRecord, read_history, replay
from lightning_deba.characterization import simulate
from lightning_deba.policies import (
    CABS,
    DEBA,
    AdaBatch,
    Chain,
    CosineGrowth,
    Cyclic,
    DiveBatch,
    ExponentialGrowth,
    Goodput,
    Hold,
    IncreaseInsteadOfDecay,
    LinearGrowth,
    Milestones,
    NoiseScale,
    NormTest,
    OneCycle,
    Plateau,
    PolynomialGrowth,
    Seesaw,
    SimiGrad,
    StepGrowth,
    list_policies,
    noise_scale,
)
from lightning_deba.presets import evidence, list_evidence
from lightning_deba.records import Decision
from lightning_deba.report import plot_noise_scale, plot_replay
from lightning_deba.report.policy_figures import spread

FOLDER = Path(__file__).parents[1] / "data" / "histories"
GOLDEN = FOLDER / "golden.json"
AGAIN = "Where that is meant: python -m tests.policies.test_golden"

THROUGHPUT = {16: 454.0, 64: 826.0, 256: 1106.0, 1024: 1214.0}
POLICIES = {
    "AdaBatch(every=10)": AdaBatch(every=10),
    "CABS()": CABS(),
    "Chain([Milestones(epochs={10: 64}), Plateau(patience=3)])": Chain(
        [Milestones(epochs={10: 64}), Plateau(patience=3)]
    ),
    "CosineGrowth(epochs=20)": CosineGrowth(epochs=20),
    "CosineGrowth(epochs=8, restart=True)": CosineGrowth(epochs=8, restart=True),
    "Cyclic(epochs=10)": Cyclic(epochs=10),
    "DEBA()": DEBA(),
    "DEBA(rule='noise', cooldown=2)": DEBA(rule="noise", cooldown=2),
    "DEBA(window=None, cooldown=0)": DEBA(window=None, cooldown=0),
    "DiveBatch(every=5, delta=0.5)": DiveBatch(every=5, delta=0.5),
    "ExponentialGrowth()": ExponentialGrowth(),
    "Goodput()": Goodput(),
    "Goodput(throughput=THROUGHPUT)": Goodput(throughput=THROUGHPUT),
    "Hold()": Hold(),
    "IncreaseInsteadOfDecay(epochs=[5, 12, 20], factor=2.0)": IncreaseInsteadOfDecay(epochs=[5, 12, 20], factor=2.0),
    "LinearGrowth(epochs=20)": LinearGrowth(epochs=20),
    "Milestones(epochs={5: 48, 20: 96})": Milestones(epochs={5: 48, 20: 96}),
    "Milestones(samples={5000: 64, 15000: 16})": Milestones(samples={5000: 64, 15000: 16}),
    "NoiseScale()": NoiseScale(),
    "NoiseScale(target=0.5, step=4.0, window=None)": NoiseScale(target=0.5, step=4.0, window=None),
    "NormTest()": NormTest(),
    "OneCycle(epochs=25)": OneCycle(epochs=25),
    "Plateau(patience=2)": Plateau(patience=2),
    "Plateau(monitor='gradient_norm', patience=3)": Plateau(monitor="gradient_norm", patience=3),
    "PolynomialGrowth(epochs=25)": PolynomialGrowth(epochs=25),
    "Seesaw(epochs=[8, 16])": Seesaw(epochs=[8, 16]),
    "SimiGrad()": SimiGrad(),
    "SimiGrad(target=0.02, cooldown=0)": SimiGrad(target=0.02, cooldown=0),
    "StepGrowth(every=5)": StepGrowth(every=5),
}


def recorded():
    """The histories, by the names that they have in the golden file."""
    found = {path.stem: read_history(path).history for path in sorted(FOLDER.glob("*.jsonl"))}
    if "resnet18" in list_evidence():
        runs = evidence("resnet18").profile.histories
        found |= {f"resnet18_{number}": list(run) for number, run in enumerate(runs)}
    return found


def differences(golden, histories, policies=POLICIES):
    """A sentence for each decision that is not the one stored, and for what is stored or known only on one side."""
    found = [f"{name} is not stored" for name in histories if name not in golden]
    for name, history in histories.items():
        stored = golden.get(name, {})
        found += [f"{policy} on {name} is stored, and unknown" for policy in stored if policy not in policies]
        for policy, rule in policies.items():
            if policy not in stored:
                found.append(f"{policy} on {name} is not stored")
                continue
            if len(stored[policy]) != len(history):
                found.append(f"{policy} on {name}: {len(stored[policy])} epochs are stored, and {len(history)} decided")
                continue
            for record, size, decision in zip(history, stored[policy], replay(rule, history), strict=True):
                if decision.batch_size != size:
                    found.append(
                        f"{policy} on {name}, end of epoch {record.epoch}: expected {size}, "
                        f"found {decision.batch_size} ({decision.reason})"
                    )
    return found


def write():
    """Stores what is decided now; histories that are not here keep what is stored."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    for name, history in recorded().items():
        golden[name] = {
            policy: [decision.batch_size for decision in replay(rule, history)] for policy, rule in POLICIES.items()
        }
    GOLDEN.write_text(as_text(golden), encoding="utf-8")


def as_text(golden):
    """One line a policy, so that a difference shows which one decides otherwise."""
    blocks = [
        f"  {json.dumps(name)}: {{\n"
        + ",\n".join(f"    {json.dumps(policy)}: {json.dumps(sizes)}" for policy, sizes in sorted(rows.items()))
        + "\n  }"
        for name, rows in sorted(golden.items())
    ]
    return "{\n" + ",\n".join(blocks) + "\n}\n"


@pytest.fixture(scope="module")
def histories():
    return recorded()


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


# What is stored ------------------------------------------------------------------------------------------------


def test_every_policy_of_the_package_is_here():
    assert {type(policy).__name__ for policy in POLICIES.values()} == set(list_policies())
    assert all(eval(name) == policy for name, policy in POLICIES.items())  # a name is how to write it


@pytest.mark.parametrize("name", ["digits_fixed", "digits_deba", *(f"resnet18_{number}" for number in range(3))])
def test_every_policy_decides_what_is_stored(golden, histories, name):
    found = differences(golden, {name: histories[name]})
    assert not found, "\n".join([*found, AGAIN])


def test_the_stored_file_is_as_the_script_writes_it(golden):
    assert GOLDEN.read_text(encoding="utf-8") == as_text(golden)


def test_what_is_stored_is_worth_storing(golden):
    """Every policy but the one that never moves does so somewhere."""
    for policy in POLICIES.keys() - {"Hold()"}:
        assert any(len(set(rows[policy])) > 1 for rows in golden.values()), policy


def test_a_difference_names_policy_epoch_and_both_sizes(golden, histories):
    changed = copy.deepcopy(golden)
    changed["digits_fixed"]["AdaBatch(every=10)"][9] = 96
    (found,) = differences(changed, {"digits_fixed": histories["digits_fixed"]})
    assert found.startswith("AdaBatch(every=10) on digits_fixed, end of epoch 9: expected 96, found 64 (increase: ")


def test_a_rule_that_has_changed_is_noticed(golden, histories):
    changed = {**POLICIES, "DEBA()": DEBA(growth=1.4)}
    found = differences(golden, {"digits_deba": histories["digits_deba"]}, changed)
    assert found
    assert all(sentence.startswith("DEBA() on digits_deba, end of epoch ") for sentence in found)


def test_what_is_on_one_side_alone_is_noticed(golden, histories):
    one = {"digits_fixed": histories["digits_fixed"]}
    assert differences({}, one)[0] == "digits_fixed is not stored"
    assert "NewRule() on digits_fixed is not stored" in differences(golden, one, {**POLICIES, "NewRule()": Hold()})
    fewer = {name: policy for name, policy in POLICIES.items() if name != "CABS()"}
    assert differences(golden, one, fewer) == ["CABS() on digits_fixed is stored, and unknown"]
    shorter = {"digits_fixed": one["digits_fixed"][:-1]}
    assert "CABS() on digits_fixed: 30 epochs are stored, and 29 decided" in differences(golden, shorter)


# The recorded runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "policy"), [("digits_fixed", Hold()), ("digits_deba", DEBA())])
def test_a_replay_of_the_runs_own_policy_is_the_run(name, policy):
    history, decisions, problems = read_history(FOLDER / f"{name}.jsonl")
    assert not problems
    again = replay(policy, history)
    assert again == [Decision(grant.proposed, grant.reason) for grant in decisions]
    assert [decision.signals for decision in again] == [grant.signals for grant in decisions]
    lived = [record.batch_size for record in history]
    assert [grant.batch_size for grant in decisions[:-1]] == lived[1:]
    assert not any(grant.limits for grant in decisions)


def test_the_runs_are_worth_recording(histories):
    fixed, deba = histories["digits_fixed"], histories["digits_deba"]
    assert {record.batch_size for record in fixed} == {32}
    assert len({record.batch_size for record in deba}) == 6
    assert all(record.gradient_covariance is not None for record in (*fixed, *deba))
    # Until the first change they are the same training.
    assert [replace(record, seconds=0.0) for record in fixed[:5]] == [
        replace(record, seconds=0.0) for record in deba[:5]
    ]


# The figure ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sizes(histories):
    """What the policies would have gone through, as many as have room for their names."""
    return {
        f"rule {n}": simulate(rule, histories["digits_fixed"]) for n, rule in enumerate(list(POLICIES.values())[:16])
    }


def test_a_line_shows_the_size_of_each_epoch_and_ends_with_its_name(histories, sizes):
    ax = plot_replay(sizes, histories["digits_fixed"])
    lines = {line.get_gid(): line for line in ax.lines}
    for name, values in sizes.items():
        x, y = lines[f"replay-{name}"].get_data()
        assert list(x) == list(range(31))
        assert list(y[1:]) == values
        assert lines[f"replay-{name}"].get_drawstyle() == "steps-pre"
    assert set(lines["trained"].get_ydata()) == {32}
    named = [f"{name} {values[-1]:,}" for name, values in sizes.items()]
    assert [text.get_text() for text in ax.texts] == ["as trained 32", *named]


def test_a_decision_is_drawn_at_the_epoch_that_it_is_for(histories):
    run = histories["digits_deba"]
    ax = plot_replay({"DEBA": replay(DEBA(), run)}, run)
    lines = {line.get_gid(): list(line.get_ydata()) for line in ax.lines}
    assert lines["replay-DEBA"] == lines["trained"]


def test_lines_differ_in_colour_or_dashes(histories, sizes):
    lines = plot_replay(sizes, histories["digits_fixed"]).lines
    looks = [(line.get_color(), str(line._dash_pattern), line.get_linewidth()) for line in lines]
    assert len(set(looks)) == len(looks)


@pytest.mark.parametrize("size", [(4, 4.6), (9, 5)])
@pytest.mark.parametrize("dpi", [50, 150])
def test_no_name_stands_on_another_or_outside(histories, sizes, size, dpi):
    figure = Figure(figsize=size, layout="constrained", dpi=dpi)
    ax = plot_replay(sizes, histories["digits_fixed"], figure.subplots())
    figure.draw_without_rendering()
    boxes = sorted((text.get_tightbbox().frozen() for text in ax.texts), key=lambda box: box.y0)
    letters = sorted((Text.get_window_extent(text) for text in ax.texts), key=lambda box: box.y0)
    assert all(above.y0 >= below.y1 - 1 for below, above in pairwise(letters))
    assert all(box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes)


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_places_are_apart_inside_and_no_further_moved_than_need_be(count):
    rng = random.Random(count)
    heights = [rng.uniform(0, 100) for _ in range(count)]
    places = spread(heights, 3.0, 0.0, 100.0)
    ordered = sorted(places)
    assert all(b - a >= 3 - 1e-9 for a, b in pairwise(ordered))
    assert ordered[0] >= -1e-9
    assert ordered[-1] <= 100 + 1e-9
    assert sorted(range(count), key=heights.__getitem__) == sorted(range(count), key=places.__getitem__)
    assert spread([10.0, 50.0], 3.0, 0.0, 100.0) == [10.0, 50.0]
    assert spread([50.0, 50.0, 50.0], 3.0, 0.0, 100.0) == [47.0, 50.0, 53.0]
    assert spread([0.0, 0.0], 3.0, 0.0, 100.0) == [0.0, 3.0]


def test_the_noise_scale_is_drawn_where_it_is_known(histories):
    run = histories["digits_fixed"]
    ax = plot_noise_scale(run)
    (line,) = ax.lines
    for end, value in zip(range(1, 31), line.get_ydata(), strict=True):
        estimate = noise_scale(run[:end])
        assert math.isnan(value) if isinstance(estimate, str) else value == estimate.value
    assert [math.isnan(value) for value in line.get_ydata()] == [False] * 26 + [True] * 4


def test_axes_that_are_there_only_grow(histories, sizes):
    run = histories["digits_fixed"]
    alone, above = plot_replay({"Hold": sizes["rule 13"]}, run).get_ylim(), plot_noise_scale(run).get_ylim()
    both = plot_replay({"Hold": sizes["rule 13"]}, run, plot_noise_scale(run))
    assert both.get_ylim() == (min(alone[0], above[0]), max(alone[1], above[1]))
    assert both.get_ylabel() == "batch size (samples per step)"


@pytest.mark.parametrize("measured", [{}, {"gradient_squared": -1.0, "gradient_covariance": 1.0}])
def test_without_a_noise_scale_there_is_nothing_to_draw(measured):
    run = [EpochRecord(t, 32, 32, **measured) for t in range(5)]
    ax = plot_noise_scale(run)
    ax.figure.draw_without_rendering()
    assert not ax.texts
    assert all(math.isnan(value) for value in ax.lines[0].get_ydata())


def test_what_cannot_be_drawn_is_refused(histories):
    run = histories["digits_fixed"]
    with pytest.raises(ValueError, match=r"^`replays` must hold at least one policy's batch sizes, got none"):
        plot_replay({}, run)
    with pytest.raises(
        ValueError, match=r"^`replays` must have one batch size for each of the 30 epochs .* got 29 of 'x'"
    ):
        plot_replay({"x": [32] * 29}, run)
    with pytest.raises(ValueError, match=r"^`history` must hold at least one epoch's record, got none"):
        plot_replay({"x": []}, [])
    with pytest.raises(ValueError, match=r"^`history` must hold at least one epoch's record, got none"):
        plot_noise_scale([])


if __name__ == "__main__":
    write()

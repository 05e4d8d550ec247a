"""Every policy of the package: its row in the registry, its arguments, its length, and its place in a YAML file."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import FrozenInstanceError, asdict, fields, is_dataclass

import pytest
import yaml
from jsonargparse import ArgumentParser

from lightning_deba import policies
from lightning_deba.policies import (
    BatchSizePolicy,
    Chain,
    Hold,
    Milestones,
    Plateau,
    list_policies,
    policy_info,
)

NAN, INF = float("nan"), float("inf")
REQUIRED = {  # arguments without which there is no policy
    "Chain": {"policies": [Hold()]},
    "CosineGrowth": {"epochs": 10},
    "Cyclic": {"epochs": 10},
    "LinearGrowth": {"epochs": 10},
    "Milestones": {"epochs": {0: 8}},
    "OneCycle": {"epochs": 10},
    "PolynomialGrowth": {"epochs": 10},
    "Seesaw": {"epochs": [30, 60]},
}
ABOVE_ONE, SHARE, WINDOW, COOLDOWN = [1, 0.5, -2.0, NAN, INF], [0, 1, 1.5, -0.1, NAN], [0, -1, 1.5, NAN], [-1, NAN]
POSITIVE, NOT_NEGATIVE, WHOLE = [0, -1.0, NAN, INF], [-0.1, NAN, INF], [0, -1, 2.5, NAN, "3", None]
EPOCHS, STEPS = [[], [0], [-1], [1.5], "30", 30, {1, 2}], [{}, {-1: 8}, {0: 0}, {0.5: 8}, {0: 8.5}, "0:8", 8, [8]]
BAD = {
    "Hold": {},
    "DEBA": {  # and more in its own test
        "confidence_threshold": [0, NAN],
        "stability_threshold": [0, NAN],
        "growth": ABOVE_ONE,
        "rollback": SHARE,
        "window": [1, 0],
        "cooldown": COOLDOWN,
        "rule": ["noisy"],
    },
    "NoiseScale": {
        "target": POSITIVE,
        "step": ABOVE_ONE,
        "dead_band": NOT_NEGATIVE,
        "window": WINDOW,
        "cooldown": COOLDOWN,
    },
    "NormTest": {"eta": POSITIVE, "window": WINDOW},
    "SimiGrad": {"target": SHARE, "growth": ABOVE_ONE, "shrink": SHARE, "window": WINDOW, "cooldown": COOLDOWN},
    "CABS": {"decay": [-0.1, 1, NAN], "dead_band": NOT_NEGATIVE, "cooldown": COOLDOWN},
    "DiveBatch": {"delta": POSITIVE, "every": WHOLE, "window": WINDOW},
    "Goodput": {
        "min_gain": POSITIVE,
        "max_jump": [1.4, 0, NAN, INF],
        "largest": ABOVE_ONE,
        "window": WINDOW,
        "cooldown": COOLDOWN,
        "throughput": [{}, {32: 1.0}, {32: 1.0, 33: 1.0}, {32: 1.0, 64: 0.0}, {0: 1.0, 64: 1.0}, {32: NAN, 64: 1.0}, 9],
    },
    "AdaBatch": {"every": WHOLE, "factor": ABOVE_ONE},
    "IncreaseInsteadOfDecay": {"epochs": EPOCHS, "factor": ABOVE_ONE, "largest_share": [0, -1.0, 1.1, NAN]},
    "Seesaw": {"epochs": EPOCHS, "factor": ABOVE_ONE},
    "Plateau": {
        "monitor": ["val_loss", ""],
        "mode": ["least", None],
        "min_delta": NOT_NEGATIVE,
        "patience": WHOLE,
        "factor": ABOVE_ONE,
    },
    "Milestones": {"epochs": STEPS, "samples": STEPS},
    "StepGrowth": {"every": WHOLE, "factor": ABOVE_ONE, "largest": ABOVE_ONE},
    "ExponentialGrowth": {"factor": ABOVE_ONE, "largest": ABOVE_ONE},
    "LinearGrowth": {"epochs": WHOLE, "factor": ABOVE_ONE},
    "PolynomialGrowth": {"epochs": WHOLE, "factor": ABOVE_ONE, "power": POSITIVE},
    "CosineGrowth": {"epochs": WHOLE, "factor": ABOVE_ONE, "restart": []},  # a truth value: nothing to refuse
    "Cyclic": {"epochs": WHOLE, "factor": [0, 1, -2.0, NAN, INF]},
    "OneCycle": {"epochs": WHOLE, "lowest": SHARE, "highest": ABOVE_ONE, "turn": SHARE},
    "Chain": {"policies": [[]]},  # and more in its own test
}
YAML = {
    "Chain": """
        policies:
          - {class_path: lightning_deba.policies.Milestones, init_args: {epochs: {0: 8, 10: 16}}}
          - {class_path: lightning_deba.policies.Plateau, init_args: {patience: 3}}
        """,
    "Goodput": "{throughput: {32: 900.0, 256: 2000.0}, window: null}",
    "IncreaseInsteadOfDecay": "{epochs: [30, 60]}",
    "Milestones": "{samples: {0: 768, 250000000000: 1536}}",
}


def make(name, **arguments):
    required = {} if name == "Milestones" and arguments else REQUIRED.get(name, {})
    return policy_info(name).policy(**{**required, **arguments})


# The rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_policies())
def test_a_row_is_complete(name):
    row = policy_info(name)
    assert row.name == row.policy.__name__ == name
    assert row.policy is getattr(policies, name)
    assert row.description.endswith(".")
    assert "\n" not in row.description
    assert len(row.description) < 80
    assert row.source.strip()
    assert isinstance(make(name), BatchSizePolicy)
    with pytest.raises(FrozenInstanceError):
        row.name = "other"


def test_every_public_policy_has_a_row_and_every_row_is_public():
    public = {name: getattr(policies, name) for name in policies.__all__}
    rules = {name for name, value in public.items() if is_dataclass(value) and "__call__" in vars(value)}
    assert rules == set(list_policies())


def test_they_are_listed_by_pattern_whatever_its_case():
    assert list_policies("*Growth") == list_policies("*growth")
    assert list_policies("noise*") == ["NoiseScale"]
    assert list_policies("nothing*") == []
    assert list_policies() == sorted(list_policies())


@pytest.mark.parametrize(
    ("name", "meant"), [("noisescale", "NoiseScale"), ("Divebatch", "DiveBatch"), ("deba", "DEBA")]
)
def test_an_unknown_name_is_refused_with_the_one_that_was_meant(name, meant):
    with pytest.raises(ValueError, match=f"^`name` must be one of .*, got {name!r}. Did you mean {meant!r}?"):
        policy_info(name)


def test_where_nothing_is_near_nothing_is_meant():
    with pytest.raises(ValueError, match=r"got 'xyz'\.$"):
        policy_info("xyz")


# The policies themselves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_policies())
def test_a_policy_is_frozen_and_equal_to_its_like(name):
    policy = make(name)
    assert policy == make(name)
    for field in fields(policy):
        with pytest.raises(FrozenInstanceError):
            setattr(policy, field.name, 1)


@pytest.mark.parametrize("name", list_policies())
def test_its_parameters_are_plain_data(name):
    json.dumps(asdict(make(name)), allow_nan=False)


@pytest.mark.parametrize("name", list_policies())
def test_a_policy_is_less_than_120_lines_long(name):
    cls = policy_info(name).policy
    assert len(inspect.getsource(cls).splitlines()) < 120
    assert ">>> " in cls.__doc__


@pytest.mark.parametrize("name", list_policies())
def test_each_argument_is_explained(name):
    cls = policy_info(name).policy
    arguments = inspect.cleandoc(cls.__doc__).partition("\nArgs:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == [field.name for field in fields(cls)]


# The arguments -------------------------------------------------------------------------------------------------


def test_each_argument_of_each_policy_has_values_that_are_refused():
    assert {name: set(arguments) for name, arguments in BAD.items()} == {
        name: {field.name for field in fields(policy_info(name).policy)} for name in list_policies()
    }


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [(name, argument, value) for name, bad in BAD.items() for argument, values in bad.items() for value in values],
)
def test_an_argument_that_makes_no_rule_is_refused_by_name(name, argument, value):
    with pytest.raises(ValueError, match=f"^`{argument}` of {name} must be .*, got "):
        make(name, **{argument: value})


@pytest.mark.parametrize("name", list_policies())
def test_yaml_can_write_it(name):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--policy", type=BatchSizePolicy)
    arguments = yaml.safe_load(YAML[name]) if name in YAML else REQUIRED.get(name, {})
    config = {"class_path": f"lightning_deba.policies.{name}", "init_args": arguments}
    instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes  # the old name
    made = instantiate(parser.parse_object({"policy": config})).policy
    if name == "Chain":
        assert made == Chain([Milestones(epochs={0: 8, 10: 16}), Plateau(patience=3)])
    else:
        assert made == make(name, **arguments)

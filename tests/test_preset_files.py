"""Presets in YAML files are data: read, checked, and never executed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import timm
from lightning.pytorch import LightningModule

from lightning_deba import DEBA, BatchSizeScheduler, EpochRecord, Hold, replay
from lightning_deba.checks import warn_of_another_architecture
from lightning_deba.policies import Chain
from lightning_deba.policies.registry import list_policies, policy_info
from lightning_deba.presets import (
    Preset,
    evidence,
    list_evidence,
    match_preset,
    preset_from,
    preset_to_yaml,
    read_preset,
)

OWN = Preset("own", ("resnet18",), DEBA(stability_threshold=0.2, window=None), "a run", "a note", 0.5, "marginal")

WHOLE = {
    "name": "own",
    "architectures": "[resnet18]",
    "policy": "{class_path: lightning_deba.DEBA, init_args: {cooldown: 7}}",
    "source": "runs",
}


def written(tmp_path, **fields):
    path = tmp_path / "preset.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in (WHOLE | fields).items() if value is not None))
    return path


def test_a_preset_survives_its_file(tmp_path):
    path = tmp_path / "own.yml"
    path.write_text(preset_to_yaml(OWN))
    assert read_preset(path) == OWN == match_preset(str(path))


def test_the_callback_takes_the_path(tmp_path):
    scheduler = BatchSizeScheduler(preset=str(written(tmp_path)))
    assert scheduler.preset.policy == DEBA(cooldown=7)


# Of those that cannot be made without arguments.
ARGUMENTS = {
    "Milestones": {"epochs": {0: 8, 3: 16}},
    "Seesaw": {"epochs": [3]},
    **{f"{kind}Growth": {"epochs": 10} for kind in ("Cosine", "Linear", "Polynomial")},
    **{name: {"epochs": 10} for name in ("Cyclic", "OneCycle")},
}


@pytest.mark.parametrize("name", sorted(set(list_policies()) - {"Chain"}))
def test_every_policy_that_stands_alone_can_be_in_a_file(name, tmp_path):
    policy = policy_info(name).policy(**ARGUMENTS.get(name, {}))
    path = tmp_path / "preset.yaml"
    path.write_text(preset_to_yaml(Preset("own", ("toy",), policy, "a guess")))
    history = [
        EpochRecord(t, 16, 16, samples=800, loss=2.0 - t / 10, gradient_norm=1.0, component_variance=1e-8)
        for t in range(6)
    ]
    assert replay(read_preset(path).policy, history) == replay(policy, history)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": None}, "`name` is missing"),
        ({"source": "''"}, "`source` of a preset must not be empty"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"architectures": "resnet18"}, "`architectures` must be a list"),
        ({"architectures": "[1]"}, "`architectures` must be names or patterns"),
        ({"policy": "DEBA"}, "`policy` must be a dict"),
        ({"policy": "{}"}, "`policy` must have a `class_path`"),
        ({"policy": "{class_path: os.system, init_args: {command: true}}"}, "`class_path` must be a policy of"),
        ({"policy": "{class_path: lightning_deba.BatchSizeScheduler}"}, "must be one of"),
        ({"policy": "{class_path: lightning_deba.DEBA, init_args: {colour: 3}}"}, "colour"),
        ({"policy": "{class_path: lightning_deba.DEBA, init_args: {growth: 0.5}}"}, "`growth` of DEBA must be above 1"),
        ({"score": "high"}, "`score` must be a float"),
        ({"note": "!!python/object/apply:os.getcwd []"}, "could not determine a constructor"),
        ({"note": "[unclosed"}, "cannot be read"),
    ],
)
def test_what_is_no_preset_is_refused(fields, message, tmp_path):
    with pytest.raises(ValueError, match=r"`preset` '.*preset.yaml' cannot be read") as refused:
        read_preset(written(tmp_path, **fields))
    assert message in str(refused.value)


@pytest.mark.parametrize("text", ["", "3", "[]", "text"])
def test_a_file_of_something_else_is_refused(text, tmp_path):
    path = tmp_path / "preset.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="expected fields such as `name`"):
        read_preset(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no file"):
        match_preset(str(tmp_path / "nowhere.yaml"))


@dataclass(frozen=True)
class NoiseScale(Hold):
    """Of another package, under a name of this one."""


@pytest.mark.parametrize("policy", [lambda history: Hold()(history), NoiseScale(), Chain([Hold()])])
def test_a_policy_that_could_not_be_read_back_is_not_written(policy):
    with pytest.raises(ValueError, match="is no policy of the package"):
        preset_to_yaml(Preset("own", ("toy",), policy, "a guess"))


# Another architecture


class Holds(LightningModule):
    def __init__(self, name):
        super().__init__()
        self.model = timm.create_model(name)


def test_a_preset_for_another_architecture_is_told_with_both_names():
    with pytest.warns(UserWarning, match=r"`own` is meant for resnet18, and the model is mobilenetv3_small_050"):
        warn_of_another_architecture(OWN, Holds("mobilenetv3_small_050"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("preset", ["own", "generic", "none inside"])
def test_one_for_this_one_or_for_all_is_not(preset):
    if preset == "none inside":
        warn_of_another_architecture(OWN, LightningModule())
    else:
        warn_of_another_architecture(OWN if preset == "own" else match_preset("generic"), Holds("resnet18"))


# Evidence


@pytest.mark.parametrize("name", list_evidence())
def test_what_was_run_is_a_characterization(name):
    found = evidence(name)
    assert found.profile.architecture == name
    assert preset_from(found, "own", "runs").policy == found.policy


def test_what_was_not_run_is_named():
    with pytest.raises(ValueError, match="`architecture` must be one of"):
        evidence("convnext_tiny")

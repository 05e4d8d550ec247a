"""Every number of a shipped preset, and of the README's table, is computed again from the stored runs."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from lightning_deba import DEBA
from lightning_deba.comparison.runs import shipped_runs
from lightning_deba.presets import evidence, get_preset, list_evidence
from tests.evidence import comparison
from tests.evidence.table import PAPER, held_out, saving, table

README = Path(__file__).parents[2] / "README.md"
CALIBRATED_FROM = {
    "resnet_shallow": "resnet18",
    "resnet_deep": "resnet50",
    "densenet": "densenet121",
    "efficientnet": "efficientnet_b0",
    "mobilenet": "mobilenetv3_large_100",
    "vit": "vit_tiny_patch16_224",
}


@pytest.mark.parametrize(("name", "architecture"), CALIBRATED_FROM.items())
def test_a_preset_holds_what_its_runs_found(name, architecture):
    preset, found = get_preset(name), evidence(architecture)
    assert preset.policy == found.policy
    assert preset.score == round(found.profile.score, 2)
    assert preset.verdict == found.verdict.word
    for word in (architecture, "800 images of Fashion-MNIST", "25 epochs", "3 seeds", "python -m tests.evidence"):
        assert word in preset.source


def test_what_was_not_run_says_from_where_it_is_borrowed():
    generic = get_preset("generic")
    run = [get_preset(name).policy for name in CALIBRATED_FROM]
    assert "orrowed" in generic.source
    assert generic.score is None
    assert generic.policy == DEBA(
        confidence_threshold=min(policy.confidence_threshold for policy in run),
        stability_threshold=min(policy.stability_threshold for policy in run),
        cooldown=10,
    )


@pytest.mark.parametrize("architecture", list_evidence())
def test_the_runs_are_what_the_sources_say(architecture):
    profile = evidence(architecture).profile
    assert [len(history) for history in profile.histories] == [25, 25, 25]
    assert {r.samples for history in profile.histories for r in history} == {800}
    assert profile.batch_size == 16


def test_every_epoch_of_the_held_out_runs_was_timed():
    for ways in held_out().values():
        assert sorted(ways) == ["calibrated", "fixed"]
        for run in (*ways["fixed"], *ways["calibrated"]):
            assert len(run["processor_seconds"]) == len(run["batch_sizes"]) == 25


def test_the_readme_s_table_is_that_of_the_runs():
    text = README.read_text(encoding="utf-8")
    begin, end = text.index("<!-- verdicts -->"), text.index("<!-- /verdicts -->")
    assert text[begin:end].split("-->", 1)[1].strip() == table()


def test_the_verdict_is_right_for_five_of_six_on_other_seeds():
    """Right is a sign that is right, and a saving within 15 points of the real one."""
    right = 0
    for architecture in PAPER:
        predicted, real = evidence(architecture).verdict, saving(held_out()[architecture])
        worth_it = real >= 0.05
        right += abs(predicted.saving - real) <= 0.15 and worth_it == (predicted.word != "don't adapt")
    assert right >= 5


@pytest.mark.parametrize("model", ["resnet18", "efficientnet_b0", "mobilenetv3"])
def test_what_doubling_by_the_clock_saves_is_foretold(model):
    """By the same 15 points, on the runs in which bs-scheduler's StepBS doubles at the same epochs."""
    runs = [run for run in shipped_runs() if run.model == model]
    fixed, doubled = (
        median(sum(run.processor_seconds) for run in runs if run.arm == arm) for arm in ("fixed_16", "step")
    )
    architecture = "mobilenetv3_large_100" if model == "mobilenetv3" else model
    assert evidence(architecture).verdict.by_clock == pytest.approx(1 - doubled / fixed, abs=0.15)


def test_the_readme_s_comparison_is_that_of_the_runs():
    text = README.read_text(encoding="utf-8")
    begin, end = text.index("<!-- comparison -->"), text.index("<!-- /comparison -->")
    assert text[begin:end].split("-->", 1)[1].strip() == comparison.table()

"""The figure of the README says what its script measures."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

FIGURES = Path(__file__).parents[1] / "notebooks" / "figures"


@pytest.fixture(scope="module")
def schedules(tmp_path_factory):
    """The script, the figure that it draws, and the file that it writes."""
    spec = importlib.util.spec_from_file_location("schedules", FIGURES / "schedules.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    path = tmp_path_factory.mktemp("figures") / "schedules.svg"
    return script, script.write(path), path


@pytest.fixture(params=["OneCycleLR", "CosineAnnealingLR"])
def lines(schedules, request):
    """What is drawn of one schedule: samples seen and rates, by the way of the run."""
    _, figure, _ = schedules
    drawn = {line.get_gid(): line for ax in figure.axes for line in ax.lines}
    return {way: drawn[f"{request.param}-{way}"].get_data() for way in ("fixed", "stock", "ours")}


def test_all_runs_see_the_same_samples_while_the_batch_grows(lines):
    fixed, stock, ours = (samples for samples, _ in lines.values())
    assert fixed[0] == stock[0] == ours[0] == 0
    assert fixed[-1] == stock[-1] == ours[-1] == 8 * 512
    assert set(np.diff(fixed)) == {8}
    for grown in (stock, ours):
        assert np.diff(grown).tolist() == [8] * 128 + [16] * 64 + [32] * 32 + [64] * 16


def test_counted_in_samples_the_schedule_is_the_fixed_one_to_its_end(lines):
    (fixed_samples, fixed), (samples, ours) = lines["fixed"], lines["ours"]
    there = dict(zip(fixed_samples, fixed, strict=True))
    assert ours == pytest.approx([there[seen] for seen in samples], abs=1e-6)
    assert ours[-1] == pytest.approx(fixed[-1], abs=1e-6)


def test_counted_in_steps_it_ends_too_high(lines):
    assert lines["fixed"][1][-1] < 0.0001
    assert lines["stock"][1][-1] > 0.05


def test_the_file_is_small_and_the_same_each_time(schedules, tmp_path):
    script, _, path = schedules
    script.write(tmp_path / "again.svg")
    assert path.read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert path.stat().st_size < 60_000


def test_the_file_that_is_shown_has_all_lines():
    shown = (FIGURES / "schedules.svg").read_text(encoding="utf-8")
    for name in ("OneCycleLR", "CosineAnnealingLR"):
        for way in ("fixed", "stock", "ours"):
            assert f'<g id="{name}-{way}">' in shown

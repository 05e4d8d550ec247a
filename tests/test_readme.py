"""The README is run: its example as it stands, its commands on a run, its links and lengths."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lightning_deba import DEBA, EpochRecord, Grant
from lightning_deba.cli import main
from lightning_deba.records import RunWriter

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines() if line.strip()]


def test_a_newcomer_reads_it():
    """In this order: what it does, the two lines, whether it is for them; and there is an answer to what is asked."""
    assert len(TEXT.splitlines()) < 150
    places = [TEXT.index(found) for found in ("A PyTorch Lightning callback", "```python", "<!-- verdicts -->")]
    assert places == sorted(places)
    assert max(places) < len(TEXT) / 2
    asked = re.findall(r"^- \*\*(.+)\?\*\*", TEXT, re.MULTILINE)
    assert {"My schedule", "Several devices", "Resume", "Which preset", "My loader is special", "When not"} <= set(
        asked
    )


def test_the_callback_is_added_in_two_lines():
    """Without the import and the making of it, the example is an ordinary training."""
    example = next(block for kind, block in BLOCKS if kind == "python")
    assert len([line for line in example.splitlines() if "BatchSizeScheduler" in line]) == 2


def test_each_place_for_a_table_is_closed():
    """A command writes what is between the markers."""
    names = re.findall(r"^<!-- (\w+) -->$", TEXT, re.MULTILINE)
    assert {"comparison", "rivals", "verdicts"} <= set(names)
    for name in ("comparison", "rivals", "verdicts"):
        assert TEXT.index(f"<!-- {name} -->") < TEXT.index(f"<!-- /{name} -->")


def test_every_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = [block for kind, block in BLOCKS if kind == "python"]
    assert examples
    names = {"__name__": "__main__"}  # a later example goes on from an earlier one
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
    assert "hold" in capsys.readouterr().out
    assert (tmp_path / "lightning_logs" / "version_0" / "report.html").is_file()


def test_every_command_is_known(tmp_path, monkeypatch, capsys):
    """What trains is run by the tests of the configs; here its files are looked for, and the rest is run."""
    write_a_run(tmp_path / "lightning_logs" / "version_0")
    ran = 0
    for command in COMMANDS:
        words = shlex.split(command.split("lightning-deba ", 1)[-1], comments=True)
        if "lightning-deba " not in command:
            continue
        for config in (word for word in words if word.startswith("configs/")):
            assert (ROOT / config).is_file(), config
        if words[0] not in ("fit", "characterize"):
            monkeypatch.chdir(tmp_path)
            assert main(words) == 0, command
            ran += 1
    assert ran >= 3
    assert (tmp_path / "lightning_logs" / "version_0" / "report.html").is_file()


def test_every_file_that_it_shows_or_links_is_there():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("script", [".ci/run", ".github/workflows/ci.yml"])
def test_ci_calls_the_command_that_is_printed(script):
    text = (ROOT / script).read_text(encoding="utf-8")
    assert "README" in text
    assert "<!-- test command -->" in TEXT


def write_a_run(directory):
    writer, history = RunWriter(directory), []
    writer.begin({"version": 1}, [], [])
    for epoch in range(4):
        history.append(EpochRecord(epoch, 32, 32, samples=64, loss=1.0, gradient_norm=1.0, component_variance=1.0))
        decision = DEBA(cooldown=2)(history)
        writer.append(history[-1], Grant(epoch, decision.batch_size, 32, decision.reason, signals=decision.signals))

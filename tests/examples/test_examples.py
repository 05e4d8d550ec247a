"""Three scripts as anyone would write them, the scheduler added in two lines: each is run, and its page is read.

The scripts know nothing of the tests: a wrapper around `training_step` writes down what arrives there.
"""

from __future__ import annotations

import importlib
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

from lightning_deba import HistoryFile, read_history
from tests.examples import gan, segmentation, text_classifier

HERE = Path(__file__).parent
MODULES = {
    "gan": gan.GAN,
    "segmentation": segmentation.Segmenter,
    "text_classifier": text_classifier.TextClassifier,
}


class Example(NamedTuple):
    """What came of a script: its files, what arrived in its training steps, and what it should have been."""

    directory: Path
    file: HistoryFile
    arrived: list[list[list[bytes]]]  # by epoch, by batch: the samples
    page: list[dict[str, str]]  # the rows of the page's table of decisions
    script: ModuleType


def sample_key(sample: torch.Tensor) -> bytes:
    """Tells samples apart; the padding of a text is none of its own."""
    return (sample[sample != 0] if sample.dtype == torch.long else sample).numpy().tobytes()


@pytest.fixture(scope="module", params=MODULES)
def example(request, tmp_path_factory):
    """Runs a script's `main`, in an empty directory, as its user would."""
    torch.set_num_threads(1)
    root, kind, arrived = tmp_path_factory.mktemp(request.param), MODULES[request.param], []
    original = kind.training_step

    def training_step(self, batch, batch_idx):
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        arrived.extend([] for _ in range(self.current_epoch + 1 - len(arrived)))
        arrived[self.current_epoch].append([sample_key(sample) for sample in first])
        return original(self, batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(kind, "training_step", training_step)
        script = importlib.import_module(kind.__module__)
        script.main()
    (directory,) = (root / "lightning_logs").iterdir()
    page = (directory / "report.html").read_text(encoding="utf-8")
    return Example(directory, read_history(directory), arrived, decisions_in(page), script)


class _Table(HTMLParser):
    """The cells of the table of class "log", row by row; what only a screen reader says is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.in_table = self.in_cell = self.hidden = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        kind = dict(attributes).get("class")
        if tag == "table":
            self.in_table = kind == "log"
        if tag == "tr" and self.in_table:
            self.rows.append([])
        if tag in ("td", "th") and self.in_table:
            self.in_cell = True
            self.rows[-1].append("")
        if tag == "span":
            self.hidden = kind == "hidden"

    def handle_endtag(self, tag: str) -> None:
        self.in_table = self.in_table and tag != "table"
        self.in_cell = self.in_cell and tag not in ("td", "th")
        self.hidden = self.hidden and tag != "span"

    def handle_data(self, data: str) -> None:
        if self.in_cell and not self.hidden:
            self.rows[-1][-1] += data


def decisions_in(page: str) -> list[dict[str, str]]:
    """Reads the table of decisions off a page, as a dictionary by the columns' heads for each epoch."""
    table = _Table()
    table.feed(page)
    heads, *rows = table.rows
    read = []
    for row in rows:
        first, _, last = row[0].partition(" to ")
        read += [dict(zip(heads[1:], row[1:], strict=True)) for _ in range(int(first), int(last or first) + 1)]
    return read


def test_a_page_is_read_as_it_stands():
    page = (
        '<table class="log"><caption class="hidden">no</caption><tr><th>Epoch</th><th>Granted</th><th>Why</th></tr>'
        '<tr><th>0 to 1</th><td>8</td><td>hold</td></tr><tr><th>2</th><td><span class="hidden">up to </span>'
        '<span aria-hidden="true">▲ </span>12</td><td>calm: 1 &lt; 2 <code>x</code></td></tr></table>'
        '<table class="settings"><tr><td>other</td></tr></table>'
    )
    held, grown = {"Granted": "8", "Why": "hold"}, {"Granted": "▲ 12", "Why": "calm: 1 < 2 x"}
    assert decisions_in(page) == [held, held, grown]


def test_the_callback_takes_two_lines(example):
    lines = Path(example.script.__file__).read_text(encoding="utf-8").splitlines()
    imported, made = [line for line in lines if "BatchSizeScheduler" in line]
    assert imported.startswith("from lightning_deba import ")
    assert "BatchSizeScheduler(" in made


def test_the_batch_size_changes_as_decided(example):
    history, decisions, problems = example.file
    assert not problems
    assert len(history) == len(decisions) >= 14
    sizes = [record.batch_size for record in history]
    assert sizes[1:] == [grant.batch_size for grant in decisions[:-1]]
    assert len(set(sizes)) > 1, "nothing to tell"


def test_every_batch_is_of_the_size_that_was_recorded(example):
    for record, batches in zip(example.file.history, example.arrived, strict=True):
        *full, last = map(len, batches)
        assert set(full) == {record.batch_size}
        assert 0 < last <= record.batch_size
        assert sum(full) + last == record.samples


def test_every_sample_comes_once_an_epoch(example):
    first = Counter(sample for batch in example.arrived[0] for sample in batch)
    expected = {"gan": 1000, "segmentation": 240, "text_classifier": 512}[example.script.__name__.rpartition(".")[2]]
    assert sum(first.values()) == expected
    assert len(first) > 0.99 * expected, "the samples can be told apart"
    for batches in example.arrived[1:]:
        assert Counter(sample for batch in batches for sample in batch) == first


def test_the_page_alone_tells_why_the_batch_size_changed(example):
    """Of each change, and of epoch 12: what was decided at the end of the epoch before, with its numbers."""
    history, decisions, _ = example.file
    assert len(example.page) == len(history)
    sizes = [record.batch_size for record in history]
    for epoch in {t for t in range(1, len(sizes)) if sizes[t] != sizes[t - 1]} | {12}:
        told, grant, change = example.page[epoch - 1], decisions[epoch - 1], sizes[epoch] - sizes[epoch - 1]
        limits = f"Limited: {grant.limits}" if grant.limits else ""
        assert told["Why"] == (grant.reason + limits).replace("`", "")
        assert told["Proposed"] == f"{grant.proposed}"
        assert told["Granted"] == f"{'▲ ' if change > 0 else '▼ ' if change < 0 else ''}{sizes[epoch]}"
        assert len(grant.signals) == 3
        assert all(f"{value:.3f}" in told["Why"] for value in grant.signals.values())


def test_a_batch_is_one_step_also_where_there_are_two_optimizers(example):
    for record, batches in zip(example.file.history, example.arrived, strict=True):
        assert record.optimizer_steps == len(batches)

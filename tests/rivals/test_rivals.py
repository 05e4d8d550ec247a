"""The README's table of rivals is what comes out of the runs, cell by cell."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.rivals.contenders import CONTENDERS, OURS
from tests.rivals.trials import ROWS, column, label

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
come_out = cache(column)


def printed():
    """Returns the README's table as lists of cells."""
    (between,) = re.findall(r"^<!-- rivals -->\n(.*?)^<!-- /rivals -->", README, re.MULTILINE | re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in between.splitlines()]
    return [row for row in rows if set("".join(row)) != {"-"}]


def test_ours_is_right():
    # By itself it reloads where there is a datamodule, so that the user's code decides; `actuator="in_place"` does not.
    told = "no needless restart"
    for row, cell in zip(ROWS, come_out(OURS), strict=True):
        assert cell == ("yes / yes / no" if row.title == told else "yes"), row.title


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_the_readme_tells_what_comes_out(contender):
    head, *rows = printed()
    assert [row[0] for row in rows] == [label(row) for row in ROWS]
    place = 1 + CONTENDERS.index(contender)
    assert head[place] == contender.name
    assert [row[place] for row in rows] == come_out(contender)

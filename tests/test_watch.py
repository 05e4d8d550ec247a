"""Watching a run: what is read of a file that is being written, and what is drawn of it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from lightning_deba import EpochRecord, Grant, read_history
from lightning_deba.cli import main, watching
from lightning_deba.cli.watching import BLOCKS, find_history, follow, layout, sparkline
from lightning_deba.records import RunWriter, to_line
from tests.runs import run

SIZES = [32, 32, 48, 48]


def record(epoch: int, **more) -> EpochRecord:
    size = SIZES[min(epoch, 3)]
    return EpochRecord(epoch, size, size, samples=100, seconds=1.0, loss=1 / (epoch + 1), gradient_norm=2.0, **more)


def grant(epoch: int) -> Grant:
    return Grant(epoch, SIZES[min(epoch + 1, 3)], SIZES[min(epoch + 1, 3)], f"reason {epoch}")


def line(epoch: int) -> str:
    return to_line(record(epoch), grant(epoch)) + "\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "version_0"


def write(folder: Path, text: str, mode: str = "w") -> None:
    folder.mkdir(exist_ok=True, parents=True)
    with (folder / "history.jsonl").open(mode) as file:
        file.write(text)


def finish(folder: Path) -> None:
    (folder / "report.html").write_text("a page")


def drawn(renderable, width: int = 120, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=stream, width=width).print(renderable)
    stream.seek(0)
    return stream.read()


# Drawing


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == BLOCKS
    assert sparkline([3, 3, 3], 8) == BLOCKS[0] * 3
    assert sparkline([], 8) == ""


@pytest.mark.parametrize("nothing", [None, float("nan"), float("inf"), -float("inf"), 10**400])
def test_what_cannot_be_drawn_is_a_gap(nothing):
    assert sparkline([0, nothing, 7], 8) == f"{BLOCKS[0]} {BLOCKS[7]}"
    assert sparkline([nothing] * 3, 8) == "   "


def test_a_long_line_is_drawn_in_means():
    values = [0.0, 2.0, None, 7.0, 14.0, 14.0]
    assert sparkline(values, 3) == sparkline([1.0, 7.0, 14.0], 3)
    assert len(sparkline(list(range(1000)), 37)) == 37
    with pytest.raises(ValueError, match="`width` must be 1 character at least, got 0"):
        sparkline(values, 0)


def test_the_layout_holds_what_was_measured_and_why_it_changed():
    text = drawn(layout([record(t) for t in range(4)], [grant(t) for t in range(4)]))
    assert "4 epochs, 400 samples, 4 s" in text
    assert f"batch size 32 -> 48 {BLOCKS[0] * 2}{BLOCKS[7] * 2}" in " ".join(text.split())
    table = [row.split() for row in text.splitlines()[-2:]]
    assert table == [["1", "32", "->", "48", "0.5", "reason", "1"], ["3", "48", "0.25", "reason", "3"]]


def test_a_long_run_shows_its_last_decisions():
    sizes = [8 + t for t in range(60)]
    history = [EpochRecord(t, size, size, samples=10) for t, size in enumerate(sizes)]
    decisions = [Grant(t, size + 1, size + 1, f"reason {t}") for t, size in enumerate(sizes)]
    text = drawn(layout(history, decisions, rows=5), width=60)
    assert [row.split()[0] for row in text.splitlines()[-5:]] == ["55", "56", "57", "58", "59"]
    assert max(map(len, text.splitlines())) <= 60


def test_a_limit_is_told_beside_the_reason():
    decision = Grant(0, 96, 64, "calm", limits="`max_batch_size` is 64")
    assert "calm (not 96: `max_batch_size` is 64)" in drawn(layout([record(0)], [decision]))


def test_a_history_without_decisions_or_losses_is_shown():
    text = drawn(layout([EpochRecord(0, 8, 8), EpochRecord(1, 8, 8)]))
    assert "batch size" in text
    assert "gradient norm" not in text


def test_a_terminal_of_ascii_is_enough():
    drawn(layout([record(t) for t in range(4)], [grant(t) for t in range(4)]), encoding="ascii").encode("ascii")


def test_what_a_file_says_is_shown_and_not_obeyed():
    text = drawn(layout([record(0)], [Grant(0, 32, 32, "[red]calm[/red] \x1b[31m")]))
    assert "[red]calm[/red]" in text
    assert "\x1b" not in text


# Reading


def test_an_unfinished_line_is_left_for_the_next_time(folder):
    whole = line(0) + line(1)
    for end in range(len(whole) + 1):
        write(folder, whole[:end])
        read = read_history(folder, running=True)
        # A last line is whole from its closing brace on.
        assert len(read.history) == sum(end >= last for last in (len(line(0)) - 1, len(whole) - 1))
        assert read.problems == []


def test_a_line_that_cannot_be_read_is_told_and_costs_no_other(folder, capsys):
    write(folder, line(0) + "{broken\n" + line(1))
    assert main(["watch", str(folder)]) == 0
    assert "2 epochs" in (out := capsys.readouterr().out)
    assert "1 of its lines could not be read" in out


def test_the_newest_run_below_is_found_and_named(tmp_path, capsys):
    for age, name in enumerate(["version_1", "version_0"]):
        write(tmp_path / "logs" / name, line(0))
        os.utime(tmp_path / "logs" / name / "history.jsonl", ns=(0, 10**18 - age))
    assert find_history(tmp_path) == tmp_path / "logs" / "version_1" / "history.jsonl"
    main(["watch", str(tmp_path), "--once"])
    assert "version_1" in capsys.readouterr().out.replace("\n", "")


# Following


def views(run: Path, *steps) -> list[tuple[int, bool]]:
    """How many epochs are seen, and whether the run has ended, while the steps happen to the file."""
    left = list(steps)
    return [(len(view.read.history), view.finished) for view in follow(run, lambda: left.pop(0)())]


def test_a_growing_file_is_followed_to_its_end(folder):
    folder.mkdir()
    assert (
        views(
            folder,
            lambda: None,  # nothing has changed, and nothing is drawn
            lambda: write(folder, ""),
            lambda: write(folder, line(0)),
            lambda: None,
            lambda: write(folder, line(1)[:40], "a"),
            lambda: write(folder, line(1)[40:] + line(2), "a"),
            lambda: finish(folder),
        )
        == [(0, False), (0, False), (1, False), (1, False), (3, False), (3, True)]
    )


def test_a_run_that_does_not_exist_yet_is_waited_for(tmp_path, folder):
    assert views(tmp_path, lambda: None, lambda: write(folder, line(0)), lambda: finish(folder)) == [
        (0, False),
        (1, False),
        (1, True),
    ]


def test_a_run_that_begins_anew_is_seen_from_its_beginning(folder):
    write(folder, line(0) + line(1) + line(2))
    writer = RunWriter(folder)
    # Resumed from the first epoch: the old history is kept beside.
    again = lambda: writer.begin({}, [record(0)], [grant(0)])  # noqa: E731
    seen = views(
        folder,
        again,
        lambda: writer.append(record(1), grant(1)),
        lambda: (folder / "history.jsonl").unlink(),
        lambda: write(folder, line(0)),
        lambda: finish(folder),
    )
    assert seen == [(3, False), (1, False), (2, False), (0, False), (1, False), (1, True)]


def test_a_page_older_than_its_history_is_of_an_earlier_run(folder):
    write(folder, line(0))
    finish(folder)
    os.utime(folder / "report.html", ns=(0, 0))
    assert views(folder, lambda: finish(folder)) == [(1, False), (1, True)]


def test_a_real_run_is_seen_epoch_by_epoch_and_known_to_have_ended(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    run({0: 16}, tmp_path, logger=logger)
    (view,) = follow(tmp_path, lambda: pytest.fail("the run has ended"))
    assert view.path == Path(logger.log_dir) / "history.jsonl"
    assert [seen.batch_size for seen in view.read.history] == [8, 16, 16]


# The command


def test_in_a_terminal_it_is_followed_and_elsewhere_shown_once(folder, monkeypatch, capsys):
    write(folder, line(0))
    main(["watch", str(folder)])  # what pytest captures is no terminal
    assert "1 epoch," in capsys.readouterr().out

    def grows(_seconds):
        write(folder, line(1), "a")
        finish(folder)

    monkeypatch.setattr(watching.time, "sleep", grows)
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich then takes it for a terminal
    main(["watch", str(folder)])
    assert "2 epochs" in (out := capsys.readouterr().out)
    assert "finished" in out


def test_following_goes_without_a_terminal_too(folder, monkeypatch, capsys):
    write(folder, line(0))
    monkeypatch.setattr(watching.time, "sleep", lambda _seconds: finish(folder))
    main(["watch", str(folder), "--follow"])
    assert capsys.readouterr().out.count("finished") == 1


def test_an_interrupt_is_a_quiet_end(folder, monkeypatch, capsys):
    def interrupted(_seconds):
        raise KeyboardInterrupt

    write(folder, line(0))
    monkeypatch.setattr(watching.time, "sleep", interrupted)
    assert main(["watch", str(folder), "--follow"]) == 0
    assert "1 epoch," in capsys.readouterr().out


def test_nothing_yet_is_said(folder, capsys):
    folder.mkdir()
    assert main(["watch", str(folder), "--once"]) == 0
    assert "no epoch has ended yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "There is no 'nowhere' to watch"),
        (["nonsense.txt"], "No epoch can be read from 'nonsense.txt': line 1 of"),
        (["nonsense.txt", "--follow"], "No epoch can be read from 'nonsense.txt': line 1 of"),
        ([".", "--once", "--follow"], "`--follow` and `--once` were both given"),
    ],
)
def test_nonsense_is_one_clear_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("nonsense.txt").write_bytes(b"\xff\x00 no history\n[1]\n")
    assert main(["watch", *arguments]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("lightning-deba: ")
    assert message in told

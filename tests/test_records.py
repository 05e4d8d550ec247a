"""What is written is read back, exactly; what is broken costs itself alone, and is named."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_deba.policies import DEBA, replay
from lightning_deba.records import (
    Decision,
    EpochRecord,
    Grant,
    RunWriter,
    from_columns,
    from_line,
    read_history,
    to_columns,
    to_line,
    write_whole,
)

whole = st.integers(0, 2**40)
records = st.builds(
    EpochRecord,
    epoch=whole,
    batch_size=whole,
    micro_batch_size=whole,
    accumulation=whole,
    world_size=whole,
    optimizer_steps=whole,
    skipped_steps=whole,
    samples=whole,
    seconds=st.floats(),
    loss=st.none() | st.floats(),
    gradient_norm=st.none() | st.floats(),
    component_variance=st.none() | st.floats(),
    learning_rate=st.none() | st.floats(),
)
grants = st.builds(
    Grant,
    epoch=whole,
    proposed=whole,
    batch_size=whole,
    reason=st.text(),
    limits=st.text(),
    signals=st.dictionaries(st.text(), st.floats()),
)
RECORD = EpochRecord(epoch=3, batch_size=64, micro_batch_size=32, accumulation=2, loss=0.5)
GRANT = Grant(3, 96, 64, "calm", "`max_batch_size` is 64", {"confidence": 0.9})


def a_run(epochs):
    """Records of a DEBA run and its grants, with numbers of as many digits as real ones."""
    chance = random.Random(0)
    history = [
        EpochRecord(
            epoch=epoch,
            batch_size=32 + epoch // 5,
            micro_batch_size=32 + epoch // 5,
            optimizer_steps=1563 - epoch,
            samples=50_000,
            **{
                name: chance.random()
                for name in ("seconds", "loss", "gradient_norm", "component_variance", "learning_rate")
            },
        )
        for epoch in range(epochs)
    ]
    grants = [
        Grant(record.epoch, decision.batch_size, decision.batch_size, decision.reason, signals=decision.signals)
        for record, decision in zip(history, replay(DEBA(), history), strict=True)
    ]
    return history, grants


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


# Lines ---------------------------------------------------------------------------------------------------------
# What may be nan is compared by its repr, which is exact.


@given(records)
def test_a_record_survives_its_dictionary(record):
    assert repr(EpochRecord.from_dict(record.to_dict())) == repr(record)


@given(grants)
def test_a_grant_survives_its_dictionary(grant):
    assert repr(Grant.from_dict(grant.to_dict())) == repr(grant)


@given(records, st.none() | grants)
def test_an_epoch_survives_its_line(record, grant):
    assert repr(from_line(to_line(record, grant))) == repr((record, grant))


@given(records, st.none() | grants)
def test_a_line_is_one_line_of_strict_json(record, grant):
    line = to_line(record, grant)
    assert line.splitlines() == [line]
    json.loads(line, parse_constant=refuse)


def test_a_line_reads_plainly():
    assert json.loads(to_line(EpochRecord(0, 8, 8, loss=float("-inf"), seconds=float("nan")), GRANT)) == {
        "epoch": 0,
        "batch_size": 8,
        "micro_batch_size": 8,
        "accumulation": 1,
        "world_size": 1,
        "optimizer_steps": 0,
        "skipped_steps": 0,
        "samples": 0,
        "seconds": "nan",
        "loss": "-inf",
        "gradient_norm": None,
        "component_variance": None,
        "learning_rate": None,
        "gradient_squared": None,
        "gradient_covariance": None,
        "noise_scale_error": None,
        "decision": {
            "epoch": 3,
            "proposed": 96,
            "batch_size": 64,
            "reason": "calm",
            "limits": "`max_batch_size` is 64",
            "signals": {"confidence": 0.9},
        },
    }


def test_what_an_epoch_may_leave_out():
    assert from_line('{"epoch": 0, "batch_size": 8, "micro_batch_size": 4}') == (EpochRecord(0, 8, 4), None)


@pytest.mark.parametrize("size", [0, -32])
def test_no_decision_is_for_less_than_one_sample(size):
    with pytest.raises(ValueError, match=f"^`batch_size` of a decision must be at least 1, got {size}"):
        Decision(size, "too far down")


@pytest.mark.parametrize("size", [48.0, "48", None])
def test_a_decision_is_for_whole_samples(size):
    with pytest.raises(TypeError, match=r"must be a whole number, got .*: write `round\(\.\.\.\)`"):
        Decision(size, "half of a sample")


def test_a_whole_number_of_numpy_is_one():
    decision = Decision(np.int64(48), "by an array")
    assert type(decision.batch_size) is int


# What is not an epoch ------------------------------------------------------------------------------------------

NOT_WHOLE = ["3", 3.0, True, None, [3], "nan"]
NOT_A_NUMBER = ["0.5", "NaN", "infinity", True, [0.5], {}]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epoch", value) for value in NOT_WHOLE),
        *(("samples", value) for value in NOT_WHOLE),
        *(("loss", value) for value in NOT_A_NUMBER),
        *(("seconds", value) for value in [*NOT_A_NUMBER, None]),
    ],
)
def test_a_record_of_a_wrong_type_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^`{name}` must be a (whole )?number, got "):
        from_line(json.dumps(RECORD.to_dict() | {name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("proposed", value) for value in NOT_WHOLE),
        *(("reason", value) for value in [None, 3, ["calm"]]),
        *(("limits", value) for value in [None, 3, {}]),
        *(("signals", value) for value in [None, 3, "c", [0.9]]),
        *(("confidence", {"confidence": value}) for value in [*NOT_A_NUMBER, None]),
    ],
)
def test_a_grant_of_a_wrong_type_is_refused_by_name(name, value):
    field = "signals" if name == "confidence" else name
    with pytest.raises(ValueError, match=f"`{name}`"):
        from_line(json.dumps(RECORD.to_dict() | {"decision": GRANT.to_dict() | {field: value}}))


@pytest.mark.parametrize("decision", [[], [GRANT.to_dict()], "calm", 48, True])
def test_a_decision_that_is_no_object_is_refused(decision):
    with pytest.raises(ValueError, match=r"^`decision` must be a JSON object, got "):
        from_line(json.dumps(RECORD.to_dict() | {"decision": decision}))


@pytest.mark.parametrize("row", [RECORD, GRANT])
def test_an_unknown_field_is_refused_by_name(row):
    with pytest.raises(ValueError, match=f"unknown field `lose` of {type(row).__name__}"):
        type(row).from_dict(row.to_dict() | {"lose": 0.5})


@pytest.mark.parametrize(
    ("row", "name"),
    [
        *((RECORD, name) for name in ("epoch", "batch_size", "micro_batch_size")),
        *((GRANT, name) for name in ("epoch", "proposed", "batch_size")),
        (GRANT, "reason"),
    ],
)
def test_a_missing_field_is_named(row, name):
    with pytest.raises(ValueError, match=f"^`{name}` of {type(row).__name__} is missing"):
        type(row).from_dict({key: value for key, value in row.to_dict().items() if key != name})


@pytest.mark.parametrize("line", ["[]", "3", "null", '"epoch"', "", "{", "{}", "epoch,loss", '{"epoch": 0}', "\x00"])
def test_what_is_no_epoch_is_a_value_error(line):
    with pytest.raises(ValueError, match=r"."):
        from_line(line)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@example(name="loss", value=10**400)
@given(st.sampled_from([*RECORD.to_dict(), "decision", "another"]), anything)
def test_any_field_of_any_kind_is_read_or_a_value_error(name, value):
    line = json.dumps(RECORD.to_dict() | {name: value})
    try:
        found = from_line(line)
    except ValueError:
        return
    assert repr(from_line(to_line(*found))) == repr(found)


def test_a_line_nested_without_end_is_a_value_error():
    with pytest.raises(ValueError, match=r"."):
        from_line("[" * 100_000)


# Files ---------------------------------------------------------------------------------------------------------


def test_a_file_cut_off_anywhere_keeps_the_lines_before(tmp_path):
    history = [EpochRecord(epoch, 32, 32, loss=1 / 3) for epoch in range(3)]
    grants = [Grant(record.epoch, 48, 48, "θ ≥ 1.05 ✓", signals={"c": 0.1}) for record in history]
    lines = [
        json.dumps(json.loads(to_line(record, grant)), ensure_ascii=False).encode()  # characters of several bytes
        for record, grant in zip(history, grants, strict=True)
    ]
    path, written = tmp_path / "history.jsonl", b"\n".join(lines) + b"\n"
    ends = [len(b"\n".join(lines[: end + 1])) for end in range(3)]
    for cut in range(ends[0], len(written) + 1):
        path.write_bytes(written[:cut])
        whole = sum(end <= cut for end in ends)
        between_lines = cut in ends or cut - 1 in ends
        found = read_history(path)
        assert (found.history, found.decisions) == (history[:whole], grants[:whole])
        assert len(found.problems) == (0 if between_lines else 1)
        assert between_lines or found.problems[0].startswith(f"line {whole + 1} of '{path}' is not an epoch's record: ")
    for cut in range(ends[0]):
        path.write_bytes(written[:cut])
        with pytest.raises(
            ValueError, match=rf"^No epoch can be read from '{path}': {'line 1' if cut else 'the file'}"
        ):
            read_history(path)


def test_unreadable_lines_are_named_and_the_others_used(tmp_path):
    lines = [
        "no json",
        to_line(RECORD, GRANT),
        "",
        '{"epoch": 4}',
        to_line(RECORD),
        "[]",
        b"\xff\xfe".decode("latin-1"),
    ]
    (tmp_path / "history.jsonl").write_text("\n".join(lines), encoding="latin-1")
    found = read_history(tmp_path)
    assert (found.history, found.decisions) == ([RECORD, RECORD], [GRANT])
    assert [problem.split(" of ")[0] for problem in found.problems] == ["line 1", "line 4", "line 6", "line 7"]
    assert found.problems[1].endswith("`batch_size` of EpochRecord is missing")


@settings(max_examples=30)
@given(rows=st.lists(st.tuples(records, grants), min_size=1, max_size=5))
def test_a_history_survives_its_file(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "history.jsonl"
    path.write_text("".join(to_line(record, grant) + "\n" for record, grant in rows))
    found = read_history(path)
    assert repr(list(zip(found.history, found.decisions, strict=True))) == repr(rows)
    assert not found.problems


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_an_empty_file_holds_no_epoch(text, tmp_path):
    (tmp_path / "history.jsonl").write_text(text)
    with pytest.raises(ValueError, match="the file is empty"):
        read_history(tmp_path)


def test_a_missing_file_is_named_with_a_remedy(tmp_path):
    for path in (tmp_path / "elsewhere.jsonl", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"No history at '{path}.*pass that"):
            read_history(path)


def test_a_directory_stands_for_the_history_in_it(tmp_path):
    RunWriter(tmp_path).begin({}, [RECORD], [GRANT])
    assert read_history(str(tmp_path)) == read_history(tmp_path / "history.jsonl") == ([RECORD], [GRANT], [])


# Writing a run -------------------------------------------------------------------------------------------------


def test_every_epoch_is_on_disk_when_it_is_added(tmp_path):
    history, grants = a_run(3)
    writer = RunWriter(tmp_path / "logs" / "version_0")
    writer.begin({}, [], [])
    for epoch in range(3):
        writer.append(history[epoch], grants[epoch])
        assert read_history(writer.directory) == (history[: epoch + 1], grants[: epoch + 1], [])


def test_the_histories_of_other_runs_are_kept(tmp_path):
    for epoch in range(3):
        writer = RunWriter(tmp_path)
        writer.begin({}, [], [])
        writer.append(EpochRecord(epoch, 32, 32), GRANT)
    names = ["history-1.jsonl", "history-2.jsonl", "history.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "run.json"]
    assert [read_history(tmp_path / name).history[0].epoch for name in names] == [0, 1, 2]


@pytest.mark.parametrize("written", [0.0, 0.3, 1.0, 2.5, 3.0], ids="{} epochs written".format)
def test_a_resumed_run_goes_on_in_its_own_file(written, tmp_path):
    """Its checkpoint holds three epochs; the file may have lost the end of them, even half a line."""
    history, grants = a_run(4)
    lines = [to_line(record, grant) + "\n" for record, grant in zip(history, grants, strict=True)]
    whole = int(written)
    (tmp_path / "history.jsonl").write_text("".join(lines[:whole]) + lines[whole][: int((written - whole) * 100)])
    writer = RunWriter(tmp_path)
    writer.begin({}, history[:3], grants[:3])
    writer.append(history[3], grants[3])
    assert (tmp_path / "history.jsonl").read_text() == "".join(lines)
    assert not (tmp_path / "history-1.jsonl").exists()


def test_epochs_after_the_checkpoint_are_kept_as_another_history(tmp_path):
    history, grants = a_run(4)
    RunWriter(tmp_path).begin({}, history, grants)
    RunWriter(tmp_path).begin({}, history[:2], grants[:2])
    assert read_history(tmp_path).history == history[:2]
    assert read_history(tmp_path / "history-1.jsonl").history == history


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        3,
        True,
    ],
)
def test_a_resumed_run_knows_its_own_signals(value, tmp_path):
    grant = Grant(0, 32, 32, "of a policy of somebody's own", signals={"signal": value})
    RunWriter(tmp_path).begin({}, [RECORD], [grant])
    RunWriter(tmp_path).begin({}, [RECORD], from_columns(Grant, to_columns([grant])))
    assert not (tmp_path / "history-1.jsonl").exists()


@pytest.mark.parametrize(
    "parameters",
    [
        {"window": None, "bound": float("inf"), "nested": {"threshold": float("nan")}},
        {"stages": [1.0, float("inf")]},
    ],
)
def test_what_ran_is_strict_json(parameters, tmp_path):
    RunWriter(tmp_path).begin({"policy": "mine", "parameters": parameters}, [], [])
    run = json.loads((tmp_path / "run.json").read_text(), parse_constant=refuse)
    assert run["parameters"].keys() == parameters.keys()


def write_forever(path):
    while True:
        for letter in "ab":
            write_whole(path, letter * 1_000_000)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_a_file_is_the_old_one_or_the_new_one_whenever_its_writer_is_killed(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("a" * 1_000_000)
    for _ in range(10):
        writer = multiprocessing.get_context("fork").Process(target=write_forever, args=(path,))
        writer.start()
        found = [path.read_text() for _ in range(10)]
        writer.kill()
        writer.join()
        assert {*found, path.read_text()} <= {"a" * 1_000_000, "b" * 1_000_000}


def test_a_text_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old"


# Columns -------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(records, max_size=5), st.lists(grants, max_size=5))
def test_rows_survive_their_columns(history, decisions):
    assert repr(from_columns(EpochRecord, to_columns(history))) == repr(history)
    assert repr(from_columns(Grant, to_columns(decisions))) == repr(decisions)


def test_columns_of_two_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        from_columns(EpochRecord, {"epoch": [0, 1], "batch_size": [8], "micro_batch_size": [8, 8]})


def test_a_checkpoint_takes_less_than_300_bytes_an_epoch_and_loads_with_weights_only():
    history, decisions = a_run(100)
    file = io.BytesIO()
    torch.save({"history": to_columns(history), "decisions": to_columns(decisions)}, file)
    assert file.tell() < 300 * 100
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert from_columns(EpochRecord, loaded["history"]) == history
    assert from_columns(Grant, loaded["decisions"]) == decisions

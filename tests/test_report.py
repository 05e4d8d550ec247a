"""The report room: what its tables and its page say is what the history holds, whatever the history holds."""

import io
import itertools
import json
import math
import random
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest
from matplotlib.text import Annotation
from rich.console import Console

from lightning_deba import DEBA, EpochRecord, Grant, Hold
from lightning_deba.records import to_line
from lightning_deba.report import (
    plot_batch_size,
    plot_history,
    plot_loss,
    plot_seconds,
    plot_signal,
    summary_table,
    write_figure,
    write_report,
)
from lightning_deba.report.runs import read_runs
from lightning_deba.report.series import signal_series, signal_thresholds
from tests.browser import browse, guarded, in_a_browser, width_of

VOID = {"meta", "input", "br", "hr", "img", "link"}


def simulate(policy, epochs=16, batch_size=32, largest=2048, seed=0):
    """A run of a policy on noisy curves: gradients of a constant part and noise that averages out."""
    rng = random.Random(seed)
    history, grants = [], []
    for t in range(epochs):
        norm = (math.exp(-t / 60) + 2 / math.sqrt(batch_size / 32)) * math.exp(rng.gauss(0, 0.1))
        loss = 2 * math.exp(-4 * t / epochs) * math.exp(rng.gauss(0, 0.05)) + 0.3
        history.append(
            EpochRecord(
                epoch=t,
                batch_size=batch_size,
                micro_batch_size=batch_size,
                optimizer_steps=math.ceil(4096 / batch_size),
                samples=4096,
                seconds=9 * (32 / batch_size) ** 0.2,
                loss=loss,
                gradient_norm=norm,
                component_variance=norm**2 / 1.5e6,
            )
        )
        decision = policy(history)
        batch_size = min(decision.batch_size, largest)
        limits = f"`max_batch_size` is {largest}" if batch_size < decision.batch_size else ""
        grants.append(Grant(t, decision.batch_size, batch_size, decision.reason, limits, decision.signals))
    return history, grants


def write_run(directory, history, grants=(), about=None):
    directory.mkdir(parents=True, exist_ok=True)
    by_epoch = {grant.epoch: grant for grant in grants}
    lines = [to_line(record, by_epoch.get(record.epoch)) for record in history]
    (directory / "history.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if about is not None:
        (directory / "run.json").write_text(json.dumps(about), encoding="utf-8")
    return directory


def about(policy, **others):
    return {"version": 1, "policy": {"name": type(policy).__name__, "parameters": asdict(policy)}, **others}


class Page(HTMLParser):
    """What a reader finds on a page: its decisions, settings, figures, texts, and what it would load."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.open, self.tags, self.attributes, self.labels, self.tooltips, self.ids = [], [], [], [], [], []
        self.tables, self.text, self.title = [], "", ""
        self.feed(self.source)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.tags.append(tag)
        self.attributes += attrs.items()
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag == "svg" and "aria-label" in attrs:
            self.labels.append(attrs["aria-label"])
        if tag == "table":
            self.tables.append((attrs["class"], []))
        if tag == "tr":
            self.tables[-1][1].append([])
        if tag in ("td", "th"):
            self.tables[-1][1][-1].append("")
        if tag == "title" and "svg" in self.open:
            self.tooltips.append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            return
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][1][-1][-1] += data
        elif self.open and self.open[-1] == "title":
            if "svg" in self.open:
                self.tooltips[-1] += data
            else:
                self.title += data

    @property
    def logs(self):
        """Of each run, the epoch, the proposed and the granted size, and the reason of each decision."""
        return [rows[1:] for kind, rows in self.tables if kind == "log"]

    @property
    def settings(self):
        return {row[0]: row[1:] for kind, rows in self.tables if kind == "settings" for row in rows}


def shown(grant, before):
    """A decision as the page writes it."""
    direction = "up to ▲ " if grant.batch_size > before else "down to ▼ " if grant.batch_size < before else ""
    limits = f"Limited: {grant.limits}" if grant.limits else ""
    why = (grant.reason + limits).replace("`", "")
    return [str(grant.epoch), f"{grant.proposed:,}", f"{direction}{grant.batch_size:,}", why]


def printed(table, width=80):
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.fixture
def calm():
    return simulate(DEBA(cooldown=2), largest=256)


# In a browser


@in_a_browser
def test_a_browser_has_nothing_to_complain_of_and_shows_every_decision(tmp_path, calm):
    source = write_report(write_run(tmp_path, *calm)).read_text(encoding="utf-8")
    document, console = browse(guarded(source, tmp_path), tmp_path)
    assert console == []
    (tmp_path / "shown.html").write_text(document, encoding="utf-8")
    history, grants = calm
    expected = [shown(grant, record.batch_size) for grant, record in zip(grants, history, strict=True)]
    assert Page(tmp_path / "shown.html").logs == [expected]


@in_a_browser
@pytest.mark.parametrize("width", [320, 1200])
def test_no_page_of_a_run_is_wider_than_its_window(width, tmp_path, calm):
    source = write_report(write_run(tmp_path, *calm, about(DEBA()))).read_text(encoding="utf-8")
    assert width_of(source, width, tmp_path) <= width


# The page


def test_the_page_lists_every_decision_as_the_history_has_it(tmp_path, calm):
    history, grants = calm
    page = Page(write_report(write_run(tmp_path / "run", history, grants)))
    expected = [shown(grant, record.batch_size) for grant, record in zip(grants, history, strict=True)]
    assert page.logs == [expected]
    assert any("▲" in row[2] for row in expected)
    assert any("Limited" in row[3] for row in expected)


def test_the_page_sums_the_run_up(tmp_path, calm):
    history, grants = calm
    seconds = sum(record.seconds for record in history)
    moves = sum(a.batch_size != b.batch_size for a, b in itertools.pairwise(history))
    page = Page(write_report(write_run(tmp_path / "run", history, grants)))
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert f"16 epochs, batch size 32 → 256 in {moves} changes, 65,536 samples, {seconds:.0f} s of training" in text


def test_each_change_has_a_tooltip_with_its_reason(tmp_path, calm):
    history, grants = calm
    page = Page(write_report(write_run(tmp_path / "run", history, grants)))
    moved = [t for t in range(1, 16) if history[t].batch_size != history[t - 1].batch_size]
    assert len(page.tooltips) == len(moved)
    for tooltip, t in zip(page.tooltips, moved, strict=True):
        change = f"after epoch {t - 1}: {history[t - 1].batch_size} → {history[t].batch_size}. {grants[t - 1].reason}"
        assert tooltip == f"run, {change}"


def test_settings_preset_and_its_source_are_told(tmp_path, calm):
    preset = {"name": "mobilenetv3", "source": "40 epochs on CIFAR-10", "note": "calibrated"}
    policy = DEBA(confidence_threshold=1.05)
    told = about(policy, preset=preset, model="ResNet", max_batch_size=256, versions={"torch": "2.9.0"})
    page = Page(write_report(write_run(tmp_path / "version_0", *calm, told)))
    assert page.settings["confidence_threshold"] == ["1.05"]
    assert page.settings["preset source"] == ["40 epochs on CIFAR-10"]
    assert page.settings["max_batch_size"] == ["256"]
    assert page.settings["version of torch"] == ["2.9.0"]
    assert page.title.startswith("DEBA · mobilenetv3 · version_0")
    assert ">1.05<" in page.source, "the threshold is drawn in"


def test_the_page_loads_nothing_and_has_no_script(tmp_path, calm):
    told = about(DEBA(), preset={"name": "x", "source": "https://example.org/paper"})
    page = Page(write_report(write_run(tmp_path / "run", *calm, told)))
    assert not {"script", "link", "img", "iframe", "object", "embed", "image", "base"} & set(page.tags)
    assert "@import" not in page.source
    assert not [value for name, value in page.attributes if name in ("src", "srcset", "action")]
    # What refers to something refers to a part of this very page.
    targets = [value for name, value in page.attributes if name.endswith("href")]
    targets += re.findall(r"url\(([^)]*)\)", page.source)
    assert targets
    assert {target.removeprefix("#") for target in targets} <= set(page.ids)
    assert page.source.count("http") == page.text.count("http") == 1


def test_the_page_can_be_read_without_eyes(tmp_path, calm):
    page = Page(write_report(write_run(tmp_path / "run", *calm)))
    assert ("lang", "en") in page.attributes
    assert page.tags.count("h1") == page.tags.count("main") == 1
    assert page.tags.count("figure") == page.tags.count("figcaption") == len(page.labels) == 6
    assert page.labels[0].startswith("batch size. Samples per optimizer step")
    scopes = [value for name, value in page.attributes if name == "scope"]
    assert len(scopes) == page.tags.count("th")
    assert len(page.ids) == len(set(page.ids)), "no identifier is used twice"


def test_figures_follow_the_page_into_the_dark(tmp_path, calm):
    page = Page(write_report(write_run(tmp_path / "run", *calm)))
    styles = " ".join(value for name, value in page.attributes if name == "style")
    assert "var(--run-0)" in styles
    assert "var(--ink)" in styles
    assert not re.search("#[0-9a-f]{6}", styles)


def test_the_same_run_gives_the_same_bytes_whatever_the_style(tmp_path, calm):
    run = write_run(tmp_path / "run", *calm, about(DEBA()))
    first = write_report(run, tmp_path / "a.html").read_bytes()
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black", "svg.hashsalt": "other"}):
        second = write_report(run, tmp_path / "b.html").read_bytes()
    assert first == second
    assert dict(matplotlib.rcParams) == before


def test_nothing_in_a_file_becomes_markup(tmp_path):
    evil = "<script>alert('`&`')</script> \ud800 \x1b[31m \x00"
    history = [replace(record, epoch=t) for t, record in enumerate(simulate(Hold(), 3)[0])]
    grants = [Grant(t, 64, 32, evil, evil, {f"<b>$\\frac{t}$": 0.5, "]]>&": 1.0}) for t in range(3)]
    told = {
        "policy": {"name": evil, "parameters": {evil: evil, "list": [evil]}},
        "preset": {"name": evil, "source": evil},
        "versions": {evil: evil},
    }
    page = Page(write_report(write_run(tmp_path / "</title><script>", history, grants, told)))
    assert "script" not in page.tags
    assert "b" in page.tags, "the page's own"
    assert "\x1b" not in page.source
    assert "<script>alert('&')</script>" in page.logs[0][0][3]
    assert any(label.startswith("<b>$\\frac0$.") for label in page.labels)


# What runs may hold


def test_a_truncated_history_is_shown_and_its_problem_named(tmp_path, calm):
    run = write_run(tmp_path / "run", *calm)
    whole = (run / "history.jsonl").read_text()
    (run / "history.jsonl").write_text(whole[:-40])
    page = Page(write_report(run))
    assert "15 epochs" in page.text
    assert "line 16 of" in page.text
    assert len(page.logs[0]) == 15


def test_problems_of_run_json_are_named(tmp_path, calm):
    for number, (text, problem) in enumerate(
        [
            ("{", "run.json cannot be read"),
            ("[" * 100_000, "run.json cannot be read"),
            ("[1]", "run.json must hold a JSON object, got list"),
            ('{"policy": "DEBA"}', "policy of run.json must be a JSON object, got str"),
            ('{"policy": {"parameters": 3}}', "parameters of run.json must be a JSON object, got int"),
            ('{"preset": []}', "preset of run.json must be a JSON object, got list"),
        ]
    ):
        run = write_run(tmp_path / str(number), *calm)
        (run / "run.json").write_text(text)
        assert problem in Page(write_report(run)).text


def test_odd_parameters_do_no_harm(tmp_path, calm):
    parameters = '{"window": 0, "confidence_threshold": NaN, "stability_threshold": "x", "growth": 1e999, "n": 1%s}'
    run = write_run(tmp_path / "run", calm[0])
    (run / "run.json").write_text('{"policy": {"parameters": %s}}' % (parameters % ("0" * 400)))
    settings = Page(write_report(run)).settings
    assert settings["window"] == ["0"]
    assert settings["growth"] == ["inf"]


def test_numbers_that_are_none_or_not_finite_leave_gaps(tmp_path):
    history, grants = simulate(Hold(), 8)
    odd = [math.nan, None, math.inf, -math.inf, 1e308, -1e308]
    for t, value in enumerate(odd, start=1):
        history[t] = replace(history[t], loss=value, gradient_norm=value, component_variance=value)
    history[7] = replace(history[7], seconds=math.nan)
    grants = [replace(grant, signals={"noise": math.inf, "quiet": math.nan}) for grant in grants]
    page = Page(write_report(write_run(tmp_path / "run", history, grants)))
    assert "nan" not in " ".join(value or "" for name, value in page.attributes if name == "d")
    assert "8 epochs" in page.text
    lines = printed(summary_table(history, grants))
    assert len(lines) == 10


def test_a_run_without_any_measurement(tmp_path):
    history = [EpochRecord(t, 32, 32) for t in range(3)]
    page = Page(write_report(write_run(tmp_path / "run", history)))
    assert "Not drawn: signals, training loss." in page.text
    assert "0 samples, 0 s of training." in page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "No decision is recorded in this history." in page.text


def test_one_epoch(tmp_path):
    page = Page(write_report(write_run(tmp_path / "run", *simulate(DEBA(), 1))))
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "1 epoch, batch size 32 throughout, 4,096 samples, 9 s of training" in text
    assert page.logs == [[["0", "32", "32", "hold: a variation needs two epochs, and there is one"]]]


def test_300_epochs_of_five_runs_stay_under_a_megabyte(tmp_path):
    policy = DEBA(cooldown=2)
    runs = [write_run(tmp_path / f"version_{seed}", *simulate(policy, 300, seed=seed)) for seed in range(5)]
    assert len(Page(write_report(runs[0])).logs[0]) == 300
    path = write_report(runs)
    assert path.stat().st_size < 1_000_000
    assert "of 300 decisions are listed; history.jsonl holds them all." in Page(path).text


def test_constant_signals(tmp_path):
    history = [replace(r, loss=1.0, gradient_norm=1.0, component_variance=1.0) for r in simulate(Hold(), 5)[0]]
    page = Page(write_report(write_run(tmp_path / "run", history)))
    assert len(page.labels) == 6


def test_decisions_that_are_alike_share_a_row(tmp_path):
    page = Page(write_report(write_run(tmp_path / "run", *simulate(Hold(), 5))))
    assert page.logs == [[["0 to 4", "32", "32", "fixed batch size"]]]


def test_signals_of_other_policies_are_drawn_against_their_own_thresholds(tmp_path):
    history, grants = simulate(Hold(), 5)
    grants = [replace(grant, signals={"noise_scale": 10.0 + grant.epoch}) for grant in grants]
    told = {"policy": {"name": "NoiseScale", "parameters": {"noise_scale_threshold": 12.5}}}
    page = Page(write_report(write_run(tmp_path / "run", history, grants, told)))
    assert [label.split(".")[0] for label in page.labels[3:]] == ["noise scale"]
    assert ">12.5<" in page.source
    assert "Gradient-norm variation" not in page.text, "how to read DEBA is nothing to this policy"


def test_hundreds_of_signals_are_not_drawn(tmp_path):
    history, grants = simulate(Hold(), 3)
    grants = [replace(grant, signals={f"s{number}": 1.0 for number in range(300)}) for grant in grants]
    page = Page(write_report(write_run(tmp_path / "run", history, grants)))
    assert len(page.labels) == 9
    assert "Not drawn: s6, s7" in page.text


def test_counts_beyond_all_measure_are_left_out(tmp_path):
    history, _ = simulate(Hold(), 4)
    history[1] = replace(history[1], samples=10**400)
    history[2] = replace(history[2], batch_size=-1)
    page = Page(write_report(write_run(tmp_path / "run", history)))
    assert "2 epochs" in page.text
    assert "2 of its epochs hold counts that no training can have" in page.text


def test_a_dry_run_says_so(tmp_path, calm):
    page = Page(write_report(write_run(tmp_path / "run", *calm, about(DEBA(), dry_run=True))))
    assert "A dry run: decisions were written down, not carried out." in page.text


# Several runs, and paths


def test_two_runs_of_different_length_share_the_figures(tmp_path, calm):
    deba = write_run(tmp_path / "deba" / "version_0", *calm, about(DEBA()))
    fixed = write_run(tmp_path / "fixed" / "version_0", *simulate(Hold(), 7), about(Hold()))
    path = write_report([deba, str(fixed)])
    assert path == deba / "report.html"
    page = Page(path)
    assert len(page.labels) == 6
    assert [len(log) for log in page.logs] == [16, 1]
    assert page.settings["policy"] == ["DEBA", "Hold"]
    assert page.settings["growth"] == ["1.5", ""]
    assert page.text.count("DEBA · deba") >= 2
    assert {"var(--run-0)", "var(--run-1)"} <= set(re.findall(r"var\(--run-\d\)", page.source))


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["lightning_logs/version_0"], ["DEBA · version_0"]),
        (["logs/version_0", "logs/version_1"], ["DEBA · version_0", "DEBA · version_1"]),
        (["fixed/version_0", "deba/version_0"], ["DEBA · fixed", "DEBA · deba"]),
        (["a", "a/b"], ["DEBA · a", "DEBA · a/b"]),
        (["a/x/version_0", "b/x/version_1"], ["DEBA · a/x/version_0", "DEBA · b/x/version_1"]),
    ],
)
def test_runs_are_named_by_what_tells_them_apart(tmp_path, places, names):
    runs = [write_run(tmp_path / place, *simulate(Hold(), 2), about(DEBA())) for place in places]
    assert [run.name for run in read_runs(runs)] == names


def test_a_history_file_stands_for_its_run(tmp_path, calm):
    run = write_run(tmp_path / "run", *calm, about(DEBA()))
    assert write_report(run / "history.jsonl") == run / "report.html"
    assert "DEBA · run" in (run / "report.html").read_text(encoding="utf-8")


def test_the_output_may_be_a_directory_or_lie_in_a_new_one(tmp_path, calm):
    run = write_run(tmp_path / "run", *calm)
    assert write_report([run], tmp_path) == tmp_path / "report.html"
    assert write_report([run], str(tmp_path / "new" / "page.html")).is_file()


def test_what_cannot_be_reported_is_refused(tmp_path, calm):
    run = write_run(tmp_path / "run", *calm)
    with pytest.raises(FileNotFoundError, match=r"No history at '.*nowhere'.*pass that"):
        write_report([run, tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="`runs` must name at least one run's directory, got none"):
        write_report([])
    with pytest.raises(ValueError, match=r"`runs` must be different runs, got '.*run' twice"):
        write_report([run, run / "history.jsonl"])
    with pytest.raises(OSError, match=r"`output` must be a file that can be written, got .* Pass another, such as"):
        write_report(run, run / "history.jsonl" / "report.html")
    beyond = write_run(tmp_path / "beyond", [EpochRecord(0, 0, 32)])
    with pytest.raises(ValueError, match=r"No epoch of .* holds plausible counts"):
        write_report(beyond)


# The table for the terminal


def test_the_table_shows_every_epoch_of_a_short_run(calm):
    history, grants = calm
    lines = printed(summary_table(history, grants))
    assert lines[0].split() == ["epoch", "batch", "steps", "loss", "conf", "dN", "dL", "decision"]
    assert all(len(line) <= 80 for line in lines)
    assert "\x1b" not in "".join(lines)
    rows = [line for line in lines[2:] if re.match(r" *\d+ ", line[:8])]
    assert [int(row.split()[0]) for row in rows] == list(range(16))
    for row, grant, record in zip(rows, grants, history, strict=True):
        assert row.split()[1] == str(record.batch_size)
        assert (f"▲ {grant.batch_size}, " in row) == (grant.batch_size > record.batch_size)
    assert "not 364: `max_batch_size` is 256" in " ".join(" ".join(lines).split())


def test_the_table_has_room_for_three_signals_and_every_number():
    names = ["noise_scale_above", "step_overhead", "seconds_per_sample", "goodput_gain", "noise_scale", "x"]
    history = [EpochRecord(t, 32, 32, optimizer_steps=1000, loss=0.123) for t in range(4)]
    grants = [Grant(t, 32, 32, "hold: " + "evidence " * 30, signals=dict.fromkeys(names, 123.456)) for t in range(4)]
    lines = printed(summary_table(history, grants))
    assert lines[0].split() == ["epoch", "batch", "steps", "loss", "gain", "noise", "noise_scale…", "decision"]
    assert all(row.split()[:7] == [str(t), "32", "1000", "0.123", *["123.456"] * 3] for t, row in enumerate(lines[2:6]))


def test_the_table_of_a_long_run_keeps_to_what_changed():
    history, grants = simulate(DEBA(), 300)
    lines = printed(summary_table(history, grants))
    moved = [g.epoch for g, r in zip(grants, history, strict=True) if g.batch_size != r.batch_size]
    rows = [int(line.split()[0]) for line in lines[2:-1] if re.match(r" *\d+ +\d", line)]
    assert set(rows) >= {0, 299, *moved}
    assert len(rows) <= len(moved) + 3
    assert lines[-1].startswith(f"{len(rows)} of 300 epochs")


def test_the_table_keeps_to_the_characters_of_its_stream(calm):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=stream, width=80).print(summary_table(*calm))
    stream.flush()
    assert b"^ 48, increase" in stream.buffer.getvalue()


def test_the_table_takes_no_markup_or_control_codes_from_a_reason():
    lines = printed(summary_table([EpochRecord(0, 32, 32)], [Grant(0, 48, 48, "[red]up[/red] \x1b[31m")]))
    assert lines[-1].split(maxsplit=4)[-1] == "▲ 48, [red]up[/red]  [31m"


# Figures


def test_plots_return_their_axes_and_leave_nothing_open(calm):
    from matplotlib import pyplot

    history, grants = calm
    drawn = [plot(history) for plot in (plot_batch_size, plot_loss, plot_seconds)]
    drawn.append(plot_signal(history, grants, "confidence", threshold=1.0))
    assert [ax.get_ylabel() for ax in drawn] == [
        "batch size (samples per step)",
        "training loss",
        "training time",
        "confidence",
    ]
    assert {ax.get_xlabel() for ax in drawn} == {"samples seen"}
    assert len(plot_history(history, grants, thresholds={"confidence": 1.0}).axes) == 6
    assert pyplot.get_fignums() == []


def test_each_change_is_marked_with_the_epoch_after_which_it_came(calm):
    history, grants = calm
    ax = plot_batch_size(history)
    changed = [grant.epoch for grant in grants[:-1] if grant.batch_size != history[grant.epoch].batch_size]
    assert [text.get_text() for text in ax.texts if not isinstance(text, Annotation)] == list(map(str, changed))
    assert all(isinstance(text, Annotation) for text in plot_batch_size(history, label="one of several").texts)


def test_a_change_that_no_epoch_came_after_says_so(tmp_path, calm):
    history, grants = calm
    last = next(grant.epoch for grant in grants if grant.batch_size != history[grant.epoch].batch_size)
    cut = write_run(tmp_path / "cut", history[: last + 1], grants[: last + 1])
    assert Page(write_report(cut)).text.count("The training ended here.") == 1
    whole = write_run(tmp_path / "whole", history[: last + 2], grants[: last + 1])
    assert "The training ended here." not in Page(write_report(whole)).text


def test_batch_size_axis_is_in_plain_octaves(calm):
    ax = plot_batch_size(calm[0])
    ax.figure.draw_without_rendering()
    assert [label.get_text() for label in ax.get_yticklabels() if label.get_text()][-4:] == ["64", "128", "256", "512"]


def test_two_runs_in_the_same_axes_are_told_apart_and_both_fit(calm):
    ax = plot_loss(calm[0], label="deba")
    other = [replace(record, loss=9.0) for record in simulate(Hold(), 40)[0]]
    assert plot_loss(other, ax=ax, label="fixed", run=1) is ax
    first, second = ax.get_lines()
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()
    assert ax.get_ylim()[1] > 9
    assert ax.get_xlim()[1] > 40 * 4096
    assert [text.get_text() for text in ax.legend().get_texts()] == ["deba", "fixed"]


def test_a_threshold_far_from_the_signal_is_in_view(calm):
    ax = plot_signal(*calm, "loss_variation", threshold=7.0)
    assert ax.get_ylim()[1] > 7


def test_figures_refuse_what_they_cannot_draw(calm):
    with pytest.raises(ValueError, match="`history` must hold at least one epoch's record, got none"):
        plot_loss([])
    with pytest.raises(ValueError, match=r"`name` must be a signal of the run, got 'noise'.*'confidence'"):
        plot_signal(*calm, "noise")


def test_signals_are_the_grants_own_or_else_derived_anew(calm):
    history, grants = calm
    derived, told = signal_series(history), signal_series(history, grants)
    assert list(derived) == list(told) == ["confidence", "gradient_norm_variation", "loss_variation"]
    for name in told:
        assert told[name] == pytest.approx(derived[name], nan_ok=True)


def test_thresholds_are_read_from_parameters_that_are_numbers():
    assert signal_thresholds(asdict(DEBA())) == {
        "confidence": 1.0,
        "gradient_norm_variation": 0.3,
        "loss_variation": 0.3,
    }
    assert signal_thresholds({"a_threshold": "1", "b_threshold": True, "c_threshold": math.inf}) == {}


def test_the_template_is_part_of_the_package():
    import lightning_deba.report

    assert (Path(lightning_deba.report.__file__).parent / "page.html.j2").is_file()


def test_a_figure_is_the_same_bytes_for_the_same_run(tmp_path):
    run = write_run(tmp_path / "run", *simulate(DEBA()), about(DEBA()))
    first, second = (write_figure(run, tmp_path / "deep" / name) for name in ("a.svg", "b.svg"))
    assert first.read_bytes() == second.read_bytes()
    assert write_figure(run, tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="format"):
        write_figure(run, tmp_path / "a.gif2")

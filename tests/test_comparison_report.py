"""Stored results, what they say of gain and loss, and the figures and the page that show it."""

from __future__ import annotations

import html
import json
import math
import random
import re
import statistics
from dataclasses import replace
from itertools import accumulate

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lightning_deba.comparison import page as pages
from lightning_deba.comparison.figures import plot_accuracy, plot_batch_sizes, plot_comparison
from lightning_deba.comparison.gains import Gain, best_fixed, fixed_sizes, gains
from lightning_deba.comparison.grid import Grid
from lightning_deba.comparison.intervals import Interval
from lightning_deba.comparison.markdown import markdown_table
from lightning_deba.comparison.measures import measure
from lightning_deba.comparison.page import write_comparison_report
from lightning_deba.comparison.runs import Run, load_runs, shipped_runs, write_runs
from lightning_deba.comparison.table import line_of
from lightning_deba.comparison.words import missing as missing_runs
from lightning_deba.report.figures import COLORS, INK, MUTED
from tests.browser import NOTHING, browse, in_a_browser
from tests.evidence import comparison as evidence
from tests.test_comparison import CONFIGS
from tests.test_report import Page

# Share of the baseline's time, points of accuracy more, and the batch sizes that a run goes through.
ARMS = {
    "fixed_16": (1.0, 0.0, [16]),
    "fixed_64": (0.6, 0.3, [64]),
    "fixed_256": (0.5, -8.0, [256]),
    "deba": (0.8, 0.4, [16, 24, 81]),
    "goodput": (0.55, 0.9, [16, 64, 128]),
    "plateau": (1.0, 0.1, [16, 16, 32]),
    "slow": (1.2, -2.0, [16, 8, 8]),
    "cosine": (1.1, 2.0, [16, 16, 17]),
}


def a_run(arm="fixed_16", seed=0, model="resnet18", epochs=12, time=1.0, points=0.0, sizes=(16,), **changes) -> Run:
    """A made-up run whose seed matters far more than its arm, and alike for all arms."""
    luck = random.Random(seed).uniform(-0.02, 0.02)
    noise = random.Random(repr((model, arm, seed)))
    top = 0.8 + luck + points / 100 + noise.uniform(-0.0015, 0.0015)
    batch_sizes = [sizes[epoch * len(sizes) // epochs] for epoch in range(epochs)]
    seconds = [4 * time * noise.uniform(0.98, 1.02) for _ in range(epochs)]
    given_ = {
        "seconds": seconds,
        "processor_seconds": seconds,
        "samples": [800] * epochs,
        "steps": [math.ceil(800 / size) for size in batch_sizes],
        "batch_sizes": batch_sizes,
        "accuracies": [round(top - 0.6 * math.exp(-epoch / 2), 4) for epoch in range(epochs)],
        "test_accuracy": round(top, 4),
    }
    return Run(model=model, arm=arm, seed=seed, **{**given_, **changes})


def a_grid(models=("resnet18",), arms=ARMS, seeds=3, **others) -> list[Run]:
    return [
        a_run(arm, seed, model, time=time, points=points, sizes=sizes, **others)
        for model in models
        for arm, (time, points, sizes) in arms.items()
        for seed in range(seeds)
    ]


@pytest.fixture(scope="module")
def runs():
    return a_grid()


# Stored results


whole, share = st.integers(1, 10**6), st.floats(0, 1)


@st.composite
def any_runs(draw):
    epochs = draw(st.integers(1, 4))

    def series(values):
        return draw(st.lists(values, min_size=epochs, max_size=epochs))

    keys = draw(st.sets(st.tuples(st.text(min_size=1), st.text(min_size=1), st.integers(0, 9)), max_size=4))
    return [
        Run(
            model=model,
            arm=arm,
            seed=seed,
            seconds=series(st.floats(0, 1e9)),
            processor_seconds=series(st.floats(0, 1e9)),
            samples=series(st.integers(0, 10**9)),
            steps=series(st.integers(0, 10**9)),
            batch_sizes=series(whole),
            accuracies=series(share),
            test_accuracy=draw(st.none() | share),
            callback_seconds=draw(st.none() | st.floats(0, 1e9)),
        )
        for model, arm, seed in keys
    ]


@given(any_runs())
def test_what_was_written_is_read_again_but_for_digits_that_say_nothing(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("runs")
    read = load_runs(write_runs(made, folder / "a.jsonl"))
    assert [run.key for run in read] == sorted(run.key for run in made)
    for before, after in zip(sorted(made, key=lambda run: run.key), read, strict=True):
        for name in ("samples", "steps", "batch_sizes"):
            assert getattr(after, name) == getattr(before, name)
        for name, error in (("seconds", 1e-3), ("processor_seconds", 1e-3), ("accuracies", 0)):
            assert getattr(after, name) == pytest.approx(getattr(before, name), rel=error, abs=1e-6)
        assert (after.test_accuracy is None) == (before.test_accuracy is None)
    assert write_runs(read, folder / "b.jsonl").read_bytes() == (folder / "a.jsonl").read_bytes()


def test_a_directory_and_a_file_of_it_give_the_same(tmp_path, runs):
    for run in runs:
        folder = tmp_path / "runs" / run.model / run.arm / f"seed-{run.seed}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({**run.to_dict(), "about": {"torch": "2"}}))
    read = load_runs(tmp_path)
    assert read == sorted(runs, key=lambda run: run.key)
    again = load_runs(write_runs(reversed(read), tmp_path / "new" / "runs.jsonl"))
    assert [sum(run.seconds) for run in again] == pytest.approx([sum(run.seconds) for run in read], rel=1e-3)
    assert (tmp_path / "new" / "runs.jsonl").stat().st_size < 600 * len(runs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "`seed` must be a whole number of at least 0, got -1"),
        ({"seed": True}, "`seed` must be a whole number of at least 0, got True"),
        ({"arm": ""}, "`arm` must be a name, got ''"),
        ({"model": ["a"]}, "`model` must be a name"),
        ({"seconds": [1, -2.0]}, "`seconds` must be a list of seconds, none below 0"),
        ({"callback_seconds": -1.0}, "`callback_seconds` must be seconds, not below 0, or null"),
        ({"processor_seconds": [math.inf]}, "`processor_seconds` must be a list of seconds"),
        ({"seconds": [math.nan]}, "`seconds` must be a list of seconds"),
        ({"samples": [1.5]}, "`samples` must be a list of whole numbers of at least 0"),
        ({"steps": 3}, "`steps` must be a list of whole numbers"),
        ({"batch_sizes": [0]}, "`batch_sizes` must be a list of whole numbers of at least 1"),
        ({"accuracies": ["0.5"]}, "`accuracies` must be a list of numbers"),
        ({"test_accuracy": "good"}, "`test_accuracy` must be a number, or null, got 'good'"),
        ({"accuracies": [0.5]}, "its epochs count differently, \\[1, 12\\]"),
        ({"model": None}, "`model` must be a name, got None"),
        ({"model": "x" * 10**6, "seed": "y" * 10**6}, "`seed` must be .{120}…$|`seed` must be .{1,140}"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path, change, message):
    path = write_runs([a_run(seed=0), a_run(seed=1)], tmp_path / "runs.jsonl")
    broken = {**a_run(seed=2).to_dict(), **change}
    path.write_text(path.read_text() + "\n" + json.dumps(broken) + "\n")
    with pytest.raises(
        ValueError, match=f"runs.jsonl', line 4 cannot be read: no result of a run: {message}"
    ) as caught:
        load_runs(path)
    assert len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize("line", ["{", "[]", "3", "null", "\x00", "[" * 100_000, '{"model": "a"}'])
def test_what_is_no_result_is_refused(tmp_path, line):
    path = tmp_path / "runs.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match="line 1 cannot be read"):
        load_runs(path)


def test_no_run_is_there_twice(tmp_path):
    with pytest.raises(ValueError, match="got resnet18/fixed_16/0 twice"):
        write_runs([a_run(), a_run()], tmp_path / "runs.jsonl")
    path = write_runs([a_run()], tmp_path / "runs.jsonl")
    path.write_text(2 * path.read_text())
    with pytest.raises(ValueError, match="line 2 cannot be read: line 1 has the result of resnet18/fixed_16/0 already"):
        load_runs(path)


def test_a_path_that_is_not_there_is_an_error_and_an_empty_directory_is_not(tmp_path):
    assert load_runs(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="`path` must be the directory of a comparison or a file of results"):
        load_runs(tmp_path / "typo")


def test_the_shipped_runs_are_whole_and_in_their_compact_form(tmp_path):
    shipped = shipped_runs()
    assert write_runs(shipped, tmp_path / "again.jsonl").read_bytes() == evidence.SHIPPED.read_bytes()
    assert {len(run.accuracies) for run in shipped} == {25}
    assert {sum(run.samples) for run in shipped} == {25 * 800}
    assert {run.arm for run in shipped} >= {"fixed_16", "fixed_64", "deba"}
    assert all(run.test_accuracy is not None for run in shipped)


# What pays


def test_gains_are_taken_seed_by_seed():
    runs = [a_run(seed=seed, test_accuracy=0.5 + 0.1 * seed) for seed in range(3)]
    runs += [a_run("deba", seed, test_accuracy=0.51 + 0.1 * seed) for seed in range(3)]
    runs = [
        replace(run, processor_seconds=[10.0 * (1 + run.seed) * (0.8 if run.arm == "deba" else 1)] * 12) for run in runs
    ]
    (gain,) = gains(measure(runs, "fixed_16"), "fixed_16")
    assert (gain.model, gain.arm, gain.pairs, gain.word) == ("resnet18", "deba", 3, "pays")
    assert gain.time == pytest.approx((-0.2, -0.2, -0.2))
    assert gain.accuracy == pytest.approx((0.01, 0.01, 0.01))


def test_validation_stands_in_where_a_run_was_not_tested():
    runs = [a_run(test_accuracy=0.9), a_run("deba", test_accuracy=None)]
    (gain,) = gains(measure(runs, "fixed_16"), "fixed_16")
    assert gain.accuracy.value == pytest.approx(runs[1].accuracies[-1] - runs[0].accuracies[-1])


def test_without_a_pair_there_is_no_gain():
    runs = [a_run(seed=0), a_run("deba", seed=1), a_run("goodput", test_accuracy=math.nan)]
    assert gains(measure(runs, "fixed_16"), "fixed_16") == []
    free = [a_run(processor_seconds=[0.0] * 12), a_run("deba")]
    assert gains(measure(free, "fixed_16"), "fixed_16") == []


LESS, NONE, MORE = Interval(-0.2, -0.3, -0.1), Interval(0.1, -0.1, 0.3), Interval(0.2, 0.1, 0.3)


@pytest.mark.parametrize(
    ("time", "accuracy", "word"),
    [
        (LESS, MORE, "pays"),
        (LESS, NONE, "pays"),
        (NONE, MORE, "pays"),
        (LESS, Interval(-0.006, -0.02, 0.01), "trade"),  # a loss that is likely, and not certain
        (LESS, Interval(-0.004, -0.02, 0.01), "pays"),
        (LESS, Interval(0.795 - 0.8, -0.02, 0.01), "pays"),  # half a point, but for its last digits
        (LESS, LESS, "trade"),
        (MORE, MORE, "trade"),
        (NONE, NONE, "no difference"),
        (MORE, NONE, "worse"),
        (NONE, LESS, "worse"),
        (MORE, LESS, "worse"),
    ],
)
def test_the_word_for_both_differences(time, accuracy, word):
    assert Gain("m", "a", 3, time, accuracy).word == word
    assert Gain("m", "a", 1, time, accuracy).word == "one seed"


def test_the_bar_is_the_fastest_fixed_size_that_is_about_as_accurate(runs):
    rows = measure(runs, "fixed_16")
    assert fixed_sizes(runs, "resnet18") == {"fixed_16": 16, "fixed_64": 64, "fixed_256": 256}
    # 256 is faster and loses 8 points; goodput is faster and no fixed size.
    assert best_fixed(runs, rows, "fixed_16", "resnet18") == "fixed_64"
    few = [run for run in runs if run.arm in ("fixed_16", "fixed_256", "deba")]
    assert best_fixed(few, measure(few, "fixed_16"), "fixed_16", "resnet18") == "fixed_16"
    one = [run for run in runs if run.arm in ("fixed_16", "deba")]
    assert best_fixed(one, measure(one, "fixed_16"), "fixed_16", "resnet18") is None
    assert best_fixed(runs, rows, "deba", "resnet18") is None
    assert best_fixed(runs, rows, "fixed_16", "another") is None


@pytest.mark.parametrize(("points", "bar"), [(-0.3, "fixed_32"), (-0.7, "fixed_16")])
def test_half_a_point_may_be_lost(points, bar):
    runs = a_grid(arms={"fixed_16": ARMS["fixed_16"], "fixed_32": (0.7, points, [32])}, seeds=5)
    assert best_fixed(runs, measure(runs, "fixed_16"), "fixed_16", "resnet18") == bar


# Figures


def lines_of(ax, color):
    return [line for line in ax.get_lines() if to_hex(line.get_color()) == color and len(line.get_xdata()) > 2]


def test_the_curve_is_the_median_of_what_each_seed_had_measured_by_then(runs):
    ax = plot_accuracy(runs, arms=["deba"], baseline="fixed_16")
    for arm, color in (("fixed_16", INK), ("deba", COLORS[0])):
        (line,) = lines_of(ax, color)
        mine = [run for run in runs if run.arm == arm]

        def had(run, time):
            ends = accumulate(run.processor_seconds)
            return [accuracy for end, accuracy in zip(ends, run.accuracies, strict=True) if end <= time][-1]

        for time, shown in zip(line.get_xdata(), line.get_ydata(), strict=True):
            assert shown == pytest.approx(statistics.median(had(run, time) for run in mine))
        assert line.get_drawstyle() == "steps-post"
        assert line.get_xdata()[-1] == pytest.approx(max(sum(run.processor_seconds) for run in mine))
    assert {text.get_text().split()[0] for text in ax.texts} == {"fixed_16", "deba"}
    assert len(ax.collections) == 2, "a band each"


def test_figures_of_other_arms_of_a_model_have_the_same_ends(runs):
    for plot in (plot_accuracy, plot_batch_sizes):
        one, other = (plot(runs, arms=[arm], baseline="fixed_16") for arm in ("deba", "slow"))
        assert (one.get_xlim(), one.get_ylim()) == (other.get_xlim(), other.get_ylim())


def test_the_batch_size_of_each_epoch(runs):
    ax = plot_batch_sizes(runs, arms=["deba"])
    (line,) = lines_of(ax, COLORS[0])
    drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert drawn == {0: 16, 4: 24, 8: 81, 12: 81}
    assert ax.get_yscale() == "log"
    assert [text.get_text() for text in ax.texts] == ["deba 81"]


def test_runs_of_different_lengths_share_a_curve():
    short = a_run("deba", 1, epochs=6, sizes=[64])
    ax = plot_batch_sizes([a_run("deba", 0, sizes=[16]), short])
    (line,) = [line for line in ax.get_lines() if to_hex(line.get_color()) == COLORS[0]]
    assert list(line.get_ydata()) == [40, 16, 16]
    assert list(line.get_xdata()) == [0, 6, 12]
    assert plot_accuracy([a_run("deba", 0), short]).get_xlim()[1] > 40


def test_a_metric_that_is_no_number_leaves_its_epochs_out():
    gone = a_run("deba", accuracies=[math.nan] * 12, test_accuracy=math.nan)
    half = a_run("goodput", accuracies=[math.nan] * 6 + [0.7] * 6)
    ax = plot_accuracy([a_run(), gone, half], baseline="fixed_16")
    assert [text.get_text() for text in ax.texts][1:] == ["goodput 70.0%"]


def test_a_point_is_where_its_gains_are_with_its_intervals(runs):
    ax = plot_comparison(runs, baseline="fixed_16")
    found = gains(measure(runs, "fixed_16"), "fixed_16")
    points = {line.get_gid(): line for line in ax.get_lines() if (line.get_gid() or "").startswith("change-")}
    assert len(points) == len(found) == len(ARMS) - 1
    spans = [sorted(zip(*line.get_data(), strict=True)) for line in ax.get_lines() if len(line.get_xdata()) == 2]
    for number, gain in enumerate(found):
        x, y = 100 * gain.time.value, 100 * gain.accuracy.value
        point = points[f"change-{number}"]
        assert (point.get_xdata()[0], point.get_ydata()[0]) == pytest.approx((x, y))
        assert [(100 * gain.time.low, y), (100 * gain.time.high, y)] in spans
        assert [(x, 100 * gain.accuracy.low), (x, 100 * gain.accuracy.high)] in spans
        marker = {"fixed_64": "D", "fixed_256": "s"}.get(gain.arm, "o")
        color = {"pays": COLORS[2], "trade": COLORS[4], "worse": COLORS[1]}.get(gain.word, MUTED)
        assert (point.get_marker(), to_hex(point.get_color())) == (marker, color)
        assert (point.get_markerfacecolor() == "none") == (gain.word == "no difference")
    assert {gain.word for gain in found} == {"pays", "trade", "worse", "no difference"}
    assert {text.get_text() for text in ax.texts} >= {"deba", "fixed_64, the bar", "faster and more accurate"}
    left, right = ax.get_xlim()
    assert left < -50 < 20 < right


def test_one_seed_has_a_point_and_no_interval():
    ax = plot_comparison(a_grid(seeds=1), baseline="fixed_16")
    points = [line for line in ax.get_lines() if (line.get_gid() or "").startswith("change-")]
    assert len(points) == 7
    assert {point.get_markerfacecolor() for point in points} == {"none"}
    assert all(map(math.isfinite, (*ax.get_xlim(), *ax.get_ylim())))


def test_figures_take_axes_or_make_their_own_and_leave_nothing_open(runs):
    from matplotlib import pyplot

    for plot, names in (
        (plot_accuracy, {}),
        (plot_batch_sizes, {"arms": ["deba"]}),
        (plot_comparison, {"baseline": "fixed_16"}),
    ):
        ax = Figure().add_subplot()
        assert plot(runs, ax, **names) is ax
        assert plot(runs, **names).figure is not ax.figure
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize("plot", [plot_accuracy, plot_batch_sizes, plot_comparison])
def test_what_cannot_be_drawn_is_refused(plot, runs):
    with pytest.raises(ValueError, match="`runs` must be one or more of one model, got none"):
        plot([], baseline="fixed_16")
    with pytest.raises(ValueError, match="got resnet18, vit"):
        plot([*runs, a_run(model="vit")], baseline="fixed_16")
    with pytest.raises(ValueError, match=r"`baseline` must be among the arms .*, got 'fixed_8'"):
        plot(runs, baseline="fixed_8")


def test_an_arm_that_was_not_run_is_refused(runs):
    with pytest.raises(ValueError, match=r"`arms` must be among the arms .*, got 'debar'"):
        plot_accuracy(runs, arms=["deba", "debar"])


# The page


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Two models, one of them with two runs missing."""
    made = a_grid(("resnet18", "vit_tiny"))
    missing = {("vit_tiny", "deba", 1), ("vit_tiny", "deba", 2)}
    folder = tmp_path_factory.mktemp("page")
    return write_comparison_report([run for run in made if run.key not in missing], folder, baseline="fixed_16")


@pytest.fixture(scope="module")
def page(path):
    return Page(path)


def sentences(page, begin, end):
    return page.text[page.text.index(begin) : page.text.index(end)]


def test_the_table_holds_every_arm_with_its_numbers(page, runs):
    head, *rows = page.tables[0][1]
    assert head[:5] == ["Arm", "Time", "Points", "Verdict", "Over the bar"]
    assert head[5:] == ["Test accuracy", "Time spent", head[7], "Steps", "Last batch", "Overhead", "Runs"]
    assert [row[0] for row in rows] == [
        "fixed_16baseline",
        "fixed_64bar to beat",
        "fixed_256",
        "cosine",
        "deba",
        "goodput",
        "plateau",
        "slow",
    ]
    found = {gain.arm: gain for gain in gains(measure(runs, "fixed_16"), "fixed_16")}
    over = {gain.arm: gain.word for gain in gains(measure(runs, "fixed_16"), "fixed_64")}
    for name, time, points, word, over_bar, accuracy, *_, count in rows:
        arm = re.sub("baseline|bar to beat", "", name)
        mine = [run for run in runs if run.arm == arm]
        assert accuracy == f"{statistics.median(run.test_accuracy for run in mine):.1%}"
        assert (count, over_bar) == ("3", over.get(arm, "–"))
        if arm in found:
            gain = found[arm]
            assert word == gain.word
            assert time.replace("−", "-").startswith(f"{100 * gain.time.value:+.0f}%")
            low, high = (f"{100 * bound:+.1f}" for bound in gain.accuracy[1:])
            assert points.replace("−", "-") == f"{100 * gain.accuracy.value:+.1f}{low} to {high}"
    assert rows[1][8:] == ["156", "64", "–", "3"]
    assert rows[2][7] == "never"


def test_the_page_answers_first(page):
    answer = sentences(page, "Against", "Time and accuracy at once")
    assert "Against fixed_16, of 14 arms over 2 models" in answer
    assert "On resnet18, the bar to beat is fixed_64, in hindsight the best fixed batch size: −40% time" in answer
    assert "Over the bar, 2 of 9 policies pay: goodput on resnet18 and goodput on vit_tiny." in answer


def test_missing_runs_are_said(page, runs, tmp_path):
    assert "vit_tiny with deba: seeds 1 and 2" in page.text
    whole_ = Page(write_comparison_report(runs, tmp_path / "whole.html", baseline="fixed_16"))
    assert "missing" not in whole_.text
    grid = Grid.from_dict(
        {
            "models": {"resnet18": {"class_path": "a"}},
            "data": {"class_path": "a"},
            "arms": {arm: {"batch_size": 16} for arm in (*ARMS, "new")},
            "seeds": 4,
            "epochs": 1,
        }
    )
    told = missing_runs(runs, grid.jobs())
    assert "`resnet18` with `new`: seeds 0, 1, 2 and 3" in told
    assert "`resnet18` with `deba`: seed 3" in told


def test_what_did_not_work_stands_there_in_words(page):
    failed = sentences(page, "What did not work", "How to read it")
    assert failed.count("fixed_256: takes 50% less time") == 2
    assert re.search(r"fixed_256: takes 50% less time \(\d+ to \d+\), is [78]\.\d points less accurate", failed)
    assert re.search(r"slow: takes 2\d% more time .*, is [12]\.\d points less accurate", failed)
    assert "plateau: no difference from the baseline is certain, neither in time nor in accuracy." in failed
    assert "deba: paid over the baseline, not over the bar fixed_64, which needs no policy." in failed
    assert "deba: one seed, which tells no difference from chance." in failed


def test_the_page_loads_nothing_and_can_be_read_without_eyes(page):
    assert [tag for tag in page.tags if tag in ("link", "img", "iframe", "object")] == []
    targets = [value for name, value in page.attributes if name == "src" or name.endswith("href")]
    targets += re.findall(r"url\(([^)]*)\)", page.source)
    assert {target.removeprefix("#") for target in targets} <= set(page.ids)
    assert ("lang", "en") in page.attributes
    assert page.tags.count("h1") == page.tags.count("main") == 1
    assert page.tags.count("figure") == page.tags.count("figcaption") == len(page.labels)
    assert len([name for name, _ in page.attributes if name == "scope"]) == page.tags.count("th")
    assert len(page.ids) == len(set(page.ids)), "no identifier is used twice"


def test_figures_follow_the_page_into_the_dark(page):
    styles = " ".join(value for name, value in page.attributes if name == "style")
    assert {"var(--run-0)", "var(--run-2)", "var(--ink)"} <= set(re.findall(r"var\(--[a-z0-9-]*\)", styles))
    assert not re.search("#[0-9a-f]{6}", styles)


def test_every_point_tells_its_numbers(page):
    assert len([tooltip for tooltip in page.tooltips if tooltip.startswith("goodput: takes 45% less time")]) == 2
    assert len(page.tooltips) == 14


def test_nothing_in_a_file_becomes_markup(tmp_path):
    evil = "<script>alert('&')</script>$x$`\x1b[31m\ud800"
    made = [a_run(arm, seed, evil) for arm in ("fixed_16", evil, "é" * 500) for seed in (0, 1)]
    page = Page(write_comparison_report(made[:-1], tmp_path, baseline="fixed_16"))
    assert page.tags.count("script") == 1, "the page's own"
    assert "\x1b" not in page.source
    assert "&lt;script&gt;alert" in page.source
    assert "é" * 41 not in page.source


def test_the_same_runs_give_the_same_bytes(path, runs, tmp_path):
    one, other = (
        write_comparison_report(runs, tmp_path / name, baseline="fixed_16", target=0.7) for name in ("a.html", "b.html")
    )
    assert one.read_bytes() == other.read_bytes()
    assert "Time to 70.0%" in Page(one).text


def test_a_model_without_the_baseline_is_shown_all_the_same(tmp_path):
    made = [*(a_run(arm, seed) for arm in ("fixed_16", "deba") for seed in (0, 1)), a_run("deba", model="vit")]
    page = Page(write_comparison_report(made, tmp_path, baseline="fixed_16"))
    assert "No arm has a seed in common with fixed_16" in page.text
    assert len(page.tables) == 2


@pytest.mark.parametrize("baseline", ["fixed_8", ""])
def test_a_baseline_that_was_not_run_is_refused(runs, tmp_path, baseline):
    with pytest.raises(ValueError, match="`baseline` must be among the arms fixed_16"):
        write_comparison_report(runs, tmp_path, baseline=baseline)
    with pytest.raises(ValueError, match="`baseline` must be the arm of a run"):
        markdown_table(runs, baseline)


def test_no_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="among the arms \\(no runs\\)"):
        write_comparison_report([], tmp_path, baseline="fixed_16")


def test_a_page_of_too_many_arms_says_what_it_leaves_out(tmp_path, monkeypatch):
    """At a tenth of its limits the page is below a tenth of a megabyte, its frame aside, however long the runs are."""
    monkeypatch.setattr(pages, "_MOST_ARMS", pages._MOST_ARMS // 10)
    monkeypatch.setattr(pages, "_MOST_LINES", pages._MOST_LINES // 10)
    arms = {"fixed_16": ARMS["fixed_16"]} | {
        f"policy_number_{n}": (0.8, 0.1, [16 + (n * k) % 97 for k in range(300)]) for n in range(24)
    }
    made = a_grid(arms=arms, epochs=300, seeds=2)
    path = write_comparison_report(made, tmp_path, baseline="fixed_16")
    page = Page(path)
    assert path.stat().st_size < 110_000
    assert "15 of 25 arms are shown." in page.text
    assert "Curves are drawn of the first 6 arms of each model." in page.text


def test_a_page_of_too_many_models_says_what_it_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "_MOST_MODELS", 1)
    few = {arm: ARMS[arm] for arm in ("fixed_16", "deba")}
    page = Page(write_comparison_report(a_grid(("b", "a"), few), tmp_path, baseline="fixed_16"))
    assert len(page.tables) == 1
    assert "2 of 4 arms are shown." in page.text


# In a browser

INLINE = NOTHING.replace("style-src", "script-src 'unsafe-inline'; style-src")


@in_a_browser
def test_a_browser_has_nothing_to_complain_of_and_sorts_the_table(path, tmp_path):
    source = path.read_text(encoding="utf-8").replace("<head>", f"<head>{INLINE}")
    clicks = """<script>
      const heads = document.querySelectorAll(".arms")[0].tHead.rows[0].cells;
      const body = document.querySelectorAll(".arms")[0].tBodies[0];
      const order = () => [...body.rows].map(row => row.cells[0].dataset.by);
      const found = [1, 1, 0, 7].map(n => { heads[n].firstElementChild.click(); return order().join(","); });
      document.title = found.join(";") + ";" + heads[7].ariaSort;
    </script></body>"""
    guarded = tmp_path / "guarded.html"
    guarded.write_text(source.replace("</body>", clicks), encoding="utf-8")
    document, console = browse(guarded, tmp_path)
    assert console == []
    up, down, names, target, state = re.search("<title>(.*?)</title>", document)[1].split(";")
    times = ["fixed_256", "goodput", "fixed_64", "deba"]
    assert up.split(",")[:4] == times
    assert up.split(",")[-3:] == ["cosine", "slow", "fixed_16"], "what has no number comes last"
    assert down.split(",")[-5:] == [*reversed(times), "fixed_16"]
    assert names.split(",") == sorted(ARMS)
    assert set(target.split(",")[-2:]) == {"fixed_256", "slow"}, "what never gets there"
    assert state == "ascending"


@in_a_browser
def test_no_page_is_wider_than_its_window(path, tmp_path):
    source = html.escape(path.read_text(encoding="utf-8"))
    frames = "".join(f'<iframe style="width:{w}px;height:900px" srcdoc="{source}"></iframe>' for w in (320, 390, 1200))
    widths = "Array.from(frames).map(frame => frame.document.documentElement.scrollWidth)"
    frame = tmp_path / "frame.html"
    frame.write_text(f'<body onload="document.title = {widths}">{frames}</body>', encoding="utf-8")
    document, _ = browse(frame, tmp_path)
    found = [int(width) for width in re.search(r"<title>(.*?)</title>", document)[1].split(",")]
    assert [found[0] <= 320, found[1] <= 390, found[2] <= 1200] == [True] * 3, found


# The README's table


def test_the_table_in_markdown_by_hand(runs):
    lines = markdown_table([*runs, *a_grid(("vit",), {"fixed_16": ARMS["fixed_16"]})], "fixed_16", ["deba"]).split("\n")
    assert lines[:2] == ["|  | fixed_16: accuracy, time | best fixed size in hindsight | deba |", "|---|---|---|---|"]
    name, base, best, deba = (cell.strip() for cell in lines[2].strip("|").split("|"))
    found = {gain.arm: gain for gain in gains(measure(runs, "fixed_16"), "fixed_16")}
    assert name == "resnet18"
    assert re.fullmatch(r"\d\d\.\d %, 4\d(\.\d)? s", base)
    assert best.startswith("fixed_64: **−40 %** (")
    assert deba.startswith("**−20 %** (")
    assert f"**{100 * found['deba'].accuracy.value:+.1f}** (" in deba
    assert [cell.strip() for cell in lines[3].strip("|").split("|")][2:] == ["no other was run", "–"]


def test_by_default_it_has_the_policies_that_every_model_has(runs):
    more = a_grid(("vit",), {arm: ARMS[arm] for arm in ("fixed_16", "fixed_64", "deba", "slow")})
    head = markdown_table([*runs, *more], "fixed_16").split("\n")[0]
    assert head == "|  | fixed_16: accuracy, time | best fixed size in hindsight | deba | slow |"


def test_the_readme_s_table_can_be_made_again():
    models = {run.model for run in shipped_runs()}
    laid_out, _, sentences = evidence.table().partition("\n\n")
    assert len(laid_out.split("\n")) == 2 + len(models)
    rates, target, others, ablations = sentences.split("\n")
    assert rates.startswith("- `fixed_16` with a rate of 0.001, 0.003, 0.01 (one seed): densenet121 ")
    assert target.startswith(
        "- Processor time of `goodput_at_one_rate` / `goodput` / `goodput_sqrt` to where `fixed_16` ends, over that of "
        "the fixed size fastest there: "
    )
    assert others.startswith("- Other ways (efficientnet_b0 / mobilenetv3 / resnet18): cosine at 16 ")
    assert ablations.startswith("- DEBA with (mobilenetv3 / resnet18): cooldown 0 ")


def test_the_rates_are_those_that_were_run():
    """The networks' rates in the grids are the best of them, but for the ViT's, as paper.yaml says."""
    runs = load_runs(evidence.SHIPPED_RATES)
    found = {(run.model, run.arm): run.test_accuracy for run in runs}
    chosen = yaml.safe_load((CONFIGS / "paper.yaml").read_text())["models"]
    for model in {run.model for run in runs}:
        best = max(evidence.RATES, key=lambda arm: found[model, arm])
        assert (chosen[model]["init_args"]["lr"] == evidence.RATES[best]) == (model != "vit_tiny")
        assert f"{found[model, best]:.0%}".replace("%", " %") in " ".join(evidence.rates(runs))


def test_other_arms_are_told_of_as_they_are():
    """Whatever was run of a group, and a dash for what was not."""
    mine = [run for run in shipped_runs() if run.arm in ("fixed_16", "step") and run.model != "resnet18"]
    more = [run for run in shipped_runs() if run.arm == "plateau" and run.model == "mobilenetv3"]
    (sentence,) = evidence.others([*mine, *more])
    told = dict(part.strip().split(" ", 1) for part in sentence.partition(":")[2].rstrip(".").split(";")[2:])
    found = {(gain.model, gain.arm): gain for gain in gains(measure([*mine, *more], "fixed_16"), "fixed_16")}
    assert told["AdaBatch"] == "– / –"
    time = f"{100 * found['mobilenetv3', 'plateau'].time.value:+.0f} %".replace("-", "−")
    assert told["plateau"].startswith("– / ")
    assert time in told["plateau"]
    assert told["StepBS"].count(" / ") == 1


def test_the_overhead_is_a_column():
    run = next(run for run in shipped_runs() if run.callback_seconds is not None)
    rows = measure([run], run.arm)
    (overhead,) = line_of(run.arm, rows, run.arm, None, [], {}, True).cells[-2:-1]
    assert overhead.text == f"{100 * run.callback_seconds / sum(run.processor_seconds):.1f}%"


def test_the_time_to_a_target_is_set_against_the_fixed_size_that_is_fastest_there():
    ways = {  # seconds of an epoch, and the accuracies
        "fixed_16": (4.0, [0.5, 0.7, 0.8]),
        "fixed_64": (2.0, [0.4, 0.8, 0.9]),
        "fixed_256": (1.0, [0.2, 0.3, 0.4]),
        "goodput": (2.5, [0.5, 0.8, 0.8]),
        "deba": (3.0, [0.5, 0.6, 0.6]),
    }
    runs = [
        Run(
            model="m",
            arm=arm,
            seed=seed,
            seconds=[seconds] * 3,
            processor_seconds=[seconds] * 3,
            samples=[64] * 3,
            steps=[4] * 3,
            batch_sizes=[16, 16, 32] if arm in ("goodput", "deba") else [int(arm.partition("_")[2])] * 3,
            accuracies=accuracies,
        )
        for arm, (seconds, accuracies) in ways.items()
        for seed in range(3)
    ]
    assert " ".join(evidence.to_target(runs)).endswith("fastest there: m (70.0 %, `fixed_64`) – / 1.25 / –.")
    assert " ".join(evidence.to_target(runs, ["deba"])).endswith("m (70.0 %, `fixed_64`) never.")
    assert list(evidence.to_target(runs, seeds=4)) == []

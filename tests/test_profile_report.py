"""The page and the figures of a characterization: they show what was found, and nothing in a file becomes markup."""

import math
import random
import re
from dataclasses import replace

import matplotlib
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lightning_deba import DEBA, EpochRecord, signals
from lightning_deba.characterization import Characterization, StabilityProfile, ThroughputCurve
from lightning_deba.characterization.verdict import HARDLY, WORTH_IT
from lightning_deba.report import (
    plot_evidence,
    plot_profile,
    plot_sizes,
    plot_throughput,
    profile_figures,
    write_profile_report,
)
from lightning_deba.report.figures import COLORS, MUTED
from tests.browser import browse, guarded, in_a_browser, width_of
from tests.test_report import Page

RISING = ThroughputCurve({16: 0.1, 32: 0.12, 64: 0.17, 128: 0.28, 256: 0.5}, device="cpu")
FLAT = ThroughputCurve({16: 0.5, 32: 1.0, 64: 2.0, 128: 4.1})


def run(epochs=25, seed=0, spread=0.2, **others):
    rng = random.Random(seed)
    history = []
    for t in range(epochs):
        norm = (1 + math.exp(-t / 5)) * math.exp(rng.gauss(0, spread))
        loss = (0.2 + 2 * math.exp(-t / 6)) * math.exp(rng.gauss(0, spread / 2))
        record = EpochRecord(t, 16, 16, samples=800, loss=loss, gradient_norm=norm, component_variance=norm**2 / 1e6)
        history.append(replace(record, **others))
    return history


def characterization(curve=RISING, seeds=3, about=None, architecture="resnet18", **others):
    profile = StabilityProfile.from_histories([run(seed=seed, **others) for seed in range(seeds)], architecture)
    return Characterization(profile, curve, about or {})


@pytest.fixture(scope="module")
def found():
    return characterization(about={"data": "Fashion-MNIST, 800 images", "seeds": [0, 1, 2], "lr": 0.01})


@pytest.fixture
def page(found, tmp_path):
    return Page(write_profile_report(found, tmp_path / "profile.html"))


def table(page, kind):
    return next(rows for name, rows in page.tables if name == kind)


# The page


def test_the_page_opens_with_the_verdict_and_why(found, page):
    assert page.title == f"resnet18: {found.verdict.word}" == "resnet18: adapt"
    for text in ("resnet18: adapt", found.verdict.reason, found.verdict.risk):
        assert text in page.text
    assert page.text.index("resnet18: adapt") < page.text.index(found.verdict.reason) < page.text.index("What was")
    assert f"{found.verdict.saving:.0%}" in page.text
    assert f"16 → {found.verdict.sizes[-1]}" in page.text


def test_the_bounds_of_the_verdict_are_those_it_goes_by(found, tmp_path):
    html = write_profile_report(found, tmp_path / "profile.html").read_text(encoding="utf-8")
    assert f"from a predicted saving of {WORTH_IT:.0%} on, “don’t adapt” below {HARDLY:.0%}" in html


def test_the_table_holds_what_was_found_with_its_intervals(found, page):
    rows = {row[0]: row[1:3] for row in table(page, "found")}
    for name, (low, high) in found.intervals.items():
        assert rows[name] == [f"{getattr(found.policy, name):g}", f"{low:.3g} to {high:.3g}"]
    assert rows["Architecture"][0] == "resnet18"
    assert rows["Stability score"][0] == f"{found.profile.score:.2f}"
    assert rows["cooldown"][0] == f"{found.policy.cooldown} epochs"
    assert rows["Correlation time"][0] == f"{found.profile.correlation_time:.1f} epochs"
    assert "Noise scale" not in rows


def test_a_noise_scale_is_told_where_it_was_measured(tmp_path):
    measured = characterization(gradient_covariance=210.0, gradient_squared=0.5)
    page = Page(write_profile_report(measured, tmp_path))
    assert ["Noise scale", "420 samples"] in [row[:2] for row in table(page, "found")]


def test_thresholds_are_drawn_in_with_their_values(found, page):
    assert f">{found.policy.confidence_threshold:g}<" in page.source
    assert page.source.count(f">{found.policy.stability_threshold:g}<") >= 3, "two variations and the plane"


def test_the_curve_is_listed_as_measured(page):
    rows = table(page, "curve")
    assert rows[0] == ["Batch", "Step", "Samples/s", "Speed"]
    assert rows[3] == ["64", "170 ms", "376.5", f"{(64 / 0.17) / (16 / 0.1):.2f} ×"]
    assert "on cpu" in page.text


def test_memory_and_what_did_not_fit_are_told(tmp_path):
    curve = ThroughputCurve({16: 0.1, 32: 0.12}, peak_memory={16: 2**30}, ceiling=64, device="cuda:0")
    page = Page(write_profile_report(characterization(curve), tmp_path))
    assert [row[-1] for row in table(page, "curve")] == ["Memory", "1,024 MiB", "–"]
    assert "A batch of 64 did not fit in memory." in page.text
    assert ">out of memory <" in page.source or ">out of memory<" in page.source


def test_a_flat_curve_is_called_flat(tmp_path):
    page = Page(write_profile_report(characterization(FLAT), tmp_path))
    assert page.title == "resnet18: don't adapt"
    assert "there is hardly any to gain" in page.text
    assert "no size is much faster than 16" in page.text


def test_the_preset_is_there_to_copy_and_else_not(found, page, tmp_path):
    yaml = "policy:\n  class_path: DEBA  # `a` <b>\n  init_args:\n    cooldown: 5\n"
    written = Page(write_profile_report(found, tmp_path / "with.html", preset=yaml))
    assert yaml.strip() in written.text
    assert "The preset" in written.text
    assert "The preset" not in page.text
    assert "pre" not in page.tags


def test_how_it_was_made_is_told(page):
    assert table(page, "settings")[1:] == [["data", "Fashion-MNIST, 800 images"], ["seeds", "0, 1, 2"], ["lr", "0.01"]]


def test_changes_of_the_simulated_sizes_have_tooltips(found, page):
    sizes = found.verdict.sizes
    moved = [t for t in range(1, len(sizes)) if sizes[t] != sizes[t - 1]]
    assert page.tooltips == [f"after epoch {t - 1}: {sizes[t - 1]} → {sizes[t]}" for t in moved]


def test_the_page_loads_nothing_and_has_no_script(page):
    assert not {"script", "link", "img", "iframe", "object", "embed", "image", "base"} & set(page.tags)
    assert "@import" not in page.source
    assert "http" not in page.source
    assert not [value for name, value in page.attributes if name in ("src", "srcset", "action")]
    targets = [value for name, value in page.attributes if name.endswith("href")]
    targets += re.findall(r"url\(([^)]*)\)", page.source)
    assert {target.removeprefix("#") for target in targets} <= set(page.ids)


def test_the_page_can_be_read_without_eyes(page):
    assert ("lang", "en") in page.attributes
    assert page.tags.count("h1") == page.tags.count("main") == 1
    assert page.tags.count("figure") == page.tags.count("figcaption") == len(page.labels) == 6
    assert page.labels[0].startswith("confidence. Component variance")
    assert [value for name, value in page.attributes if name == "scope"].count("row") >= 8
    assert len([name for name, _ in page.attributes if name == "scope"]) == page.tags.count("th")
    assert len(page.ids) == len(set(page.ids)), "no identifier is used twice"


def test_figures_follow_the_page_into_the_dark(page):
    styles = " ".join(value for name, value in page.attributes if name == "style")
    assert {"var(--run-0)", "var(--run-1)", "var(--muted)"} <= set(re.findall(r"var\(--[a-z0-9-]*\)", styles))
    assert not re.search("#[0-9a-f]{6}", styles)


def test_the_same_characterization_gives_the_same_bytes_whatever_the_style(found, tmp_path):
    first = write_profile_report(found, tmp_path / "a.html").read_bytes()
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black", "svg.hashsalt": "other"}):
        again = Characterization.from_dict(found.to_dict())
        assert write_profile_report(again, tmp_path / "b.html").read_bytes() == first
    assert dict(matplotlib.rcParams) == before


def test_nothing_in_a_file_becomes_markup(tmp_path):
    evil = "<script>alert('&')</script> \ud800 \x1b[31m \x00"
    about = {evil: evil, "list": [evil, {"a": evil}], "none": None, "deep": [[[evil]]], "nan": math.nan}
    curve = replace(RISING, device=evil)
    path = write_profile_report(characterization(curve, about=about, architecture=evil), tmp_path, preset=evil)
    page = Page(path)
    assert "script" not in page.tags
    assert "\x1b" not in page.source
    assert "\x00" not in page.source
    assert page.title.startswith("<script>alert('&')</script>")
    assert page.text.count("<script>alert('&')</script>") >= 6
    assert ["none", "null"] in table(page, "settings")


def test_endless_facts_are_cut(tmp_path):
    about = {f"fact {number}": "x" * 10_000 for number in range(500)}
    path = write_profile_report(characterization(about=about), tmp_path, preset="y" * 10**6)
    assert path.stat().st_size < 200_000


def test_five_seeds_of_300_epochs_stay_under_a_megabyte(tmp_path):
    path = write_profile_report(characterization(seeds=5, epochs=300), tmp_path)
    assert path.stat().st_size < 1_000_000
    assert "300 epochs at a fixed batch size of 16, 5 runs" in Page(path).text


def test_one_short_run_without_a_name(tmp_path):
    page = Page(write_profile_report(characterization(seeds=1, epochs=8, architecture=""), tmp_path))
    assert page.title in ("adapt", "marginal", "don't adapt")
    assert "8 epochs at a fixed batch size of 16" in page.text
    assert "over the runs" not in page.text


@pytest.mark.parametrize("variance", [0.0, 1e-300, 1e300])
def test_signals_that_never_move(tmp_path, variance):
    constant = [EpochRecord(t, 16, 16, loss=1.0, gradient_norm=1.0, component_variance=variance) for t in range(12)]
    page = Page(write_profile_report(Characterization(StabilityProfile.from_history(constant), RISING), tmp_path))
    assert len(page.labels) == 6
    assert "nan" not in " ".join(value or "" for name, value in page.attributes if name == "d")


def test_the_output_may_be_a_directory_or_lie_in_a_new_one(found, tmp_path):
    assert write_profile_report(found, tmp_path) == tmp_path / "profile.html"
    assert write_profile_report(found, str(tmp_path / "new" / "page.html")).is_file()
    with pytest.raises(OSError, match=r'`output` must be a file that can be written.*output="profile.html"'):
        write_profile_report(found, tmp_path / "profile.html" / "deeper.html")


# In a browser


@in_a_browser
def test_a_browser_has_nothing_to_complain_of_and_nothing_to_load(found, tmp_path):
    source = write_profile_report(found, tmp_path / "page.html", preset="a: 1").read_text(encoding="utf-8")
    document, console = browse(guarded(source, tmp_path), tmp_path)
    assert console == []
    assert document.count("<figure>") == 6
    loading = source.replace("<main>", '<main><img src="x.png">')
    assert len(browse(guarded(loading, tmp_path), tmp_path)[1]) == 1, "the guard itself works"


@in_a_browser
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_no_page_is_wider_than_its_window(found, tmp_path, width):
    source = write_profile_report(found, tmp_path / "page.html", preset="a: " + "b" * 300).read_text(encoding="utf-8")
    assert width_of(source, width, tmp_path) <= width


# Figures


def lines_in(ax, color):
    return [line for line in ax.get_lines() if to_hex(line.get_color()) == color]


@pytest.mark.parametrize("signal", ["confidence", "gradient_norm_variation", "loss_variation"])
def test_each_run_is_a_line_and_its_descent_is_grey(found, signal):
    ax = plot_profile(found, signal=signal)
    bright, grey = lines_in(ax, COLORS[0]), lines_in(ax, MUTED)
    assert len(bright) == len(grey) == 3
    for line, before, history, descent in zip(
        bright, grey, found.profile.histories, found.profile.descent, strict=True
    ):
        expected = [getattr(signals(history[: t + 1]), signal) for t in range(descent, len(history))]
        assert list(line.get_xdata()) == list(range(descent, len(history)))
        assert list(line.get_ydata()) == pytest.approx(expected)
        assert before.get_xdata()[-1] == descent, "without a gap"
        bottom, top = ax.get_ylim()
        assert all(bottom <= value <= top for value in expected)


def test_the_threshold_has_its_interval_as_a_band_and_its_value_beside_it(found):
    ax = plot_profile(found, signal="gradient_norm_variation")
    threshold, interval = found.policy.stability_threshold, found.intervals["stability_threshold"]
    (line,) = lines_in(ax, COLORS[1])
    assert set(line.get_ydata()) == {threshold}
    (band,) = [patch for patch in ax.patches if to_hex(patch.get_facecolor()) == COLORS[1]]
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx(interval)
    assert f"{threshold:g}" in [text.get_text() for text in ax.texts]


def test_a_ratio_that_keeps_close_to_one_has_more_ticks_than_one():
    ax = plot_profile(characterization(spread=0.02), signal="confidence")
    ax.figure.draw_without_rendering()
    shown = [tick for tick in ax.get_yticks() if ax.get_ylim()[0] <= tick <= ax.get_ylim()[1]]
    assert 1 in shown
    assert len(shown) >= 3


def test_figures_take_axes_or_make_their_own_and_leave_nothing_open(found):
    from matplotlib import pyplot

    for plot, shown in (
        (plot_profile, found),
        (plot_evidence, found),
        (plot_throughput, found.curve),
        (plot_sizes, found),
    ):
        ax = Figure().add_subplot()
        assert plot(shown, ax) is ax
        assert plot(shown, ax=ax) is ax
        assert plot(shown).figure is not ax.figure
    assert pyplot.get_fignums() == []


def test_a_profile_alone_gives_the_same_figure(found):
    for plot in (plot_profile, plot_evidence):
        texts = [[text.get_text() for text in plot(shown).texts] for shown in (found, found.profile)]
        assert texts[0] == texts[1]


def test_an_unknown_signal_is_refused(found):
    with pytest.raises(ValueError, match=r"`signal` must be one of 'confidence', .*, got 'noise'"):
        plot_profile(found, signal="noise")


def test_the_quarters_are_what_the_policy_does(found):
    """DEBA itself, without a cooldown, on every epoch after the descent."""
    policy = replace(found.policy, cooldown=0)
    done = [
        policy(history[: t + 1]).reason.split(":")[0].split(",")[0]
        for history, descent in zip(found.profile.histories, found.profile.descent, strict=True)
        for t in range(descent, len(history))
    ]
    texts = [text.get_text() for text in plot_evidence(found).texts]
    assert f"grow {done.count('increase') / len(done):.0%}" in texts
    assert f"roll back {done.count('rollback') / len(done):.0%}" in texts
    holds = [int(text.removeprefix("hold ").rstrip("%")) for text in texts if text.startswith("hold")]
    assert sum(holds) == pytest.approx(100 * done.count("hold") / len(done), abs=1)
    assert done.count("increase") >= len(done) / 2, "calibrated to half of them"


def test_points_of_long_baselines_are_thinned(found, monkeypatch):
    def points():
        return sum(len(line.get_xdata()) for line in plot_evidence(found).get_lines() if line.get_marker() == "o")

    assert points() > 60
    monkeypatch.setattr(profile_figures, "_MOST_POINTS", 10)
    assert points() <= 30


def test_the_throughput_is_drawn_as_measured_with_the_fit_and_the_gain():
    ax = plot_throughput(RISING, batch_size=32)
    a, b, _ = RISING.fit()
    fit, points, *_ = ax.get_lines()
    assert dict(zip(points.get_xdata(), points.get_ydata(), strict=True)) == pytest.approx(
        {size: size / seconds for size, seconds in RISING.seconds.items()}
    )
    assert list(fit.get_ydata()) == pytest.approx([size / (a + b * size) for size in fit.get_xdata()])
    texts = " ".join(text.get_text() for text in ax.texts)
    assert f"{RISING.speedup(32, 256):.2f} × as fast\nat 256 as at 32" in texts
    ax.figure.draw_without_rendering()
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert [label for label in labels if label in ("16", "32", "64", "128", "256")] == ["16", "32", "64", "128", "256"]


def test_a_gain_too_small_for_its_arrow_is_told_below():
    ax = plot_throughput(ThroughputCurve({16: 0.5, 32: 0.9, 64: 1.9}))
    assert "1.11 × as fast at 32 as at 16" in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize(("start", "largest"), [(1024, 256), (4, 256)])
def test_a_baseline_beyond_the_curve_is_in_view(start, largest):
    low, high = plot_throughput(RISING, batch_size=start).get_xlim()
    assert low < min(start, 16)
    assert high > max(start, largest)


def test_the_sizes_are_the_verdicts(found):
    line = plot_sizes(found).get_lines()[0]
    assert list(line.get_ydata())[1:] == list(found.verdict.sizes)
    assert list(line.get_xdata()) == list(range(len(found.verdict.sizes) + 1))
    assert isinstance(found.policy, DEBA)


def test_the_templates_are_part_of_the_package():
    from importlib.resources import files

    assert all((files("lightning_deba.report") / name).is_file() for name in ("profile.html.j2", "style.html.j2"))

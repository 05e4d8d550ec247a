"""The rooms of the package: which may import which, what the package's import brings along, and what each name says."""

import importlib
import inspect
import pydoc
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_deba

ROOT = Path(__file__).parents[1]
HEAVY = {"timm", "torchvision", "matplotlib", "sklearn", "pandas"}


def run(code, *arguments, cwd=ROOT):
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True)


def lint_imports(directory):
    """Runs the contracts of ``pyproject.toml`` on the package in a directory."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return run(code, "--no-cache", cwd=directory)


def heavy_modules(*imported):
    """Returns which heavy packages a fresh interpreter holds after importing."""
    done = run(f"import sys, {', '.join(imported)}; print(*{HEAVY} & set(sys.modules))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_rooms_import_only_what_they_may():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("records.py", "import torch"),
        ("policies/base.py", "from lightning_deba import statistics"),
        ("presets/preset.py", "from lightning_deba import limits"),
        ("presets/models.py", "import torch"),
        ("meter.py", "import lightning"),
        ("statistics.py", "import lightning.pytorch"),
        ("attic.py", ""),  # a room without a place in the list
    ],
)
def test_a_broken_contract_is_noticed(tmp_path, room, line):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "lightning_deba", tmp_path / "lightning_deba")
    with (tmp_path / "lightning_deba" / room).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode != 0
    assert room.removesuffix(".py").replace("/", ".") in done.stdout.partition("Broken contracts")[2] + done.stderr


def test_the_package_imports_nothing_heavy():
    # Lightning itself brings some of them, by way of torchmetrics.
    assert heavy_modules("lightning.pytorch", "lightning_deba") == heavy_modules("lightning.pytorch")


# What `python -m pydoc` shows of the public names.

PUBLIC = ("", "policies", "presets", "characterization", "comparison", "report", "actuators", "vision")

_TRAINER = "takes the running Trainer alone, or its module"
_AS_THERE = "takes the arguments of `plot_batch_size`, and says so"
_RETURNED = "is made and returned by another name, whose example has it"
_INSIDE_A_FIT = "is called inside a fit; an example would be a fit"
_TRAINS = "trains, or reads what has been trained; the notebooks and the README have it"
_DATA = "needs a download; `DigitsDataModule` has the example of all"
_FACE = "is a Protocol, told by its methods"

# By name, why it has no section "Args".
NO_ARGUMENTS = {
    **dict.fromkeys(["check_lightning", "data_ranks", "finish_resumed_epoch", "is_tuning"], _TRAINER),
    **dict.fromkeys(["is_compiled", "reload_if_requested", "skips_training", "user_parameters"], _TRAINER),
    **dict.fromkeys(["may_begin_short", "is_cut_off", "is_fitting", "is_inside_epoch", "is_loaded"], _TRAINER),
    **dict.fromkeys(["plot_loss", "plot_seconds"], _AS_THERE),
}
# By name, why it has no section "Example".
NO_EXAMPLE = {
    **dict.fromkeys(["BatchSizeActuator", "Engine"], _FACE),
    **dict.fromkeys(["HistoryFile", "Gain", "NoiseEstimate", "PolicyInfo", "Signals", "Verdict"], _RETURNED),
    **dict.fromkeys(["Comparison", "Interval", "Job", "Outcome", "Row", "Run", "Summary"], _RETURNED),
    **dict.fromkeys(["at_least_2_6", *NO_ARGUMENTS.keys() - {"plot_loss", "plot_seconds"}], _INSIDE_A_FIT),
    **dict.fromkeys(["check_ranks_agree", "choose_actuator", "go_on_by_steps", "limits_of"], _INSIDE_A_FIT),
    **dict.fromkeys(
        ["micro_batch_size", "set_before_loading", "smallest_over_ranks", "mean_over_ranks"], _INSIDE_A_FIT
    ),
    **dict.fromkeys(["execute", "measure", "summarize", "write_csv", "write_figure"], _TRAINS),
    **dict.fromkeys(["CIFAR10DataModule", "CIFAR100DataModule", "FashionMNISTDataModule", "ImageDataModule"], _DATA),
}


def public_names():
    """Yields each public function and class once, and where it is found."""
    seen = [lightning_deba.History]  # a name for a type, not a thing of its own
    for room in PUBLIC:
        module = importlib.import_module(f"lightning_deba.{room}".rstrip("."))
        for name in module.__all__:
            thing = getattr(module, name)
            if thing not in seen:
                seen.append(thing)
                yield module.__name__, name, thing


def takes_arguments(thing):
    """Whether it is called with arguments of its own: a class that inherits `__init__` is told by its parent."""
    if inspect.isclass(thing) and ("__init__" not in vars(thing) or getattr(thing, "_is_protocol", False)):
        return False
    return bool(inspect.signature(thing).parameters)


def missing(name, thing):
    """What a docstring lacks."""
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    if not text or not text.strip().splitlines()[0].rstrip().endswith("."):
        return ["a summary line"]
    told = "Args:" in text or (inspect.isclass(thing) and "Attributes:" in text)
    lacks = ["Args"] if takes_arguments(thing) and not told and name not in NO_ARGUMENTS else []
    return lacks + (["Example"] if ">>>" not in text and name not in NO_EXAMPLE else [])


def test_every_public_name_says_what_it_is_takes_and_how_it_is_used():
    lacking = {f"{room}.{name}": lacks for room, name, thing in public_names() if (lacks := missing(name, thing))}
    assert lacking == {}


def test_help_on_the_package_shows_every_public_name():
    """Also those that are imported only when they are asked for: the scheduler is one."""
    manual = pydoc.plain(pydoc.render_doc("lightning_deba"))
    summary = manual.partition("PACKAGE CONTENTS")[0]
    assert [name for name in lightning_deba.__all__ if f"`{name}`" not in summary] == []
    shown = re.findall(r"^    (?:class )?(\w+)(?: = |\()", manual, re.MULTILINE)
    assert set(lightning_deba.__all__) <= set(shown)


def test_a_docstring_that_lacks_something_is_noticed():
    def silent(size): ...

    def brief(size):
        """Does it"""

    def half(size):
        """Does it."""

    def whole(size):
        """Does it.

        Args:
            size: Of it.

        Example:
            >>> 1
            1
        """

    class Made:
        """Is it.

        >>> 1
        1
        """

        def __init__(self, size): ...

    class Inherits(Made):
        """Is it, too.

        >>> 1
        1
        """

    found = [missing("", thing) for thing in (silent, brief, half, whole, Made, Inherits)]
    assert found == [["a summary line"], ["a summary line"], ["Args", "Example"], [], ["Args"], []]

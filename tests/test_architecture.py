"""The rooms of the package: which may import which, and what the package's import brings along."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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

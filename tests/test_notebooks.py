"""Each notebook runs from top to bottom in a fresh kernel, and the outputs committed with it are those it gives."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell):
    """What a cell shows, by kind: printed text, or the richest form of a value or a figure."""
    return [output.output_type if "data" not in output else sorted(output.data)[0] for output in cell.outputs]


def texts(cell):
    """What a cell says in words; figures may differ by a font."""
    values = [output.get("text", output.get("data", {}).get("text/markdown")) for output in cell.outputs]
    return [value for value in values if value is not None]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_fresh_kernel_and_gives_what_is_committed(path):
    committed = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    for cell in code_cells(fresh):
        cell.outputs, cell.execution_count = [], None
    # Runs where a reader would start it; any error ends it.
    NotebookClient(fresh, timeout=120, kernel_name="python3", resources={"metadata": {"path": path.parent}}).execute()
    assert [cell.execution_count for cell in code_cells(committed)] == list(range(1, len(code_cells(committed)) + 1))
    again = f"Run `python -m pytest --nbmake --overwrite notebooks/{path.name}`."
    for before, after in zip(code_cells(committed), code_cells(fresh), strict=True):
        assert kinds(before) == kinds(after), again
        assert texts(before) == texts(after), again
    assert any("image/png" in kinds(cell) for cell in code_cells(committed)), "a notebook has something to see"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_public_names_and_tells_nothing_of_its_machine(path):
    notebook = nbformat.read(path, as_version=4)
    imports = [line for cell in code_cells(notebook) for line in cell.source.splitlines() if "import " in line]
    assert imports
    assert not [line for line in imports if " _" in line or "._" in line]
    shown = "".join(text for cell in code_cells(notebook) for text in texts(cell))
    assert not re.search("/(home|opt|root|tmp|usr|work)/", shown)

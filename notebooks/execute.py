"""Executes notebooks and writes them with their outputs: the .py file is the source, the .ipynb file is made from it.

    python notebooks/execute.py [NAME ...]

Without names: all whose packages are here.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
NEEDS = {"convert_timm": "timm"}
SECONDS = 600  # at most, for a cell


def names() -> list[str]:
    """All notebooks."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem != Path(__file__).stem)


def executed(name: str) -> nbformat.NotebookNode:
    """The notebook with its outputs. A cell that fails raises."""
    notebook = jupytext.read(HERE / f"{name}.py")
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": HERE}}).execute()
    return notebook


def tidy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without what differs from one execution to the next."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell{number}", {}
    return notebook


def main(wanted: list[str]) -> None:
    for name in wanted or [name for name in names() if find_spec(NEEDS.get(name, "torch"))]:
        print(name, flush=True)
        nbformat.write(tidy(executed(name)), HERE / f"{name}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])

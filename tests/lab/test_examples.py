"""Examples run, and notebooks are what their sources say."""

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarterturn_lab.data.go_positions import positions, rule_moves
from quarterturn_lab.data.made_by_rule import cells, filaments

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
NEED_TIMM = ("timm_network", "convert_timm")  # tests/timm runs them
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.py") if path.stem != "execute")
FAST = "first_classifier"
needs_notebooks = pytest.mark.skipif(
    not all(map(find_spec, ("jupytext", "nbclient", "ipykernel"))), reason="needs the extra notebooks"
)


@pytest.mark.filterwarnings("ignore:The `srun` command is available")  # Fabric says so where Slurm is installed
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in (*NEED_TIMM, "fine_tuning")])
def test_examples_run_for_two_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module(name).main(steps=2)  # ends with a check of its claim


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in NEED_TIMM])
def test_examples_run(name: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def notebook(name: str) -> Any:
    import nbformat

    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


@needs_notebooks
@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("ignore")  # of jupytext and nbformat themselves
def test_a_notebook_is_its_source_with_outputs(name: str) -> None:
    import jupytext

    source, kept = jupytext.read(ROOT / "notebooks" / f"{name}.py"), notebook(name)
    assert [(cell.cell_type, cell.source) for cell in kept.cells] == [
        (cell.cell_type, cell.source) for cell in source.cells
    ], f"run `make notebooks`: {name}.ipynb is not made from {name}.py"
    outputs = [output for cell in kept.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", ()) for output in outputs)
    assert 8 <= len(kept.cells) <= 15
    assert any("assert_equivariant" in cell.source for cell in kept.cells)
    assert (ROOT / "notebooks" / f"{name}.ipynb").stat().st_size < 400_000


@needs_notebooks
@pytest.mark.parametrize(
    "name", [FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in NOTEBOOKS if n not in (FAST, *NEED_TIMM))]
)
def test_notebooks_run(name: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'notebooks')!r}); import execute; execute.executed({name!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr


def test_the_moves_of_the_rule_turn_and_flip_with_the_board() -> None:
    planes, moves = positions(20)
    assert (moves[:, None].repeat(2, 1).reshape(20, 2, 9, 9) * planes[:, :2]).sum() == 0  # no move on a stone
    turns = [lambda a, k=k, flip=flip: np.rot90(a.T if flip else a, k) for k in range(4) for flip in (0, 1)]
    for board, wanted in zip(planes, moves, strict=True):
        for turn in turns:
            own, other = (turn(plane).ravel() for plane in board[:2])
            stones = {point: 1 if own[point] else -1 for point in range(81) if own[point] or other[point]}
            found = np.zeros(81)
            found[rule_moves(stones, 9)] = 1
            assert (found == (turn(wanted.reshape(9, 9)).ravel() > 0)).all()


def test_cells_and_filaments_are_what_they_say() -> None:
    images, masks = cells(5)
    assert (images == cells(5)[0]).all()
    for image, mask in zip(images[:, 0], masks, strict=True):
        assert image[mask > 0].mean() > image[mask == 0].mean() + 0.2
    pictures, directions = filaments(8)
    ticks = np.arange(33) - 16
    for picture, (down, right) in zip(pictures[:, 0], directions, strict=True):
        ahead = ticks[:, None] * down + ticks[None] * right
        light = picture.clip(0.3) - 0.3
        assert light[ahead > 0].sum() > light[ahead < 0].sum()  # the head is thick

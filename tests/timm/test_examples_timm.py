"""The example and the notebook that need timm."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_example_runs_for_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    importlib.import_module("timm_network").main(steps=2)


@pytest.mark.slow
def test_the_notebook_runs() -> None:
    pytest.importorskip("nbclient")
    folder = str(ROOT / "notebooks")
    code = f"import sys; sys.path.insert(0, {folder!r}); import execute; execute.executed('convert_timm')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr

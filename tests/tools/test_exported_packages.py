"""Exported packages in the programs they are for, in .venv-tools, where there is no quarterturn: `make test-tools`."""

import csv
import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tifffile
from labtools import call
from PIL import Image
from test_exports import predicted, runs  # noqa: F401  # a fixture

TOOLS = Path(__file__).parents[2] / ".venv-tools" / "bin"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TOOLS.exists(), reason="no .venv-tools: make test-tools makes it"),
    pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def ran(*command: str | Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """A program of .venv-tools, without our packages and without a network."""
    offline = {"BIOIMAGEIO_CACHE_PATH": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | offline
    return subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.parametrize("name", ["colour", "masks", "plain"])
def test_bioimageio_core_runs_the_package(
    name: str,
    runs: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "package.zip"
    code, _, errors = call(f"export {runs / name} --to bioimageio --out {file} --license MIT --author A", capsys)
    assert code == 0, errors
    result = ran(TOOLS / "bioimageio", "test", file, cache=tmp_path / "cache")
    assert result.returncode == 0, result.stdout[-3000:]
    for weights in ("torchscript", "onnx"):
        assert f"Reproduce test outputs from test inputs ({weights})" in " ".join(result.stdout.split())


def test_bioimageio_core_refuses_other_outputs(
    runs: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "package.zip"
    assert call(f"export {runs / 'masks'} --to bioimageio --out {file}", capsys)[0] == 0
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "open")
    other = np.load(tmp_path / "open" / "test_output.npy")[:, ::-1]
    np.save(tmp_path / "open" / "test_output.npy", other.copy())
    text = (tmp_path / "open" / "rdf.yaml").read_text().splitlines()  # without the sums of the files
    (tmp_path / "open" / "rdf.yaml").write_text("\n".join(line for line in text if "sha256" not in line) + "\n")
    result = ran(TOOLS / "bioimageio", "test", tmp_path / "open" / "rdf.yaml", cache=tmp_path / "cache")
    assert result.returncode != 0
    assert "elements disagree with expected values" in " ".join(result.stdout.split()), result.stdout[-3000:]


def test_wsinfer_runs_the_folder_on_a_slide(
    runs: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, slides = tmp_path / "zoo", tmp_path / "slides"
    assert call(f"export {runs}/colour --to wsinfer --out {folder} --spacing 0.5", capsys)[0] == 0
    slides.mkdir()
    pixels = np.full((256, 384, 3), 240, dtype=np.uint8)  # glass, and coloured tissue on it
    pixels[100:200, 60:300] = np.random.default_rng(0).integers(60, 200, (100, 240, 3)) // (1, 2, 1)
    tifffile.imwrite(
        slides / "a.tif",
        pixels,
        photometric="rgb",
        tile=(128, 128),
        resolution=(20000, 20000),  # 0.5 micrometres per pixel
        resolutionunit="CENTIMETER",
    )
    script = Path(__file__).with_name("run_wsinfer.py")
    result = ran(TOOLS / "python", script, folder, slides, tmp_path / "results", cache=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    with (tmp_path / "results" / "model-outputs-csv" / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 20
    for row in rows[::10]:
        x, y = int(row["minx"]), int(row["miny"])
        Image.fromarray(pixels[y : y + 15, x : x + 15]).save(tmp_path / "patch.png")
        found = [float(row["prob_ant"]), float(row["prob_bee"])]
        assert np.abs(predicted(runs / "colour", tmp_path / "patch.png") - found).max() < 1e-5

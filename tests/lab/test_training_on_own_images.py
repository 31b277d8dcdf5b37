"""Runs on the user's own images, from the folder to predictions in the user's names and units, in torch and in ONNX."""

import csv
from pathlib import Path

import numpy as np
import pytest
from labtools import SMALL, call
from PIL import Image
from test_masks import colours, pairs
from test_own_images import save_tiff
from test_tables import pictures, table

from quarterturn_lab.data.dataset import Units
from quarterturn_lab.runs.trained import card_of
from quarterturn_lab.settings.config import Config, checked
from quarterturn_lab.settings.experiments import settings_of
from quarterturn_lab.settings.networks import edited
from quarterturn_lab.training.training_run import run


def config_for(data: Path, **options: object) -> Config:
    settings = settings_of(
        "folder", "residual-c4", side=8, channels=1, width=8, blocks=1, stem_stride=1, shift=0.0, zoom=1.0
    )
    settings |= {"loader": "images", "data": str(data), "epochs": 8, "batch": 8, "lr": 1e-2, "score_turns": False}
    return checked({**settings, **options})


def rows_of(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def predicted(directory: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """What `predict` says about the image, with torch and with ONNX."""
    onnx = tmp_path / "net.onnx"
    assert call(f"export {directory} --onnx {onnx}", capsys)[0] == 0
    found = []
    for source, out in ((str(directory), tmp_path / "torch.csv"), (f"--onnx {onnx}", tmp_path / "onnx.csv")):
        code, _, errors = call(f"predict {source} {image} --out {out}", capsys)
        assert code == 0, errors
        header, rows = rows_of(out)
        found.append(dict(zip(header, rows[0], strict=True)))
    return found


def test_numbers_are_predicted_in_their_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The grey of an image, between 0 and 230, says its length, between 5000 and 5230."""
    root = pictures(tmp_path / "data", 24)
    for i in range(24):
        Image.new("L", (8, 8), 10 * i).save(root / "photos" / f"{i}.png")
    table(root, "id,length_um", lambda i: f"{i},{5000 + 10 * i}.5")
    config = config_for(root, epochs=30)
    summary = run(config, tmp_path / "run")
    assert summary["task"] == "numbers"
    assert summary["train"]["r2"] > 0.5
    assert summary["train"]["rmse"] < 60
    card = card_of(tmp_path / "run")
    assert card.classes == ("length_um",)
    assert isinstance(card.units, Units)
    for found in predicted(tmp_path / "run", root / "photos/12.png", tmp_path, capsys):
        assert 4900 < float(found["length_um"]) < 5400  # about 5120; in standard units it would be about 0
    code, out, _ = call(f"evaluate {tmp_path / 'run'} --turns 1", capsys)
    assert code == 0
    assert "length_um" in out


def test_tags_are_predicted_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = table(pictures(tmp_path / "data"), "id,cilia,eggs", lambda i: f"{i},{i % 2},{int(i % 3 == 0)}")
    summary = run(config_for(root), tmp_path / "run")
    assert {"bce", "f1", "exact"} == set(summary["test"])
    first, second = predicted(tmp_path / "run", root / "photos/3.png", tmp_path, capsys)
    for tag in ("cilia", "eggs"):
        assert 0 < float(first[tag]) < 1
        assert float(first[tag]) == pytest.approx(float(second[tag]), abs=1e-4)
    code, out, _ = call(f"evaluate {tmp_path / 'run'} --turns 1", capsys)
    assert code == 0
    assert "cilia" in out


def test_sixteen_bits_arrive_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two classes that differ by less than one level of eight bits."""
    rng = np.random.default_rng(0)
    for name, level in (("dim", 1000), ("bright", 1040)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(20):
            pixels = (level + rng.normal(0, 4, (8, 8))).astype(np.uint16)
            save_tiff(pixels, tmp_path / "data" / name / f"{i}.tif")
    summary = run(config_for(tmp_path / "data", floats=True, epochs=12), tmp_path / "run")
    assert summary["test"]["accuracy"] == 1.0
    for found in predicted(tmp_path / "run", tmp_path / "data/dim/0.tif", tmp_path, capsys):
        assert float(found["dim"]) > 0.5


@pytest.mark.parametrize("row", ["baseline", "roll-all-quarter"])
def test_regions_are_painted_as_the_masks_were(row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def save(labels: np.ndarray, path: Path) -> None:
        Image.fromarray(colours(labels, (2, 5, 8), (1, 4, 7))).save(f"{path}.png")

    root = pairs(tmp_path / "data", save=save)
    settings = settings_of("nuclei", row) | {"net": edited(SMALL["nuclei"], row), "loader": "images"}
    settings |= {"data": str(root), "epochs": 2, "batch": 4, "eval_points": 1, "eval_train": 2, "score_turns": True}
    summary = run(checked(settings), tmp_path / "run")
    assert summary["task"] == "regions"
    assert set(summary["test"]) == {"dice", "accuracy"}
    if row != "baseline":  # exact, so that turned images have the same scores
        assert summary["test_4_turns"] == pytest.approx(summary["test"], abs=1e-3)
    onnx = tmp_path / "net.onnx"
    assert call(f"export {tmp_path / 'run'} --onnx {onnx}", capsys)[0] == 0
    masks = []
    for number, source in enumerate((tmp_path / "run", f"--onnx {onnx}")):
        out = tmp_path / f"{number}.png"
        code, _, errors = call(f"predict {source} {root / 'images/3.png'} --out {out}", capsys)
        assert code == 0, errors
        with Image.open(out) as image:
            masks.append(np.asarray(image))
    assert masks[0].shape == (43, 50, 3)
    assert {tuple(colour) for colour in masks[0].reshape(-1, 3)} <= {(0, 0, 0), (255, 0, 0), (0, 200, 0)}
    assert (masks[0] == masks[1]).mean() > 0.99

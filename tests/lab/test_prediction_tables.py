"""Tables of predictions: the predicted class, windows of large images, files that cannot be read, and every task."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from labtools import call, class_folders, tiny
from PIL import Image

from quarterturn_lab.errors import DataError
from quarterturn_lab.files import safe
from quarterturn_lab.inference.masks import probability_map
from quarterturn_lab.inference.tables import Options, windows
from quarterturn_lab.inference.whole_images import plain_network
from quarterturn_lab.runs.trained import card_of
from quarterturn_lab.settings.networks import Net
from quarterturn_lab.training import training_run

SMALL = {"experiment": "fit", "loader": "images", "epochs": 1, "train_size": None, "validation": 0.2}
MASKS = Net(1, 16, ((8, 8), (8,)), (8,), 2, unet=True, head="conv", dropout=0.0)


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks of the user's own images: one class of two, tags, numbers; and regions of three classes."""
    root, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    class_folders(root / "classes", count=20, classes=("ant", "=bee"))
    for name, lines in {
        "tags": ["image,long,bright", *(f"{i}.png,{i % 2},{i % 3 // 2}" for i in range(40))],
        "numbers": ["image,weight,height", *(f"{i}.png,{1000 + 7.5 * i},{0.1 * (i % 7) - 5}" for i in range(40))],
    }.items():
        (root / name).mkdir()
        for i in range(40):
            Image.fromarray(rng.integers(0, 256, (15, 15), dtype=np.uint8)).save(root / name / f"{i}.png")
        (root / name / "labels.csv").write_text("\n".join(lines))
    for part in ("images", "masks"):
        (root / "regions" / part).mkdir(parents=True)
    for i in range(20):
        labels = rng.integers(0, 3, (20, 24)).astype(np.uint8)
        Image.fromarray(labels).save(root / "regions/masks" / f"{i}.png")
        Image.fromarray((80 * labels).astype(np.uint8)).save(root / "regions/images" / f"{i}.png")
    for name in ("classes", "tags", "numbers", "regions"):
        options = {**SMALL, "data": str(root / name)}
        config = tiny("roll-all-quarter", **options)
        if name == "regions":
            config = config.model_copy(update={"net": MASKS})
        training_run.run(config, root / "runs" / name)
    return root


# --- classes ----------------------------------------------------------------------------------------------------------


def test_the_predicted_class_is_the_most_probable(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    code, _, errors = call(f"predict {runs}/runs/classes {runs}/classes --out {tmp_path}/o.csv", capsys)
    assert code == 0, errors
    rows = table_of(tmp_path / "o.csv")
    assert list(rows[0]) == ["image", "predicted_class", "'=bee", "ant"]  # no formulas
    assert {row["image"].split("/")[0] for row in rows} == {"'=bee", "ant"}
    for row in rows:
        names = ("'=bee", "ant")
        assert row["predicted_class"] == max(names, key=lambda name: float(row[name]))
        assert sum(float(row[name]) for name in names) == pytest.approx(1)


@given(st.text(max_size=5))
def test_no_cell_begins_as_a_formula(text: str) -> None:
    assert not safe(text).startswith(("=", "+", "-", "@", "\t", "\r"))
    assert safe(text).removeprefix("'") == text.removeprefix("'")


# --- windows ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40), st.integers(1, 40))
def test_windows_cover_the_image_and_stay_inside(width: int, height: int, side: int, stride: int) -> None:
    seen = np.zeros((height, width), dtype=bool)
    places = list(windows(width, height, Options(window=side, stride=min(stride, side))))
    for x, y, wide, high in places:
        assert (wide, high) == (min(side, width), min(side, height))
        assert 0 <= x <= width - wide
        assert 0 <= y <= height - high
        seen[y : y + high, x : x + wide] = True
    assert seen.all()
    assert len(set(places)) == len(places)


def test_a_window_is_an_image_of_its_own(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (50, 71), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    run = runs / "runs" / "classes"
    code, _, errors = call(
        f"predict {run} {tmp_path}/large.png --window 30 --stride 20 --out {tmp_path}/o.csv --batch 3", capsys
    )
    assert code == 0, errors
    rows = table_of(tmp_path / "o.csv")
    assert [(int(row["x"]), int(row["y"])) for row in rows] == [(x, y) for y in (0, 20) for x in (0, 20, 40, 41)]
    for i, row in enumerate(rows):
        x, y, wide, high = (int(row[name]) for name in ("x", "y", "width", "height"))
        Image.fromarray(pixels[y : y + high, x : x + wide]).save(tmp_path / f"{i}.png")
        call(f"predict {run} {tmp_path}/{i}.png --out {tmp_path}/one.csv", capsys)
        [alone] = table_of(tmp_path / "one.csv")
        assert alone["predicted_class"] == row["predicted_class"]
        assert float(alone["ant"]) == pytest.approx(float(row["ant"]), abs=1e-6)


# --- bad files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classes", "regions"])
def test_bad_files_are_named_or_skipped(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("in")
    folder.mkdir()
    for good in ("a", "c"):
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)).save(
            folder / f"{good}.png"
        )
    (folder / "b.png").write_text("no image")
    (folder / "d.jpg").symlink_to("nowhere")
    (folder / "e.tif").mkdir()
    (folder / "f.gif").touch()
    os.mkfifo(folder / "g.png")
    out = "o.csv" if name == "classes" else "o"
    command = f"predict {runs}/runs/{name} in --out {out}"
    code, _, errors = call(command, capsys)
    assert code == 2
    assert "in/b.png cannot be read" in errors
    assert not Path(out).exists()
    code, text, errors = call(f"{command} --skip-bad", capsys)
    assert code == 1
    assert "2 images, 5 skipped" in text
    assert len(errors.splitlines()) == 5
    assert all(
        bad in errors for bad in ("b.png", "d.jpg is a link", "e.tif is a folder", "f.gif", "g.png is not a file")
    )
    if name == "classes":
        rows = table_of(Path(out))
        assert [(row["image"], bool(row["skipped"]), bool(row["ant"])) for row in rows] == [
            ("a.png", False, True), ("b.png", True, False), ("c.png", False, True), ("d.jpg", True, False),
            ("e.tif", True, False), ("f.gif", True, False), ("g.png", True, False),
        ]  # fmt: skip
    else:
        assert sorted(path.name for path in Path(out).iterdir()) == ["a.png", "c.png"]
    for good in ("a", "c"):
        (folder / f"{good}.png").unlink()
    code, _, errors = call(f"{command}2 --skip-bad", capsys)
    assert code == 2
    assert "none of the 5 images can be used" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("classes in --out o.csv --window 0", "--window 0: give 1 or more"),
        ("classes in --out o.csv --batch 99999999999999999999", "at most 1,000,000"),
        ("classes in --out pipe", "pipe is a device or pipe"),
        ("classes in --out o.csv --window -5", "--window -5"),
        ("classes in --out o.csv --stride 5", "give --window too"),
        ("classes in --out o.csv --window 5 --stride 0", "--stride 0"),
        ("classes in --out o.csv --grey", "--grey is for masks"),
        ("regions in --out o --grey", "--grey is for masks of two classes"),
        ("regions in --out o --window 5", "--window is for networks that label whole images"),
        ("classes other --out o.csv", "found .heic (save them as JPEG or PNG), .txt"),
        ("classes in --out file/o.csv", "file is a file"),
        ("classes in --out /proc/o.csv", "/proc"),
        ("regions in --out file", "file is a file"),
        ("regions in --out /proc/none/o", "/proc/none cannot be used"),
    ],
)
def test_mistakes(
    arguments: str,
    message: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("in", "other"):
        Path(folder).mkdir()
    Image.new("L", (16, 16)).save("in/a.png")
    os.mkfifo("pipe")
    for name in ("other/a.heic", "other/b.txt", "file"):
        Path(name).touch()
    before = sorted(tmp_path.rglob("*"))
    code, _, errors = call(f"predict {runs}/runs/{arguments}", capsys)
    assert code == 2
    assert errors.startswith("quarterturn: ")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_an_image_that_is_too_small_is_named(runs: Path, tmp_path: Path) -> None:
    def no_room(_: np.ndarray) -> np.ndarray:
        raise RuntimeError("no room")

    card = card_of(runs / "runs" / "regions")
    for side, error in ((1, DataError), (80, RuntimeError)):  # a large one has another reason
        Image.new("L", (side, side)).save(tmp_path / "a.png")
        with pytest.raises(error, match="no room"):
            probability_map(plain_network(no_room, card), card, tmp_path / "a.png")


# --- every task, with torch and with ONNX -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tags", "numbers", "regions"])
def test_every_task_with_torch_and_with_onnx(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, folder, file = runs / "runs" / name, runs / name, tmp_path / "network.onnx"
    folder = folder / "images" if name == "regions" else folder
    code, _, errors = call(f"export {run} --onnx {file}", capsys)
    assert code == 0, errors
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    assert call(f"predict {run} {folder} --out {mine}", capsys)[0] == 0
    command = [
        sys.executable,
        "-m",
        "quarterturn_lab",
        "predict",
        "--onnx",
        str(file),
        str(folder),
        "--out",
        str(theirs),
    ]
    subprocess.run(command, check=True, capture_output=True)
    if name == "regions":
        for path in mine.iterdir():
            first, second = (np.asarray(Image.open(where / path.name)) for where in (mine, theirs))
            assert first.shape == (20, 24)
            assert set(np.unique(first)) <= {0, 1, 2}
            assert (first == second).mean() > 0.99
        return
    rows, others = table_of(mine), table_of(theirs)
    names = {"tags": ["long", "bright"], "numbers": ["weight", "height"]}[name]
    assert set(rows[0]) == {"image", *names, *(["predicted_tags"] if name == "tags" else [])}
    for row, other in zip(rows, others, strict=True):
        values = [float(row[column]) for column in names]
        assert values == pytest.approx([float(other[column]) for column in names], rel=1e-3, abs=1e-4)
        if name == "tags":
            likely = [column for column in rows[0] if column in names and float(row[column]) >= 0.5]
            assert row["predicted_tags"] == ";".join(likely) == other["predicted_tags"]
        else:
            assert 900 < values[0] < 1400  # in the units of the table
            assert -7 < values[1] < -2

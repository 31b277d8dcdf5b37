"""Predictions of large files and of many: windows of every kind of file, georeferences, interruptions, mistakes."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labtools import SMALL, call, nuclei_tree, small
from PIL import Image

from quarterturn_lab.data import images
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.data.scaling import Scaling
from quarterturn_lab.errors import ConfigError, DataError, RunError
from quarterturn_lab.inference import large_files, masks
from quarterturn_lab.inference.large_files import opened
from quarterturn_lab.inference.predict import find, predict
from quarterturn_lab.inference.tables import Options
from quarterturn_lab.inference.tiles import Network
from quarterturn_lab.inference.whole_images import plain_network
from quarterturn_lab.runs.model_card import ModelCard
from quarterturn_lab.training import training_run

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("zarr")

COLOUR = ModelCard(
    "pixels",
    "nuclei",
    ("background", "object"),
    Settings(folder=None, side=16, channels=3, rules=2),
    Scaling((0.0,) * 3, (1.0,) * 3),
    (3,),
)
CLASSES = replace(COLOUR, task="classes", classes=("dark", "bright"))
SHAPE = (40, 50)
GDAL = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # rasterio multiplies matrices in an old way


def bright(x: np.ndarray) -> np.ndarray:
    """A network: pixels that are brighter than half."""
    level = (x.mean(axis=1) - 127.5) / 10
    return np.stack([-level, level], axis=1)


def bright_image(x: np.ndarray) -> np.ndarray:
    return bright(x).mean(axis=(2, 3))


def made(run: Any = bright, card: ModelCard = COLOUR) -> Network:
    return plain_network(run, card, "weights")


def pixels(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def quiet(*_: Any) -> None:
    pass


def written(image: Path, out: Path, run: Any = bright, card: ModelCard = COLOUR, **options: Any) -> np.ndarray:
    said: list[str] = []
    predict(made(run, card), card, find((str(image),)), out, Options(**options), quiet, said.append)
    return tifffile.imread(out)


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files, "LARGE", 0)


# --- windows of files -------------------------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "tiles": {"tile": (16, 32), "photometric": "rgb"},
    "compressed tiles": {"tile": (16, 16), "photometric": "rgb", "compression": "zlib", "predictor": True},
    "planes": {"tile": (16, 16), "photometric": "rgb", "planarconfig": "separate"},
    "strips": {"rowsperstrip": 7, "photometric": "rgb", "compression": "zlib"},
    "one piece": {"photometric": "rgb"},
    "big-endian": {"photometric": "rgb", "byteorder": ">"},
    "alpha": {"tile": (16, 16), "photometric": "rgb", "extrasamples": ["unassalpha"]},
    "grey": {"tile": (16, 16), "photometric": "minisblack"},
}


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("way", WAYS)
def test_windows_have_the_pixels_of_the_whole_file(way: str, tmp_path: Path) -> None:
    values = pixels(*SHAPE, {"alpha": 4, "grey": 1}.get(way, 3))
    values = values.squeeze() if way == "grey" else values
    stored = values.transpose(2, 0, 1) if way == "planes" else values
    options = dict(WAYS[way])
    tifffile.imwrite(tmp_path / "a.tif", stored, metadata=None, **options)
    expected, bands = images.decoded(tmp_path / "a.tif", COLOUR.settings)
    with opened(tmp_path / "a.tif", COLOUR, convert=True) as picture:
        assert (picture.height, picture.width) == SHAPE
        assert set(picture.bands) & set(bands)
        for top, bottom, left, right in ((0, 40, 0, 50), (3, 19, 15, 34), (39, 40, 49, 50), (3, 19, 0, 5)):
            found = picture.read(top, bottom, left, right)
            assert np.array_equal(found, expected[:, top:bottom, left:right])


@pytest.mark.usefixtures("everything_is_large")
def test_windows_of_numbers(tmp_path: Path) -> None:
    settings = Settings(folder=None, side=16, channels=5, floats=True, rules=2)
    card = replace(COLOUR, settings=settings, bands=(5,))
    values = np.random.default_rng(0).random((5, *SHAPE), dtype=np.float32)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="minisblack", tile=(16, 16), compression="zlib")
    with opened(tmp_path / "a.tif", card) as picture:
        assert np.array_equal(picture.read(3, 30, 7, 44), values[:, 3:30, 7:44])
    values[2, 20, 20] = np.nan
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="minisblack", tile=(16, 16))
    with opened(tmp_path / "a.tif", card) as picture, pytest.raises(DataError, match="not finite"):
        picture.read(3, 30, 7, 44)


@GDAL
def test_slides_and_rasters(tmp_path: Path) -> None:
    pytest.importorskip("openslide")
    rasterio = pytest.importorskip("rasterio")
    values = pixels(64, 96)
    with tifffile.TiffWriter(tmp_path / "a.svs") as file:
        for by in (1, 2):
            file.write(values[::by, ::by], tile=(16, 16), compression="zlib", photometric="rgb",
                       subfiletype=int(by > 1), metadata=None)  # fmt: skip
    transform = rasterio.transform.from_origin(5e5, 5e6, 0.5, 0.5)
    about = {"driver": "HFA", "width": 96, "height": 64, "count": 3, "dtype": "uint8"}
    with rasterio.open(tmp_path / "a.img", "w", **about, crs="EPSG:32633", transform=transform) as file:
        file.write(values.transpose(2, 0, 1))
    for name in ("a.svs", "a.img"):
        with opened(tmp_path / name, COLOUR) as picture:
            assert np.array_equal(picture.read(5, 40, 9, 77), values.transpose(2, 0, 1)[:, 5:40, 9:77])
    with opened(tmp_path / "a.svs", COLOUR, level=1) as picture:
        assert (picture.height, picture.width) == (32, 48)
        assert np.array_equal(picture.read(5, 30, 9, 41), values[::2, ::2].transpose(2, 0, 1)[:, 5:30, 9:41])
    written(tmp_path / "a.img", tmp_path / "mask.tif")
    with rasterio.open(tmp_path / "mask.tif") as mask, rasterio.open(tmp_path / "a.img") as image:
        assert (mask.crs, mask.transform) == (image.crs, image.transform)


# --- masks ------------------------------------------------------------------------------------------------------------


@GDAL
def test_a_mask_of_thirty_million_pixels_is_written_in_tiles(tmp_path: Path) -> None:
    """6,000 x 5,000 pixels, in tiles that are not those of the file; with its georeference."""
    block = np.kron(pixels(10, 20), np.ones((50, 50, 1), dtype=np.uint8))
    tags = [
        (33550, 12, 3, (0.5, 0.25, 0.0), True),
        (33922, 12, 6, (0.0, 0.0, 0.0, 5e5, 5e6, 0.0), True),
        (34735, 3, 16, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633), True),
    ]
    whole = np.tile(block, (10, 6, 1))
    tifffile.imwrite(tmp_path / "a.tif", whole, tile=(512, 512), photometric="rgb", extratags=tags, metadata=None)
    found = written(tmp_path / "a.tif", tmp_path / "mask.tif", tile=1024)
    expected = np.where(whole.mean(axis=2) >= 127.5, 255, 0)
    assert np.array_equal(found, expected)
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []
    rasterio = pytest.importorskip("rasterio")
    with rasterio.open(tmp_path / "mask.tif") as mask, rasterio.open(tmp_path / "a.tif") as image:
        assert mask.crs == image.crs == rasterio.CRS.from_epsg(32633)
        assert mask.transform == image.transform
        assert mask.profile["tiled"]


@GDAL
def test_a_level_of_a_pyramid_keeps_its_place(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    values = pixels(64, 96)
    for name, transform in {
        "north": rasterio.transform.from_origin(5e5, 5e6, 0.5, 0.25),
        "turned": rasterio.Affine(0.5, 0.1, 5e5, 0.2, -0.5, 5e6),
    }.items():
        about = {"driver": "GTiff", "width": 96, "height": 64, "count": 3, "dtype": "uint8", "tiled": True}
        about |= {"blockxsize": 16, "blockysize": 16}
        with rasterio.open(tmp_path / "a.tif", "w", **about, crs="EPSG:32633", transform=transform) as file:
            file.write(values.transpose(2, 0, 1))
            file.build_overviews([2, 4])
        found = written(tmp_path / "a.tif", tmp_path / f"{name}.tif", level=1)
        assert found.shape == (32, 48)
        reduced = rasterio.open(tmp_path / "a.tif", overview_level=0)
        with rasterio.open(tmp_path / f"{name}.tif") as mask, reduced as level:
            assert mask.crs == level.crs
            assert mask.transform.almost_equals(level.transform)


def test_ome_tiff_keeps_the_spacing(tmp_path: Path) -> None:
    about = {"axes": "YXS", "PhysicalSizeX": 0.25, "PhysicalSizeY": 0.5}
    tifffile.imwrite(tmp_path / "a.ome.tif", pixels(*SHAPE), photometric="rgb", metadata=about)
    written(tmp_path / "a.ome.tif", tmp_path / "mask.ome.tif")
    with tifffile.TiffFile(tmp_path / "mask.ome.tif") as file:
        assert file.is_ome
        assert 'PhysicalSizeX="0.25"' in file.ome_metadata
    with opened(tmp_path / "mask.ome.tif", COLOUR, convert=True) as picture:
        assert picture.spacing == pytest.approx((0.25, 0.5))
    written(tmp_path / "mask.ome.tif", tmp_path / "again.tif", convert=True)
    with opened(tmp_path / "again.tif", COLOUR, convert=True) as picture:
        assert picture.spacing == pytest.approx((0.25, 0.5))


class Stopped(BaseException):
    """As a signal would stop it, at any place."""


class Fails:
    """A network that stops after so many calls."""

    def __init__(self, after: int, run: Any = bright, error: type[BaseException] = Stopped) -> None:
        self.left, self.run, self.error, self.calls = after, run, error, 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.left == 0:
            raise self.error
        self.left, self.calls = self.left - 1, self.calls + 1
        return self.run(x)


def test_a_mask_continues_where_it_was_stopped(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", pixels(300, 400), photometric="rgb")
    written(tmp_path / "a.tif", tmp_path / "expected.tif", tile=64)
    for _ in range(3):
        with pytest.raises(Stopped):
            written(tmp_path / "a.tif", tmp_path / "mask.tif", Fails(9), tile=64)
        assert not (tmp_path / "mask.tif").exists()
    last = Fails(100)
    written(tmp_path / "a.tif", tmp_path / "mask.tif", last, tile=64)
    assert last.calls == 5 * 7 - 3 * 9  # nothing is computed twice
    assert (tmp_path / "mask.tif").read_bytes() == (tmp_path / "expected.tif").read_bytes()
    assert not list(tmp_path.glob(".*"))


NO_TEXT, NO_NUMBERS = b"\xff\xfe\x00\n", b"a b c\n"


@pytest.mark.parametrize(
    ("name", "content"), [("job.json", NO_TEXT), ("tiles", NO_TEXT), ("tiles", NO_NUMBERS), ("mask.raw", b"short")]
)
def test_a_mask_whose_unfinished_files_are_damaged_begins_again(name: str, content: bytes, tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", pixels(300, 400), photometric="rgb")
    written(tmp_path / "a.tif", tmp_path / "expected.tif", tile=64)
    for _ in range(2):
        with pytest.raises(Stopped):
            written(tmp_path / "a.tif", tmp_path / "mask.tif", Fails(9), tile=64)
        (tmp_path / ".mask.tif.unfinished" / name).write_bytes(content)
    last = Fails(100)
    written(tmp_path / "a.tif", tmp_path / "mask.tif", last, tile=64)
    assert last.calls == 5 * 7
    assert (tmp_path / "mask.tif").read_bytes() == (tmp_path / "expected.tif").read_bytes()


def test_another_image_does_not_continue_the_mask(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", pixels(300, 400), photometric="rgb")
    with pytest.raises(Stopped):
        written(tmp_path / "a.tif", tmp_path / "mask.tif", Fails(9), tile=64)
    tifffile.imwrite(tmp_path / "a.tif", pixels(300, 400, seed=1), photometric="rgb")
    other = Fails(100)
    found = written(tmp_path / "a.tif", tmp_path / "mask.tif", other, tile=64)
    assert other.calls == 5 * 7
    assert np.array_equal(found, np.where(pixels(300, 400, seed=1).mean(axis=2) >= 127.5, 255, 0))


def test_masks_of_a_folder_continue(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(5):
        Image.fromarray(pixels(20, 30, seed=i)).save(tmp_path / f"in/{i}.png")
    files = find((str(tmp_path / "in"),))
    with pytest.raises(Stopped):
        predict(made(Fails(3)), COLOUR, files, tmp_path / "out", Options(), quiet, quiet)
    assert not (tmp_path / "out").exists()
    last = Fails(10)
    assert predict(made(last), COLOUR, files, tmp_path / "out", Options(), quiet, quiet) == []
    assert last.calls == 2
    for i in range(5):
        expected = np.where(pixels(20, 30, seed=i).mean(axis=2) >= 127.5, 255, 0)
        assert np.array_equal(np.asarray(Image.open(tmp_path / f"out/{i}.png")), expected)


def test_a_layer_that_sees_tiles_alone_is_named_in_the_file(tmp_path: Path) -> None:
    network = made()
    alone = replace(network, view=lambda sizes: replace(network.view(sizes), alone="2.se (SqueezeExcite)"))
    tifffile.imwrite(tmp_path / "a.tif", pixels(300, 400), photometric="rgb")
    for name in ("mask.tif", "mask.ome.tif"):
        said: list[str] = []
        files = find((str(tmp_path / "a.tif"),))
        predict(alone, COLOUR, files, tmp_path / name, Options(tile=64), quiet, said.append)
        assert "2.se (SqueezeExcite)" in said[0]
        with tifffile.TiffFile(tmp_path / name) as file:
            assert "2.se (SqueezeExcite)" in file.pages[0].description


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for i in range(10):
        Image.fromarray(pixels(20, 30, seed=i)).save(tmp_path / f"in/{i}.png")
    return tmp_path


def table(root: Path, out: str, run: Any = bright_image, **options: Any) -> list[str]:
    files = find((str(root / "in"),))
    return predict(made(run, CLASSES), CLASSES, files, root / out, Options(**options), quiet, quiet)


@pytest.mark.parametrize("options", [{"batch": 2}, {"batch": 4, "window": 12}])  # with windows: 6 rows for each image
def test_a_table_continues_where_it_was_stopped(survey: Path, options: dict[str, int]) -> None:
    whole = Fails(1000, bright_image)
    table(survey, "expected.csv", whole, **options)
    for _ in range(2):
        with pytest.raises(Stopped):
            table(survey, "o.csv", Fails(2, bright_image), **options)
        assert not (survey / "o.csv").exists()
    last = Fails(1000, bright_image)
    table(survey, "o.csv", last, **options)
    assert (survey / "o.csv").read_bytes() == (survey / "expected.csv").read_bytes()
    assert last.calls == whole.calls - 4  # nothing is computed twice
    assert not list(survey.glob(".*"))


@pytest.mark.parametrize(
    ("name", "content"), [("job.json", NO_TEXT), ("images", NO_TEXT), ("images", NO_NUMBERS), ("rows.csv", b"short")]
)
def test_a_table_whose_unfinished_files_are_damaged_begins_again(name: str, content: bytes, survey: Path) -> None:
    table(survey, "expected.csv", batch=2)
    for _ in range(2):
        with pytest.raises(Stopped):
            table(survey, "o.csv", Fails(2, bright_image), batch=2)
        (survey / ".o.csv.unfinished" / name).write_bytes(content)
    last = Fails(100, bright_image)
    table(survey, "o.csv", last, batch=2)
    assert last.calls == 5
    assert (survey / "o.csv").read_bytes() == (survey / "expected.csv").read_bytes()


def test_a_bad_image_is_in_a_table_once(survey: Path) -> None:
    """With windows, stopped after it and continued."""
    (survey / "in/0.png").write_text("no image")
    for calls in (0, 1, 2):
        with pytest.raises(Stopped):
            table(survey, "o.csv", Fails(calls, bright_image), window=12, batch=1, skip_bad=True)
    table(survey, "o.csv", window=12, batch=1, skip_bad=True)
    with (survey / "o.csv").open(newline="") as file:
        names = [row["image"] for row in csv.DictReader(file)]
    assert names == ["0.png", *(f"{i}.png" for i in range(1, 10) for _ in range(6))]


def test_a_table_continues_past_a_bad_image_with_skip_bad(survey: Path) -> None:
    (survey / "in/7.png").write_text("no image")
    run = Fails(1000, bright_image)
    with pytest.raises(DataError, match=r"7\.png"):
        table(survey, "o.csv", run, batch=2)
    first = run.calls
    assert len(table(survey, "o.csv", run, batch=2, skip_bad=True)) == 1
    assert run.calls - first <= 3  # and not all five batches
    with (survey / "o.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [f"{i}.png" for i in range(10)]
    assert [row["image"] for row in rows if row["skipped"]] == ["7.png"]


def test_two_commands_do_not_write_the_same_table(survey: Path) -> None:
    def other(x: np.ndarray) -> np.ndarray:
        with pytest.raises(RunError, match="another process"):
            table(survey, "o.csv")
        return bright_image(x)

    table(survey, "o.csv", other)


def test_windows_of_a_large_file_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files, "LARGE", 0)
    (tmp_path / "in").mkdir()
    values = pixels(64, 80)
    tifffile.imwrite(tmp_path / "in/a.tif", values, photometric="rgb", tile=(16, 16))
    table(tmp_path, "parts.csv", window=32, stride=16)
    (tmp_path / "in/a.tif").unlink()
    Image.fromarray(values).save(tmp_path / "in/a.png")
    table(tmp_path, "whole.csv", window=32, stride=16)
    parts, whole = ((tmp_path / name).read_text() for name in ("parts.csv", "whole.csv"))
    assert len(parts.splitlines()) == 1 + 3 * 4
    assert parts.replace(".tif", ".png") == whole


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("everything_is_large")
def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tifffile.imwrite("a.tif", pixels(300, 400), photometric="rgb", tile=(64, 64))
    tifffile.imwrite("five.tif", pixels(*SHAPE, 5), photometric="minisblack", planarconfig="contig", tile=(16, 16))
    tifffile.imwrite("deep.tif", pixels(*SHAPE).astype(np.uint16), photometric="rgb", tile=(16, 16))
    tifffile.imwrite("pages.tif", np.stack([pixels(*SHAPE)] * 4), photometric="rgb", tile=(16, 16))
    tifffile.imwrite("piece.tif", pixels(*SHAPE), photometric="rgb", compression="zlib", rowsperstrip=40)
    tifffile.imwrite("white.tif", pixels(*SHAPE, 1)[..., 0], photometric="miniswhite", tile=(16, 16))
    Image.fromarray(pixels(*SHAPE)).save("a.png")
    Path("cut.tif").write_bytes(Path("a.tif").read_bytes()[:9000])
    Path("no.svs").write_text("no slide")
    few, some = (
        replace(COLOUR, settings=COLOUR.settings.model_copy(update={"max_pixels": limit})) for limit in (1000, 10_000)
    )
    for image, out, card, options, message in (
        ("a.tif", "a.tif", COLOUR, {}, "is the image itself"),
        ("a.tif", "o.tif", COLOUR, {"level": 3}, r"--level 3: a.tif has level 0 \(400 x 300\)"),
        ("a.png", "o.tif", COLOUR, {"level": 1}, "a.png has one level"),
        ("five.tif", "o.tif", COLOUR, {}, "five.tif has 5 channels"),
        ("deep.tif", "o.tif", COLOUR, {}, "16 bits"),
        ("pages.tif", "o.tif", COLOUR, {}, "4 pages or frames"),
        ("piece.tif", "o.tif", few, {}, "one piece.*tiled TIFF"),
        ("white.tif", "o.tif", few, {"convert": True}, "save it as RGB"),
        ("a.png", "o.tif", few, {}, "--max-pixels, or.*tiled TIFF"),
        ("a.tif", "o.png", some, {}, r"give the name of a .tif file"),
        ("cut.tif", "o.tif", COLOUR, {}, "cut.tif cannot be read"),
        ("no.svs", "o.tif", COLOUR, {}, "not a slide"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            written(Path(image), Path(out), card=card, **options)
        assert not Path("o.tif").exists()
        shutil.rmtree(".o.tif.unfinished", ignore_errors=True)
    for image in ("a.png", "white.tif", "piece.tif"):  # small enough to be read at once
        assert written(Path(image), Path("o.tif"), card=few, max_pixels=5000, convert=True).shape == SHAPE
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(masks.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(RunError, match="GB are free"):
        written(Path("a.tif"), Path("o.tif"), tile=64)


# --- the whole way ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large")
    config = small("nuclei", "roll-all-quarter", nuclei_tree(root / "data"), net={"group": "D4"}, epochs=1)
    assert config.net.stages == SMALL["nuclei"].stages
    training_run.run(config, root / "run")
    return root / "run"


def test_the_command_gives_turned_masks_for_turned_files(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    image = pixels(130, 141)
    turns = {"a": image, "turned": np.rot90(image), "mirrored": image[:, ::-1]}
    for name, values in turns.items():
        tifffile.imwrite(tmp_path / f"{name}.tif", np.ascontiguousarray(values), photometric="rgb")
        command = f"predict {run} {tmp_path}/{name}.tif --out {tmp_path}/{name}-mask.tif --tile 64 --grey"
        code, said, errors = call(command, capsys)
        assert code == 0, errors
        assert "tiles, with" in said
        assert "one pass over the whole image" in said
    found = tifffile.imread(tmp_path / "a-mask.tif").astype(int)
    for name, back in {"turned": lambda x: np.rot90(x, -1), "mirrored": lambda x: x[:, ::-1]}.items():
        again = back(tifffile.imread(tmp_path / f"{name}-mask.tif").astype(int))
        assert np.abs(again - found).max() <= 1  # grey levels of probabilities, which are rounded
        assert np.abs(tifffile.imread(tmp_path / "a-mask.tif").astype(int) - found[::-1]).max() > 1
    assert call(f"predict {run} {tmp_path}/a.tif --out {tmp_path}/whole.tif --grey", capsys)[0] == 0
    assert np.abs(tifffile.imread(tmp_path / "whole.tif").astype(int) - found).max() <= 1


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # two wait for each other on a machine with other work


@pytest.mark.slow
def test_a_killed_command_continues_to_the_same_file(run: Path, tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", pixels(2400, 2600), photometric="rgb", tile=(256, 256))

    def command(out: str) -> list[str]:
        return [sys.executable, "-m", "quarterturn_lab", "predict", str(run), str(tmp_path / "a.tif"), "--out",
                str(tmp_path / out), "--tile", "64"]  # fmt: skip

    subprocess.run(command("expected.tif"), check=True, env=ONE_THREAD, timeout=600)
    kills = _growing(tmp_path / ".mask.tif.unfinished/tiles", command("mask.tif"))
    assert sorted(done := list(islice(kills, 3))) == done
    assert not (tmp_path / "mask.tif").exists()
    subprocess.run(command("mask.tif"), check=True, env=ONE_THREAD, timeout=600)
    assert (tmp_path / "mask.tif").read_bytes() == (tmp_path / "expected.tif").read_bytes()


def _growing(marks: Path, command: list[str]) -> Iterator[int]:
    """Starts a command again and again, and kills it when it has done some more."""
    while True:
        before = len(marks.read_text().splitlines()) if marks.exists() else 0
        process = subprocess.Popen(command, env=ONE_THREAD)
        end = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < end:
            if marks.exists() and len(marks.read_text().splitlines()) > before:
                process.send_signal(signal.SIGKILL)
                process.wait()
            time.sleep(0.02)
        process.wait()
        assert process.returncode == -signal.SIGKILL
        yield len(marks.read_text().splitlines())

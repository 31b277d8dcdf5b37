"""Loaders of galaxies, aerial images, nuclei, FITS and TIFF: on made-up trees of the published form, on real data."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from labtools import DATA, aerial_tree, class_folders, galaxy_tree, nuclei_tree
from PIL import Image

from quarterturn_lab.data import aerial, folders, galaxies, images, nuclei
from quarterturn_lab.data.augment import COLOUR, colours, source_side, uniforms
from quarterturn_lab.data.dataset import Dataset, Ragged, Scenes, Settings, subset
from quarterturn_lab.data.scaling import scaling_of
from quarterturn_lab.errors import DataError
from quarterturn_lab.models.layers import ANSWERS, Questions
from quarterturn_lab.runs.loading import load
from quarterturn_lab.settings.config import Augment, checked
from quarterturn_lab.settings.experiments import settings_of
from quarterturn_lab.training import batches

GALAXIES, AERIAL = Settings(folder=None, side=64, channels=3, longest=106), Settings(folder=None, side=80, channels=3)
CPU = torch.device("cpu")


def at(settings: Settings, path: Path, **changes: object) -> Settings:
    return settings.model_copy(update={"folder": str(path), **changes})


def real(name: str, root: Path) -> Path:
    subprocess.run([DATA / "unpack", root, name], check=True, stdout=subprocess.DEVNULL)
    return root


needs = {name: pytest.mark.skipif(not (DATA / f"{name}.tar").exists(), reason="needs ../shared/data")
         for name in ("galaxies", "roads", "nuclei")}  # fmt: skip


# --- galaxies ---------------------------------------------------------------------------------------------------------


def test_galaxies_of_the_published_form(tmp_path: Path) -> None:
    data = galaxies.load(at(GALAXIES, galaxy_tree(tmp_path)))
    assert data.task == "answers"
    assert data.classes == ANSWERS
    assert data.images.shape == (20, 3, 106, 106)  # all of it, as room for the warps
    assert data.labels.shape == (20, 37)
    assert data.names[:2] == ("100008", "100023")
    assert data.bands == (3,)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [16, 2, 2]
    assert np.concatenate([data.train, data.valid, data.test]).tolist() == list(range(20))
    one = images.read(tmp_path / "images_training_rev1/100008.jpg", GALAXIES)
    assert np.array_equal(one, data.images[0][:, 21:85, 21:85])  # 424 by 4, the middle 64
    votes = torch.from_numpy(data.labels)
    torch.testing.assert_close(votes[:, 3:5].sum(1), votes[:, 1], atol=1e-5, rtol=0)


def test_galaxies_are_split_in_file_order_and_all_of_them_as_the_paper_did() -> None:
    train, valid, test = galaxies.split(61_578)
    assert (len(train), len(valid), len(test)) == (55_421, 0, 6_157)
    assert (train[-1], test[0], test[-1]) == (55_420, 55_421, 61_577)
    assert [len(part) for part in galaxies.split(4000)] == [3200, 400, 400]
    assert [part[0] for part in galaxies.split(4000)] == [0, 3200, 3600]
    with pytest.raises(DataError, match="too few"):
        galaxies.split(9)


def rows_of(root: Path) -> list[list[str]]:
    return [line.split(",") for line in (root / galaxies.TABLE).read_text().splitlines()]


def write(root: Path, rows: list[list[str]]) -> None:
    (root / galaxies.TABLE).write_text("\n".join(",".join(row) for row in rows) + "\n")


def test_the_answers_are_the_columns_of_the_header(tmp_path: Path) -> None:
    names = ("Class1.1", "Class1.2", "Class1.3")
    root = galaxy_tree(tmp_path, answers=names, side=60)
    data = galaxies.load(at(GALAXIES, root, side=16, longest=16))
    assert data.classes == names
    assert data.labels.shape == (20, 3)
    shuffled = [row[:1] + row[:0:-1] for row in rows_of(root)]
    write(root, shuffled)
    again = galaxies.load(at(GALAXIES, root, side=16, longest=16))
    assert again.classes == names[::-1]
    assert np.array_equal(again.labels, data.labels[:, ::-1])


MISTAKES = {
    "no number": (lambda rows: rows[3].__setitem__(2, "maybe"), r"line 4, Class1\.2: 'maybe' is not a number"),
    "outside": (lambda rows: rows[5].__setitem__(1, "1.5"), r"line 6, Class1\.1: 1\.5 is outside 0\.\.1"),
    "nan": (lambda rows: rows[5].__setitem__(1, "nan"), r"line 6, Class1\.1: nan is outside 0\.\.1"),
    "negative": (lambda rows: rows[5].__setitem__(37, "-0.1"), r"line 6, Class11\.6: -0\.1 is outside"),
    "short": (lambda rows: rows[2].pop(), "line 3: 37 columns, but the header has 38"),
    "twice": (lambda rows: rows.append(rows[1]), "line 22: GalaxyID 100008 appears a second time"),
    "column twice": (lambda rows: rows[0].__setitem__(2, "Class1.1"), r"the column Class1\.1 appears more than once"),
    "header": (lambda rows: rows.pop(0), r"line 1: expected a header GalaxyID"),
    "without image": (
        lambda rows: rows.append(["999999", *rows[1][1:]]),
        r"training_solutions_rev1\.csv has 1 row without an image in .*: 999999\. .*--skip-bad",
    ),
    "without row": (lambda rows: rows.pop(), r"has 1 image without a row in .*: 100293\.jpg\. .*--skip-bad"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_the_table_are_named(mistake: str, tmp_path: Path) -> None:
    root = galaxy_tree(tmp_path, side=40)
    rows = rows_of(root)
    change, message = MISTAKES[mistake]
    change(rows)
    write(root, rows)
    with pytest.raises(DataError, match=message):
        galaxies.load(at(GALAXIES, root, longest=40, side=16))


def test_what_has_no_partner_can_be_left_out(tmp_path: Path) -> None:
    root = galaxy_tree(tmp_path, side=40)
    rows = rows_of(root)
    write(root, [*rows[:-1], ["999999", *rows[1][1:]]])
    data = galaxies.load(at(GALAXIES, root, longest=40, side=16, skip_bad=True))
    assert len(data.images) == 19
    (root / galaxies.IMAGES / "100008.png").write_bytes((root / galaxies.IMAGES / "100008.jpg").read_bytes())
    with pytest.raises(DataError, match=r"two images named 100008: 100008\.jpg, 100008\.png"):
        galaxies.load(at(GALAXIES, root, skip_bad=True))


def test_missing_parts_of_galaxies(tmp_path: Path) -> None:
    root = galaxy_tree(tmp_path / "galaxies", side=40)
    assert len(galaxies.load(at(GALAXIES, tmp_path)).images) == 20  # the folder above will do
    broken = root / galaxies.IMAGES / "100023.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(DataError, match=r"100023\.jpg cannot be read"):
        galaxies.load(at(GALAXIES, root))
    shutil.rmtree(root / galaxies.IMAGES)
    with pytest.raises(DataError, match=r"images_training_rev1 is missing; expected [\s\S]*training_solutions"):
        galaxies.load(at(GALAXIES, root))
    with pytest.raises(DataError, match="--data DIR"):
        galaxies.load(GALAXIES)


@needs["galaxies"]
def test_real_galaxies(tmp_path: Path) -> None:
    """The first 60 of them, all rows of the table, the first principal component of their colours, their tree."""
    root = real("galaxies", tmp_path) / "galaxies"
    answers, rows = galaxies.table(root / galaxies.TABLE)
    assert len(rows) == 4000
    assert len(galaxies.paired(root / galaxies.IMAGES, rows, root / galaxies.TABLE, skip=False)) == 4000
    Questions(answers)  # whole questions alone
    assert len(answers) == 17
    few = tmp_path / "few"
    (few / galaxies.IMAGES).mkdir(parents=True)
    for name in list(rows)[:60]:
        shutil.copy(root / galaxies.IMAGES / f"{name}.jpg", few / galaxies.IMAGES)
    write(few, rows_of(root)[:61])
    data = galaxies.load(at(GALAXIES, few))
    assert data.images.shape == (60, 3, 106, 106)
    assert data.bands == (3,)
    assert np.sqrt(data.labels.var(axis=0).mean()) == pytest.approx(0.18, abs=0.03)  # predicting the mean
    pixels = data.images.transpose(0, 2, 3, 1).reshape(-1, 3) / 255
    first = np.linalg.eigh(np.cov(pixels.T))[1][:, -1]
    assert abs(first @ COLOUR) / np.linalg.norm(COLOUR) > 0.98
    tree = Questions(answers)(torch.from_numpy(data.labels))
    assert (tree - torch.from_numpy(data.labels)).abs().max() < 0.05  # the votes obey the tree themselves


# --- colours, tiles ---------------------------------------------------------------------------------------------------


def test_colours_move_along_the_principal_component() -> None:
    warps = Augment(colour=0.5)
    moved = colours(warps, 0, 3, np.arange(4000))[:, :, 0, 0].double().numpy()
    along = moved @ COLOUR / np.dot(COLOUR, COLOUR)
    assert np.allclose(moved, along[:, None] * COLOUR, atol=1e-7)
    assert along.mean() == pytest.approx(0, abs=0.03)
    assert along.std() == pytest.approx(0.5, rel=0.03)
    assert np.mean(np.abs(along) < 0.5) == pytest.approx(0.683, abs=0.02)  # normal
    one = colours(warps, 0, 3, np.array([77]))
    assert torch.equal(one[0], colours(warps, 0, 3, np.arange(4000))[77])
    u = uniforms(0, 0, np.arange(9), 7)
    assert np.array_equal(u, uniforms(0, 0, np.arange(9), 11)[:, :7])  # the warps' own numbers are as they were


def test_coloured_batches_stay_within_black_and_white(tmp_path: Path) -> None:
    config = checked(settings_of("galaxies", "baseline", data=str(galaxy_tree(tmp_path, side=106)), colour=30.0))
    data = load(config)
    scaling = scaling_of(data)
    inputs, labels = batches.batch(config, data, scaling, 0, data.train, CPU)
    assert inputs.shape == (16, 3, 64, 64)
    assert inputs.min() >= 0
    assert inputs.max() <= 255 * scaling.factor[0] * (1 + 1e-6)  # white
    assert inputs.min() < inputs.max()
    assert torch.equal(labels, torch.from_numpy(data.labels[data.train]))
    with pytest.raises(Exception, match="colour needs red, green and blue"):
        checked(settings_of("plankton", "baseline", colour=0.5))


@pytest.mark.parametrize(
    "warps",
    [
        Augment(),
        Augment(rotate=0, flip=False),
        Augment(zoom=1.3, shift=0.1),
        Augment(zoom=1.2, stretch=1.2, shear=10, shift=0.05),
    ],
)
def test_no_border_enters_a_tile(warps: Augment) -> None:
    """White images on a black border stay white when there is the room that is asked for, and the corner is needed."""
    from quarterturn_lab.data.augment import matrices, warped

    side = source_side(warps, 80)
    assert (side - 80) % 2 == 0
    if warps == Augment():
        assert side == 114  # 80 times the square root of 2
    maps = matrices(warps, 0, 0, np.arange(300))
    assert warped(torch.ones(300, 1, side, side), maps, 80).min() > 1 - 1e-5
    if warps.turn:
        assert warped(torch.ones(300, 1, side // 2 + side // 4, side // 2 + side // 4), maps, 80).min() < 0.5


# --- aerial images ----------------------------------------------------------------------------------------------------


def test_aerial_images_of_the_published_form(tmp_path: Path) -> None:
    data = aerial.load(at(AERIAL, aerial_tree(tmp_path)))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [3, 1, 2]
    assert data.names[0] == "train/22678915_15"
    assert data.images[0].shape == (3, 130, 130)
    assert data.labels[0].shape == (130, 130)
    red = np.asarray(Image.open(tmp_path / "train/map/22678915_15.tif"))
    assert np.array_equal(data.labels[0], red[..., 0] > 0)
    assert np.array_equal(
        data.images[0], np.asarray(Image.open(tmp_path / "train/sat/22678915_15.tiff")).transpose(2, 0, 1)
    )
    shutil.rmtree(tmp_path / "valid")
    assert len(aerial.load(at(AERIAL, tmp_path)).valid) == 0  # it may be missing


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
@pytest.mark.parametrize("mode", ["1", "L", "RGB", "P"])
def test_masks_of_all_kinds(suffix: str, mode: str, tmp_path: Path) -> None:
    if (suffix, mode) == ("jpg", "P"):
        pytest.skip("JPEG has no palettes")
    root = aerial_tree(tmp_path)
    truth = np.zeros((130, 130), dtype=np.uint8)
    truth[:64, :48] = 255  # whole blocks of a JPEG, so that it is exact
    (root / "train/map/22678915_15.tif").unlink()
    Image.fromarray(truth).convert(mode).save(root / f"train/map/22678915_15.{suffix}")
    data = aerial.load(at(AERIAL, root))
    assert np.array_equal(data.labels[0], truth > 0)


def test_bad_aerial_images_are_named(tmp_path: Path) -> None:
    root = aerial_tree(tmp_path)
    sat, mask = root / "test/sat/22678915_15.tiff", root / "test/map/22678915_15.tif"
    whole = mask.read_bytes()
    Image.new("L", (130, 129)).save(mask)
    with pytest.raises(
        DataError, match=r"22678915_15\.tiff and .*22678915_15\.tif differ in size, 130 x 130 and 130 x 129"
    ):
        aerial.load(at(AERIAL, root))
    mask.write_bytes(whole[:90])
    with pytest.raises(DataError, match=r"map/22678915_15\.tif cannot be read"):
        aerial.load(at(AERIAL, root))
    assert len(aerial.load(at(AERIAL, root, skip_bad=True)).test) == 1
    mask.unlink()
    with pytest.raises(DataError, match=r"22678915_15\.tiff has no label map in .*map"):
        aerial.load(at(AERIAL, root))
    sat.rename(sat.with_name("other.tiff"))
    mask.write_bytes(whole)
    with pytest.raises(DataError, match="has no label map"):
        aerial.load(at(AERIAL, root))
    sat.with_name("other.tiff").unlink()
    with pytest.raises(DataError, match=r"22678915_15\.tif has no image in .*sat"):
        aerial.load(at(AERIAL, root))
    shutil.rmtree(root / "train/map")
    with pytest.raises(DataError, match=r"train/map is missing; expected [\s\S]*sat/<name>\.tiff"):
        aerial.load(at(AERIAL, root))
    small = aerial_tree(tmp_path / "small", side=79)
    with pytest.raises(DataError, match=r"_15\.tiff has 79 x 79 pixels: at least 80 x 80 are needed"):
        aerial.load(at(AERIAL, small))


def test_images_and_masks_turn_together(tmp_path: Path) -> None:
    """An image that is its own mask: after any warp, the mask is where the image is bright, and is 0 or 1."""
    root = aerial_tree(tmp_path, side=150)
    for path in sorted((root / "train/map").iterdir()):
        mask = np.asarray(Image.open(path))[..., 0]
        Image.fromarray(np.stack([mask] * 3, axis=2)).save(root / "train/sat" / f"{path.stem}.tiff")
    config = checked(settings_of("buildings", "baseline", data=str(root), tiles=8, zoom=1.2, shift=0.05))
    data = load(config)
    assert isinstance(data, Scenes)
    samples = np.arange(24)
    inputs, labels = batches.batch(config, data, scaling_of(data), 2, samples, CPU)
    assert inputs.shape == (24, 3, 80, 80)
    assert labels.shape == (24, 40, 40)
    assert labels.dtype == torch.int64
    assert set(labels.unique().tolist()) == {0, 1}
    bright = inputs[:, 0, 20:60, 20:60] / inputs.max()
    assert torch.equal((bright > 0.5)[(bright - 0.5).abs() > 0.45], labels.bool()[(bright - 0.5).abs() > 0.45])
    assert ((bright > 0.5) == labels.bool()).float().mean() > 0.98
    again, _ = batches.batch(config, data, scaling_of(data), 2, samples[5:6], CPU)
    assert torch.allclose(again[0], inputs[5])  # by (seed, epoch, sample) and nothing else
    other, _ = batches.batch(config, data, scaling_of(data), 3, samples[5:6], CPU)
    assert not torch.allclose(other[0], inputs[5])


def test_tiles_come_from_all_over_the_image(tmp_path: Path) -> None:
    config = checked(settings_of("buildings", "baseline", data=str(aerial_tree(tmp_path, side=200)), tiles=400))
    data = load(config)
    size = source_side(config.augment, 80)
    flat = np.arange(200 * 200, dtype=np.int64).reshape(1, 200, 200)
    numbered = replace(data, images=Ragged(flat.ravel(), [flat.shape]), labels=Ragged(flat[0].ravel(), [(200, 200)]))
    pixels, _ = batches.tiles(config, numbered, 0, np.arange(400))
    tops, lefts = np.divmod(pixels[:, 0, 0, 0], 200)
    for starts in (tops, lefts):
        assert (starts.min(), starts.max()) == (0, 200 - size)
        assert np.bincount(starts // 22, minlength=4)[:4].min() > 60


def test_small_scenes_are_continued_by_their_reflection() -> None:
    positions = batches._window(3, 8, 0.5)
    assert positions.tolist() == [1, 0, 0, 1, 2, 2, 1, 0]
    assert batches._window(10, 8, 0.99) == slice(2, 10)


@needs["roads"]
def test_real_roads(tmp_path: Path) -> None:
    data = aerial.load(at(AERIAL, real("roads", tmp_path)))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [7, 1, 2]
    assert {data.images[i].shape for i in range(10)} == {(3, 1500, 1500)}
    shares = [float((data.labels[i] > 0).mean()) for i in range(10)]
    assert 0.005 < min(shares) < max(shares) < 0.2


# --- nuclei -----------------------------------------------------------------------------------------------------------


def test_nuclei_of_any_size(tmp_path: Path) -> None:
    data = nuclei.load(Settings(folder=str(nuclei_tree(tmp_path)), side=32, channels=3))
    assert len(data.train) + len(data.test) == 12
    assert len(data.test) == 1
    assert {image.shape for image in map(data.images.__getitem__, range(12))} == {(3, 48, 48), (3, 57, 44), (3, 40, 61)}
    assert data.bands == (1, 3)
    for i, name in enumerate(data.names):
        assert np.array_equal(data.labels[i], np.asarray(Image.open(tmp_path / f"labels/{name}.png")))
    grey = nuclei.load(Settings(folder=str(tmp_path), side=32, channels=1))
    assert grey.images[0].shape[0] == 1
    assert len(subset(data, 3, 0).train) == 3


def test_bad_nuclei_are_named(tmp_path: Path) -> None:
    root = nuclei_tree(tmp_path)
    Image.new("RGB", (48, 48)).save(root / "labels/cell00.png")
    with pytest.raises(DataError, match=r"labels/cell00\.png has 3 channels: an instance map"):
        nuclei.load(Settings(folder=str(root), side=32, channels=3))
    Image.new("I;16", (48, 47)).save(root / "labels/cell00.png")
    with pytest.raises(DataError, match=r"cell00\.png and .* differ in size, 48 x 48 and 48 x 47"):
        nuclei.load(Settings(folder=str(root), side=32, channels=3))
    (root / "labels/cell00.png").unlink()
    with pytest.raises(DataError, match=r"images/cell00\.png has no label map"):
        nuclei.load(Settings(folder=str(root), side=32, channels=3))
    shutil.rmtree(root / "labels")
    with pytest.raises(DataError, match="labels is missing; expected"):
        nuclei.load(Settings(folder=str(root), side=32, channels=3))


@needs["nuclei"]
def test_real_nuclei(tmp_path: Path) -> None:
    data = nuclei.load(Settings(folder=str(real("nuclei", tmp_path)), side=128, channels=3))
    assert len(data.names) == 530
    assert (len(data.train), len(data.test)) == (477, 53)
    assert data.bands == (1, 3)
    assert max(data.images[i].shape for i in range(530)) == (3, 1040, 1388)
    assert all(len(np.unique(data.labels[i])) > 1 for i in range(20))


# --- files that hold numbers ------------------------------------------------------------------------------------------


def float_folders(root: Path, suffix: str, channels: int) -> tuple[Path, np.ndarray]:
    """Two classes of images of floats far from zero; the first array of the first class."""
    rng = np.random.default_rng(0)
    first = None
    for name in ("faint", "bright"):
        (root / name).mkdir(parents=True)
        for i in range(12):
            array = rng.normal(1000.0 + 500 * (name == "bright"), 100.0, (channels, 12, 15)).astype(np.float32)
            first = array if name == "faint" and i == 0 else first
            path = root / name / f"{i}.{suffix}"
            if suffix == "fits":
                fits = pytest.importorskip("astropy.io.fits")
                fits.PrimaryHDU(array.squeeze()).writeto(path)
            else:
                pytest.importorskip("tifffile").imwrite(path, array.squeeze(), photometric="minisblack")
    assert first is not None
    return root, first


@pytest.mark.parametrize("suffix", ["fits", "tiff"])
@pytest.mark.parametrize("channels", [1, 5])
def test_folders_of_numbers(suffix: str, channels: int, tmp_path: Path) -> None:
    root, first = float_folders(tmp_path, suffix, channels)
    settings = Settings(folder=str(root), side=15, channels=channels, floats=True)
    data = folders.load(settings)
    assert isinstance(data, Dataset)
    assert data.images.dtype == np.float32
    assert data.images.shape == (24, channels, 15, 15)
    assert data.bands == (channels,)
    found = data.images[data.names.index(f"faint/0.{suffix}")]
    assert np.allclose(found[:, 1:13], first)  # 12 x 15 in the middle of 15 x 15, as they are
    assert np.allclose(found[:, 0], np.median(first, axis=(1, 2))[:, None])  # on a background of their own
    scaled = scaling_of(data)(data.images[data.train])
    assert np.abs(scaled.mean(axis=(0, 2, 3))).max() < 1e-3
    assert np.abs(scaled.std(axis=(0, 2, 3)) - 1).max() < 1e-3
    with pytest.raises(DataError, match=rf"0\.{suffix} has {channels} channels?: 3 are needed, see --channels"):
        folders.load(settings.model_copy(update={"channels": 3}))


def test_numbers_need_the_option(tmp_path: Path) -> None:
    root, _ = float_folders(tmp_path / "fits", "fits", 1)
    with pytest.raises(DataError, match=r"0\.fits is a FITS file: use --floats"):
        folders.load(Settings(folder=str(root), side=15, channels=1))
    many, _ = float_folders(tmp_path / "tiff", "tiff", 5)
    with pytest.raises(DataError, match="images have 1 or 3 channels, not 5: use --floats"):
        folders.load(Settings(folder=str(many), side=15, channels=5))


@pytest.mark.parametrize("layout", ["samples last", "samples first", "pages", "16 bits"])
def test_tiff_in_all_its_layouts(layout: str, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    rng = np.random.default_rng(0)
    array = rng.integers(0, 60_000, (6, 10, 14)).astype(np.uint16 if layout == "16 bits" else np.float32)
    path = tmp_path / "a.tif"
    if layout == "samples last":
        tifffile.imwrite(path, array.transpose(1, 2, 0), planarconfig="contig", photometric="minisblack")
    elif layout == "samples first":
        tifffile.imwrite(path, array, planarconfig="separate", photometric="minisblack")
    else:
        tifffile.imwrite(path, array, photometric="minisblack")
    found, bands = images.decoded(path, Settings(folder=None, side=14, channels=6, floats=True))
    assert bands == (6,)
    assert np.array_equal(found, array.astype(np.float32))


def test_pictures_as_numbers(tmp_path: Path) -> None:
    root = class_folders(tmp_path)
    found, _ = images.decoded(root / "ant/0.png", Settings(folder=None, side=14, channels=1, floats=True))
    assert np.array_equal(found[0], np.asarray(Image.open(root / "ant/0.png")))


def test_bad_files_of_numbers_are_named(tmp_path: Path) -> None:
    fits = pytest.importorskip("astropy.io.fits")
    settings = Settings(folder=None, side=14, channels=1, floats=True)
    values = np.ones((8, 9), dtype=np.float32)
    values[2, 3] = np.nan
    fits.PrimaryHDU(values).writeto(tmp_path / "nan.fits")
    fits.PrimaryHDU().writeto(tmp_path / "empty.fits")
    fits.PrimaryHDU(np.ones((2, 3, 4, 5))).writeto(tmp_path / "four.fits")
    (tmp_path / "broken.fits").write_bytes(b"SIMPLE  =    nonsense")
    (tmp_path / "broken.tiff").write_bytes(b"II*\0nonsense")
    hdus = [fits.PrimaryHDU(), fits.ImageHDU(np.arange(6.0).reshape(2, 3))]
    fits.HDUList(hdus).writeto(tmp_path / "second.fits")
    for name, message in {
        "nan.fits": r"nan\.fits has 1 values that are not finite",
        "empty.fits": r"empty\.fits cannot be read \(no image in the file\)",
        "four.fits": r"four\.fits has an array of 2 x 3 x 4 x 5",
        "broken.fits": r"broken\.fits cannot be read",
        "broken.tiff": r"broken\.tiff cannot be read",
        "none.tiff": r"none\.tiff no longer exists",
    }.items():
        with pytest.raises(DataError, match=message):
            images.decoded(tmp_path / name, settings)
    assert images.decoded(tmp_path / "second.fits", settings)[0].tolist() == [[[0, 1, 2], [3, 4, 5]]]
    with pytest.raises(DataError, match="more than the limit of 5: make it smaller"):
        images.decoded(tmp_path / "second.fits", settings.model_copy(update={"max_pixels": 5}))


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "astropy.io", None)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    settings = Settings(folder=None, side=14, channels=1, floats=True)
    (tmp_path / "a.fits").write_bytes(b"")
    with pytest.raises(DataError, match=r'a\.fits needs astropy: pip install "quarterturn\[fits\]"'):
        images.decoded(tmp_path / "a.fits", settings)
    Image.fromarray(np.full((4, 5), 0.25, dtype=np.float32)).save(tmp_path / "a.tif")
    assert (images.decoded(tmp_path / "a.tif", settings)[0] == 0.25).all()  # one channel of floats does without
    pages = [Image.new("F", (4, 5))] * 2
    pages[0].save(tmp_path / "b.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match=r'b\.tif needs tifffile: pip install "quarterturn\[tiff\]"'):
        images.decoded(tmp_path / "b.tif", settings)

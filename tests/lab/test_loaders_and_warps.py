"""Loaders, the cache, the split and the warps; and every bad input, by its message."""

import gzip
import os
import struct
import subprocess
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from labtools import DATA, class_folders, tiny
from PIL import Image

from quarterturn_lab import data as loaders
from quarterturn_lab.data import cache, folders, images, mnist, mnist_validation, plankton, splits, synthetic
from quarterturn_lab.data.augment import matrices, turned, uniforms, warped
from quarterturn_lab.data.dataset import Settings, subset
from quarterturn_lab.data.prepare import fetch, prepared
from quarterturn_lab.data.scaling import scaling_of
from quarterturn_lab.errors import DataError, LabError, RunError
from quarterturn_lab.runs.loading import load
from quarterturn_lab.settings.config import Augment
from quarterturn_lab.training.batches import Batches


def settings(path: Path | None, side: int = 15, **options: object) -> Settings:
    return Settings(
        folder=None if path is None else str(path), side=side, channels=options.pop("channels", 1), **options
    )


# --- the embedded set -------------------------------------------------------------------------------------------------


def test_the_embedded_set_is_the_same_for_the_same_seed() -> None:
    labels = np.arange(20) % 10
    first, again, other = synthetic.draw(labels, 15), synthetic.draw(labels, 15), synthetic.draw(labels, 15, seed=1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(first[:7], synthetic.draw(labels[:7], 15))


def test_the_embedded_set_has_pairs_that_only_a_flip_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without debris and noise, the mirrored drawing of an organism is that of the other hand, turned."""
    monkeypatch.setattr(synthetic, "_debris", lambda rng: np.zeros((0, 6)))
    for pair in range(5):
        left, right = (synthetic._organism(synthetic.PAIRS[pair], np.random.default_rng(3)) for _ in range(2))
        right[:, [1, 3]] *= -1
        grid = np.meshgrid(np.linspace(-1, 1, 41), np.linspace(-1, 1, 41))
        one, other = (synthetic._painted(strokes, *grid, 0.05) for strokes in (left, right))
        assert np.allclose(one[::-1], other)
        assert max(np.abs(np.rot90(one, k) - other).mean() for k in range(4)) > 0.01
        assert min(np.abs(np.rot90(one, k) - other).mean() for k in range(4)) > 0.01


def test_the_embedded_set_needs_no_folder() -> None:
    data = load(tiny())
    assert data.images.shape == (3000, 1, 15, 15)
    assert len(data.train) == 60
    assert len(data.test) == 1000
    assert set(np.bincount(data.labels[data.test])) == {100}
    assert data.images.std() > 20


# --- class folders and plankton ---------------------------------------------------------------------------------------


def test_a_folder_of_class_folders(tmp_path: Path) -> None:
    data = folders.load(settings(class_folders(tmp_path)))
    assert data.classes == ("ant", "bee")
    assert data.images.shape == (24, 1, 15, 15)
    assert len(data.train) + len(data.test) == 24
    assert len(data.test) == 2
    assert set(data.labels[data.test]) == {0, 1}
    assert len(folders.load(settings(tmp_path, test_part=0.25)).test) == 6


def test_plankton_is_inverted_and_scaled_by_its_longest_side(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "train")
    pixels = np.full((20, 40), 255, dtype=np.uint8)
    pixels[5:15, 10:30] = 0
    Image.fromarray(pixels).save(root / "ant" / "wide.png")
    data = plankton.load(settings(tmp_path, side=21, invert=True))
    image = data.images[data.names.index("ant/wide.png"), 0]
    assert not image[:5].any()  # 21 x 10 or 11 in the middle: background above and below
    assert not image[-5:].any()
    assert image[10, 10] == 255
    assert image[10, 0] == 0  # white became the background
    assert data.fingerprint == plankton.load(settings(tmp_path / "train", side=21, invert=True)).fingerprint


def test_the_split_has_the_papers_numbers() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.multinomial(30_336 - 121 * 9, rng.dirichlet(np.full(121, 0.3))) + 9
    labels = np.repeat(np.arange(121), sizes)
    names = [f"class{label}/{i}.jpg" for i, label in enumerate(labels)]
    test = splits.stratified(names, labels)
    assert (len(test) - test.sum(), test.sum()) == (27_299, 3_037)
    shares = np.bincount(labels[test], minlength=121)
    assert np.abs(shares - sizes * splits.TEST_PART).max() < 1
    order = rng.permutation(len(names))
    shuffled = splits.stratified([names[i] for i in order], labels[order])
    assert np.array_equal(shuffled, test[order])  # by names, not by places


def test_the_committed_list_is_well_formed() -> None:
    listed = splits.committed(plankton.LISTED)
    assert len(listed) == round(plankton.LISTED_FOR * splits.TEST_PART) == 2425
    assert (
        splits.written(sorted(listed))
        == (Path(splits.__file__).parent / "committed_splits" / plankton.LISTED).read_text()
    )
    assert len({name.split("/")[0] for name in listed}) > 100


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "plankton.tar.xz").exists(), reason="needs ../shared/data")
def test_real_plankton(tmp_path: Path) -> None:
    subprocess.run([DATA / "unpack", tmp_path, "plankton"], check=True, stdout=subprocess.DEVNULL)
    data = plankton.load(settings(tmp_path / "plankton", side=31, invert=True, longest=28))
    assert data.images.shape == (24_221, 1, 31, 31)
    assert len(data.classes) == 121
    assert (len(data.train), len(data.test)) == (21_796, 2_425)
    by_rule = splits.stratified(data.names, data.labels)
    assert np.array_equal(np.flatnonzero(by_rule), data.test)  # the committed list and the rule say the same
    assert {data.names[i] for i in data.test} == splits.committed(plankton.LISTED)
    drawn = subset(data, 2000, seed=1)
    assert abs(len(drawn.train) - 2000) < 60
    assert np.bincount(data.labels[drawn.train]).min() >= 2


@pytest.mark.skipif(not (DATA / "mnist.tar.xz").exists(), reason="needs ../shared/data")
def test_real_mnist(tmp_path: Path) -> None:
    subprocess.run([DATA / "unpack", tmp_path, "mnist"], check=True, stdout=subprocess.DEVNULL)
    data = mnist.load(settings(tmp_path, side=28))
    assert data.images.shape == (62_000, 1, 28, 28)
    assert (len(data.train), len(data.test)) == (12_000, 50_000)
    assert np.bincount(data.labels[data.train]).min() > 1000
    assert np.array_equal(data.images, mnist.load(settings(tmp_path, side=28)).images)


def test_subsets_are_stratified_and_follow_the_seed() -> None:
    data = load(tiny(train_size=None))
    one, again, other = subset(data, 100, 0), subset(data, 100, 0), subset(data, 100, 1)
    assert np.array_equal(one.train, again.train)
    assert not np.array_equal(one.train, other.train)
    assert set(np.bincount(data.labels[one.train])) == {10}
    assert set(np.bincount(data.labels[subset(data, 3, 0).train])) == {2}  # at least two of each


def idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    path.write_bytes(header + array.tobytes())


def test_rotated_mnist_from_idx_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 50), ("t10k", 12)):
        idx(tmp_path / f"{part}-images-idx3-ubyte", rng.integers(0, 255, (count, 28, 28), dtype=np.uint8))
        idx(tmp_path / f"{part}-labels-idx1-ubyte", rng.integers(0, 10, count, dtype=np.uint8))
    plain = tmp_path / "t10k-labels-idx1-ubyte"
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    data = mnist.load(settings(tmp_path, side=29))
    assert data.images.shape == (62, 1, 29, 29)
    assert (len(data.train), len(data.test)) == (12, 50)
    held = mnist_validation.load(settings(tmp_path, side=29))
    assert np.array_equal(np.concatenate((held.train, held.test)), data.train)  # and no test image
    assert (len(held.train), len(held.test)) == (10, 2)
    with pytest.raises(DataError, match="do not fit into a side of 20"):
        mnist.load(settings(tmp_path, side=20))
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DataError, match="truncated"):
        mnist.load(settings(tmp_path, side=28))
    file.write_bytes(b"hello, hello")
    with pytest.raises(DataError, match="not an idx file"):
        mnist.load(settings(tmp_path, side=28))
    file.unlink()
    with pytest.raises(DataError, match="train-images-idx3-ubyte is missing"):
        mnist.load(settings(tmp_path, side=28))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader", ["plankton", "folder", "mnist-rot"])
def test_missing_and_wrong_folders_show_the_expected_tree(loader: str, tmp_path: Path) -> None:
    load = loaders.loader(loader)
    with pytest.raises(DataError, match="--data DIR"):
        load(settings(None))
    with pytest.raises(DataError, match=r"nowhere does not exist; expected [\s\S]*nowhere/"):
        load(settings(tmp_path / "nowhere"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is not a folder; expected"):
        load(settings(tmp_path / "file"))
    with pytest.raises(DataError, match="expected"):
        load(settings(tmp_path))


def test_wrong_contents_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "photos.zip").write_text("x")
    with pytest.raises(DataError, match=r"no images in .*: found photos\.zip; expected"):
        folders.load(settings(tmp_path))
    class_folders(tmp_path / "one", classes=("ant",))
    with pytest.raises(DataError, match="only one class"):
        folders.load(settings(tmp_path / "one"))
    class_folders(tmp_path / "few", count=1)
    with pytest.raises(DataError, match="too few"):
        folders.load(settings(tmp_path / "few"))
    with pytest.raises(LabError, match="did you mean 'plankton'"):
        loaders.loader("plankto")


def test_broken_images_are_named_or_counted(tmp_path: Path) -> None:
    root = class_folders(tmp_path)
    whole = (root / "ant" / "11.png").read_bytes()
    (root / "ant" / "3.png").write_bytes(whole[: len(whole) // 2])
    (root / "bee" / "4.png").write_text("no image")
    (root / "bee" / "5.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"ant/3\.png cannot be read .* 2 more .*bee/4\.png.*--skip-bad"):
        folders.load(settings(root))
    data = folders.load(settings(root, skip_bad=True))
    assert data.bad == ("ant/3.png", "bee/4.png", "bee/5.png")
    assert len(data.images) == 21
    with pytest.raises(DataError, match=r"ant/3\.png cannot be read"):  # the cache remembers, and does not hide them
        folders.load(settings(root))


def test_truncated_jpegs_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 60), dtype=np.uint8)).save(path)
    images.read(path, settings(tmp_path))
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match=r"a\.jpg cannot be read \(.*truncated"):
        images.read(path, settings(tmp_path))


def test_gigantic_images_are_refused_without_decoding_them(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("1", (4000, 3000)).save(path)
    with pytest.raises(DataError, match=r"a\.png has 4000 x 3000 pixels, more than the limit of 10,000,000"):
        images.read(path, settings(tmp_path, max_pixels=10_000_000))
    bomb = bytearray(path.read_bytes())
    bomb[16:24] = struct.pack(">II", 100_000, 100_000)  # a header that promises 10 gigapixels
    bomb[29:33] = struct.pack(">I", zlib.crc32(bytes(bomb[12:29])))
    path.write_bytes(bomb)
    with pytest.raises(DataError, match="pixels"):
        images.read(path, settings(tmp_path))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "I", "F", "I;16"])
def test_images_of_all_modes(mode: str, tmp_path: Path) -> None:
    grey = np.zeros((15, 15), dtype=np.uint8)
    grey[:, 7:] = 255
    if mode == "I;16":
        image = Image.fromarray(grey.astype(np.uint16) * 257)
    elif mode in ("I", "F"):
        image = Image.fromarray(grey.astype(np.int32 if mode == "I" else np.float32))
    else:
        image = Image.fromarray(grey).convert(mode)
    path = tmp_path / "a.tiff"
    image.save(path)
    for channels in (1, 3):
        array = images.read(path, settings(tmp_path, channels=channels))
        assert array.shape == (channels, 15, 15)
        assert array[:, :, :6].max() <= 3
        assert array[:, :, 8:].min() >= 250


def test_transparency_is_white_and_floats_of_unit_range_are_seen(tmp_path: Path) -> None:
    Image.new("RGBA", (15, 15), (0, 0, 0, 0)).save(tmp_path / "a.png")
    assert (images.read(tmp_path / "a.png", settings(tmp_path)) == 255).all()
    Image.fromarray(np.full((15, 15), 0.5, dtype=np.float32)).save(tmp_path / "a.tiff")
    assert (images.read(tmp_path / "a.tiff", settings(tmp_path)) == 128).all()
    Image.fromarray(np.full((15, 15), np.nan, dtype=np.float32)).save(tmp_path / "b.tiff")
    with pytest.raises(DataError, match="not finite"):
        images.read(tmp_path / "b.tiff", settings(tmp_path))


# --- the cache --------------------------------------------------------------------------------------------------------


def test_the_cache_is_keyed_by_contents_and_settings(tmp_path: Path) -> None:
    root = class_folders(tmp_path)
    first = folders.load(settings(root))
    assert folders.load(settings(root)).fingerprint == first.fingerprint
    assert folders.load(settings(root, invert=True)).fingerprint != first.fingerprint
    assert folders.load(settings(root, side=17)).images.shape[2] == 17
    stat = (root / "ant" / "0.png").stat()
    Image.fromarray(np.full((10, 14), 7, dtype=np.uint8)).save(root / "ant" / "0.png")
    os.utime(root / "ant" / "0.png", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the dates do not count
    changed = folders.load(settings(root))
    assert changed.fingerprint != first.fingerprint
    assert changed.images[0].max() == 7


def test_the_cache_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARTERTURN_CACHE", str(tmp_path / "cache"))
    calls = []

    def make() -> cache.Made:
        calls.append(1)
        return np.zeros((2, 1, 3, 3), dtype=np.uint8), {"names": ["a"]}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_save", full)
        with pytest.raises(RunError, match=r"could not write the cache .* no space left on device"):
            cache.cached("key", make)
    assert list((tmp_path / "cache").iterdir()) == []
    array, about = cache.cached("key", make)
    assert (array.shape, about) == ((2, 1, 3, 3), {"names": ["a"]})
    cache.cached("key", make)
    assert len(calls) == 2  # the third time it was there

    def overtaken() -> cache.Made:  # another process finishes first
        cache.cached("other", make)
        return make()

    assert cache.cached("other", overtaken)[0].shape == (2, 1, 3, 3)
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["key", "other"]


# --- warps ------------------------------------------------------------------------------------------------------------

WARPS = Augment(shift=0.1, zoom=1.3, shear=10, stretch=1.2)


def test_warps_depend_on_seed_epoch_and_image_alone() -> None:
    numbers = np.array([3, 500, 7, 29_999])
    all_at_once = matrices(WARPS, 5, 2, numbers)
    for i, number in enumerate(numbers):
        assert torch.equal(all_at_once[i], matrices(WARPS, 5, 2, np.array([number]))[0])
    assert not torch.equal(all_at_once, matrices(WARPS, 6, 2, numbers))
    assert not torch.equal(all_at_once, matrices(WARPS, 5, 3, numbers))


def test_the_random_numbers_are_uniform_and_independent() -> None:
    u = uniforms(0, 0, np.arange(20_000), 7)
    assert u.min() >= 0
    assert u.max() < 1
    assert np.abs(u.mean(0) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(u.T) - np.eye(7)).max() < 0.03
    following = uniforms(0, 1, np.arange(20_000), 7)
    assert abs(np.corrcoef(u[:, 0], following[:, 0])[0, 1]) < 0.03
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.03
    assert len(np.unique(u)) == u.size


def test_warps_stay_in_their_ranges_and_can_be_switched_off() -> None:
    numbers = np.arange(2000)
    off = Augment(turn=0, flip=False)
    assert torch.allclose(matrices(off, 0, 0, numbers), torch.eye(2, 3))
    only_turns = matrices(Augment(flip=False), 0, 0, numbers)[:, :, :2].double()
    assert torch.allclose(torch.linalg.det(only_turns), torch.ones(2000, dtype=torch.float64), atol=1e-5)
    angles = torch.atan2(only_turns[:, 1, 0], only_turns[:, 0, 0])
    assert torch.histc(angles, 8).min() > 200
    flipped = torch.linalg.det(matrices(Augment(), 0, 0, numbers)[:, :, :2].double()) < 0
    assert 900 < flipped.sum() < 1100
    zoomed = torch.linalg.det(matrices(Augment(zoom=1.5, flip=False), 0, 0, numbers)[:, :, :2].double()).sqrt()
    assert 1 / 1.5 - 1e-4 <= zoomed.min() < 0.7 < 1.4 < zoomed.max() <= 1.5 + 1e-4
    shifts = matrices(Augment(shift=0.1), 0, 0, numbers)[:, :, 2]
    assert 0.19 < shifts.abs().max() <= 0.2
    image = torch.rand(3, 1, 9, 9)
    assert torch.allclose(warped(image, torch.eye(2, 3).repeat(3, 1, 1)), image, atol=1e-5)


def test_turned_agrees_with_warping_at_quarter_turns() -> None:
    image = torch.rand(2, 1, 9, 9)
    for quarter in range(4):
        assert torch.equal(turned(image, 90.0 * quarter), torch.rot90(image, -quarter, (2, 3)))
        close = turned(image, 90.0 * quarter + 1e-4)
        assert torch.allclose(close, turned(image, 90.0 * quarter), atol=1e-3)
    assert not torch.allclose(turned(image, 45.0), image, atol=0.1)


def upper_half(images: torch.Tensor) -> float:
    """The power of images in the upper half of the spectrum, from a quarter to half a cycle a pixel."""
    side = images.shape[-1]
    window = torch.hann_window(side, periodic=False)
    centred = (images - images.mean((2, 3), keepdim=True)) * (window[:, None] * window)
    steps = torch.fft.fftfreq(side)
    radius = (steps[:, None] ** 2 + steps**2).sqrt()
    power = torch.fft.fft2(centred).abs().square().mean((0, 1))
    return float(power[(radius >= 0.25) & (radius < 0.5)].sum())


def test_bicubic_training_images_are_about_as_sharp_as_test_images() -> None:
    shares = {}
    for interpolation in ("bilinear", "bicubic"):
        warps = {"flip": False, "border": "reflection", "interpolation": interpolation}
        config = tiny(net={"side": 29}, augment=warps, train_size=500, batch=500)
        data = load(config)
        seen, _, _ = Batches(config, data, torch.device("cpu")).make(0)
        still = prepared(fetch(data, data.train, torch.device("cpu")), scaling_of(data))
        shares[interpolation] = upper_half(seen) / upper_half(still)
    assert shares["bilinear"] < 0.6  # what the check must find
    assert 0.75 < shares["bicubic"] < 1.1


def test_images_are_turned_with_the_border_and_interpolation_of_training() -> None:
    """A grey square stays grey under reflection, and gets black corners with zeros; bicubic differs from bilinear."""
    grey = torch.ones(1, 1, 12, 12)
    assert turned(grey, 45)[0, 0, 0, 0] == 0
    assert torch.allclose(turned(grey, 45, "reflection"), grey, atol=1e-5)
    noise = torch.randn(1, 1, 12, 12)
    assert not torch.allclose(turned(noise, 45, "reflection"), turned(noise, 45, "reflection", "bicubic"))
    assert torch.equal(turned(noise, 90, "reflection", "bicubic"), turned(noise, 90))


def test_images_are_written_to_the_cache_as_they_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUARTERTURN_CACHE", str(tmp_path))
    alive: list[weakref.ref[np.ndarray]] = []

    def parts() -> Iterator[np.ndarray]:
        for i in range(20):
            part = np.full((1, 3, 4), i, dtype=np.uint8)
            alive.append(weakref.ref(part))
            yield part
            assert sum(ref() is not None for ref in alive) <= 3

    found, about = cache.cached("key", lambda: (parts(), {"a": 1}))
    assert np.array_equal(found, np.broadcast_to(np.arange(20)[:, None, None], (20, 3, 4)))
    assert about == {"a": 1}

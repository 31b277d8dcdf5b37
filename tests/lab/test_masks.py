"""Images with masks: what the values mean, every layout from a small folder, every mistake by its message."""

from pathlib import Path

import numpy as np
import pytest
from labtools import aerial_tree, blobs, nuclei_tree, photo
from PIL import Image
from test_own_images import own

from quarterturn_lab.data.dataset import VOID, Scenes
from quarterturn_lab.data.look import look
from quarterturn_lab.data.own_images import load
from quarterturn_lab.errors import ConfigError, DataError


def pairs(root: Path, count: int = 12, save: object = None, names: tuple[str, str] = ("images", "masks")) -> Path:
    """Images of discs, with masks that `save` writes from the map of their numbers."""
    rng = np.random.default_rng(0)
    for name in names:
        (root / name).mkdir(parents=True)
    for i in range(count):
        labels = blobs(rng, 40 + i, 50, 9)
        Image.fromarray(photo(rng, labels)).save(root / names[0] / f"{i}.png")
        if save is None:
            Image.fromarray(((labels > 0) * 255).astype(np.uint8)).save(root / names[1] / f"{i}.png")
        else:
            save(labels.astype(np.uint8), root / names[1] / f"{i}")
    return root


def agree(folder: Path, **changes: object) -> Scenes:
    found = look(own(folder, **changes))
    data = load(own(folder, channels=found.channels, floats=found.floats, **changes))
    assert isinstance(data, Scenes)
    assert (found.task, found.classes, found.images) == (data.task, data.classes, len(data.names))
    assert found.parts == {"train": len(data.train), "valid": len(data.valid), "test": len(data.test)}
    return data


def colours(labels: np.ndarray, red: tuple[int, ...], green: tuple[int, ...]) -> np.ndarray:
    out = np.zeros((*labels.shape, 3), dtype=np.uint8)
    out[np.isin(labels, red), 0] = 255
    out[np.isin(labels, green), 1] = 200
    return out


def palette(labels: np.ndarray) -> Image.Image:
    image = Image.frombytes("P", labels.shape[::-1], labels.tobytes())
    image.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0, *([9] * 759)])
    return image


TWO = {
    "0 and 255": lambda labels, path: Image.fromarray(((labels > 0) * 255).astype(np.uint8)).save(f"{path}.png"),
    "0 and 1": lambda labels, path: Image.fromarray((labels > 0).astype(np.uint8)).save(f"{path}.tif"),
    "one bit": lambda labels, path: Image.fromarray(labels > 0).save(f"{path}.png"),
    "a colour": lambda labels, path: Image.fromarray(colours(labels, tuple(range(1, 10)), ())).save(f"{path}.png"),
    "named like a mask": lambda labels, path: Image.fromarray((labels > 0).astype(np.uint8)).save(f"{path}_mask.png"),
    "transparent": lambda labels, path: (
        Image.fromarray(((labels > 0) * 255).astype(np.uint8)).convert("RGBA").save(f"{path}.png")
    ),
}


@pytest.mark.parametrize("form", TWO)
def test_masks_of_two_classes(form: str, tmp_path: Path) -> None:
    data = agree(pairs(tmp_path, save=TWO[form]))
    assert (data.task, data.classes) == ("pixels", ("background", "object"))
    rng = np.random.default_rng(0)
    for i in range(12):
        labels = blobs(rng, 40 + i, 50, 9)
        image = photo(rng, labels)
        place = data.names.index(f"{i}.png")
        assert np.array_equal(data.labels[place], labels > 0)
        assert np.array_equal(data.images[place], image.transpose(2, 0, 1))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [8, 2, 2]


MANY = {
    "palette": lambda labels, path: palette(labels % 3).save(f"{path}.png"),
    "grey": lambda labels, path: Image.fromarray(labels % 3).save(f"{path}.png"),
    "colours": lambda labels, path: Image.fromarray(colours(labels, (2, 5, 8), (1, 4, 7))).save(f"{path}.png"),
}


@pytest.mark.parametrize("form", MANY)
def test_masks_of_many_classes(form: str, tmp_path: Path) -> None:
    data = agree(pairs(tmp_path, save=MANY[form]))
    assert data.task == "regions"
    assert data.classes[0] == "background"
    assert len(data.classes) == 3
    if form == "colours":
        assert data.classes[1:] == ("colour #00c800", "colour #ff0000")
    rng = np.random.default_rng(0)
    for i in range(12):
        labels = blobs(rng, 40 + i, 50, 9)
        photo(rng, labels)
        assert np.array_equal(data.labels[data.names.index(f"{i}.png")], labels % 3)


def test_pixels_that_do_not_count_and_names_of_classes(tmp_path: Path) -> None:
    def save(labels: np.ndarray, path: Path) -> None:
        found = labels % 3
        found[:3] = 255
        Image.fromarray(found).save(f"{path}.png")

    root = pairs(tmp_path, save=save)
    (root / "classes.txt").write_text("sea\nland\nice\nnever seen\n")
    data = agree(root)
    assert data.classes == ("sea", "land", "ice", "never seen")
    assert all((data.labels[i][:3] == VOID).all() for i in range(12))
    assert all(data.labels[i][3:].max() <= 2 for i in range(12))
    (root / "classes.txt").write_text("sea\nland\n")
    with pytest.raises(DataError, match=r"2 classes are named, .* 3 values.* them all in classes\.txt"):
        look(own(root))


def test_instances_are_told_apart_by_their_values(tmp_path: Path) -> None:
    data = agree(nuclei_tree(tmp_path, 20))
    assert (data.task, data.classes) == ("instances", ("background", "object"))
    assert max(int(data.labels[i].max()) for i in range(20)) > 3
    two = agree(tmp_path, task="pixels")
    assert all(np.array_equal(two.labels[i] > 0, data.labels[data.names.index(two.names[i])] > 0) for i in range(20))


def test_regions_that_look_like_instances_can_be_named(tmp_path: Path) -> None:
    root = nuclei_tree(tmp_path, 20)
    assert agree(root, task="regions").task == "regions"
    with pytest.raises(ConfigError, match="--task classes is not for images with masks"):
        look(own(root, task="classes"))


@pytest.mark.parametrize("above", [True, False])
def test_masks_that_are_already_split(above: bool, tmp_path: Path) -> None:
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        if above:
            pairs(tmp_path / part, count)
        else:
            pairs(tmp_path, count, names=(f"images/{part}", f"masks/{part}"))
    data = agree(tmp_path)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [6, 2, 3]
    assert {data.names[i].split("/")[0] for i in data.test} == {"test"}


def test_aerial_images_need_no_experiment_of_their_own(tmp_path: Path) -> None:
    data = agree(aerial_tree(tmp_path))
    assert data.task == "pixels"
    assert [len(part) for part in (data.train, data.valid, data.test)] == [3, 1, 2]


def test_numbers_with_masks_keep_their_values(tmp_path: Path) -> None:
    root = pairs(tmp_path)
    rng = np.random.default_rng(1)
    for path in (root / "images").iterdir():
        with Image.open(path) as image:
            size = image.size
        Image.fromarray(rng.integers(0, 4096, size[::-1], dtype=np.uint16)).save(path)
    data = load(own(root, floats=True))
    assert isinstance(data, Scenes)
    found = data.images[data.names.index("0.png")]
    assert found.dtype == np.float32
    with Image.open(root / "images/0.png") as image:
        assert np.array_equal(found[0], np.asarray(image))
    assert data.labels[0].shape == found.shape[1:]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    root = pairs(tmp_path)
    (root / "masks/3.png").unlink()
    (root / "images/4.png").unlink()
    Image.new("L", (9, 9)).save(root / "masks/5.png")
    (root / "masks/6.png").write_bytes(b"no mask")
    found = look(own(root))
    assert set(found.bad) == {"3.png", "masks/4.png", "5.png", "6.png"}
    assert "has no mask in" in found.bad["3.png"]
    assert "differ in size, 50 x 45 and 9 x 9" in found.bad["5.png"]
    with pytest.raises(DataError, match=r"3\.png has no mask in .*--skip-bad"):
        load(own(root, channels=3))
    assert len(agree(root, skip_bad=True).names) == 8
    for path in (root / "masks").iterdir():
        path.rename(path.with_name(f"other{path.name}"))
    with pytest.raises(DataError, match="no image in .* has a mask of the same name"):
        look(own(root))


WRONG = {
    "empty": (lambda labels, path: Image.fromarray(labels * 0).save(f"{path}.png"), "have the value 0 alone"),
    "photos": (
        lambda labels, path: Image.fromarray(
            np.random.default_rng(0).integers(0, 255, (*labels.shape, 3), dtype=np.uint8)
        ).save(f"{path}.png"),
        "too many to be classes",
    ),
    "floats": (
        lambda labels, path: Image.fromarray(labels.astype(np.float32) + 0.5).save(f"{path}.tif"),
        "none of the 12 masks can be read",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_maps_that_are_no_masks(what: str, tmp_path: Path) -> None:
    save, message = WRONG[what]
    with pytest.raises(DataError, match=message):
        look(own(pairs(tmp_path, save=save)))

"""The user's own images: every layout from a small folder, every bad input by its message, and the split."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labtools import call, class_folders, nuclei_tree
from PIL import Image

from quarterturn_lab.data import folders, nuclei
from quarterturn_lab.data.dataset import Dataset, Settings
from quarterturn_lab.data.look import look
from quarterturn_lab.data.own_images import load
from quarterturn_lab.data.scaling import scaling_of
from quarterturn_lab.data.splits import copies, three_parts
from quarterturn_lab.data.watch import watching
from quarterturn_lab.errors import ConfigError, DataError


def own(folder: Path, **changes: object) -> Settings:
    return Settings(folder=str(folder), **{"side": 16, "channels": 1, "rules": 2, **changes})


def agree(folder: Path, **changes: object) -> Dataset:
    """What is loaded, after a check that it is what was announced."""
    found = look(own(folder, **changes))
    data = load(own(folder, channels=found.channels, floats=found.floats, **changes))
    assert (found.task, found.classes, found.images) == (data.task, data.classes, len(data.names))
    assert found.parts == {"train": len(data.train), "valid": len(data.valid), "test": len(data.test)}
    together = np.concatenate([data.train, data.valid, data.test])
    assert sorted(together) == list(range(len(data.names)))
    return data


# --- class folders ----------------------------------------------------------------------------------------------------


def test_class_folders_have_three_parts_with_every_class(tmp_path: Path) -> None:
    data = agree(class_folders(tmp_path, 20))
    assert data.classes == ("ant", "bee")
    assert [len(part) for part in (data.train, data.valid, data.test)] == [28, 6, 6]
    for part in (data.train, data.valid, data.test):
        assert set(data.labels[part]) == {0, 1}
    scaled = scaling_of(data)(data.images[data.train])
    assert abs(scaled.mean()) < 0.01
    assert abs(scaled.std() - 1) < 0.01  # centred, though the files hold bytes


def test_class_folders_may_have_folders_inside(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        class_folders(tmp_path / name, 5, ("nest 1", "nest 2"))
    data = agree(tmp_path)
    assert data.classes == ("ant", "bee")
    assert len(data.names) == 20
    assert "ant/nest 1/0.png" in data.names


def test_the_users_own_parts_are_kept(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        class_folders(tmp_path / part, count)
    data = agree(tmp_path)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [12, 4, 6]
    assert {data.names[i].split("/")[0] for i in data.test} == {"test"}
    assert {data.names[i].split("/")[0] for i in data.valid} == {"val"}
    assert data.classes == ("ant", "bee")
    with pytest.raises(ConfigError, match="leave --test-part out"):
        load(own(tmp_path, test_part=0.3))
    with pytest.raises(ConfigError, match="leave --validation out"):
        load(own(tmp_path, validation=0.3))


def test_a_missing_part_is_cut_from_the_training_images(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", 20)
    class_folders(tmp_path / "test", 3)
    data = agree(tmp_path)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [34, 6, 6]


def test_parts_of_other_sizes(tmp_path: Path) -> None:
    data = agree(class_folders(tmp_path, 20), test_part=0.3, validation=0.1)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [24, 4, 12]


def test_labels_belong_to_the_fingerprint_and_pixels_are_decoded_once(tmp_path: Path) -> None:
    root = class_folders(tmp_path, 8)
    seen: list[str] = []
    with watching(lambda what, done, total: seen.append(what), after=0):
        one = load(own(root))
    assert seen.count("reading") == seen.count("decoding") == 16
    seen.clear()
    with watching(lambda what, done, total: seen.append(what), after=0):
        other = load(own(root, test_part=0.3))
    assert set(seen) == {"reading"}
    assert one.fingerprint != other.fingerprint


# --- the split --------------------------------------------------------------------------------------------------------

specimens = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=3, max_size=30)  # class, images


@given(specimens)
@settings(max_examples=200, deadline=None)
def test_specimens_stay_together_and_every_class_is_everywhere(found: list[tuple[int, int]]) -> None:
    names, labels, group = [], [], {}
    for number, (label, count) in enumerate(found):
        for i in range(count):
            names.append(f"{number}-{i}.png")
            labels.append(label)
            group[names[-1]] = f"specimen {number}"
    of_class = {label: sum(other == label for other, _ in found) for label, _ in found}
    if max(of_class.values()) < 3:
        return
    parts = three_parts(names, labels, group, {})
    where = {}
    for part, indices in parts.items():
        for i in indices:
            assert where.setdefault(group[names[i]], part) == part
        assert {label for label, count in of_class.items() if count >= 3} <= {labels[i] for i in indices}
    assert sorted(np.concatenate(list(parts.values()))) == list(range(len(names)))
    assert set(of_class) == {labels[i] for i in parts["train"]}
    order = np.random.default_rng(0).permutation(len(names))
    again = three_parts([names[i] for i in order], [labels[i] for i in order], group, {})
    for part in parts:
        assert {names[i] for i in parts[part]} == {names[order[i]] for i in again[part]}  # by names, not by places


def test_a_large_specimen_trains() -> None:
    names = [f"a{i}" for i in range(100)] + ["b", "c"]
    parts = three_parts(names, [0] * 102, {name: name[0] for name in names}, {})
    assert {part: len(found) for part, found in parts.items()} == {"train": 100, "valid": 1, "test": 1}


def test_too_few_images_to_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 3 of each class"):
        look(own(class_folders(tmp_path, 1)))


# --- bad files --------------------------------------------------------------------------------------------------------


def bad_tree(root: Path) -> Path:
    class_folders(root, 12)
    (root / "ant/dangling.png").symlink_to(root / "nowhere.png")
    (root / "ant/folder.jpg").mkdir()
    os.mkfifo(root / "bee/pipe.png")
    (root / "bee/empty.png").write_bytes(b"")
    (root / "bee/text.png").write_text("not an image")
    return root


BAD = {
    "ant/dangling.png": "a link to a file that does not exist",
    "ant/folder.jpg": "is a folder",
    "bee/pipe.png": "a pipe",
    "bee/empty.png": "is empty",
    "bee/text.png": "not an image",
}


def test_bad_files_are_named_or_skipped(tmp_path: Path) -> None:
    root = bad_tree(tmp_path)
    found = look(own(root))
    assert set(found.bad) == set(BAD)
    for name, words in BAD.items():
        assert words in found.bad[name]
    assert found.images == 24
    assert all(name in "\n".join(found.lines()) for name in BAD)
    with pytest.raises(DataError, match=r"ant/dangling\.png is a link to .*--skip-bad"):
        load(own(root))
    data = agree(root, skip_bad=True)
    assert set(data.bad) == set(BAD)


def test_bad_files_are_named_or_skipped_in_the_papers_experiments_too(tmp_path: Path) -> None:
    root = bad_tree(tmp_path)
    with pytest.raises(DataError, match=r"ant/dangling\.png is a link to .*4 more .*--skip-bad"):
        folders.load(Settings(folder=str(root), side=16, channels=1))
    data = folders.load(Settings(folder=str(root), side=16, channels=1, skip_bad=True))
    assert set(data.bad) == set(BAD)
    assert len(data.names) == 24
    scenes = nuclei_tree(tmp_path / "nuclei")
    (scenes / "labels/cell03.png").unlink()
    os.mkfifo(scenes / "labels/cell03.png")
    with pytest.raises(DataError, match=r"cell03\.png is not a file of data"):
        nuclei.load(Settings(folder=str(scenes), side=16, channels=3))
    assert nuclei.load(Settings(folder=str(scenes), side=16, channels=3, skip_bad=True)).bad == ("cell03",)


def test_the_commands_info_and_verify_name_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = bad_tree(tmp_path)
    code, out, _ = call(f"data info {root}", capsys)
    assert code == 0
    assert all(name in out for name in BAD)
    whole = (root / "bee/3.png").read_bytes()
    (root / "bee/3.png").write_bytes(whole[: len(whole) // 2])  # the header is good
    code, out, _ = call(f"data verify {root}", capsys)
    assert code == 1
    assert all(f"bad: {name} " in out for name in (*BAD, "bee/3.png"))
    assert "23 of 29 images" in out
    code, _, errors = call(f"data info {root} --task numbers", capsys)
    assert code == 2
    assert "--task numbers is not for images with one folder for each class: leave it out" in errors


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    assert agree(class_folders(tmp_path / "a", 12, ("bus", "train"))).classes == ("bus", "train")
    class_folders(tmp_path / "b" / "train", 12)
    (tmp_path / "b" / "notes").mkdir()
    assert agree(tmp_path / "b").classes == ("ant", "bee")  # a split, with another folder beside it


def test_names_are_kept_and_what_systems_leave_is_not_read(tmp_path: Path) -> None:
    names = ("Rädertier, groß", 'it\'s a 100% "test"', "日本 (2)")
    data = agree(class_folders(tmp_path / "folder, ä %20", 6, names))
    assert data.classes == tuple(sorted(names))
    for name in ("Thumbs.db", ".DS_Store", "__MACOSX/a/._0.png", "@eaDir/0.png", f"{names[0]}/._0.png", ".git/x.png"):
        path = tmp_path / "folder, ä %20" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image")
    assert agree(tmp_path / "folder, ä %20").names == data.names


@pytest.mark.parametrize(
    ("mode", "suffix", "channels"),
    [("RGBA", "png", 3), ("P", "png", 3), ("1", "tif", 1), ("CMYK", "jpg", 3), ("LA", "png", 1), ("L", "BMP", 1)],
)
def test_every_kind_of_pixel_is_read(mode: str, suffix: str, channels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, level in (("dark", 0), ("light", 150)):
        (tmp_path / name).mkdir()
        for i in range(12):
            pixels = (rng.integers(0, 100, (9, 9, 3)) + level).astype(np.uint8)
            Image.fromarray(pixels).convert(mode).save(tmp_path / name / f"{i}.{suffix}")
    data = agree(tmp_path)
    assert data.images.shape[1] == channels
    means = [data.images[data.labels == label].mean() for label in (0, 1)]
    assert means[1] - means[0] > 50


def test_a_table_without_rows_is_named(tmp_path: Path) -> None:
    class_folders(tmp_path, 8, ("pictures",))
    for text in ("", "file,label\n"):
        (tmp_path / "labels.csv").write_text(text)
        with pytest.raises(DataError, match=r"only one class \(pictures\).*labels.csv has no rows for its images"):
            load(own(tmp_path))


def test_copies_of_training_images_are_found(tmp_path: Path) -> None:
    data = agree(class_folders(tmp_path, 20))
    assert copies(data) == []
    pixels = data.images.copy()
    pixels[data.test[2]] = pixels[data.train[5]]
    assert copies(replace(data, images=pixels)) == [data.names[data.test[2]]]


def test_links_in_circles_end(tmp_path: Path) -> None:
    root = class_folders(tmp_path, 4)
    (root / "ant/again").symlink_to(root, target_is_directory=True)
    (root / "bee/again").symlink_to(root / "bee", target_is_directory=True)
    assert look(own(root)).images == 8


def test_a_folder_without_images_shows_the_layouts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"it is empty; expected [\s\S]*<class>"):
        look(own(tmp_path))
    (tmp_path / "notes.docx").write_text("x")
    with pytest.raises(DataError, match=r"found notes\.docx; expected [\s\S]*<class>"):
        look(own(tmp_path))
    with pytest.raises(DataError, match="does not exist; expected"):
        look(own(tmp_path / "nowhere"))


# --- values -----------------------------------------------------------------------------------------------------------


def test_images_are_turned_as_the_camera_says(tmp_path: Path) -> None:
    root = class_folders(tmp_path, 4)
    pixels = np.zeros((16, 16), dtype=np.uint8)
    pixels[:4] = 200  # the top is bright
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown after a quarter turn clockwise
    Image.fromarray(pixels).save(root / "ant/turned.jpg", exif=exif, quality=95)
    data = load(own(root))
    found = data.images[data.names.index("ant/turned.jpg"), 0]
    assert found[:, -4:].mean() > 180
    assert found[:, :12].mean() < 20


def test_squares_are_filled_with_the_border_of_the_image(tmp_path: Path) -> None:
    root = class_folders(tmp_path, 4)
    pixels = np.full((8, 16), 180, dtype=np.uint8)
    pixels[2:6, 4:12] = 20
    Image.fromarray(pixels).save(root / "ant/wide.png")
    data = load(own(root))
    found = data.images[data.names.index("ant/wide.png"), 0]
    assert (found[:4] == 180).all()
    assert (found[-4:] == 180).all()
    assert np.array_equal(found[4:12], pixels)


def test_several_frames_are_refused(tmp_path: Path) -> None:
    root = class_folders(tmp_path, 4)
    frames = [Image.new("L", (16, 16), i) for i in range(3)]
    frames[0].save(root / "ant/film.gif", save_all=True, append_images=frames[1:])
    assert "has 3 pages or frames: save the one" in look(own(root)).bad["ant/film.gif"]
    with pytest.raises(DataError, match="has 3 pages or frames: save the one"):
        load(own(root))


def numeric(root: Path, save: object, count: int = 8) -> Path:
    """Class folders of arrays with 12 bits; `save` writes one below a name."""
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (root / name).mkdir(parents=True)
        for i in range(count):
            save(rng.integers(0, 4096, (16, 16), dtype=np.uint16), root / name / str(i))
    return root


def save_tiff(array: np.ndarray, name: str, **options: object) -> None:
    pytest.importorskip("tifffile").imwrite(name, array, **options)


def save_fits(array: np.ndarray, name: str) -> None:
    pytest.importorskip("astropy.io.fits").PrimaryHDU(array).writeto(name)


def save_png(array: np.ndarray, name: str) -> None:
    Path(name).write_bytes(pytest.importorskip("imagecodecs").png_encode(array))


def in_colour(array: np.ndarray) -> np.ndarray:
    return np.stack([array, array // 2, array // 3])


FORMS = {
    "16-bit PNG": (lambda a, name: Image.fromarray(a).save(f"{name}.png"), 1, "12 bits in 16"),
    "16-bit TIFF": (lambda a, name: Image.fromarray(a).save(f"{name}.tif"), 1, "12 bits in 16"),
    "16-bit colour TIFF": (lambda a, name: save_tiff(in_colour(a).transpose(1, 2, 0), f"{name}.tif", photometric="rgb"),
                           3, "12 bits in 16"),
    "16-bit colour PNG": (lambda a, name: save_png(in_colour(a).transpose(1, 2, 0).copy(), f"{name}.png"),
                          3, "12 bits in 16"),
    "channels": (lambda a, name: save_tiff(np.stack([a // i for i in range(1, 6)]), f"{name}.tif",
                                           photometric="minisblack", planarconfig="separate"), 5, "12 bits in 16"),
    "ImageJ": (lambda a, name: save_tiff(np.stack([a, a // 2]), f"{name}.tif", imagej=True,
                                         metadata={"axes": "CYX"}), 2, "12 bits in 16"),
    "four channels of bytes": (lambda a, name: save_tiff(np.stack([a // 16] * 4, -1).astype(np.uint8), f"{name}.tif",
                                                         photometric="rgb", extrasamples=["unspecified"]), 4, "8 bits"),
    "FITS": (lambda a, name: save_fits(a.astype(np.float32) / 7, f"{name}.fits"), 1, "floats from"),
    "FITS cube": (lambda a, name: save_fits(in_colour(a).astype(np.int16), f"{name}.fit"), 3, "12 bits in 16"),
    "float TIFF": (lambda a, name: Image.fromarray(a.astype(np.float32)).save(f"{name}.tif"), 1, "floats from 0"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_values_are_kept_as_they_are(form: str, tmp_path: Path) -> None:
    save, channels, levels = FORMS[form]
    root = numeric(tmp_path, save)
    found = look(own(root))
    assert not found.bad
    assert (found.channels, found.floats) == (channels, True)
    assert found.levels.startswith(levels)
    data = agree(root)
    first = np.random.default_rng(0).integers(0, 4096, (16, 16), dtype=np.uint16)
    place = next(i for i, name in enumerate(data.names) if name.startswith("ant/0."))
    kept = data.images[place][0] * (7 if form == "FITS" else 16 if "bytes" in form else 1)
    assert np.allclose(kept, first // 16 * 16 if "bytes" in form else first)
    scaled = scaling_of(data)(data.images[data.train])
    assert np.abs(scaled.mean(axis=(0, 2, 3))).max() < 1e-3
    assert np.abs(scaled.std(axis=(0, 2, 3)) - 1).max() < 1e-3
    with pytest.raises(DataError, match="--floats"):
        load(own(root, channels=1 if channels == 1 else 3))  # never cut to 8 bits in silence


def test_stacks_and_pages_are_refused_with_a_hint(tmp_path: Path) -> None:
    root = numeric(tmp_path, FORMS["16-bit TIFF"][0])
    stack = np.zeros((3, 16, 16), dtype=np.uint16)
    save_tiff(stack, root / "ant/slices.tif", imagej=True, metadata={"axes": "ZYX"})
    save_tiff(stack, root / "ant/pages.tif", photometric="minisblack")
    found = look(own(root))
    assert "has 3 slices: save the one to use, or a projection" in found.bad["ant/slices.tif"]
    assert "has 3 pages: save the one to use as a file, or give --floats if they are" in found.bad["ant/pages.tif"]
    assert found.images == 16
    with pytest.raises(DataError, match=r"pages\.tif has 3 channels: 1 are needed"):
        load(own(root, floats=True))
    (root / "ant/pages.tif").unlink()
    with pytest.raises(DataError, match=r"slices\.tif has 3 slices"):
        load(own(root, floats=True))
    pages = numeric(tmp_path / "b", lambda a, name: save_tiff(in_colour(a), f"{name}.tif", photometric="minisblack"))
    assert look(own(pages, floats=True)).channels == 3


def test_other_channels_than_most_are_named(tmp_path: Path) -> None:
    root = numeric(tmp_path, FORMS["16-bit TIFF"][0])
    save_tiff(np.zeros((16, 16, 3), dtype=np.uint16), root / "bee/colour.tif", photometric="rgb")
    found = look(own(root))
    assert found.bad == {"bee/colour.tif": "has 3 channels, and most have 1"}
    assert len(agree(root, skip_bad=True).names) == 16


def test_more_pixels_than_pillow_allows_can_be_asked_for(tmp_path: Path) -> None:
    """Pillow refuses twice its own limit, of 89 million pixels, whatever is asked for."""
    root = class_folders(tmp_path, 4)
    Image.new("1", (20_000, 10_000)).save(root / "ant/huge.png")
    assert "has 20000 x 10000 pixels, more than the limit" in look(own(root)).bad["ant/huge.png"]
    with pytest.raises(DataError, match="or raise --max-pixels"):
        load(own(root))
    assert agree(root, max_pixels=300_000_000).images.shape[0] == 9


def test_files_of_other_kinds_have_a_hint(tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    for name in ("a.heic", "b.HEIC"):
        (tmp_path / "ant" / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"no images in .*, but 2 files \.heic: save them as JPEG or PNG"):
        look(own(tmp_path))
    class_folders(tmp_path / "b", 4)
    (tmp_path / "b/ant/c.heic").write_bytes(b"x")
    (tmp_path / "b/ant/d.jpg").write_bytes(b"\0\0\0\x18ftypheic, as a phone may send it")
    found = look(own(tmp_path / "b"))
    assert any("1 files .heic are left out" in note for note in found.notes)
    assert "is a HEIC file" in found.bad["ant/d.jpg"]

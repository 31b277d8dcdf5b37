"""TIFF files that claim work for hours: refused before any library reads them, in every command."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from labtools import call, class_folders, tiny
from PIL import Image

from quarterturn_lab.data import images, masks, numeric_files, tiff_structure
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.data.look import look
from quarterturn_lab.errors import DataError
from quarterturn_lab.training import training_run

Tag = tuple[int, int, int, int]  # code, type, count, value or place
LONG, BYTES, SIDE = 4, 252, 14
FORMS = {"<": ("<", False), ">": (">", False), "< big": ("<", True), "> big": (">", True)}


class Written:
    """A TIFF file in the making: a small grey image, page by page."""

    def __init__(self, form: str = "<") -> None:
        self.order, self.big = FORMS[form]
        self.long = "Q" if self.big else "I"
        mark = (b"II" if self.order == "<" else b"MM") + struct.pack(f"{self.order}H", 43 if self.big else 42)
        mark += struct.pack(f"{self.order}HH", 8, 0) if self.big else b""
        self.data = len(mark) + struct.calcsize(f"{self.order}{self.long}")
        self.content = mark + struct.pack(f"{self.order}{self.long}", self.data + BYTES) + bytes(BYTES)

    def tags(self, *others: Tag) -> list[Tag]:
        """The tags of a page of 14 x 18 pixels, some of them replaced."""
        usual = {256: SIDE, 257: 18, 258: 8, 259: 1, 262: 1, 273: self.data, 277: 1, 278: 18, 279: BYTES}
        found = {code: (code, LONG, 1, value) for code, value in usual.items()}
        found |= {tag[0]: tag for tag in others}
        return [found[code] for code in sorted(found)]

    def page(self, *others: Tag, next: int | None = None, last: bool = False, tags: int | None = None) -> int:
        """Add a page, and give its place: the next one follows it, unless there is none or it is elsewhere."""
        place, kept = len(self.content), self.tags(*others)
        self.content += struct.pack(f"{self.order}{'Q' if self.big else 'H'}", tags or len(kept))
        for code, kind, count, value in kept:
            inline = struct.pack(f"{self.order}{'I' if kind == LONG and count == 1 else self.long}", value)
            self.content += struct.pack(f"{self.order}HH{self.long}", code, kind, count)
            self.content += inline.ljust(struct.calcsize(self.long), b"\0")
        after = len(self.content) + struct.calcsize(f"{self.order}{self.long}")
        self.content += struct.pack(f"{self.order}{self.long}", 0 if last else after if next is None else next)
        return place

    def save(self, path: Path) -> Path:
        path.write_bytes(self.content)
        return path


def loop(form: str = "<", pages: int = 150) -> Written:
    """Pages of which the last leads back to the first; tifffile notices loops of some lengths alone."""
    file = Written(form)
    first = file.page()
    for _ in range(pages - 2):
        file.page()
    file.page(next=first)
    return file


def strips(form: str = "<", count: int = 400_000_000) -> Written:
    file = Written(form)
    file.page()
    file.page((273, LONG, count, 8), (279, LONG, count, 8), (257, LONG, 1, count), (278, LONG, 1, 1), last=True)
    return file


@pytest.mark.parametrize("form", FORMS)
def test_what_a_file_claims_is_looked_at_first(form: str, tmp_path: Path) -> None:
    itself = Written(form)
    itself.page((330, LONG, 1, len(itself.content)), last=True)
    tags = Written(form)
    tags.page(last=True, tags=5000)
    for file, message in (
        (strips(form), "page 2 says that it has 400,000,000 values of tag 273"),
        (loop(form), "its pages form a loop"),
        (loop(form, 2), "its pages form a loop"),
        (itself, "its pages form a loop"),
        (tags, "page 1 says that it has 5,000 tags"),
    ):
        path = file.save(tmp_path / "a.tif")
        for read in (
            tiff_structure.check,
            lambda p: numeric_files.read(p, 10_000),
            lambda p: masks.values_of(p, 10_000),
        ):
            with pytest.raises(DataError, match=message):
                read(path)
    fine = Written(form)
    fine.page(last=True)
    tiff_structure.check(fine.save(tmp_path / "a.tif"))
    assert numeric_files.read(tmp_path / "a.tif", 10_000).shape == (1, 18, SIDE)


def test_a_long_file_may_not_claim_more_than_can_be_read(tmp_path: Path) -> None:
    path = strips().save(tmp_path / "a.tif")
    os.truncate(path, 4_000_000_000)  # of which the disk holds a few hundred bytes
    with pytest.raises(DataError, match="400,000,000 values of tag 273"):
        numeric_files.read(path, 10_000)
    file = Written()
    file.page(*((60_000 + i, 7, 2000, 8) for i in range(100)), last=True)  # all of the same bytes
    path = file.save(tmp_path / "a.tif")
    os.truncate(path, 10_000)
    with pytest.raises(DataError, match="2,000 values of tag 60"):
        tiff_structure.check(path)
    os.truncate(path, 200_000)
    tiff_structure.check(path)


def test_there_are_not_more_pages_than_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = Written()
    below.page((330, LONG, 10_001, 8), last=True)
    path = below.save(tmp_path / "a.tif")
    os.truncate(path, 100_000)
    with pytest.raises(DataError, match="more than 10,000 pages"):
        tiff_structure.check(path)
    many = Written()
    for i in range(20):
        many.page(last=i == 19)
    path = many.save(tmp_path / "a.tif")
    tiff_structure.check(path)
    monkeypatch.setattr(tiff_structure, "PAGES", 19)
    with pytest.raises(DataError, match="more than 19 pages"):
        tiff_structure.check(path)


def test_files_that_programs_write_pass(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    path, pixels = tmp_path / "a.tif", np.random.default_rng(0).integers(0, 256, (3, 64, 48), dtype=np.uint8)
    for options in ({}, {"bigtiff": True}, {"byteorder": ">"}, {"tile": (16, 16)}, {"imagej": True}, {"ome": True}):
        tifffile.imwrite(path, pixels, photometric="minisblack", **options)
        tiff_structure.check(path)
        assert np.array_equal(numeric_files.read(path, 10_000), pixels)
    with tifffile.TiffWriter(path, bigtiff=True, byteorder=">") as file:  # a pyramid of two levels below each page
        for page in pixels:
            file.write(page, subifds=2, tile=(16, 16))
            for by in (2, 4):
                file.write(page[::by, ::by], subfiletype=1, tile=(16, 16))
    tiff_structure.check(path)
    exif = Image.Exif()
    exif.get_ifd(34665)[36867] = "2026:01:01 00:00:00"
    several = [Image.fromarray(page) for page in pixels]
    several[0].save(path, save_all=True, append_images=several[1:], exif=exif)
    tiff_structure.check(path)
    with pytest.raises(DataError, match="3 pages or frames"):
        images.decoded(path, Settings(folder=None, side=16, channels=1, rules=2))


def test_every_command_refuses_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training_run.run(tiny(epochs=1), tmp_path / "run")
    for name, file, message in (("loop", loop(), "form a loop"), ("strips", strips(), "values of tag 273")):
        root = class_folders(tmp_path / name)
        path = file.save(root / "ant/strange.tif")
        for command, expected in (
            (f"predict {tmp_path}/run {path} --out {tmp_path}/out.csv", 2),
            (f"fit {root} --epochs 1 --symmetry C4 --runs-dir {tmp_path}/runs", 2),
            (f"data verify {root}", 1),
            (f"data info {root}", 0),
        ):
            code, output, errors = call(command, capsys)
            assert code == expected, (command, output, errors)
            assert message in (errors if expected == 2 else output)
            assert errors.count("\n") == (expected == 2)
        assert look(Settings(folder=str(root), side=64, channels=1, rules=2)).images == 24

"""What a TIFF file says of its pages and tags, before any library reads it: a few bytes may claim work for hours.

Readers go from page to page, and for each page they load the numbers of its tags, such as where its strips are.
Nothing here needs torch.
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.errors import DataError

PAGES = 10_000  # with those below pages, such as smaller copies of slides
TAGS = 4096  # of a page
NUMBERS = 10_000_000  # in all tags; a slide of 200,000 x 200,000 pixels has 1.6 million for its tiles
SUB_PAGES, TABLES = 330, (34665, 34853, 40965)  # tags that say where pages are, and tables such as EXIF
SIZES = np.array([0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8])  # bytes of a value, by its type
BYTES = (1, 2, 6, 7)  # types of text and data, which are read as they are


def check(path: Path) -> None:
    """Raise if reading the pages of a file would not end, or take very long. Other files than TIFF pass."""
    with path.open("rb") as file:
        start = file.read(16)
        order = {b"II": "<", b"MM": ">"}.get(start[:2])
        if order is None or len(start) < 16:
            return
        version = struct.unpack(f"{order}H", start[2:4])[0]
        if version not in (42, 43):
            return
        try:
            _Walk(file, order, path.stat().st_size, version == 43).all_pages(start)
        except ValueError as error:
            raise DataError(
                f"{path} cannot be read ({error}): it is damaged; save it again with the program that made it"
            ) from None


class _Walk:
    """Goes over all pages of a file. What ends too early is left to the readers, which end there too."""

    def __init__(self, file: BinaryIO, order: str, size: int, big: bool) -> None:
        self.file, self.size = file, size
        self.number = f"{order}{'Q' if big else 'I'}"  # a place in the file
        self.count = f"{order}{'Q' if big else 'H'}"  # of tags
        long = f"{order}u{8 if big else 4}"
        self.tag = np.dtype([("code", f"{order}u2"), ("type", f"{order}u2"), ("count", long), ("value", long)])
        self.seen: set[int] = set()
        self.numbers = self.bytes = 0

    def all_pages(self, start: bytes) -> None:
        after = 8 if self.number.endswith("Q") else 4
        place = struct.unpack_from(self.number, start, after)[0]
        while place:
            below, place = self._page(place)
            while below:
                further, _ = self._page(below.pop())
                below += further

    def _page(self, place: int) -> tuple[list[int], int]:
        """The places of pages below one, and of the next one; 0 for none."""
        if place in self.seen:
            raise ValueError("its pages form a loop")
        self.seen.add(place)
        if len(self.seen) > PAGES:
            raise ValueError(f"it has more than {PAGES:,} pages")
        count = self._number(place, self.count)
        if count > TAGS:
            raise ValueError(f"page {len(self.seen)} says that it has {count:,} tags")
        content = self.file.read(count * self.tag.itemsize)
        tags: NDArray[Any] = np.frombuffer(content, self.tag, len(content) // self.tag.itemsize)
        self._check_tags(tags)
        end = self.file.tell()
        below = [found for i in np.flatnonzero(tags["code"] == SUB_PAGES) for found in self._places(tags[i : i + 1])]
        tables = [
            found for i in np.flatnonzero(np.isin(tags["code"], TABLES)) for found in self._places(tags[i : i + 1])
        ]
        below += set(tables) - self.seen  # which pages may share
        return [found for found in below if found], self._number(end, self.number)

    def _number(self, place: int, form: str) -> int:
        """The number in that place; 0 behind the end of the file."""
        length = struct.calcsize(form)
        if place + length > self.size:
            return 0
        self.file.seek(place)
        return int(struct.unpack(form, self.file.read(length))[0])

    def _check_tags(self, tags: NDArray[Any]) -> None:
        kinds = np.where(tags["type"] < len(SIZES), tags["type"], 0)
        for code, kind, number in zip(tags["code"].tolist(), kinds.tolist(), tags["count"].tolist(), strict=True):
            length = number * int(SIZES[kind])
            self.bytes += length
            self.numbers += 0 if kind in BYTES else number * (length > 0)
            if length > self.size or self.bytes > 2 * self.size + TAGS or self.numbers > NUMBERS:
                raise ValueError(f"page {len(self.seen)} says that it has {number:,} values of tag {code}")

    def _places(self, tag: NDArray[Any]) -> list[int]:
        """The numbers of a tag, which are places of pages."""
        count, place, kind = int(tag["count"][0]), int(tag["value"][0]), int(tag["type"][0])
        length = {4: 4, 13: 4, 16: 8, 18: 8}.get(kind, 0)
        if not length or not count:
            return []
        if count > PAGES:
            raise ValueError(f"it has more than {PAGES:,} pages")
        if count * length <= tag["value"].itemsize:
            content = tag["value"].tobytes()
        elif place + count * length > self.size:
            return []
        else:
            self.file.seek(place)
            content = self.file.read(count * length)
        return np.frombuffer(content, f"{self.number[0]}u{length}", count).tolist()

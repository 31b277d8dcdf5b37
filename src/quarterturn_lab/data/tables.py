"""Tables of labels: a file of comma-separated values with a row for each image.

The column of files is the one whose values are names of images, with or without folders and extension. What can be
learned from the others is seen from their values:

    species                   text, or a few whole numbers         one of several classes
    cilia,spines,eggs         columns of 0 and 1                   several tags at once; a class, if each row has one 1
    "cilia;spines"            text with ; or | between             the same; so are several rows for one image
    length_um,depth           other numbers                        numbers
    smooth,disk,star          several numbers from 0 to 1          answers: shares, as of votes
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarterturn_lab.errors import ConfigError, DataError, unknown

SUFFIXES = (".csv", ".tsv", ".txt")
DELIMITERS = (",", ";", "\t", "|")
SEPARATORS = (";", "|", ",")  # between tags in one cell
LARGEST = 200_000_000  # bytes
FEW = 20  # whole numbers with at most so many values are classes
LABELS = ("label", "labels", "class", "classes", "category", "target", "species", "taxon", "type", "diagnosis", "tags")
SPLITS = ("split", "part", "set", "subset", "partition", "phase")
NUMBERING = ("", "index", "unnamed: 0", "row", "#")
EMPTY = ("", "na", "n/a", "nan", "none", "null", "?")


@dataclass(frozen=True)
class Table:
    """The cells of a table by rows; `first` is the number of the line of the first row."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    first: int = 2

    def column(self, name: str) -> list[str]:
        """The cells of a column; an unknown name raises, with the nearest ones."""
        if name not in self.header:
            raise unknown(f"column of {self.path.name}", name, self.header)
        place = self.header.index(name)
        return [row[place] for row in self.rows]


@dataclass(frozen=True)
class Target:
    """What is learned: the names of classes or columns, and the label of each row; None where a cell is empty."""

    task: str
    classes: tuple[str, ...]
    labels: list[Any]
    words: str


# --- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path) -> Table:
    """A table, whatever its delimiter and encoding."""
    text = _text(path)
    delimiter = _delimiter(text)
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise DataError(f"{path} is not a table of comma-separated values: {error}") from None
    numbered = [
        (i, [cell.strip() for cell in line]) for i, line in enumerate(lines, start=1) if any(map(str.strip, line))
    ]
    if len(numbered) < 2:
        raise DataError(f"{path} has no rows: a table needs a header, and a row for each image")
    header = tuple(numbered[0][1])
    return Table(path, header, [line for _, line in numbered[1:]], numbered[1][0])


def _check(table: Table) -> None:
    """Raise if rows differ in length, or columns have the same name."""
    for i, row in enumerate(table.rows, start=table.first):
        if len(row) != len(table.header):
            columns = f"{len(row)} column{'s' if len(row) != 1 else ''}"
            raise DataError(f"{table.path}, line {i}: {columns}, but the first line has {len(table.header)}")
    twice = [name for name, count in Counter(table.header).items() if count > 1 and name]
    if twice:
        raise DataError(f"{table.path}, line 1: the column {twice[0]} appears more than once")


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} has more than {LARGEST:,} bytes: too large for a table of labels")
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None
    if raw[:2] in (b"PK", b"\xd0\xcf"):
        raise DataError(f"{path} is a spreadsheet: save it as CSV")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", errors="replace")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")


def _delimiter(text: str) -> str:
    """The delimiter that gives most of the first lines the same number of columns, and the most columns."""
    lines = [line for line in text.splitlines()[:20] if line.strip()]

    def columns(delimiter: str) -> float:
        try:
            counts = Counter(len(row) for row in csv.reader(lines, delimiter=delimiter))
        except csv.Error:
            return 0.0
        count, times = counts.most_common(1)[0] if counts else (1, 0)
        return count * times / len(lines) if count > 1 else 0.0

    return max(DELIMITERS, key=columns)  # the first, if there is no difference


# --- images -----------------------------------------------------------------------------------------------------------


class Index:
    """Finds images by what a table calls them: a path, the end of one, a name, or a name without its extension."""

    def __init__(self, names: Iterable[str]) -> None:
        self.by_key: dict[str, set[str]] = {}
        for name in names:
            for end in _ends(name):
                self.by_key.setdefault(end, set()).add(name)
                self.by_key.setdefault(end.rpartition(".")[0], set()).add(name)

    def find(self, text: str) -> str | None:
        """The name of the image; None if there is none. Two images of that name raise."""
        for end in _ends(text.replace("\\", "/").removeprefix("./")):
            found = self.by_key.get(end)
            if found and len(found) > 1:
                first, second, *_ = sorted(found)
                raise DataError(f"{text!r} of the table may be {first} or {second}: name images with their folders")
            if found:
                return next(iter(found))
        return None


def _ends(path: str) -> list[str]:
    """A path, and the same without its first folders.

    >>> _ends("a/b/c.png")
    ['a/b/c.png', 'b/c.png', 'c.png']
    """
    parts = path.split("/")
    return ["/".join(parts[i:]) for i in range(len(parts))]


def with_files(table: Table, index: Index) -> tuple[Table, str, int] | None:
    """The table, its column of files, and how many of its rows have an image; None if no row has one.

    A table whose first line is a row like the others gets a header.
    """
    if any(index.find(cell) for cell in table.header):
        names = tuple(f"column {i}" for i in range(1, len(table.header) + 1))
        table = Table(table.path, names, [list(table.header), *table.rows], table.first - 1)
    some = table.rows[:: max(1, len(table.rows) // 200)]
    hits = {
        name: sum(index.find(row[place]) is not None for row in some if row[place : place + 1])
        for place, name in enumerate(table.header)
    }
    best = max(hits, key=lambda name: hits[name])
    if not hits[best]:
        return None
    _check(table)
    return table, best, sum(index.find(cell) is not None for cell in table.column(best))


# --- what to learn ----------------------------------------------------------------------------------------------------


def target(table: Table, files: str, columns: tuple[str, ...], task: str, other: set[str]) -> Target:
    """What the columns say about the images; `other` are columns that are used otherwise."""
    names = columns or _candidates(table, files, task, other)
    cells = {name: table.column(name) for name in names}
    values = {name: _numbers(table, cells[name]) for name in names}
    kind = task if task != "auto" else _kind(cells, values)
    if kind == "classes" and len(names) > 1 and _one_hot(values):
        return _hot_classes(names, values)
    if kind == "classes":
        return _classes(_only(names, kind), cells[names[0]], values[names[0]])
    if kind == "tags" and len(names) == 1 and not _zero_one(values[names[0]]):
        return _cell_tags(names[0], cells[names[0]])
    if kind not in ("tags", "numbers", "answers"):
        raise ConfigError(
            f"--task {kind} is not for images with a table of labels: give classes, tags, numbers or answers"
        )
    _check_range(table, kind, cells, values)
    complete = zip(*(found or [] for found in values.values()), strict=True)
    labels = [None if any(value is None for value in row) else row for row in complete]
    words = {"tags": "tags, several at once", "numbers": "numbers", "answers": "shares from 0 to 1"}[kind]
    return Target(kind, tuple(names), labels, words)


def _candidates(table: Table, files: str, task: str, other: set[str]) -> tuple[str, ...]:
    """The columns that can be learned; if it is not clear which, an error names them all."""
    found = []
    for name in table.header:
        cells = table.column(name)
        numbers = _numbers(table, cells)
        constant = len(set(cells)) < 2
        numbering = name.lower() in NUMBERING and numbers is not None and len(set(cells)) == len(cells)
        text_of_its_own = numbers is None and len(set(cells)) > max(FEW, len(cells) // 2) and task != "numbers"
        if name != files and name not in other and not constant and not numbering and not text_of_its_own:
            found.append(name)
    if not found:
        raise DataError(f"{table.path} has no column to learn: {', '.join(table.header)}. Name one with --columns")
    named = [name for name in found if name.lower() in LABELS]
    texts = [name for name in found if _numbers(table, table.column(name)) is None]
    if texts and len(found) > 1:
        if len(named) != 1:
            raise DataError(f"{table.path} has the columns {', '.join(found)}: name those to learn with --columns")
        return (named[0],)
    return tuple(found)


def _numbers(table: Table, cells: list[str]) -> list[float | None] | None:
    """The numbers in cells, None where they are empty; None if some are no numbers."""
    found: list[float | None] = []
    for cell in cells:
        if cell.lower() in EMPTY:
            found.append(None)
            continue
        try:
            value = float(cell if "," not in cell else cell.replace(",", "."))  # a decimal comma
        except ValueError:
            return None
        if not math.isfinite(value):
            return None
        found.append(value)
    return found if any(value is not None for value in found) else None


def _kind(cells: dict[str, list[str]], values: dict[str, list[float | None] | None]) -> str:
    """The task that the cells of some columns speak for."""
    numbers = [found for found in values.values() if found is not None]
    if len(numbers) < len(values):
        separated = len(values) == 1 and _separator(next(iter(cells.values()))) is not None
        return "tags" if separated else "classes"
    if all(_zero_one(found) for found in numbers) and len(numbers) > 1:
        return "classes" if _one_hot(values) else "tags"
    known = [value for found in numbers for value in found if value is not None]
    if len(numbers) == 1:
        whole = all(value == int(value) for value in known)
        return "classes" if whole and len(set(known)) <= FEW else "numbers"
    return "answers" if min(known) >= 0 and max(known) <= 1 else "numbers"


def _zero_one(found: list[float | None] | None) -> bool:
    return found is not None and {value for value in found if value is not None} <= {0.0, 1.0}


def _one_hot(values: dict[str, list[float | None] | None]) -> bool:
    """Whether the columns are 0 and 1, and each row has one 1."""
    if not all(_zero_one(found) for found in values.values()):
        return False
    return all(
        sum(value or 0 for value in row) == 1 for row in zip(*(found or [] for found in values.values()), strict=True)
    )


def _hot_classes(names: tuple[str, ...], values: dict[str, list[float | None] | None]) -> Target:
    rows = zip(*(found or [] for found in values.values()), strict=True)
    return Target("classes", tuple(names), [row.index(1.0) for row in rows], "classes, a column of 0 and 1 each")


def _classes(name: str, cells: list[str], numbers: list[float | None] | None) -> Target:
    known = {cell for cell in cells if cell.lower() not in EMPTY}
    classes = tuple(sorted(known, key=lambda cell: (float(cell.replace(",", ".")), cell) if numbers else (0.0, cell)))
    number = {cell: i for i, cell in enumerate(classes)}
    return Target("classes", classes, [number.get(cell) for cell in cells], f"classes in the column {name}")


def _separator(cells: list[str]) -> str | None:
    """What separates tags in cells: then there are fewer tags than different cells."""
    different = {cell for cell in cells if cell.lower() not in EMPTY}
    for separator in SEPARATORS:
        tags = {tag.strip() for cell in different for tag in cell.split(separator)}
        if any(separator in cell for cell in different) and len(tags) < len(different):
            return separator
    return None


def _cell_tags(name: str, cells: list[str]) -> Target:
    separator = _separator(cells) or SEPARATORS[0]
    sets = [{tag.strip() for tag in cell.split(separator) if tag.strip().lower() not in EMPTY} for cell in cells]
    tags = tuple(sorted(set().union(*sets)))
    labels = [tuple(float(tag in found) for tag in tags) for found in sets]  # an empty cell has no tags
    return Target("tags", tags, labels, f"tags in the column {name}, several at once")


def _only(names: tuple[str, ...], kind: str) -> str:
    if len(names) > 1:
        raise ConfigError(f"{kind} are learned from one column, not from {', '.join(names)}: name it with --columns")
    return names[0]


def _check_range(
    table: Table, kind: str, cells: dict[str, list[str]], values: dict[str, list[float | None] | None]
) -> None:
    allowed = {"tags": "0 or 1", "answers": "between 0 and 1", "numbers": "a number"}[kind]
    for name, found in values.items():
        for i, cell in enumerate(cells[name]):
            value = found[i] if found is not None else _numbers(table, [cell])
            wrong = value is None and cell.lower() not in EMPTY
            if isinstance(value, float):
                wrong = (kind == "tags" and value not in (0, 1)) or (kind == "answers" and not 0 <= value <= 1)
            if wrong:
                raise DataError(f"{table.path}, line {table.first + i}, {name}: {cell!r} is not {allowed}")


def joined(target: Target, names: list[str | None], table: Table) -> dict[str, Any]:
    """The label of each image. Several rows of one image add up if they are tags, and must agree otherwise."""
    found: dict[str, Any] = {}
    for i, (name, label) in enumerate(zip(names, target.labels, strict=True)):
        if name is None or label is None:
            continue
        if name in found and target.task == "tags":
            label = tuple(map(max, found[name], label))
        elif name in found and found[name] != label:
            several = ", or give --task tags to learn several at once" if target.task == "classes" else ""
            raise DataError(
                f"{table.path}, line {table.first + i}: {name} appears again with another label: keep one row{several}"
            )
        found[name] = label
    return found


def specimens(pattern: str, names: Iterable[str]) -> tuple[dict[str, str], int]:
    """The specimen of each name: the match of a regular expression, or its first group; and how many do not match.

    It is looked for in the name of the file, then in the whole path.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--groups-by {pattern!r} is neither a column nor a regular expression ({error})") from None
    found, without = {}, 0
    for name in names:
        match = expression.search(name.rpartition("/")[2]) or expression.search(name)
        if match:
            found[name] = match.group(1) or "" if expression.groups else match.group(0)
        else:
            without += 1
    if not found:
        raise DataError(f"--groups-by {pattern!r} matches no name, such as {next(iter(names))}")
    return found, without

"""The small table of docs/speed.md, from the records in bench/results/; `bench/tables.py` puts it there."""

import csv
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness import latest, markdown

AVX2, AVX512 = "amd-epyc", "intel-r-xeon-r-processor"
HEADER = ("forward and backward, or a training step", "AVX2 (AMD EPYC)", "AVX-512 (Intel Xeon)")


class Figure(NamedTuple):
    """Cells of one column, in the lines of a record that have these values."""

    record: str
    column: str
    where: Mapping[str, tuple[str, ...]]
    is_time: bool = False  # relative to the ordinary network: the speed is its inverse

    def speeds(self) -> Iterator[float]:
        with latest(self.record).open() as file:
            for row in csv.DictReader(file):
                if all(row[column] in values for column, values in self.where.items()):
                    yield 1 / float(row[self.column]) if self.is_time else float(row[self.column])

    def __str__(self) -> str:
        ends = [f"{end:.2g}" for end in (min(self.speeds()), max(self.speeds()))]
        return " to ".join(dict.fromkeys(ends))


def layer(group: str, kernel: str, machine: str) -> Figure:
    """A wide layer through the kernel."""
    where = {"group": (group,), "kernel": (kernel,), "width": ("64", "128", "256"), "form": ("fourier",)}
    where |= {"what": ("forward and backward",), "threads": ("1",)}
    return Figure(f"conv-{machine}", "times plain", where)


def narrow_layer(width: str) -> Figure:
    """A layer that is too narrow for the kernel: torch's convolution with rotated filters."""
    where = {"width": (width,), "what": ("forward and backward",), "threads": ("1",)}
    return Figure(f"conv-{AVX2}", "filters times plain", where)


def vgg(group: str) -> Figure:
    where = {"group": (group,), "form": ("fourier",), "what": ("training",), "threads": ("1",)}
    return Figure("vgg", "times channels_last", where)


def paper(network: str, row: str) -> Figure:
    return Figure("steps", "step of baseline", {"network": (network,), "row, way": (row,)}, is_time=True)


def cost(images: str, network: str) -> Figure:
    return Figure(f"costs-{AVX512}", "step", {"set": (images,), "network": (network,)}, is_time=True)


SMALL, LARGE = "plankton, 31 x 31", "the paper's plankton, 95 x 95"
ROWS: tuple[tuple[str, Figure | None, Figure | None], ...] = (
    ("3x3 layer, C4, width 64 to 256", layer("C4", "3x3", AVX2), layer("C4", "3x3", AVX512)),
    ("3x3 layer, D4, width 64 to 256", layer("D4", "3x3", AVX2), layer("D4", "3x3", AVX512)),
    ("1x1 layer, C4, width 64 to 256", layer("C4", "1x1", AVX2), None),
    ("1x1 layer, D4, width 64 to 256", layer("D4", "1x1", AVX2), None),
    ("3x3 layer, C4 or D4, width 16 (too narrow for the kernel)", narrow_layer("16"), None),
    ("VGG-like network, C4, widths 32 to 256", vgg("C4"), None),
    ("VGG-like network, D4, widths 64 to 512", vgg("D4"), None),
    (
        "the paper's plankton network, rolled, C4",
        paper("plankton", "roll-all-quarter, kernel"),
        cost(LARGE, "roll-all-quarter, kernel"),
    ),
    ("the paper's galaxies network, rolled, C4", paper("galaxies", "roll-all-quarter, kernel"), None),
    ("the paper's buildings network, rolled, C4", paper("buildings", "roll-all-quarter, kernel"), None),
    ("small plankton network, rolled, D4, widths 64 to 256", None, cost(SMALL, "roll-all-half-dihedral, kernel")),
    ("small plankton network, rolled, C4, widths 32 to 128", None, cost(SMALL, "roll-all-half, kernel")),
    ("small plankton network, rolled, C4, widths 16 to 64", None, cost(SMALL, "roll-all-quarter, kernel")),
    (
        "seven layers for rotated MNIST, rolled, C4, width 40 (too narrow)",
        None,
        cost("rotated MNIST, 28 x 28", "seven_c4, filters"),
    ),
    (
        "the paper's plankton network, sliced and pooled without a roll",
        paper("plankton", "pool-mean, maps"),
        cost(LARGE, "pool-mean, maps"),
    ),
)


def table() -> str:
    """Speed relative to an ordinary layer or network of the same width, as a Markdown table."""
    rows = [[label, *("-" if figure is None else str(figure) for figure in figures)] for label, *figures in ROWS]
    return markdown([list(HEADER), *rows])

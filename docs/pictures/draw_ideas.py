"""Draws maps or filters, windows at even and odd sizes, and what a change of basis saves.

python docs/pictures/draw_ideas.py
"""

import numpy as np
import torch
from draw_operations import CELL, COLOURS, INK, Canvas, maps
from organism import Array, copepod, tinted
from torch import nn

import quarterturn as qt
from quarterturn.execution import Execution
from quarterturn.fourier.irreps import irreps
from quarterturn.windows import Window

BLUE, RED = "#14527f", "#b03a2e"


def draw_maps_or_filters() -> Canvas:
    """The same answer twice: the turned image through the filter, the image through the filter turned back."""
    ticks = np.arange(-4, 5)
    across, along = np.meshgrid(ticks, ticks)
    edge = across * np.exp(-(across**2) / 6 - (along - 1.5) ** 2 / 5)
    x, weight = torch.from_numpy(copepod())[None, None], torch.from_numpy(edge)[None, None]
    turned = qt.act(x, qt.C4, 1)
    by_maps = nn.functional.conv2d(turned, weight, padding=4).relu()
    by_filters = nn.functional.conv2d(x, qt.act(weight, qt.C4, 3), padding=4).relu()
    assert torch.allclose(qt.act(by_filters, qt.C4, 1), by_maps, atol=1e-12)
    assert torch.allclose(by_maps, maps()[1][1:2] ** 2 * by_maps.max() / (maps()[1][1] ** 2).max(), atol=1e-9)
    images = {
        "x": tinted(copepod(), INK),
        "w": tinted(np.kron((edge / np.abs(edge).max() + 1) / 2, np.ones((8, 8))), (40, 40, 40)),
        "y": tinted((by_maps / by_maps.max()).sqrt()[0, 0].numpy(), COLOURS[1]),
    }
    canvas = Canvas(
        700, 250, "Turn the image, or the filter the other way: the answers are turns of each other", images
    )
    rows = ((72, "maps", 90, 0, 0), (182, "filters", 0, -90, -90))
    for y, name, image_turn, filter_turn, answer_turn in rows:
        canvas.text(16, y + 4, name, "head")
        start = (130, y, 0)
        held = (130, y, image_turn)
        canvas.frame(130, y, CELL + 34)
        canvas.image("x", [(0, *start, 1), (15, *start, 1), (40, *held, 1), (100, *held, 1)])
        canvas.text(196, y + 6, "*", "head", "middle")
        canvas.frame(256, y, CELL + 10)
        turned_filter = (256, y, filter_turn)
        canvas.image("w", [(0, 256, y, 0, 1), (15, 256, y, 0, 1), (40, *turned_filter, 1), (100, *turned_filter, 1)])
        canvas.arrow(308, y, 352)
        canvas.frame(416, y, CELL + 34)
        shown = ((0, 0), (40, 0), (50, 1), (100, 1))
        canvas.image("y", [(when, 416, y, answer_turn, opacity) for when, opacity in shown])
        words = {"maps": ("the image is turned", "the answer is turned too")}
        for line, text in enumerate(words.get(name, ("the filter is turned back", "the answer is upright"))):
            canvas.text(490, y - 4 + 18 * line, text, "soft")
    return canvas


def draw_even_sizes() -> Canvas:
    """Windows of three at stride two on nine and on eight pixels, from the left and from the right."""
    canvas = Canvas(760, 270, "Windows of 3 at stride 2: on 9 pixels both directions agree, on 8 they do not", {})
    cell = 30
    for number, size in enumerate((9, 8)):
        top = 46 + 130 * number
        starts = placement_of(size)
        same = sorted(starts[0]) == sorted(starts[1])
        canvas.text(20, top - 16, f"{size} pixels", "head")
        for pixel in range(size):
            canvas.body.append(
                f'<rect x="{20 + cell * pixel}" y="{top}" width="{cell}" height="{cell}" fill="#fff" stroke="#aab"/>'
            )
        for way, (colour, found) in enumerate(zip((BLUE, RED), starts, strict=True)):
            for place, start in enumerate(found):
                y = top + cell + 8 + 26 * way + 6 * (place % 2)
                canvas.body.append(
                    f'<path d="M{22 + cell * start} {y}v6h{cell * 3 - 4}v-6" fill="none" stroke="{colour}"'
                    ' stroke-width="2.5"/>'
                )
            canvas.text(330, top + cell + 18 + 26 * way, ("read from the left", "read from the right")[way])
        verdict = (
            "the same windows: turned filters are exact" if same else "other windows: turned filters alone are not"
        )
        canvas.text(330, top + 20, verdict, "head")
    return canvas


def placement_of(size: int) -> tuple[list[int], list[int]]:
    """Where windows begin that are read from the left, and those that are read from the right, in the input's frame."""
    window = Window(3, stride=2)
    count = window.count(size)
    left, right = ([window.start(size, mirrored) + 2 * k for k in range(count)] for mirrored in (False, True))
    return left, right


def draw_fourier() -> Canvas:
    """The products of a layer between orientations: all pairs, and those that are left in the Fourier basis."""
    canvas = Canvas(
        640, 300, "A layer in the Fourier basis: 6 products instead of 16 for C4, 12 instead of 64 for D4", {}
    )
    for left, group in ((20, qt.C4), (330, qt.D4)):
        layer, basis = layer_of(group), basis_of(group)
        blocks = basis.T @ layer @ basis
        there = np.abs(blocks) > 1e-9
        products = int(there.sum())
        assert products == round(Execution("kernel", "", group).share * group.order**2)
        canvas.text(left, 30, f"{group.name}: {products} products instead of {group.order**2}", "head")
        size = 120 / group.order
        for row in range(group.order):
            for column in range(group.order):
                shade = np.searchsorted(np.sort(layer[0]), layer[row, column] - 1e-9) / (group.order - 1)
                _cell(canvas, left, row, column, size, f"hsl({200 + 130 * shade:.0f} 45% {40 + 25 * shade:.0f}%)")
                if there[row, column]:
                    _cell(canvas, left + 150, row, column, size, "#3a7ca5")
                else:
                    _cell(canvas, left + 150, row, column, size, "#eef1f4")
        canvas.text(left + 60, 190, "orientations", "soft", "middle")
        canvas.text(left + 210, 190, "Fourier basis", "soft", "middle")
    canvas.text(20, 232, "Left: every orientation of the output looks at every orientation of the input.")
    canvas.text(20, 252, "Equal colours are equal weights: a row is the row before, with its places exchanged.")
    canvas.text(20, 276, "Right: the same layer after a change of basis that takes additions only. Pale is zero.")
    return canvas


def _cell(canvas: Canvas, left: float, row: int, column: int, size: float, colour: str) -> None:
    corner = f'x="{left + size * column:g}" y="{48 + size * row:g}"'
    canvas.body.append(f'<rect {corner} width="{size - 1:g}" height="{size - 1:g}" fill="{colour}"/>')


def layer_of(group: qt.Group) -> Array:
    """y[h] = sum over s of w[s] x[sh], as a matrix, with a weight of its own for each s."""
    weights, matrix = np.random.default_rng(0).normal(size=group.order), np.zeros((group.order, group.order))
    for h in range(group.order):
        for s in range(group.order):
            matrix[h, group.table[s][h]] = weights[s]
    return matrix


def basis_of(group: qt.Group) -> Array:
    """Columns are the entries of the irreps, as functions on the group: the Fourier transform, orthonormal."""
    columns = []
    for irrep in irreps(group):
        for column in irrep.columns:
            columns += [irrep.matrices[:, row, column] for row in range(irrep.dimension)]
    basis = np.stack(columns, 1)
    basis /= np.linalg.norm(basis, axis=0)
    assert np.allclose(basis.T @ basis, np.eye(group.order))
    return basis


DRAWN = {
    "maps-or-filters.svg": draw_maps_or_filters,
    "even-sizes.svg": draw_even_sizes,
    "fourier.svg": draw_fourier,
}

if __name__ == "__main__":
    for file, drawing in DRAWN.items():
        drawing().write(file)

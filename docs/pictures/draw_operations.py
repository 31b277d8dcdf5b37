"""Draws slice, pool, stack and roll, and the three together, on a drawn copepod: SVG files that move by themselves.

    python docs/pictures/draw_operations.py

What is shown is computed by quarterturn, and the script stops if a picture would show something else. As in the paper,
a column is the batch and a row is the features; colours are maps that are no rotations of one another.
"""

from html import escape
from pathlib import Path

import numpy as np
import torch
from organism import copepod, tinted
from torch import nn

import quarterturn as qt

HERE = Path(__file__).parent
C4 = qt.C4
INK = (28, 58, 88)
COLOURS = ((20, 82, 130), (176, 58, 46), (31, 122, 77), (125, 60, 152))
CELL, STEP = 64, 76  # pixels of an image, and from one to the next
STYLE = """\
text{font:13px system-ui,"Liberation Sans","DejaVu Sans",sans-serif;fill:#334}
.head{font-size:15px;font-weight:600}.soft{fill:#667;font-size:12px}
.frame{fill:none;stroke:#c8ced6;rx:4}.arrow{stroke:#8a94a0;fill:none;stroke-width:1.5;marker-end:url(#tip)}
.move{animation-duration:6s;animation-iteration-count:infinite;animation-timing-function:ease-in-out}
@media(prefers-reduced-motion:reduce){.move{animation-play-state:paused;animation-delay:-3.2s!important}}"""
TIP = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path d="M0 0L8 4L0 8z" fill="#8a94a0"/></marker>'


class Canvas:
    """An SVG file in the making: images by name, moves as key frames."""

    def __init__(self, width: int, height: int, title: str, images: dict[str, str]) -> None:
        self.width, self.height, self.title, self.images = width, height, title, images
        self.body: list[str] = []
        self.moves: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        self.body.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>')

    def frame(self, x: float, y: float, size: float = CELL + 6) -> None:
        corner = f'x="{x - size / 2:g}" y="{y - size / 2:g}"'
        self.body.append(f'<rect class="frame" {corner} width="{size:g}" height="{size:g}"/>')

    def arrow(self, x: float, y: float, to: float) -> None:
        self.body.append(f'<path class="arrow" d="M{x:g} {y:g}H{to:g}"/>')

    def image(self, name: str, places: list[tuple[float, float, float, float, float]], size: float = CELL) -> None:
        """An image that goes through places: (per cent of the time, x, y, turn in degrees, opacity)."""
        drawn = f'<use href="#{name}" transform="scale({size / CELL:g})"/>'
        if len(places) == 1:
            _, x, y, turn, opacity = places[0]
            at = f'transform="translate({x:g} {y:g}) rotate({turn:g})" opacity="{opacity:g}"'
            self.body.append(f"<g {at}>{drawn}</g>")
            return
        key = f"m{len(self.moves)}"
        steps = "".join(
            f"{when:g}%{{transform:translate({x:g}px,{y:g}px) rotate({turn:g}deg);opacity:{opacity:g}}}"
            for when, x, y, turn, opacity in places
        )
        self.moves.append(f"@keyframes {key}{{{steps}}}")
        self.body.append(f'<g class="move" style="animation-name:{key}">{drawn}</g>')

    def write(self, name: str) -> None:
        (HERE / name).write_text(self.text_of())

    def text_of(self) -> str:
        half = CELL / 2
        known = "".join(
            f'<image id="{name}" x="{-half:g}" y="{-half:g}" width="{CELL}" height="{CELL}" href="{address}"/>'
            for name, address in self.images.items()
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}\n" + "\n".join(self.moves) + "</style>",
                f"<defs>{TIP}{known}</defs>",
                f'<rect width="{self.width}" height="{self.height}" rx="10" fill="#f7f9fa"/>',
                *self.body,
                "</svg>\n",
            ]
        )


def maps() -> tuple[torch.Tensor, torch.Tensor]:
    """The sliced copepod and the maps of one filter on it: `(4, 1, side, side)` each, pathways first."""
    x = torch.from_numpy(copepod())[None, None]
    ticks = np.arange(-4, 5)
    across, along = np.meshgrid(ticks, ticks)
    edge = across * np.exp(-(across**2) / 6 - (along - 1.5) ** 2 / 5)  # bright to the right of dark
    sliced = qt.slice(x, C4)
    found = nn.functional.conv2d(sliced, torch.from_numpy(edge)[None, None], padding=4).relu()
    return sliced, (found / found.max()).sqrt()


def pictures() -> dict[str, str]:
    """Names and addresses of all images: the copepod, the four maps, their mean."""
    sliced, found = maps()
    for g in range(4):  # what the moving pictures show by turning images is what the library computes
        for h in range(4):
            rolled = qt.roll(found, C4)[h, g]
            turned = torch.from_numpy(np.rot90(found[(g + h) % 4, 0].numpy(), g).copy())  # g^-1: anticlockwise
            assert torch.equal(rolled, turned)
        assert torch.equal(sliced[g, 0], torch.from_numpy(np.rot90(copepod(), -g).copy()))
    mean = qt.pool(found, C4)[0, 0].numpy()
    return {
        "x": tinted(copepod(), INK),
        **{f"f{g}": tinted(found[g, 0].numpy(), colour) for g, colour in enumerate(COLOURS)},
        "mean": tinted(mean / mean.max(), (60, 60, 60)),
    }


def slot(number: int) -> float:
    return 66 + STEP * number


def column(canvas: Canvas, x: float, names: list[str], before: bool) -> None:
    """Labelled frames of four pathways."""
    for number, name in enumerate(names):
        canvas.frame(x, slot(number))
        words = (x - CELL / 2 - 12, "end") if before else (x + CELL / 2 + 12, "start")
        canvas.text(words[0], slot(number) + 4, name, "soft", words[1])


def draw_slice(images: dict[str, str]) -> Canvas:
    canvas = Canvas(520, 340, "Slice: the image in all four orientations, as four examples of the batch", images)
    canvas.text(20, 26, "slice", "head")
    middle = (slot(1) + slot(2)) / 2
    canvas.frame(80, middle)
    canvas.image("x", [(0, 80, middle, 0, 1)])
    canvas.text(80, middle + 56, "(N, C, H, W)", "soft", "middle")
    canvas.arrow(140, middle, 232)
    column(canvas, 280, ["x", "r x", "r² x", "r³ x"], False)
    for g in range(4):
        start, end = (80, middle, 0), (280, slot(g), 90 * g)
        canvas.image("x", [(0, *start, 0), (8, *start, 1), (50, *end, 1), (96, *end, 1), (100, *end, 0)])
    canvas.text(390, middle - 8, "four pathways:", "soft")
    canvas.text(390, middle + 10, "(4N, C, H, W)", "soft")
    return canvas


def draw_pool(images: dict[str, str]) -> Canvas:
    canvas = Canvas(520, 340, "Pool: the pathways turn back, and become one by a mean or a maximum", images)
    canvas.text(20, 26, "pool", "head")
    middle = (slot(1) + slot(2)) / 2
    column(canvas, 110, ["x₀", "x₁", "x₂", "x₃"], True)
    canvas.arrow(170, middle, 300)
    canvas.frame(356, middle)
    canvas.text(356, middle + 56, "mean: (N, C, H, W)", "soft", "middle")
    for g in range(4):
        canvas.image(f"f{g}", [(0, 110, slot(g), 0, 1)])
        start, end = (110, slot(g), 0), (356, middle, -90 * g)
        canvas.image(f"f{g}", [(0, *start, 0), (8, *start, 1), (50, *end, 0.5), (58, *end, 0), (100, *end, 0)])
    shown = ((0, 0), (50, 0), (60, 1), (96, 1), (100, 0))
    canvas.image("mean", [(when, 356, middle, 0, opacity) for when, opacity in shown])
    return canvas


def draw_stack(images: dict[str, str]) -> Canvas:
    canvas = Canvas(640, 340, "Stack: the pathways turn back, and become features of one example", images)
    canvas.text(20, 26, "stack", "head")
    middle = (slot(1) + slot(2)) / 2
    column(canvas, 110, ["x₀", "x₁", "x₂", "x₃"], True)
    canvas.arrow(170, middle, 270)
    for g, name in enumerate(("x₀", "r⁻¹ x₁", "r⁻² x₂", "r⁻³ x₃")):
        at = 330 + STEP * g
        canvas.frame(at, middle)
        canvas.text(at, middle - 46, name, "soft", "middle")
        canvas.image(f"f{g}", [(0, 110, slot(g), 0, 1)])
        start, end = (110, slot(g), 0), (at, middle, -90 * g)
        canvas.image(f"f{g}", [(0, *start, 0), (8, *start, 1), (50, *end, 1), (96, *end, 1), (100, *end, 0)])
    canvas.text(444, middle + 60, "one example, four times the features: (N, 4C, H, W)", "soft", "middle")
    return canvas


def draw_roll(images: dict[str, str]) -> Canvas:
    canvas = Canvas(640, 372, "Roll: each pathway sees all others, turned into its own frame", images)
    canvas.text(20, 26, "roll", "head")
    column(canvas, 110, ["x₀", "x₁", "x₂", "x₃"], True)
    canvas.arrow(170, (slot(1) + slot(2)) / 2, 270)
    for g in range(4):
        canvas.image(f"f{g}", [(0, 110, slot(g), 0, 1)])
    for h in range(4):
        for g in range(4):
            at, of = 330 + STEP * g, (g + h) % 4
            canvas.frame(at, slot(h))
            start, end, late = (110, slot(of), 0), (at, slot(h), -90 * g), 6 * h
            canvas.image(
                f"f{of}",
                [(0, *start, 0), (6 + late, *start, 1), (44 + late, *end, 1), (96, *end, 1), (100, *end, 0)],
            )
    canvas.text(444, 355, "four pathways, four times the features: (4N, 4C, H, W)", "soft", "middle")
    return canvas


def draw_all_three(images: dict[str, str]) -> Canvas:
    """The input turns four times; pathways and rolled rows move up by one place each; the answer stays."""
    canvas = Canvas(
        860, 366, "An organism turns, the pathways of the network change places, and the answer stays", images
    )
    middle = (slot(1) + slot(2)) / 2
    held = [(25 * k + at, k) for k in range(4) for at in (0, 17)] + [(100, 4)]
    canvas.frame(70, middle, CELL * 1.3)
    canvas.image("x", [(when, 70, middle, 90 * k, 1) for when, k in held], CELL * 1.15)
    canvas.text(70, middle + 72, "the image turns", "", "middle")
    columns = (180, 290, 420)
    for x, name in zip(columns, ("slice", "convolution", "roll"), strict=True):
        canvas.text(x if name != "roll" else x + 1.1 * STEP, 24, name, "head", "middle")
    for number in range(4):
        canvas.frame(columns[0], slot(number))
        canvas.frame(columns[1], slot(number))
        size = STEP * 3.35
        canvas.body.append(
            f'<rect class="frame" x="{columns[2] - 30:g}" y="{slot(number) - 34:g}" width="{size:g}" height="68"/>'
        )

    def path(item: int, x: float, turn: float) -> list[tuple[float, float, float, float, float]]:
        """Element number `item` is in slot `item - k` after k turns of the input; it goes under from first to last."""
        places = []
        for k in range(4):
            y = slot((item - k) % 4)
            places += [(25 * k, x, y, turn, 1.0), (25 * k + 17, x, y, turn, 1.0)]
            if (item - k) % 4 == 0:
                places += [(25 * k + 20, x, y - 14, turn, 0.0), (25 * k + 20.1, x, slot(3) + 14, turn, 0.0)]
        return [*places, (100, x, slot(item), turn, 1.0)]

    for item in range(4):
        canvas.image("x", path(item, columns[0], 90 * item))
        canvas.image(f"f{item}", path(item, columns[1], 0))
        for g in range(4):
            canvas.image(f"f{(g + item) % 4}", path(item, columns[2] + 0.73 * STEP * g, -90 * g), 50)
    for a, b in ((118, 140), (218, 250), (330, 384), (650, 682)):
        canvas.arrow(a, middle, b)
    canvas.text(756, 24, "pool", "head", "middle")
    for number, height in enumerate(answer()):
        y = middle - 58 + 26 * number
        canvas.body.append(f'<rect x="692" y="{y:g}" width="{130 * height:.1f}" height="17" fill="#3a7ca5" rx="2"/>')
    canvas.text(756, middle + 92, "the answer stays", "", "middle")
    canvas.text(236, 352, "pathways move up by one place", "", "middle")
    return canvas


def answer() -> list[float]:
    """Five outputs of a small network, the same to 1e-12 for all four turns of the image."""
    torch.manual_seed(4)
    net = nn.Sequential(
        *(qt.Slice(C4), nn.Conv2d(1, 6, 9, 2), nn.ReLU()),
        *(qt.Roll(C4), nn.Conv2d(24, 5, 5), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 5), qt.Pool(C4)),
    ).double()
    x = torch.from_numpy(copepod())[None, None]
    with torch.no_grad():
        answers = [net(qt.act(x, C4, g))[0] for g in range(4)]
    assert all(torch.allclose(answers[0], other, atol=1e-12) for other in answers)
    bars = torch.softmax(8 * (answers[0] - answers[0].mean()), 0)
    return [round(float(bar), 2) for bar in (bars / bars.max()).clamp(min=0.04)]


DRAWN = {
    "slice.svg": draw_slice,
    "pool.svg": draw_pool,
    "stack.svg": draw_stack,
    "roll.svg": draw_roll,
    "slice-roll-pool.svg": draw_all_three,
}

if __name__ == "__main__":
    shared = pictures()
    for file, drawing in DRAWN.items():
        drawing(shared).write(file)

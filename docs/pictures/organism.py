"""A copepod, drawn by rule, as an image of numbers: the subject of the animated pictures."""

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SIDE = 72
Array = NDArray[np.float64]


def copepod(side: int = SIDE) -> Array:
    """`(side, side)` numbers from 0 (water) to 1 (animal). An egg sac on one side only, so that no turn is alike."""
    scale = 8 * side / SIDE
    image = Image.new("L", (round(SIDE * scale), round(SIDE * scale)), 0)
    pen = ImageDraw.Draw(image)

    def at(*numbers: float) -> list[float]:
        return [number * scale for number in numbers]

    def oval(x: float, y: float, across: float, along: float, ink: int) -> None:
        pen.ellipse(at(x - across, y - along, x + across, y + along), fill=ink)

    def curve(points: list[tuple[float, float]], width: float, ink: int) -> None:
        x, y = np.array(points).T
        t, ticks = np.linspace(0, 1, len(points)), np.linspace(0, 1, 60)
        bend = np.polyfit(t, x, 2), np.polyfit(t, y, 2)
        for a, b in zip(np.polyval(bend[0], ticks), np.polyval(bend[1], ticks), strict=True):
            oval(a, b, width / 2, width / 2, ink)

    curve([(33, 20), (20, 14), (7, 24)], 1.8, 190)  # antennae
    curve([(39, 20), (52, 12), (66, 17)], 1.8, 190)
    for leg in range(4):  # legs
        curve([(44, 28 + 4 * leg), (49, 30 + 4 * leg), (52, 34 + 4 * leg)], 1.2, 130)
        curve([(28, 28 + 4 * leg), (23, 30 + 4 * leg), (20, 34 + 4 * leg)], 1.2, 130)
    oval(47, 51, 5.5, 9, 150)  # the egg sac
    for egg in range(6):
        oval(45 + 3.4 * (egg % 2), 46 + 3.2 * (egg // 2) + 1.6 * (egg % 2), 1.6, 1.6, 235)
    oval(36, 30, 10.5, 17, 215)  # body
    for ring in range(3):
        pen.line(at(27.5 + ring, 34 + 4 * ring, 44.5 - ring, 34 + 4 * ring), fill=150, width=round(scale * 0.8))
    oval(36, 29, 4, 9, 245)
    for part in range(4):  # tail
        oval(36, 48 + 4 * part, 3.6 - 0.5 * part, 3, 200)
    curve([(35, 61), (32, 65), (29, 69)], 1.4, 180)
    curve([(37, 61), (40, 65), (43, 69)], 1.4, 180)
    oval(36, 17.5, 2, 2, 40)  # eye
    small = image.resize((side, side), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float64) / 255


def tinted(image: Array, colour: tuple[int, int, int], paper: tuple[int, int, int] = (247, 249, 250)) -> str:
    """An image of numbers from 0 to 1 as a PNG in an address, from paper to colour in 16 steps."""
    steps = np.round(image.clip(0, 1) * 15).astype(np.uint8)
    picture = Image.frombytes("P", (image.shape[1], image.shape[0]), steps.tobytes())
    shades = [round(p + (c - p) * step / 15) for step in range(16) for p, c in zip(paper, colour, strict=True)]
    picture.putpalette(shades)
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True, bits=4, transparency=0)  # water is clear
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()

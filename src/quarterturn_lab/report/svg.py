"""The report's figures as SVG text, drawn from arrays."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

Array = NDArray[np.float64]
COLOURS = ("#4c566a", "#d1495b", "#00798c", "#edae49", "#6a4c93", "#30638e", "#8d6b94", "#57886c", "#b07156", "#222222")
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "svg.fonttype": "none",
    "svg.hashsalt": "quarterturn",
}


def svg(figure: Figure) -> str:
    """The figure as an `<svg>` element; equal figures give equal text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def curves(series: dict[str, tuple[Array, Array, Array, Array]], title: str) -> str:
    """Lines with bands: name -> (x, mean, lowest, highest)."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(5.2, 3.2))
        for colour, (name, (x, mean, low, high)) in zip(_colours(len(series)), series.items(), strict=True):
            axes.plot(x, mean, color=colour, label=name, linewidth=1.6, marker="o" if len(x) == 1 else None)
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.set(xlabel="epoch", title=title)
        axes.legend(frameon=False)
        return svg(figure)


def sensitivity(degrees: Sequence[float], series: dict[str, tuple[Array, Array, Array]], title: str) -> str:
    """Change of the predictions with the angle: name -> (mean, lower, upper)."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(10.5, 3.0))
        for colour, (name, (mean, low, high)) in zip(_colours(len(series)), series.items(), strict=True):
            axes.plot(degrees, mean, color=colour, label=name, linewidth=1.6)
            axes.fill_between(degrees, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel="rotation of the image, degrees", title=title, xticks=range(0, 361, 45), xlim=(0, 360))
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, ncols=len(series), loc="upper center", bbox_to_anchor=(0.5, -0.2))
        return svg(figure)


Answer = tuple[str, float, bool]  # class, probability, correct


def turned_examples(images: Array, degrees: Sequence[float], truths: Sequence[str], answers: dict[str, Any]) -> str:
    """A row of rotated images for each example, with the predictions of each network below: green if correct.

    `images` is `(examples, angles, S, S)`, `answers[name]` an `(examples, angles)` table of predictions.
    """
    count, angles = images.shape[:2]
    with plt.rc_context({**STYLE, "axes.grid": False}):
        figure, grid = plt.subplots(
            count, angles, figsize=(1.32 * angles, (1.25 + 0.17 * len(answers)) * count), squeeze=False
        )
        for i in range(count):
            for j in range(angles):
                axes = grid[i, j]
                axes.imshow(images[i, j], cmap="gray_r", vmin=0, interpolation="nearest")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                if i == 0:
                    axes.set_title(f"{degrees[j]:.0f}°", fontsize=8)
                if j == 0:
                    axes.set_ylabel(truths[i], fontsize=8)
                for line, table in enumerate(answers.values()):
                    label, probability, right = table[i][j]
                    axes.text(
                        0.5,
                        -0.05 - 0.15 * line,
                        f"{label} {probability:.2f}",
                        transform=axes.transAxes,
                        ha="center",
                        va="top",
                        fontsize=6.5,
                        color="#1b7837" if right else "#b2182b",
                    )
        figure.subplots_adjust(wspace=0.25, hspace=0.05 + 0.14 * len(answers))
        return svg(figure)


def answer_bars(
    images: NDArray[Any], names: Sequence[str], notes: Sequence[str], answers: Sequence[str], bars: dict[str, Array]
) -> str:
    """A row for each image `(H, W, C)`: the image, and the `(images, answers)` values of each of `bars`."""
    count = len(images)
    places = np.arange(len(answers), dtype=float)
    width = 0.8 / len(bars)
    with plt.rc_context({**STYLE, "axes.grid.axis": "y"}):
        figure, grid = plt.subplots(
            count, 2, figsize=(10.5, 1.9 * count), squeeze=False, width_ratios=(1, 5.2), layout="constrained"
        )
        for i in range(count):
            picture, chart = grid[i]
            picture.imshow(images[i].squeeze(), cmap="gray", interpolation="nearest")
            picture.set(xticks=[], yticks=[])
            picture.spines[:].set_visible(False)
            picture.set_title(names[i], fontsize=8)
            picture.set_xlabel(notes[i], fontsize=6.5)
            for number, (who, values) in enumerate(bars.items()):
                colour = "#bbbbbb" if number == 0 else COLOURS[number]
                chart.bar(places + (number + 0.5) * width - 0.4, values[i], width, color=colour, label=who)
            labels = [name.removeprefix("Class") for name in answers] if i == count - 1 else []
            chart.set(xticks=places if labels else [], xticklabels=labels, ylim=(0, 1), xlim=(-0.6, len(answers) - 0.4))
            chart.tick_params(axis="x", labelsize=6.5, length=0)
            questions = [name.partition(".")[0] for name in answers]
            for j in range(1, len(answers)):
                if questions[j] != questions[j - 1]:
                    chart.axvline(j - 0.5, color="#cccccc", linewidth=0.8)
        grid[0, 1].legend(frameon=False, ncols=len(bars), loc="lower right", bbox_to_anchor=(1.0, 1.0))
        grid[-1, 1].set_xlabel("question.answer")
        return svg(figure)


Mask = NDArray[np.bool_]


def overlays(
    lines: Sequence[tuple[NDArray[Any], Mask]], names: Sequence[str], found: dict[str, list[tuple[Mask, str]]]
) -> str:
    """A row for each image `(H, W, C)`: the image, its true mask, and the mask of each network with a note."""
    with plt.rc_context({**STYLE, "axes.grid": False}):
        columns = 2 + len(found)
        figure, grid = plt.subplots(
            len(lines), columns, figsize=(2.1 * columns, 2.45 * len(lines)), squeeze=False, layout="constrained"
        )
        for i, (image, truth) in enumerate(lines):
            light = np.repeat(image, 3, 2)[:, :, :3] if image.shape[2] == 1 else image
            pictures = [(light, names[i][:28], ""), (tinted(light, {TRUE: truth}), "true mask", "")]
            for name, masks in found.items():
                mask, note = masks[i]
                colours = {RIGHT: mask & truth, WRONG: mask & ~truth, MISSED: truth & ~mask}
                pictures.append((tinted(light, colours), name, note))
            for axes, (picture, title, note) in zip(grid[i], pictures, strict=True):
                axes.imshow(picture, interpolation="nearest")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                axes.set_title(title if i == 0 or axes is grid[i, 0] else "", fontsize=8)
                axes.set_xlabel(note, fontsize=7)
        return svg(figure)


TRUE, RIGHT, WRONG, MISSED = (255, 200, 0), (40, 200, 80), (230, 40, 40), (60, 110, 255)


def tinted(image: NDArray[Any], colours: dict[tuple[int, int, int], Mask]) -> NDArray[np.uint8]:
    """The image with each mask overlaid in its colour, half transparent."""
    out = image.astype(np.float64)
    for colour, mask in colours.items():
        out[mask] = 0.5 * out[mask] + 0.5 * np.array(colour)
    return out.round().astype(np.uint8)


def confusion(shares: dict[str, Array], names: Sequence[str]) -> str:
    """A matrix for each network: `(true class, answer)` shares of the true class, from 0 to 1."""
    count = len(names)
    with plt.rc_context({**STYLE, "axes.grid": False}):
        side = max(2.6, 0.3 * count)
        figure, grid = plt.subplots(1, len(shares), figsize=(1.15 * side * len(shares) + 1, side + 1), squeeze=False)
        for place, (axes, (name, matrix)) in enumerate(zip(grid[0], shares.items(), strict=True)):
            axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
            axes.set_title(name, fontsize=9)
            axes.set_xticks(range(count), names, rotation=90, fontsize=7)
            axes.set_yticks(range(count), names if place == 0 else [""] * count, fontsize=7)
            for row, column in np.argwhere(np.round(100 * matrix) >= 1):
                ink = "white" if matrix[row, column] > 0.5 else "#444444"
                text = f"{100 * matrix[row, column]:.0f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=6, color=ink)
        figure.subplots_adjust(wspace=0.08)
        return svg(figure)


def _colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


# --- figures of a fit, in the colours of the page, light or dark ------------------------------------------------------

INK, LINE = "#010203", "#040506"  # stand for the page's colours of text and lines until the figure is text
MAIN, OTHER = "#070809", "#0a0b0c"  # ... and of the network and the one beside it
PAGE = {INK: "currentColor", LINE: "var(--line)", MAIN: "var(--main)", OTHER: "var(--other)"}
THEMED: Any = {
    **STYLE,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "grid.color": LINE,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}
SIZE = (5.0, 3.0)  # inches: text stays readable on a phone


def themed(figure: Figure) -> str:
    """The figure as an `<svg>` element in the colours of the page."""
    text = svg(figure)
    for stand_in, colour in PAGE.items():
        text = text.replace(stand_in, colour)
    return text


def lines(series: dict[str, tuple[Any, Any]], across: str, up: str, degrees: bool = False) -> str:
    """Lines `name -> (x, y)`, the first in the main colour; against degrees, or anything else."""
    with plt.rc_context(THEMED):
        figure, axes = plt.subplots(figsize=SIZE)
        for colour, (name, (x, y)) in zip((MAIN, OTHER), series.items(), strict=False):
            axes.plot(x, y, color=colour, label=name, linewidth=1.8, marker="o" if len(x) == 1 else None)
        axes.set(xlabel=across, ylabel=up)
        if degrees:
            axes.set(ylim=(0, None), xticks=range(0, 361, 90))
        if len(series) > 1:
            axes.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        return themed(figure)


def reliability(series: dict[str, tuple[Array, Array, NDArray[np.int64]]]) -> str:
    """The share of right answers against the claimed probability, and below it how many images claimed it."""
    with plt.rc_context(THEMED):
        figure, (axes, below) = plt.subplots(2, 1, figsize=SIZE, sharex=True, height_ratios=(3, 1))
        axes.plot((0, 1), (0, 1), color=LINE, linewidth=1.2)
        for number, (name, (claimed, right, counts)) in enumerate(series.items()):
            colour = (MAIN, OTHER)[number]
            axes.plot(claimed, right, "o-", color=colour, label=name, linewidth=1.6, markersize=4)
            below.bar(claimed + 0.016 * number, counts / counts.sum(), 0.015, color=colour)
        axes.set(ylabel="right answers", ylim=(0, 1.02))
        below.set(xlabel="probability of the answer", ylabel="images", xlim=(0, 1.02))
        if len(series) > 1:
            axes.legend(frameon=False, loc="upper left")
        return themed(figure)


def scatter(truth: Array, predicted: Array, unit: str) -> str:
    """Predictions against truth, with the diagonal."""
    with plt.rc_context(THEMED):
        figure, axes = plt.subplots(figsize=(3.4, 3.4))
        ends = (min(truth.min(), predicted.min()), max(truth.max(), predicted.max()))
        axes.plot(ends, ends, color=LINE, linewidth=1.2)
        axes.scatter(truth, predicted, s=9, color=MAIN, alpha=0.5, linewidths=0)
        axes.set(xlabel=f"true {unit}", ylabel="predicted")
        axes.set_aspect("equal", "box")
        return themed(figure)


def histogram(series: dict[str, Array], across: str, ends: tuple[float, float] | None = None) -> str:
    """Histograms with shared bins, one beside the other."""
    with plt.rc_context(THEMED):
        figure, axes = plt.subplots(figsize=SIZE)
        axes.hist(list(series.values()), bins=20, range=ends, label=list(series), color=[MAIN, OTHER][: len(series)])
        axes.set(xlabel=across, ylabel="images")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        if len(series) > 1:
            axes.legend(frameon=False)
        return themed(figure)

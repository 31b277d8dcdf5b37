"""The pictures of studies, as PNG: dots for each seed, or lines along cost or number of images."""

import io
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter

from quarterturn_lab.evaluation.statistics import mean_sd
from quarterturn_lab.report.svg import COLOURS, STYLE
from quarterturn_lab.studies.definition import TURNED, Study
from quarterturn_lab.studies.findings import UNITS, position, split, values
from quarterturn_lab.studies.records import Records

PLAIN, PATHWAYS = COLOURS[0], COLOURS[1]
ALONG = {"cpu_seconds": "CPU seconds of training", "train_images": "training images"}


def picture(study: Study, records: Records) -> bytes:
    """The study at a glance; what has not been run is not in it."""
    with plt.rc_context(STYLE):
        return _png(_lines(study, records) if study.series else _dots(study, records))


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None}, bbox_inches="tight")
    plt.close(figure)
    return buffer.getvalue()


def _axis(study: Study) -> str:
    name, unit, _ = UNITS[study.measure]
    return f"{study.judged} {name}{', %' if unit else ''} (lower is better)"


def _dots(study: Study, records: Records) -> Figure:
    entries = [entry for entry in study.entries if records.of(entry)]
    figure, axes = plt.subplots(figsize=(7.5, 0.8 + 0.3 * len(entries)))
    for place, entry in enumerate(entries):
        colour = PLAIN if entry.is_plain else PATHWAYS
        plainly = values(study, records, entry.label)
        for side, filled in ((entry.label, True), (f"{entry.label}{TURNED}", False)):
            found = list(values(study, records, side).values())
            if not filled and (not found or np.allclose(found, list(plainly.values()), atol=1e-3)):
                continue  # not scored, or invariant: averaging changes nothing
            axes.scatter(
                found, [place] * len(found), s=26, facecolors=colour if filled else "white", edgecolors=colour, zorder=3
            )
            axes.plot([mean_sd(found)[0]] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=1.4, zorder=2)
    axes.set(yticks=range(len(entries)), yticklabels=[entry.label for entry in entries], xlabel=_axis(study))
    axes.set_ylim(len(entries) - 0.4, -0.6)
    marks = {"plain": (PLAIN, PLAIN), "with pathways": (PATHWAYS, PATHWAYS), "4 turns averaged": ("black", "white")}
    for name, (edge, face) in marks.items():
        axes.scatter([], [], s=26, facecolors=face, edgecolors=edge, label=f"{name}, a dot for each seed")
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.5 / (0.8 + 0.3 * len(entries))))
    return figure


def _lines(study: Study, records: Records) -> Figure:
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    colours: dict[tuple[str, ...], str] = {}
    for name, sides in study.series.items():
        points = []
        for side in sides:
            found = values(study, records, side)
            if found:
                points.append(
                    (
                        position(study, records, side),
                        mean_sd(list(found.values()))[0],
                        min(found.values()),
                        max(found.values()),
                    )
                )
        if not points:
            continue
        x, y, low, high = np.array(sorted(points)).T
        labels = tuple(split(side)[0] for side in sides)
        colour = colours.setdefault(labels, COLOURS[len(colours) % len(COLOURS)])  # turns averaged or not: one colour
        style: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"} if split(sides[0])[1] else {}
        reach = np.maximum((y - low, high - y), 0.0)  # a mean of equal numbers may be off in its last digit
        axes.errorbar(x, y, reach, color=colour, label=name, marker="o", markersize=4, linewidth=1.4, **style)
    axes.set(xscale="log", xlabel=ALONG[study.along], ylabel=_axis(study))
    if study.budgets:
        axes.xaxis.set_major_locator(FixedLocator(study.budgets))
        axes.set_xlim(right=1.05 * max(study.budgets))
    else:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure

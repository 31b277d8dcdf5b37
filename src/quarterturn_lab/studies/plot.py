"""The picture of a study, as PNG: sorted rows with a dot for each seed, or lines along cost or number of images."""

import io
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter

from quarterturn_lab.evaluation.statistics import mean_sd
from quarterturn_lab.report.svg import COLOURS, STYLE
from quarterturn_lab.studies.decisions import decisions, is_plain, lines, ranked
from quarterturn_lab.studies.definition import Study
from quarterturn_lab.studies.findings import average, strongest_plain, values
from quarterturn_lab.studies.measures import MEASURES
from quarterturn_lab.studies.names import line_name, name, split
from quarterturn_lab.studies.records import Records

ORDINARY, EQUIVARIANT = COLOURS[0], COLOURS[1]
GREYS, HUES = (COLOURS[0], "#98a2b3"), COLOURS[1:]
ALONG = {"cpu_seconds": "CPU seconds of training", "train_images": "training images"}
MOST = 10  # rows of a picture
WIDEST = 40  # letters of a line of its labels


def picture(study: Study, records: Records) -> bytes:
    """The study at a glance; what has not been run is not in it."""
    with plt.rc_context(STYLE):
        return _png(_lines(study, records) if study.series else _rows(study, records))


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None}, bbox_inches="tight")
    plt.close(figure)
    return buffer.getvalue()


def _axis(study: Study) -> str:
    measure = MEASURES[study.measure]
    return f"{study.judged} {measure.name}{', %' if measure.error else ''} (lower is better)"


def featured(study: Study, records: Records) -> list[str]:
    """At most `MOST` sides that have been run, lowest mean first.

    Those of the decision table are taken first, then those of the sentences, then the best for each budget. A small
    study shows all that it has.
    """
    wanted = [side for d in decisions(study, records) for side in (d.equivariant, d.ordinary) if side]
    for takeaway in study.takeaways:
        strongest = strongest_plain(study, records, takeaway.who)
        wanted += [takeaway.who, *takeaway.others, *([strongest] if strongest else [])]
    wanted += ranked(study, records)
    every = [side for line in lines(study) for side in line]
    wanted += every if len(every) <= MOST else []
    found = [side for side in dict.fromkeys(wanted) if values(study, records, side)][:MOST]
    return sorted(found, key=lambda side: mean_sd(list(values(study, records, side).values()))[0])


def wrapped(text: str) -> str:
    """A long name in two lines, broken after the comma nearest to its middle.

    >>> wrapped("ordinary, no last ReLU, 160 epochs, 4 turns averaged at test time")
    'ordinary, no last ReLU, 160 epochs,\\n4 turns averaged at test time'
    """
    breaks = [place + 1 for place, letter in enumerate(text) if letter == ","]
    if len(text) <= WIDEST or not breaks:
        return text
    middle = min(breaks, key=lambda place: abs(place - len(text) / 2))
    return f"{text[:middle]}\n{text[middle + 1 :]}"


def _rows(study: Study, records: Records) -> Figure:
    sides = featured(study, records)
    labels = [wrapped(name(study, side)) for side in sides]
    figure, axes = plt.subplots(figsize=(6.5, 0.9 + 0.3 * len(sides) + 0.1 * sum("\n" in label for label in labels)))
    for place, side in enumerate(sides):
        colour = ORDINARY if is_plain(study, side) else EQUIVARIANT
        found = list(values(study, records, side).values())
        axes.scatter(found, [place] * len(found), s=26, color=colour, zorder=3)
        axes.plot([mean_sd(found)[0]] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=1.6, zorder=2)
    axes.set(yticks=range(len(sides)), yticklabels=labels, xlabel=_axis(study))
    axes.set_ylim(len(sides) - 0.4, -0.6)
    plain = {is_plain(study, side) for side in sides}
    for kind, colour, used in (("equivariant", EQUIVARIANT, False in plain), ("ordinary", ORDINARY, True in plain)):
        if used:
            axes.scatter([], [], s=26, color=colour, label=kind)
    axes.plot([], [], color="black", marker="|", markersize=9, linestyle="", label="mean (a dot is one run)")
    axes.legend(frameon=False, fontsize=8, ncol=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    return figure


def _lines(study: Study, records: Records) -> Figure:
    """Ordinary networks are grey; a dashed line is the same network as the solid one, with turns averaged."""
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    colours: dict[str, str] = {}
    ends = []
    for sides in study.series:
        found = {side: list(values(study, records, side).values()) for side in sides if values(study, records, side)}
        if not found:
            continue
        points = [
            (average(study, records, side, study.along), mean_sd(scores)[0], min(scores), max(scores))
            for side, scores in found.items()
        ]
        x, y, low, high = np.array(sorted(points)).T
        label, turned = split(sides[0])
        plain = is_plain(study, label)
        used = sum(is_plain(study, other) == plain for other in colours)
        colour = colours.setdefault(label, (GREYS if plain else HUES)[used % len(GREYS if plain else HUES)])
        style: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"} if turned else {}
        reach = np.maximum((y - low, high - y), 0.0)  # a mean of equal numbers may be off in its last digit
        drawn = axes.errorbar(x, y, reach, color=colour, marker="o", markersize=4, linewidth=1.4, **style)
        ends.append((y[-1], line_name(study, sides[0]), drawn))
    axes.set(xscale="log", xlabel=ALONG[study.along], ylabel=_axis(study))
    if study.budgets:
        axes.xaxis.set_major_locator(FixedLocator(study.budgets))
        axes.set_xlim(right=1.05 * max(study.budgets))
    else:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if ends:
        _, labels, handles = zip(*sorted(ends, key=lambda end: -end[0]), strict=True)  # as the lines end, from the top
        axes.legend(handles, labels, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure

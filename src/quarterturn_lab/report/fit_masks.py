"""The cards of a fit with masks or regions: overlap by image and by class, and the best, middle and worst images."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.evaluation import segmentation
from quarterturn_lab.report import svg
from quarterturn_lab.report.cards import Bar, Card, Thumb, short
from quarterturn_lab.report.fit_volumes import volume_examples
from quarterturn_lab.report.judged import Judged
from quarterturn_lab.report.pictures import FOUND, TRUE, in_page, outlined, picture

EACH = 3  # images of each kind: worst, middle, best


def dice_by_image(run: Judged) -> NDArray[np.float64]:
    """The overlap of each test image; for regions, the mean over the classes that are there or found."""
    pairs = zip(run.predicted, run.labels, strict=True)
    if run.config.net.axes == 3:  # the background is most of a volume
        classes = range(1, len(run.data.classes))
        each = [[segmentation.dice(p.argmax(0) == c, t == c, empty=math.nan) for c in classes] for p, t in pairs]
        return np.array([np.mean(known) if (known := [d for d in found if d == d]) else np.nan for found in each])
    if run.data.task == "regions":
        return np.array([segmentation.mean_dice(segmentation.region_counts(p, t)) for p, t in pairs])
    return np.array([segmentation.dice(p >= 0.5, t) for p, t in pairs])


def mask_cards(runs: list[Judged]) -> list[Card]:
    """All cards of a fit with masks; the first run is the one that the page is about."""
    scores = {run.name: dice_by_image(run) for run in runs}
    own = scores[runs[0].name]
    text = f"Dice: twice the overlap, divided by both areas; 1 is perfect. Median {np.nanmedian(own):.3f}, worst " + (
        f"{np.nanmin(own):.3f}."
    )
    is_volume = runs[0].config.net.axes == 3
    cards = [volume_examples(runs[0], own) if is_volume else _examples(runs[0], own)]
    finite = {name: values[np.isfinite(values)] for name, values in scores.items()}
    cards.append(
        Card(
            f"Overlap, {'volume by volume' if is_volume else 'image by image'}",
            text,
            "figure",
            svg.histogram(finite, "Dice", (0.0, 1.0)),
        )
    )
    if runs[0].data.task == "regions":
        cards.append(_by_class(runs))
    return cards


def _by_class(runs: list[Judged]) -> Card:
    found = []
    for run in runs:
        each = [segmentation.region_counts(p, t) for p, t in zip(run.predicted, run.labels, strict=True)]
        counts: Any = np.sum(each, axis=0)
        found.append((2 * counts.diagonal() / (counts.sum(0) + counts.sum(1)).clip(1), counts.sum(1)))
    names, unit = runs[0].data.classes, "pixels" if runs[0].config.net.axes == 2 else "voxels"
    total = found[0][1].sum()
    bars = [
        Bar(short(names[i]), float(value), float(value), float(value), f"{found[0][1][i] / total:.1%} of the {unit}",
            float(found[1][0][i]) if len(runs) > 1 else None)
        for i, value in enumerate(found[0][0])
    ]  # fmt: skip
    beside = f" The mark is the {runs[1].name}." if len(runs) > 1 else ""
    return Card("Overlap by class", f"Dice of each class over all test images.{beside}", "bars", bars)


def _examples(run: Judged, scores: NDArray[np.float64]) -> Card:
    order = np.argsort(scores, kind="stable")
    middle = max(0, len(order) // 2 - EACH // 2)
    chosen = dict.fromkeys([*order[:EACH], *order[middle : middle + EACH], *order[::-1][:EACH]])
    thumbs = []
    for i in map(int, chosen):
        margin = run.config.net.margin
        image = run.image(i)
        image = image[:, margin : image.shape[1] - margin, margin : image.shape[2] - margin]
        found = run.predicted[i].argmax(0) if run.data.task == "regions" else run.predicted[i] >= 0.5
        truth = run.labels[i] if run.data.task == "regions" else run.labels[i] > 0
        drawn = outlined(
            picture(image, run.config.invert), {TRUE: truth.astype(np.int32), FOUND: found.astype(np.int32)}
        )
        name = run.data.names[int(run.data.test[i])]
        thumbs.append(Thumb(in_page(drawn), short(name.rpartition("/")[2], 22), f"Dice {scores[i]:.3f}"))
    text = "The worst, the middle and the best test images. Outlines: true in yellow, found in blue."
    return Card("Masks", text, "thumbs", thumbs, wide=True)

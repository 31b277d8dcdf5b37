"""Slices of volumes for the page of a fit: the image, what is true, and what was found."""

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.report.cards import Card, Thumb, short
from quarterturn_lab.report.judged import Judged
from quarterturn_lab.report.pictures import Picture, in_page, picture

SHADES = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167))
CLEAR = 0.45  # of the image that shines through a coloured class
ENLARGED = 192  # pixels of the longest side, about


def volume_examples(run: Judged, scores: NDArray[np.float64]) -> Card:
    """The middle slice of the worst, the middle and the best test volume, three pictures each."""
    order = np.argsort(np.nan_to_num(scores, nan=1.0), kind="stable")
    thumbs = []
    for i, words in zip((order[0], order[len(order) // 2], order[-1]), ("worst", "median", "best"), strict=True):
        place = int(i)
        truth, found = run.labels[place], run.predicted[place].argmax(0)
        axis, middle = 0, _slice_with_most(truth)
        image = picture(np.take(run.image(place), middle, axis=1 + axis))
        name = short(run.data.names[int(run.data.test[place])].rpartition("/")[2], 24)
        for what, labels in (("scan", None), ("truth", truth), ("found", found)):
            shown = image if labels is None else coloured(image, np.take(labels, middle, axis=axis))
            factor = max(1, ENLARGED // max(shown.shape[:2]))
            large = shown.repeat(factor, 0).repeat(factor, 1)
            thumbs.append(Thumb(in_page(large), f"{what}: {name}", f"{words}, Dice {scores[place]:.3f}"))
    text = (
        "The slice across the first axis with most labelled voxels, of the worst, the median and the best test volume: "
        "the scan, the true classes, and those that were found."
    )
    return Card("Slices", text, "thumbs", thumbs, wide=True)


def _slice_with_most(truth: NDArray[np.uint16]) -> int:
    labelled = (truth > 0).sum(axis=(1, 2))
    return int(labelled.argmax()) if labelled.any() else len(truth) // 2


def coloured(image: Picture, labels: NDArray[np.int64]) -> Picture:
    """The picture with a colour for each class but the background."""
    shades = np.array(SHADES)[(labels.astype(np.int64) - 1) % len(SHADES)]
    mixed = CLEAR * image + (1 - CLEAR) * shades
    return np.where((labels > 0)[..., None], mixed, image).round().astype(np.uint8)

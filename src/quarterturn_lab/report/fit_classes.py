"""The cards of a fit with classes or tags: confusion, recall, calibration, and the images that went most wrong."""

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.evaluation import classification
from quarterturn_lab.evaluation.certainty import average_precision, calibration, share_interval
from quarterturn_lab.files import csv_text
from quarterturn_lab.report import svg
from quarterturn_lab.report.cards import Bar, Card, Table, Thumb, short
from quarterturn_lab.report.judged import Judged
from quarterturn_lab.report.pictures import in_page, picture

MATRIX = 12  # classes in the matrix; of more, the ones with the most errors
BARS = 24  # classes with a bar; of more, the ones with the lowest scores
PAIRS = 12  # pairs of classes
THUMBS = 18
Counts = NDArray[np.int64]


def class_cards(runs: list[Judged]) -> list[Card]:
    """All cards of a fit with classes; the first run is the one that the page is about."""
    run = runs[0]
    counts = classification.confusion(run.predicted, run.labels)
    classes = run.data.classes
    return [_pairs(counts, classes), calibrated(runs), _worst_images(run), _matrix(counts, classes), _recalls(runs)]


def confusion_csv(run: Judged) -> str:
    """The whole matrix: a row for each true class, a column for each predicted one."""
    counts = classification.confusion(run.predicted, run.labels)
    rows = ([name, *row] for name, row in zip(run.data.classes, counts.tolist(), strict=True))
    return csv_text([["true class", *run.data.classes], *rows])


def _pairs(counts: Counts, classes: tuple[str, ...]) -> Card:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong.ravel(), kind="stable")[:PAIRS]
    pairs = [divmod(int(place), len(classes)) for place in order if wrong.ravel()[place]]
    rows = [
        (short(classes[a]), short(classes[b]), f"{wrong[a, b]} of {counts[a].sum()}", str(wrong[b, a]))
        for a, b in pairs
    ]
    all_wrong = int(wrong.sum())
    text = f"The pairs of classes with the most errors, of {all_wrong:,} in all." if rows else "There are no errors."
    return Card("What is taken for what", text, "table", Table(("true class", "taken for", "images", "reverse"), rows))


def _matrix(counts: Counts, classes: tuple[str, ...]) -> Card:
    wrong = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    shown = np.sort(np.argsort(-wrong, kind="stable")[:MATRIX])
    some = counts[np.ix_(shown, shown)]
    other = counts[shown].sum(1) - some.sum(1)
    totals = counts[shown].sum(1).clip(1)
    header = ["true class", *(str(i + 1) for i in range(len(shown))), *(["others"] if other.any() else [])]
    rows, shades = [], []
    for i, place in enumerate(shown):
        values = [*some[i], *([other[i]] if other.any() else [])]
        rows.append((f"{i + 1}  {short(classes[place])}", *(str(value) if value else "" for value in values)))
        shades.append([0.0, *(float(value / totals[i]) for value in values)])
    whole = f"The {len(shown)} of {len(classes)} classes with the most errors. " if len(classes) > MATRIX else ""
    text = (
        f"{whole}A row for each true class, a column for each answer, with the numbers of the rows. All counts: "
        "confusion.csv beside this page."
    )
    return Card("Confusion matrix", text, "table", Table(header, rows, shades), wide=True)


def _recalls(runs: list[Judged]) -> Card:
    counts = [classification.confusion(run.predicted, run.labels) for run in runs]
    found = [classification.recalls(each) for each in counts]
    totals = counts[0].sum(1)
    order = [int(i) for i in np.lexsort((-totals, found[0])) if totals[i]]  # of equal ones, the larger class first
    bars = []
    for i in order[:BARS]:
        right = int(counts[0][i, i])
        other = float(found[1][i]) if len(found) > 1 else None
        note = f"{right} of {totals[i]}"
        bars.append(
            Bar(short(runs[0].data.classes[i]), float(found[0][i]), *share_interval(right, int(totals[i])), note, other)
        )
    some = f"The {BARS} lowest of {len(order)} classes. " if len(order) > BARS else ""
    beside = f" The mark is the {runs[1].name}." if len(runs) > 1 else ""
    text = f"{some}The share of the test images of each class that are recognised, with its 95 % interval.{beside}"
    return Card("Recall by class", text, "bars", bars)


def calibrated(runs: list[Judged]) -> Card:
    """How often answers are right that are given with a probability."""
    found = {}
    for run in runs:
        if run.data.task == "classes":
            right = run.predicted.argmax(1) == run.labels
            found[run.name] = calibration(run.predicted.max(1), right)
        else:
            likely = np.maximum(run.predicted, 1 - run.predicted).ravel()
            found[run.name] = calibration(likely, ((run.predicted >= 0.5) == (run.labels > 0.5)).ravel())
    errors = ", ".join(f"{100 * each.error:.1f} % ({name})" for name, each in found.items())
    text = f"On the diagonal, probabilities mean what they say. Mean gap (expected calibration error): {errors}."
    series = {name: (each.claimed, each.right, each.counts) for name, each in found.items()}
    return Card("Can its probabilities be trusted?", text, "figure", svg.reliability(series))


def _worst_images(run: Judged) -> Card:
    chosen = run.predicted.argmax(1)
    wrong = np.flatnonzero(chosen != run.labels)
    order = wrong[np.argsort(-run.predicted[wrong, chosen[wrong]], kind="stable")][:THUMBS]
    names = run.data.classes
    thumbs = [
        Thumb(
            in_page(picture(run.image(i), run.config.invert)),
            short(names[run.labels[i]], 22),
            f"{short(names[chosen[i]], 22)} {run.predicted[i, chosen[i]]:.2f}",
            False,
        )
        for i in order
    ]
    text = "Wrong answers with the highest probability: the label, then the answer. Look here for wrong labels first."
    return Card("Most confused images", text if thumbs else "There are no errors.", "thumbs", thumbs, wide=True)


# --- tags -------------------------------------------------------------------------------------------------------------


def tag_cards(runs: list[Judged]) -> list[Card]:
    """All cards of a fit with tags: several classes at once."""
    return [_tags(runs), _worst_tags(runs[0]), calibrated(runs)]


def _tags(runs: list[Judged]) -> Card:
    names = runs[0].data.classes
    precisions = [[average_precision(run.predicted[:, i], run.labels[:, i]) for i in range(len(names))] for run in runs]
    f1 = classification.f1_by_tag(runs[0].predicted >= 0.5, runs[0].labels > 0.5)
    bars = []
    for i in np.argsort(precisions[0], kind="stable")[:BARS]:
        if np.isfinite(value := precisions[0][i]):
            note = f"F1 {f1[i]:.2f}, {int(runs[0].labels[:, i].sum())} images"
            other = precisions[1][i] if len(runs) > 1 else None
            bars.append(Bar(short(names[i]), value, value, value, note, other))
    mean = float(np.nanmean(precisions[0]))
    beside = f" The mark is the {runs[1].name}." if len(runs) > 1 else ""
    text = f"Average precision of each tag, the lowest first; mean {mean:.3f}. F1 is at probability 0.5.{beside}"
    return Card("Tags", text, "bars", bars)


def _worst_tags(run: Judged) -> Card:
    gap = np.abs(run.predicted - run.labels)
    thumbs = []
    for i in np.argsort(-gap.max(1), kind="stable")[:THUMBS]:
        true = [name for name, label in zip(run.data.classes, run.labels[i], strict=True) if label > 0.5]
        tag = int(gap[i].argmax())
        said = f"{short(run.data.classes[tag], 18)} {run.predicted[i, tag]:.2f}"
        above = short(", ".join(true) or "no tag", 26)
        right = bool((run.predicted[i, tag] >= 0.5) == (run.labels[i, tag] > 0.5))
        thumbs.append(Thumb(in_page(picture(run.image(i), run.config.invert)), above, said, right))
    text = "Images with the largest gap between a label and its probability: their tags, then the answer for that one."
    return Card("Most confused images", text, "thumbs", thumbs, wide=True)

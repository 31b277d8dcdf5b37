"""The cards of a fit with numbers, or with shares of answers: predicted against true, errors, the worst images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.evaluation import classification
from quarterturn_lab.report import svg
from quarterturn_lab.report.cards import Card, Table, Thumb, short
from quarterturn_lab.report.judged import Judged
from quarterturn_lab.report.pictures import in_page, picture

SCATTERS = 4  # columns with a figure: those that vary most
ROWS = 24
THUMBS = 12


def number_cards(runs: list[Judged]) -> list[Card]:
    """All cards of a fit with numbers; the first run is the one that the page is about."""
    run = runs[0]
    spread = np.std(run.labels, axis=0, dtype=np.float64)
    columns = np.argsort(-spread, kind="stable")[:SCATTERS] if run.data.task == "answers" else range(len(spread))
    figures = [_scatter(run, int(i)) for i in list(columns)[:SCATTERS]]
    errors = {each.name: _errors(each, spread) for each in runs}
    what = "of answers" if run.data.task == "answers" else "in deviations of the test images"
    residuals = Card(
        "Size of the errors",
        "For each test image, the error (root mean square over its numbers)." if run.labels.shape[1] > 1 else "",
        "figure",
        svg.histogram(errors, f"error {what}"),
    )
    return [*figures, residuals, _columns(runs), _worst(run, spread)]


def _errors(run: Judged, spread: NDArray[Any]) -> NDArray[np.float64]:
    """The error of each test image; numbers are measured by their spread, shares as they are."""
    size = spread.clip(1e-12) if run.data.task == "numbers" else 1.0
    return np.sqrt((((run.predicted - run.labels) / size) ** 2).mean(axis=1))


def _scatter(run: Judged, column: int) -> Card:
    truth, found = run.labels[:, column].astype(np.float64), run.predicted[:, column]
    r2 = float(classification.r2_by_column(found[:, None], truth[:, None])[0])
    text = f"RMSE {classification.rmse(found, truth):.4g}, R² {r2:.3f}, mean error {np.mean(found - truth):+.3g}."
    name = run.data.classes[column]
    return Card(name, text, "figure", svg.scatter(truth, found, short(name)))


def _columns(runs: list[Judged]) -> Card:
    run = runs[0]
    gaps = [[classification.rmse(each.predicted[:, i], each.labels[:, i]) for i in range(each.labels.shape[1])]
            for each in runs]  # fmt: skip
    r2 = classification.r2_by_column(run.predicted, run.labels.astype(np.float64))
    header = ("", "RMSE", *(["RMSE, ordinary network"] if len(runs) > 1 else []), "R²", "mean", "spread")
    rows = [
        (
            short(run.data.classes[i]),
            *(f"{gap[i]:.4g}" for gap in gaps),
            f"{r2[i]:.3f}",
            f"{run.labels[:, i].mean():.4g}",
            f"{run.labels[:, i].std():.4g}",
        )
        for i in np.argsort(r2, kind="stable")[:ROWS]
    ]
    some = f"The {ROWS} of {len(r2)} with the lowest R². " if len(r2) > ROWS else ""
    text = f"{some}Mean and spread are those of the test images."
    return Card("Errors by column", text, "table", Table(header, rows))


def _worst(run: Judged, spread: NDArray[Any]) -> Card:
    size = spread.clip(1e-12) if run.data.task == "numbers" else 1.0
    gap = np.abs(run.predicted - run.labels) / size
    thumbs = []
    for i in np.argsort(-gap.max(1), kind="stable")[:THUMBS]:
        column = int(gap[i].argmax())
        above = f"{short(run.data.classes[column], 14)}: {run.labels[i, column]:.3g}"
        address = in_page(picture(run.image(i), run.config.invert))
        thumbs.append(Thumb(address, above, f"predicted {run.predicted[i, column]:.3g}", False))
    text = "The images with the largest errors: the label, then the prediction. Look here for wrong labels first."
    return Card("Largest errors", text, "thumbs", thumbs, wide=True)

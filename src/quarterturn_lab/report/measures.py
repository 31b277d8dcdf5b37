"""The main score of a fit on its test images, in words, with an interval; and the difference of two fits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.evaluation import classification, segmentation
from quarterturn_lab.evaluation.certainty import Interval, bootstrap_interval, share_interval
from quarterturn_lab.report.fit_masks import dice_by_image
from quarterturn_lab.report.judged import Judged

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Measure:
    """A score of some test images, by their places; `words` has a place for the number."""

    score: Callable[[Places], float]
    words: str
    images: int
    factor: float = 1.0
    digits: int = 3
    better: str = "higher"
    share: bool = False  # of images: the interval is Wilson's

    @property
    def value(self) -> float:
        return self.score(np.arange(self.images))

    @property
    def interval(self) -> Interval | None:
        if self.share:
            return share_interval(round(self.value * self.images), self.images)
        return bootstrap_interval(self.score, self.images)

    def number(self, value: float, sign: str = "") -> str:
        return f"{self.factor * value:{sign}.{self.digits}f}"

    @property
    def text(self) -> str:
        return self.words.format(self.number(self.value))

    @property
    def interval_text(self) -> str:
        found = self.interval
        return (
            f"95 % interval {self.number(found[0])} to {self.number(found[1])}" if found else "too few for an interval"
        )


def measure(run: Judged) -> Measure:
    """The score that the page begins with: errors, all tags right, RMSE or overlap."""
    task, images = run.data.task, len(run.data.test)
    if task == "classes":
        wrong = run.predicted.argmax(1) != run.labels
        return Measure(lambda i: float(wrong[i].mean()), "{} % errors", images, 100.0, 1, "lower", share=True)
    if task == "tags":
        right = ((run.predicted >= 0.5) == (run.labels > 0.5)).all(1)
        return Measure(lambda i: float(right[i].mean()), "all tags right for {} %", images, 100.0, 1, share=True)
    if task in ("numbers", "answers"):
        several = run.labels.shape[1] > 1 and task == "numbers"
        digits = 3 if several or task == "answers" else max(0, 3 - int(np.floor(np.log10(max(run.labels.std(), 1e-9)))))
        if several:
            return Measure(
                lambda i: float(np.nanmean(classification.r2_by_column(run.predicted[i], run.labels[i]))),
                "mean R² {}",
                images,
            )
        r2 = "" if task == "answers" else f", R² {classification.r2_by_column(run.predicted, run.labels)[0]:.3f}"
        return Measure(
            lambda i: classification.rmse(run.predicted[i], run.labels[i]),
            f"RMSE {{}}{r2}",
            images,
            1.0,
            digits,
            "lower",
        )
    if task == "regions" and run.config.net.axes == 3:
        overlap = dice_by_image(run)
        return Measure(lambda i: float(np.nanmean(overlap[i])), "mean Dice {}", images)
    if task == "regions":
        counts = np.stack([segmentation.region_counts(p, t) for p, t in zip(run.predicted, run.labels, strict=True)])
        return Measure(lambda i: segmentation.mean_dice(counts[i].sum(0)), "mean Dice {}", images)
    overlap = dice_by_image(run)
    return Measure(lambda i: float(overlap[i].mean()), "Dice {}", images)


def difference(one: Measure, other: Measure) -> str:
    """The difference of two runs on the same test images, in a sentence."""
    found = bootstrap_interval(lambda i: one.score(i) - other.score(i), one.images)
    if found is None:
        return ""
    low, high = (one.number(end, "+") for end in found)
    gap = one.number(one.value - other.value, "+")
    clear = found[0] > 0 or found[1] < 0
    better = (one.better == "higher") == (one.value > other.value)
    verdict = ("a clear gain" if better else "a clear loss") if clear else "too close to call"
    unit = " points" if one.factor == 100 else ""
    return f"Against the ordinary network on the same images: {gap}{unit} (95 % interval {low} to {high}), {verdict}."

"""The tasks: the loss and scores of each, and the names of the scores in tables and reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from quarterturn_lab.data.dataset import VOID
from quarterturn_lab.evaluation import classification, segmentation

Scores = dict[str, float]


@dataclass(frozen=True)
class Task:
    """A task. `score` is the main score and `second` an additional one; both are keys of what `scores` returns."""

    loss: Callable[..., Tensor]  # a mean over labels, or their sum
    scores: Callable[[Any, Any], Scores]  # of probabilities and labels
    score: str
    name: str  # of the score
    short: str
    better: str  # "lower" or "higher"
    second: str | None = None
    second_name: str = ""
    second_factor: float = 1.0
    digits: int = 4
    counted: Callable[[Tensor], Tensor | int] = Tensor.numel  # labels that the mean loss is over

    @property
    def watched(self) -> tuple[str, ...]:
        """The scores that are measured during training."""
        return (self.score, self.second) if self.second else (self.score,)


def answer_scores(predicted: NDArray[np.float64], labels: NDArray[np.float32]) -> Scores:
    """The RMSE over all galaxies and answers, the metric of the challenge."""
    return {"rmse": classification.rmse(predicted, labels)}


def pixel_scores(predicted: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]]) -> Scores:
    """AUC and break-even over all pixels of all images; Dice at probability 0.5, averaged over images."""
    flat = np.concatenate([p.ravel().astype(np.float32) for p in predicted])
    truth = np.concatenate([label.ravel() > 0 for label in labels])
    return {
        "auc": segmentation.auc(flat, truth),
        "break_even": segmentation.break_even(predicted, labels),
        "dice": float(np.mean([segmentation.dice(p >= 0.5, t) for p, t in zip(predicted, labels, strict=True)])),
    }


def instance_scores(predicted: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]]) -> Scores:
    """The pixel scores, and the average precision of connected components, averaged over images."""
    found = [
        segmentation.average_precision(segmentation.components(p >= 0.5), t.astype(np.int64))
        for p, t in zip(predicted, labels, strict=True)
    ]
    return {**pixel_scores(predicted, labels), "average_precision": float(np.mean(found))}


def tag_scores(predicted: NDArray[np.float64], labels: NDArray[np.float32]) -> Scores:
    """Binary cross-entropy, F1 at probability 0.5 averaged over tags, and the share of images with all tags right."""
    true, likely = labels > 0.5, predicted >= 0.5
    chance = np.where(true, predicted, 1 - predicted).clip(np.finfo(np.float64).tiny)
    return {
        "bce": float(-np.log(chance).mean()),
        "f1": float(np.nanmean(classification.f1_by_tag(likely, true))),
        "exact": float((true == likely).all(axis=1).mean()),
    }


def number_scores(predicted: NDArray[np.float64], labels: NDArray[np.float64]) -> Scores:
    """R2 and RMSE, each averaged over the columns; the RMSE is in their units."""
    rmse = [classification.rmse(predicted[:, i], labels[:, i]) for i in range(labels.shape[1])]
    return {"r2": float(np.mean(classification.r2_by_column(predicted, labels))), "rmse": float(np.mean(rmse))}


def region_scores(predicted: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]]) -> Scores:
    """Dice averaged over the classes that are there or predicted, over all pixels of all images; and pixel accuracy."""
    found = [segmentation.region_counts(p, t) for p, t in zip(predicted, labels, strict=True)]
    counts = np.sum(found, axis=0)
    return {"dice": segmentation.mean_dice(counts), "accuracy": float(np.trace(counts) / max(1, counts.sum()))}


def region_loss(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy over the pixels that count; for volumes, what Dice lacks of 1 is added for each voxel.

    In volumes most voxels are background, and the overlap is what counts.
    """
    entropy = F.cross_entropy(outputs, labels, ignore_index=VOID, reduction=reduction)
    if outputs.dim() < 5:
        return entropy
    return entropy + (1 - soft_dice(outputs, labels)) * (known_pixels(labels) if reduction == "sum" else 1)


def soft_dice(outputs: Tensor, labels: Tensor) -> Tensor:
    """Dice of probabilities, over all volumes of a batch, averaged over the classes but the background.

    >>> from torch import tensor
    >>> round(float(soft_dice(tensor([[[[[9.0, -9.0]]], [[[-9.0, 9.0]]]]]), tensor([[[[0, 1]]]]))), 3)
    1.0
    """
    known = (labels != VOID).unsqueeze(1)
    likely = outputs.softmax(1) * known
    true = F.one_hot(labels.where(labels != VOID, 0), outputs.shape[1]).movedim(-1, 1) * known
    axes = (0, *range(2, outputs.dim()))
    shared, total = (likely * true).sum(axes), (likely + true).sum(axes)
    return ((2 * shared + 1) / (total + 1))[1:].mean()


def known_pixels(labels: Tensor) -> Tensor:
    """The number of pixels that count."""
    return (labels != VOID).sum()


TASKS: dict[str, Task] = {
    "classes": Task(
        F.cross_entropy,
        classification.scores,
        "cross_entropy",
        "cross-entropy",
        "c.-e.",
        "lower",
        "accuracy",
        "accuracy %",
        100.0,
    ),
    "answers": Task(F.mse_loss, answer_scores, "rmse", "RMSE", "RMSE", "lower", digits=5),
    "pixels": Task(F.cross_entropy, pixel_scores, "auc", "AUC", "AUC", "higher", "break_even", "break-even"),
    "instances": Task(
        F.cross_entropy, instance_scores, "dice", "Dice", "Dice", "higher", "average_precision", "average precision"
    ),
    "tags": Task(
        F.binary_cross_entropy_with_logits, tag_scores, "bce", "binary cross-entropy", "b. c.-e.", "lower", "f1", "F1"
    ),
    "numbers": Task(F.mse_loss, number_scores, "r2", "R2", "R2", "higher", "rmse", "RMSE", digits=5),
    "regions": Task(
        region_loss,
        region_scores,
        "dice",
        "Dice",
        "Dice",
        "higher",
        "accuracy",
        "pixel accuracy %",
        100.0,
        counted=known_pixels,
    ),
}

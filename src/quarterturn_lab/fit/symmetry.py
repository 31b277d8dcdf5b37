"""Which symmetry a set of images has, told from short training on a part of the minutes.

Two probes are trained. The first is an ordinary network that never sees a turned image; the second is equivariant to
quarter turns and never sees a mirrored one. Both are then scored on validation images as they are, and turned or
mirrored. If images have no up, turning cannot matter on average, whatever the network has learned: image and label are
as likely as before. So a clear loss is evidence against the symmetry, however well or badly the probes are trained.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import quarterturn as qt
from quarterturn_lab import ranks
from quarterturn_lab.data.dataset import VOID, Data, Dataset, Indices, ragged
from quarterturn_lab.data.scaling import scaling_of
from quarterturn_lab.evaluation.classification import LEAST, confused_pairs, taken_for
from quarterturn_lab.evaluation.score import labels_of, predict
from quarterturn_lab.evaluation.statistics import mean_sd
from quarterturn_lab.runs.environment import pick_device
from quarterturn_lab.runs.loading import load
from quarterturn_lab.runs.network import net_for
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training import loop, training_run

Losses = NDArray[np.float64]
Probe = tuple[Config, nn.Module]

CLEAR = 1e-3  # one-sided p-value below which a difference counts; real ones are far below
# Share of what a probe has learned that must be lost for a difference to matter. Most images without an up lie in some
# orientations more often than in others (plankton loses up to 30 % when it is turned), and upright digits lose all.
UP, HAND = 0.5, 0.1
# Less is enough to doubt that mirror images are alike. C4 costs little where D4 would do. Where hands carry the label,
# a network that treats mirror images alike is wrong in half of its answers.
DOUBT, SLIGHT, SWAPPED = 0.01, 0.02, 0.55  # p-value, share of what was learned, share of the images
LEARNED = 0.15  # share of the constant answer's loss that the probe must have removed, to be a witness
UNRESOLVED = 0.2  # share of the images in pairs of classes that the probe cannot tell apart yet
ENOUGH = 5  # validation images of a class, to say anything about it
MOST, MOST_SCENES = 2000, 16  # validation images that are scored; those with masks are large, and have many pixels


@dataclass(frozen=True)
class Evidence:
    """Losses of the validation images, one each."""

    upright: Losses  # of an ordinary network, trained on images as they are
    turned: Losses  # of the same network on turned images: the mean over three quarter turns
    turning: Losses  # of a network that is equivariant to quarter turns
    mirrored: Losses  # of the same network on mirrored images
    constant: float  # the loss of the best constant answer
    unresolved: float = 0.0  # share of the images in pairs of classes that the second network cannot tell apart
    swaps: Losses | None = (
        None  # of `swapped`: how much the second network takes mirrored images for the other of a pair
    )


@dataclass(frozen=True)
class Choice:
    """A symmetry, a sentence that says why, and whether the evidence is clear."""

    symmetry: str
    why: str
    sure: bool
    up: float = 0.0  # share of what an ordinary network had learned that is lost on turned images
    hand: float = 0.0  # share of what an equivariant network had learned that is lost on mirrored images
    learned: float = 0.0  # what the latter had learned, as a share of the loss of the best constant answer


def decide(evidence: Evidence) -> Choice:
    """The symmetry that the evidence speaks for: none, C4 or D4."""
    up, up_p = lost(evidence.upright, evidence.turned, evidence.constant)
    hand, hand_p = lost(evidence.turning, evidence.mirrored, evidence.constant)
    learned = 1 - float(evidence.turning.mean()) / evidence.constant if evidence.constant else 0.0
    return replace(_decided(evidence, (up, up_p), (hand, hand_p), learned), up=up, hand=hand, learned=learned)


def _decided(evidence: Evidence, turned: tuple[float, float], mirrored: tuple[float, float], learned: float) -> Choice:
    (up, up_p), (hand, hand_p) = turned, mirrored
    better = p_value(evidence.upright - evidence.turning) < CLEAR
    if up > UP and up_p < CLEAR and not better:
        return Choice(
            "none",
            f"the images have an up: turned by 90°, {_share(up)} of what an ordinary network had learned is lost, and "
            "an equivariant one does not learn more",
            True,
        )
    if hand > HAND and hand_p < CLEAR:
        return Choice("C4", f"mirror images differ: mirrored, {_share(hand)} of what was learned is lost", True)
    if learned < LEARNED:
        return Choice("C4", "the trial was too short to tell whether mirror images may be treated alike", False)
    if evidence.unresolved > UNRESOLVED:
        return Choice(
            "C4",
            f"{_share(evidence.unresolved)} of the images are in pairs of classes that the trial could not tell apart: "
            "they may be mirror images",
            False,
        )
    if hand > SLIGHT and hand_p < DOUBT:
        return Choice("C4", f"mirror images may differ: mirrored, {_share(hand)} of what was learned is lost", False)
    swaps = evidence.swaps
    if swaps is not None and p_value(swaps) < DOUBT and (share := float((swaps > 0).mean())) > SWAPPED:
        return Choice(
            "C4", f"{_share(share)} of the images, when mirrored, look more like another class than before", False
        )
    few = len(evidence.upright) < MOST_SCENES
    same = "turned or mirrored images are recognised as well as others"
    return Choice("D4", f"{same}, on {len(evidence.upright):,} validation images", not few)


def lost(before: Losses, after: Losses, constant: float) -> tuple[float, float]:
    """The share of what a network has learned that is lost, and the p-value of the difference.

    What it has learned is the difference between its loss and that of the best constant answer.
    """
    learned = constant - float(before.mean())
    difference = float((after - before).mean())
    return (difference / learned if learned > 0 else 0.0), p_value(after - before)


def p_value(differences: Losses) -> float:
    """One-sided: how likely a mean this high is if the true one is zero, by Student's t."""
    from scipy.special import stdtr  # type: ignore[import-untyped]

    if len(differences) < 2:
        return 1.0  # one image is no evidence
    mean, sd = mean_sd(differences.tolist())
    if not sd:
        return 0.0 if mean > 0 else 1.0
    return float(stdtr(len(differences) - 1, -mean / (sd / math.sqrt(len(differences)))))


def _share(part: float) -> str:
    return "all" if part >= 0.995 else f"{part:.0%}"


# --- the probes -------------------------------------------------------------------------------------------------------


def trained(
    config: Config, data: Data, progress: training_run.Progress | None = None, replan: loop.Replan | None = None
) -> tuple[nn.Module, float]:
    """A network after training by these settings, and the seconds that an image took. It leaves nothing on the disk."""
    return _trained(config, data.train, data=data, progress=progress, replan=replan)


@ranks.together
def _trained(
    config: Config,
    train: Indices,
    *,
    data: Data | None = None,
    progress: training_run.Progress | None = None,
    replan: loop.Replan | None = None,
) -> tuple[nn.Module, float]:
    data = replace(load(config), train=train) if data is None else data
    torch.set_num_threads(config.threads)
    device = pick_device(config.device)
    state = loop.new_state(config, net_for(config, data.classes).to(device), device)
    images = 0
    for step in loop.train(config, data, state, replan):
        images += step.images
        if progress:
            progress(step.step, step.total, step.loss)
    return state.scored.eval(), state.seconds["wall"] / images


def scored(data: Data) -> Indices:
    """The validation images that probes are scored on."""
    most = MOST if isinstance(data, Dataset) else MOST_SCENES
    return training_run.some(data.valid, most)


def evidence(upright: Probe, turning: Probe, data: Data) -> Evidence:
    """The losses of two trained probes on validation images."""
    indices, task = scored(data), data.task
    turns = [image_losses(task, *answers(upright, data, indices, qt.C4, g)) for g in range(qt.C4.order)]
    (as_it_is, labels), (mirrored, of_mirrored) = (answers(turning, data, indices, qt.MIRROR, g) for g in range(2))
    return Evidence(
        turns[0],
        np.mean(turns[1:], axis=0),
        image_losses(task, as_it_is, labels),
        image_losses(task, mirrored, of_mirrored),  # masks are mirrored with their image
        constant_loss(data, indices),
        unresolved(as_it_is, labels) if task == "classes" else 0.0,
        swapped(as_it_is, mirrored, labels) if task == "classes" else None,
    )


def answers(probe: Probe, data: Data, indices: Indices, group: qt.Group, g: int) -> tuple[Any, Any]:
    """The predictions for these images, turned by an element of the group, and their labels."""
    config, net = probe
    seen = moved(data, indices, group, g)
    device = next(net.parameters()).device
    return predict(config, net, seen, seen.valid, device, scaling=scaling_of(data)), labels_of(config, seen, seen.valid)


def image_losses(task: str, predicted: Any, labels: Any) -> Losses:
    """The loss of each image: cross-entropy of classes, tags and pixels; squared error of numbers, in variances."""
    if task == "classes":
        return -np.log(predicted[np.arange(len(labels)), labels].clip(LEAST))
    if task == "regions":
        return np.array([_region_loss(p, t) for p, t in zip(predicted, labels, strict=True)])
    if task in ("tags", "pixels", "instances"):
        return np.array([_two_way_loss(p, t > 0.5) for p, t in zip(predicted, labels, strict=True)])
    return ((predicted - labels) ** 2 / np.maximum(np.var(labels, axis=0, dtype=np.float64), 1e-12)).mean(axis=1)


def _two_way_loss(p: NDArray[Any], truth: NDArray[np.bool_]) -> float:
    return float(-np.log(np.where(truth, p, 1 - p).clip(LEAST)).mean())


def _region_loss(p: NDArray[Any], truth: NDArray[Any]) -> float:
    counts = truth != VOID
    chosen = np.take_along_axis(p, np.where(counts, truth, 0)[None].astype(np.int64), axis=0)[0]
    return float(-np.log(chosen[counts].clip(LEAST)).mean()) if counts.any() else 0.0


def constant_loss(data: Data, indices: Indices) -> float:
    """The mean loss of the best constant answer for these images."""
    if data.task in ("numbers", "answers"):
        return 1.0
    if isinstance(data, Dataset):
        labels = data.labels[indices]
        return _entropy(np.bincount(labels)) if data.task == "classes" else _two_way_entropy(labels.mean(axis=0))
    maps = [data.labels[i].ravel() for i in indices]
    if data.task == "regions":
        pixels = np.concatenate(maps)
        return _entropy(np.bincount(pixels[pixels != VOID]))
    return _two_way_entropy(np.array([np.mean([(labels > 0).mean() for labels in maps])]))


def _two_way_entropy(shares: NDArray[Any]) -> float:
    return float(np.mean([_entropy(np.array([share, 1 - share])) for share in shares]))


def _entropy(counts: NDArray[Any]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def unresolved(predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    """The share of these images in classes that are hardly told apart from the one that they are taken for most."""
    counts = np.bincount(labels, minlength=predicted.shape[1])
    pairs = confused_pairs(predicted, labels, counts >= ENOUGH)
    known = counts[counts >= ENOUGH].sum()
    return float(sum(counts[a] for a in {a for a, _ in pairs}) / known) if known else 0.0


def swapped(as_it_is: NDArray[Any], mirrored: NDArray[Any], labels: NDArray[Any]) -> Losses:
    """For each image, how much its class loses to the class that it is taken for most, when the image is mirrored.

    If mirror images are alike, the mean is zero, however little was learned. If the two classes are mirror images of
    each other, it is above zero as soon as anything of their difference is learned.

    >>> odds = np.array([[0.6, 0.4]] * 5 + [[0.4, 0.6]] * 5)
    >>> bool((swapped(odds, odds[::-1], np.repeat([0, 1], 5)) > 0.5).all())
    True
    """
    known = np.bincount(labels, minlength=as_it_is.shape[1]) >= ENOUGH
    logs, of_mirrored = np.log(as_it_is.clip(LEAST)), np.log(mirrored.clip(LEAST))
    found = [np.zeros(0)]
    for a, b in taken_for(as_it_is, labels, known):
        own = labels == a
        found.append((logs[own, a] - logs[own, b]) - (of_mirrored[own, a] - of_mirrored[own, b]))
    return np.concatenate(found)


def moved(data: Data, indices: Indices, group: qt.Group, g: int) -> Data:
    """These images alone, turned by an element of the group, with their labels."""
    places = np.arange(len(indices))
    common: dict[str, Any] = {"train": places, "test": places, "valid": places}
    common["names"] = tuple(data.names[i] for i in indices)
    if isinstance(data, Dataset):
        images = qt.act(torch.from_numpy(data.images[indices]), group, g).numpy()
        return replace(data, images=images, labels=data.labels[indices], **common)
    scenes = [qt.act(torch.from_numpy(data.images[i].copy())[None], group, g)[0].numpy() for i in indices]
    maps = [
        qt.act(torch.from_numpy(data.labels[i].astype(np.int64))[None, None], group, g)[0, 0].numpy() for i in indices
    ]
    return replace(data, images=ragged(scenes), labels=ragged(maps), **common)

"""The report's figures that run the networks: predictions and masks as images rotate, and what is confused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quarterturn_lab.data.augment import turned
from quarterturn_lab.data.dataset import Data, Dataset, Indices, Scenes
from quarterturn_lab.data.scaling import scaling_of
from quarterturn_lab.evaluation import classification, segmentation
from quarterturn_lab.evaluation.score import inside, predict
from quarterturn_lab.inference.network import for_whole_images, runner
from quarterturn_lab.inference.whole_images import object_map
from quarterturn_lab.report import svg
from quarterturn_lab.report.cards import short
from quarterturn_lab.report.pictures import light
from quarterturn_lab.report.quarter_turns import CPU, Loaded, decide

ANGLES = tuple(range(0, 361, 15))
EXAMPLE_ANGLES = (0, 30, 60, 90, 135, 180, 225, 270)
WINDOW = 240  # the largest part of a scene that is shown, in pixels
ASKED = 200  # test images that are turned for the sentence at the top
EXAMPLES = 4
JUDGED = 2_000  # test images in the confusion matrix
MATRIX = 12  # classes in it

Shown = tuple[str, str, str]  # a heading, a sentence, the picture


def figures_of(loaded: Loaded) -> tuple[str, list[Shown]]:
    """All figures for the task of these runs, and a sentence about what quarter turns do to their answers."""
    _, data, _ = next(iter(loaded.values()))
    if not isinstance(data, Dataset) or data.task != "classes":
        return "", [figure(loaded) for figure in FIGURES[data.task]]
    decisions = decide(loaded, some_test_images(data, ASKED))
    shown = _examples(loaded, decisions.showing(data.labels, EXAMPLES))
    return decisions.sentence(), [shown, _sensitivity(loaded), _confused(loaded)]


def some_test_images(data: Data, count: int) -> Indices:
    """Test images spread evenly over the classes."""
    order = data.test
    if isinstance(data, Dataset) and data.task == "classes":
        order = data.test[np.argsort(data.labels[data.test], kind="stable")]
    return order[np.linspace(0, len(order) - 1, min(count, len(order))).astype(int)]


# --- whole-image predictions ------------------------------------------------------------------------------------------

CHANGES = {  # how a change of predictions is measured, and described
    "classes": (
        lambda change: 0.5 * change.sum(1),
        "Change of the predicted probabilities when the image is rotated (total variation distance, from 0 to 1)",
    ),
    "answers": (
        lambda change: change.mean(1),
        "Change of the predictions when the image is rotated, averaged over the answers",
    ),
}


def _sensitivity(loaded: Loaded) -> Shown:
    series = {}
    _, first, _ = next(iter(loaded.values()))
    size, words = CHANGES[first.task]
    for label, (config, data, net) in loaded.items():
        indices = some_test_images(data, 100)
        answers = [predict(config, net, data, indices, CPU, (float(angle),)) for angle in ANGLES]
        change = np.stack([size(np.abs(answer - answers[0])) for answer in answers])
        series[label] = (change.mean(1), *np.quantile(change, (0.25, 0.75), axis=1))
    text = (
        f"{words}: mean and quartiles over up to 100 test images. A network that is invariant to quarter turns returns "
        "to zero at 90, 180 and 270 degrees. Other angles interpolate the image."
    )
    return "Rotation sensitivity", text, svg.sensitivity(ANGLES, series, "")


def _examples(loaded: Loaded, indices: Indices) -> Shown:
    _, data, _ = next(iter(loaded.values()))
    assert isinstance(data, Dataset)
    raw = torch.from_numpy(light(data.images[indices]))
    pictures = torch.stack([turned(raw, float(angle)) for angle in EXAMPLE_ANGLES], dim=1).mean(2).double().numpy()
    answers: dict[str, Any] = {}
    for label, (config, own, net) in loaded.items():
        found = [predict(config, net, own, indices, CPU, (float(angle),)) for angle in EXAMPLE_ANGLES]
        answers[label] = [
            [(data.classes[p[i].argmax()], p[i].max(), p[i].argmax() == data.labels[index]) for p in found]
            for i, index in enumerate(indices)
        ]
    truths = [data.classes[data.labels[index]] for index in indices]
    names = ", then ".join(answers)
    text = (
        f"Below each image: the class and probability predicted by {names}. Green is correct, red is wrong. The true "
        "class is on the left. The first images are ones for which a network changes its mind at quarter turns."
    )
    return "Predictions for rotated test images", text, svg.turned_examples(pictures, EXAMPLE_ANGLES, truths, answers)


def _answers(loaded: Loaded) -> Shown:
    _, data, _ = next(iter(loaded.values()))
    assert isinstance(data, Dataset)
    indices = some_test_images(data, 6)[1:5]
    bars = {"votes": data.labels[indices].astype(np.float64)}
    moved = {}
    for label, (config, own, net) in loaded.items():
        found = [predict(config, net, own, indices, CPU, (angle,)) for angle in (0.0, 90.0, 180.0, 270.0)]
        bars[label], moved[label] = found[0], np.max([np.ptp(answer, axis=0) for answer in np.stack(found, 1)], axis=1)
    notes = [
        "\n".join(f"{label}: ±{values[i] / 2:.3f} when rotated" for label, values in moved.items())
        for i in range(len(indices))
    ]
    text = (
        "The share of votes for each answer (grey) and the predictions. Below each image: by how much a prediction "
        "varies, at most, when the image is rotated by quarter turns."
    )
    names = [data.names[i] for i in indices]
    pictures = light(data.images[indices]).transpose(0, 2, 3, 1)
    return "Predictions for test images", text, svg.answer_bars(pictures, names, notes, data.classes, bars)


# --- masks ------------------------------------------------------------------------------------------------------------


def _masks(loaded: Loaded) -> Shown:
    _, data, _ = next(iter(loaded.values()))
    assert isinstance(data, Scenes)
    indices = some_test_images(data, 3)
    lines, names = [], []
    found: dict[str, list[tuple[NDArray[np.bool_], str]]] = {label: [] for label in loaded}
    for i in indices:
        margin = max(config.net.margin for config, _, _ in loaded.values())
        rows, columns = _fullest(data.labels[i], WINDOW + 2 * margin)
        image, label = data.images[i][:, rows, columns], data.labels[i][rows, columns]
        middle = inside(label, margin)
        lines.append((np.moveaxis(inside_image(image, margin), 0, 2), middle > 0))
        names.append(data.names[i])
        for name, (config, own, net) in loaded.items():
            run = runner(for_whole_images(config, net), CPU)
            seen = scaling_of(own)(image)
            turns = []
            for quarter in range(4):
                view = np.ascontiguousarray(np.rot90(seen, -quarter, (1, 2)))
                turns.append(np.rot90(object_map(run, view, config.net.margin, config.net.unet), quarter))
            extra = margin - config.net.margin
            turns = [inside(mask, extra) for mask in turns]
            moved = max(float(np.abs(mask - turns[0]).max()) for mask in turns)
            note = f"Dice {segmentation.dice(turns[0] >= 0.5, middle):.3f}\nrotated: {moved:.3f}"
            found[name].append((turns[0] >= 0.5, note))
    text = (
        "The fullest part of each test image, its true mask, and the predicted masks. Green is correct, red is a false "
        'positive, blue is missed. "Rotated" is the largest change of a probability when the image is rotated by '
        "quarter turns and the mask is rotated back: 0 means exactly equivariant."
    )
    return "Masks for test images", text, svg.overlays(lines, names, found)


def inside_image(image: NDArray[Any], margin: int) -> NDArray[Any]:
    return np.stack([inside(channel, margin) for channel in image])


def _fullest(labels: NDArray[Any], side: int) -> tuple[slice, slice]:
    """The square of that side with the most object pixels, on a coarse grid."""
    height, width = labels.shape
    side_y, side_x = min(side, height), min(side, width)
    sums = np.pad((labels > 0).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    tops = np.unique(np.linspace(0, height - side_y, 12).astype(int))
    lefts = np.unique(np.linspace(0, width - side_x, 12).astype(int))
    best = max(
        ((top, left) for top in tops for left in lefts),
        key=lambda at: (
            sums[at[0] + side_y, at[1] + side_x] - sums[at[0], at[1] + side_x] - sums[at[0] + side_y, at[1]] + sums[at]
        ),
    )
    return slice(best[0], best[0] + side_y), slice(best[1], best[1] + side_x)


# --- confusion --------------------------------------------------------------------------------------------------------


def _confused(loaded: Loaded) -> Shown:
    """What each network takes for what: the classes with the most errors, if there are many."""
    counts = {}
    for label, (config, data, net) in loaded.items():
        assert isinstance(data, Dataset)
        indices = some_test_images(data, JUDGED)
        counts[label] = classification.confusion(predict(config, net, data, indices, CPU), data.labels[indices])
    wrong = sum(each.sum(0) + each.sum(1) - 2 * each.diagonal() for each in counts.values())
    shown = np.sort(np.argsort(-np.asarray(wrong), kind="stable")[:MATRIX])
    names = [short(data.classes[i], 18) for i in shown]
    shares = {
        label: (each / each.sum(1, keepdims=True).clip(1))[np.ix_(shown, shown)] for label, each in counts.items()
    }
    which = (
        f"The {len(shown)} classes with the most errors, of {len(data.classes)}. " if len(shown) < len(wrong) else ""
    )
    text = f"{which}A row for each true class, a column for each answer, in per cent of the true class. Dark is often."
    return "Confusion matrix", text, svg.confusion(shares, names)


FIGURES: dict[str, tuple[Callable[[Loaded], Shown], ...]] = {
    "answers": (_sensitivity, _answers),
    "pixels": (_masks,),
    "instances": (_masks,),
}

"""What is measured on masks, against its definition spelt out position by position."""

from itertools import product

import numpy as np
import pytest
import torch

from quarterturn_lab.data.dataset import VOID
from quarterturn_lab.evaluation import segmentation
from quarterturn_lab.evaluation.classification import rmse
from quarterturn_lab.evaluation.tasks import TASKS


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_rmse_by_hand(rng: np.random.Generator) -> None:
    predicted, labels = rng.random((5, 37)), rng.random((5, 37)).astype(np.float32)
    squares = [(predicted[i, j] - float(labels[i, j])) ** 2 for i in range(5) for j in range(37)]
    assert rmse(predicted, labels) == pytest.approx((sum(squares) / 185) ** 0.5)
    assert rmse(predicted, predicted.astype(np.float32)) < 1e-7


@pytest.mark.parametrize("levels", [3, 1000])
def test_auc_is_the_share_of_pairs_in_order(levels: int, rng: np.random.Generator) -> None:
    """Few levels make ties, which count half."""
    scores, truth = rng.integers(0, levels, 80) / levels, rng.random(80) < 0.3
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[truth] for n in scores[~truth]]
    assert segmentation.auc(scores, truth) == pytest.approx(np.mean(pairs))
    assert segmentation.auc(truth.astype(float), truth) == 1.0
    assert segmentation.auc(1.0 - truth, truth) == 0.0
    assert segmentation.auc(np.zeros(80), truth) == 0.5
    assert np.isnan(segmentation.auc(scores, np.ones(80, dtype=bool)))


def near(mask: np.ndarray, y: int, x: int, slack: int) -> bool:
    """Whether there is a pixel of the mask in the square around a position."""
    return bool(mask[max(0, y - slack) : y + slack + 1, max(0, x - slack) : x + slack + 1].any())


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_relaxed_precision_and_recall_by_their_definition(slack: int, rng: np.random.Generator) -> None:
    steps = 16
    scenes = [(rng.random((9, 14)), rng.random((9, 14)) < 0.1), (rng.random((12, 7)), rng.random((12, 7)) < 0.2)]
    scenes[0][0][0, 0] = 1.0
    precision, recall = segmentation.relaxed_curve([p for p, _ in scenes], [t for _, t in scenes], slack, steps)
    for step in range(steps + 1):
        predicted = right = true = found = 0
        for p, t in scenes:
            mask = p * steps >= step
            for y, x in product(*map(range, p.shape)):
                predicted += mask[y, x]
                right += mask[y, x] and near(t, y, x, slack)
                true += t[y, x]
                found += t[y, x] and near(mask, y, x, slack)
        assert precision[step] == pytest.approx(right / predicted if predicted else 1.0)
        assert recall[step] == pytest.approx(found / true)


def test_the_break_even_point(rng: np.random.Generator) -> None:
    truth = np.zeros((20, 20), dtype=bool)
    truth[5:9, 5:15] = True
    assert segmentation.break_even([truth * 0.9], [truth]) == 1.0
    shifted = np.roll(truth, 3, axis=0)
    assert segmentation.break_even([shifted * 0.9], [truth]) == 1.0  # within 3 pixels
    assert segmentation.break_even([np.roll(truth, 5, axis=0) * 0.9], [truth]) < 0.9
    p = np.where(truth, 0.4, 0.1) + 0.5 * rng.random((20, 20))
    precision, recall = segmentation.relaxed_curve([p], [truth], 0)
    value = segmentation.break_even([p], [truth], 0)
    best = np.abs(precision - recall).argmin()
    assert value == pytest.approx((precision[best] + recall[best]) / 2, abs=0.02)
    assert np.isnan(segmentation.break_even([p], [np.zeros((20, 20))]))


def test_dice() -> None:
    a, b = np.array([[1, 1, 0, 0]]), np.array([[0, 1, 1, 0]])
    assert segmentation.dice(a, b) == 0.5
    assert segmentation.dice(a, a) == 1.0
    assert segmentation.dice(a, 1 - a) == 0.0
    assert segmentation.dice(0 * a, 0 * a) == 1.0


def flooded(mask: np.ndarray) -> np.ndarray:
    """Connected parts by filling each from its first pixel."""
    numbers, count = np.zeros(mask.shape, dtype=int), 0
    for start in zip(*np.nonzero(mask), strict=True):
        if numbers[start]:
            continue
        count += 1
        todo = [start]
        numbers[start] = count
        while todo:
            y, x = todo.pop()
            for place in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                inside = 0 <= place[0] < mask.shape[0] and 0 <= place[1] < mask.shape[1]
                if inside and mask[place] and not numbers[place]:
                    numbers[place] = count
                    todo.append(place)
    return numbers


def test_connected_parts_against_filling(rng: np.random.Generator) -> None:
    for _ in range(200):
        mask = rng.random(rng.integers(1, 15, 2)) < rng.random()
        assert np.array_equal(segmentation.components(mask), flooded(mask))
    assert segmentation.components(np.eye(3)).max() == 3  # corners do not connect


def test_connected_parts_of_a_large_map() -> None:
    """One that winds through all lines, and a random one: neither may take a step for each line."""
    snake = np.zeros((1500, 1500), dtype=bool)
    snake[::2] = True
    snake[1::4, -1] = True
    snake[3::4, 0] = True
    assert segmentation.components(snake).max() == 1
    assert segmentation.components(np.random.default_rng(0).random((1500, 1500)) < 0.5).max() > 100_000


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    return (a & b).sum() / (a | b).sum()


def test_average_precision_by_its_definition(rng: np.random.Generator) -> None:
    for _ in range(20):
        truth = segmentation.components(rng.random((12, 16)) < 0.4) * 3  # numbers need not follow each other
        moved = segmentation.components(np.roll(truth > 0, 1, axis=rng.integers(2)) & (rng.random((12, 16)) < 0.95))
        found = []
        for limit in segmentation.OVERLAPS:
            hits = sum(
                overlap(moved == i, truth == j) > limit
                for i in np.unique(moved[moved > 0])
                for j in np.unique(truth[truth > 0])
            )
            count = len(np.unique(moved[moved > 0])) + len(np.unique(truth[truth > 0]))
            found.append(hits / (count - hits))
        assert segmentation.average_precision(moved, truth) == pytest.approx(np.mean(found))
    nothing = np.zeros((4, 4))
    assert segmentation.average_precision(nothing, nothing) == 1.0
    assert (
        segmentation.average_precision(nothing, np.eye(4)) == segmentation.average_precision(np.eye(4), nothing) == 0.0
    )
    everything = np.full((4, 4), 7)
    assert segmentation.average_precision(everything, everything) == 1.0
    assert segmentation.OVERLAPS == (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def test_no_score_changes_as_everything_is_turned(rng: np.random.Generator) -> None:
    p, t = rng.random((30, 21)), segmentation.components(rng.random((30, 21)) < 0.3)
    first = TASKS["instances"].scores([p], [t])
    for quarters in range(1, 4):
        again = TASKS["instances"].scores([np.rot90(p, quarters)], [np.rot90(t, quarters)])
        assert again == pytest.approx(first)
    assert set(first) == {"auc", "break_even", "dice", "average_precision"}


def test_regions_are_scored_by_class_and_void_pixels_do_not_count(rng: np.random.Generator) -> None:
    truths = [rng.integers(0, 3, (9, 7)), rng.integers(0, 2, (5, 5))]
    found = [rng.random((4, *truth.shape)) for truth in truths]
    scores = TASKS["regions"].scores(found, truths)
    said = np.concatenate([p.argmax(0).ravel() for p in found])
    true = np.concatenate([t.ravel() for t in truths])
    dice = [2 * ((said == c) & (true == c)).sum() / ((said == c).sum() + (true == c).sum()) for c in range(4)]
    assert scores == pytest.approx({"dice": np.mean(dice), "accuracy": (said == true).mean()})
    hidden = [np.where(truth == p.argmax(0), truth, VOID) for p, truth in zip(found, truths, strict=True)]
    assert TASKS["regions"].scores(found, hidden) == {"dice": 1.0, "accuracy": 1.0}
    outputs, labels = torch.randn(2, 4, 3, 3, dtype=torch.float64), torch.randint(0, 4, (2, 3, 3))
    part = labels.clone()
    part[0] = VOID
    torch.testing.assert_close(TASKS["regions"].loss(outputs, part), TASKS["regions"].loss(outputs[1:], labels[1:]))

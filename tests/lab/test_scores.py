"""Scores of answers for whole images, and the statistics of several seeds."""

import numpy as np
import pytest
import torch
from torch import nn

from quarterturn_lab.data.dataset import Units
from quarterturn_lab.evaluation import classification, statistics
from quarterturn_lab.evaluation.tasks import TASKS
from quarterturn_lab.runs.model_card import answers, probabilities


def test_scores_against_torch_and_kaggles_clipping() -> None:
    logits, labels = torch.randn(50, 7, dtype=torch.float64), torch.randint(7, (50,))
    found = classification.scores(logits.softmax(1).numpy(), labels.numpy())
    assert found["cross_entropy"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item())
    assert found["kaggle"] == pytest.approx(found["cross_entropy"])
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == labels).double().mean().item())
    certain = np.array([[1.0, 0.0], [2.0, 0.0]])
    clipped = classification.scores(certain, np.array([1, 0]))
    assert clipped["kaggle"] == pytest.approx((-np.log(1e-15) - np.log(1 - 1e-15)) / 2)  # rows divided by their sum
    assert clipped["cross_entropy"] > clipped["kaggle"]


def test_confusion_and_recall() -> None:
    probabilities = np.eye(3)[[0, 0, 1, 2, 0]]
    counts = classification.confusion(probabilities, np.array([0, 1, 1, 0, 0]))
    assert counts.tolist() == [[2, 0, 1], [1, 1, 0], [0, 0, 0]]
    recalls = classification.recalls(counts)
    assert recalls[:2] == pytest.approx([2 / 3, 1 / 2])
    assert np.isnan(recalls[2])


def test_paired_tests() -> None:
    for t, freedom, p in ((12.706, 1, 0.05), (2.776, 4, 0.05), (2.262, 9, 0.05), (3.250, 9, 0.01)):  # printed tables
        assert statistics.two_tails(t, freedom) == pytest.approx(p, rel=2e-3)
    assert statistics.paired_t_test([1.0, 3.0]) == pytest.approx(statistics.two_tails(2.0, 1))
    assert statistics.paired_t_test([0.5]) is None
    assert statistics.sign_flip_test([0.2, -0.1, 0.4, 0.3, 0.1]) == pytest.approx(
        6 / 32
    )  # nothing, the -0.1 or the 0.1 flipped; twice
    assert statistics.sign_flip_test([1.0] * 10) == pytest.approx(2 / 1024)
    assert statistics.sign_flip_test([0.1, -0.1]) == 1.0
    assert statistics.mean_sd([1.0, 3.0]) == pytest.approx((2.0, 2**0.5))


def test_tags_are_scored_one_by_one() -> None:
    logits, labels = torch.randn(40, 3, dtype=torch.float64), torch.randint(2, (40, 3)).double()
    labels[:, 2] = 0.0
    logits[:, 2] = -1.0  # a tag that no image has, and none is said to have
    found = TASKS["tags"].scores(probabilities("tags", logits.numpy()), labels.numpy())
    assert found["bce"] == pytest.approx(TASKS["tags"].loss(logits, labels).item())
    f1 = []
    for i in range(2):
        hits = ((logits[:, i] >= 0) & (labels[:, i] > 0)).sum().item()
        precision, recall = hits / (logits[:, i] >= 0).sum().item(), hits / labels[:, i].sum().item()
        f1.append(2 * precision * recall / (precision + recall))
    assert found["f1"] == pytest.approx(np.mean(f1))
    assert found["exact"] == pytest.approx(((logits >= 0) == (labels > 0)).all(1).double().mean().item())


def test_numbers_are_scored_in_their_units() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal([20.0, 5000.0], [2.0, 300.0], (60, 2))
    found = truth + rng.normal(0, [1.0, 30.0], truth.shape)
    scores = TASKS["numbers"].scores(found, truth)
    assert scores["rmse"] == pytest.approx(np.sqrt(((found - truth) ** 2).mean(0)).mean())
    assert scores["r2"] == pytest.approx((1 - ((found - truth) ** 2).mean(0) / truth.var(0)).mean())
    mean = np.broadcast_to(truth.mean(0), truth.shape)
    assert TASKS["numbers"].scores(mean, truth)["r2"] == pytest.approx(0)
    units = Units(tuple(truth.mean(0)), tuple(truth.std(0)))
    again = answers("numbers", (truth - truth.mean(0)) / truth.std(0), units)
    assert np.allclose(again, truth)

"""Scores of answers for whole images, and the statistics of several seeds."""

import numpy as np
import pytest
import torch
from torch import nn

from quarterturn_lab.evaluation import classification, statistics


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

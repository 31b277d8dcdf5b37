"""The top of the report: what quarter turns do to answers, in a sentence and in the first examples."""

import numpy as np

from quarterturn_lab.report.quarter_turns import Decisions
from quarterturn_lab.settings.experiments import config_for
from quarterturn_lab.settings.in_words import network_in_words
from quarterturn_lab.settings.networks import ROWS

LABELS = np.array([0, 1, 2, 0, 1])
FICKLE = np.array([[0, 1, 2, 0, 1], [0, 1, 2, 2, 1], [0, 1, 2, 0, 1], [0, 1, 2, 0, 0]])  # images 3 and 4
STEADY = np.array([[0, 1, 2, 0, 2]] * 4)  # wrong about image 4, always


def test_images_that_get_another_answer_are_counted() -> None:
    found = Decisions(np.arange(5), {"plain": FICKLE, "rolled": STEADY})
    assert np.flatnonzero(found.changed("plain")).tolist() == [3, 4]
    assert not found.changed("rolled").any()
    assert "plain changes its answer for 2, rolled for none" in found.sentence()


def test_the_first_example_shows_the_claim() -> None:
    found = Decisions(np.array([10, 11, 12, 13, 14]), {"plain": FICKLE, "rolled": STEADY})
    labels = np.concatenate([np.zeros(10, int), LABELS])
    shown = found.showing(labels, 3)
    assert shown[0] == 13  # plain changes its mind; rolled is right in all four. Not 14: rolled is wrong
    assert len(set(shown.tolist())) == 3


def test_where_no_image_shows_it_some_are_shown_all_the_same() -> None:
    found = Decisions(np.arange(5), {"one": STEADY, "two": STEADY})
    assert len(found.showing(LABELS, 4)) == 4
    assert "one changes its answer for none, two for none" in found.sentence()


def test_every_row_has_words_of_its_own() -> None:
    words = {row: network_in_words(config_for("plankton-small", row)) for row in ROWS}
    assert len(set(words.values())) == len(words), words

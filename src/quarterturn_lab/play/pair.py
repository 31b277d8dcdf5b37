"""What the page shows: pairs of an ordinary and an equivariant network, made on the first start, or the user's own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quarterturn_lab.data import cache, synthetic, synthetic_cells
from quarterturn_lab.data.made_by_rule import cells
from quarterturn_lab.play.player import Picture, Player, player_of
from quarterturn_lab.settings.experiments import config_for
from quarterturn_lab.training import training_run

Progress = Callable[[str, int, int, float], None]  # name, step, all steps, loss
Sample = Callable[[int, int], tuple[Picture, str]]  # number, side -> a picture that no network was trained on, and what
PAIR: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline": ("An ordinary network", {}),
    "roll-all-quarter": ("An equivariant network", {"rotate": "filters"}),
}


@dataclass(frozen=True)
class Exhibit:
    """Networks that answer for the same picture, and pictures to begin with."""

    name: str
    players: list[Player]
    sample: Sample


def place() -> Path:
    """Where the runs of the pairs are kept."""
    return cache.root() / "play"


def pairs(progress: Progress) -> list[Exhibit]:
    """A pair that names organisms and a pair that outlines cells, trained if they are not there."""
    return [
        Exhibit("What is it?", _pair("synthetic", 30, progress), organism),
        Exhibit("Where is it?", _pair("cells", 8, progress), some_cells),
    ]


def _pair(experiment: str, epochs: int, progress: Progress) -> list[Player]:
    """Both networks of an experiment. They see the same images in the same order, equally often."""
    players = []
    for row, (title, options) in PAIR.items():
        config = config_for(experiment, row, epochs=epochs, **options)
        directory = place() / f"{experiment}-{row}-{epochs}-epochs"
        training_run.run(config, directory, partial(progress, title))
        players.append(replace(player_of(directory), title=title))
    return players


def organism(number: int, side: int) -> tuple[Picture, str]:
    """A drawn organism, and its class."""
    label = number % len(synthetic.CLASSES)
    [drawn] = synthetic.draw(np.array([label]), side, seed=synthetic.SEED + 1 + number)
    return np.repeat(drawn[:, :, None], 3, axis=2), f"A drawn organism: {synthetic.CLASSES[label]}"


def some_cells(number: int, side: int = synthetic_cells.SIDE) -> tuple[Picture, str]:
    """Drawn cells."""
    del side  # that of the training images
    [[drawn]], _ = cells(1, synthetic_cells.SIDE, synthetic_cells.SEED + 1 + number, synthetic_cells.NOISE)
    return np.repeat(synthetic_cells.as_bytes(drawn)[:, :, None], 3, axis=2), "Drawn cells, threads and noise"

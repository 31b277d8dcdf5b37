"""Two networks to compare, made on the first start: an ordinary and an equivariant one, trained on drawn organisms."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quarterturn_lab.data import cache, synthetic
from quarterturn_lab.play.player import Picture, Player, player_of
from quarterturn_lab.settings.experiments import config_for
from quarterturn_lab.training import training_run

Progress = Callable[[str, int, int, float], None]  # name, step, all steps, loss
EPOCHS = 30
PAIR: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline": ("An ordinary network", {}),
    "roll-all-quarter": ("An equivariant network", {"rotate": "filters"}),
}


def place() -> Path:
    """Where the two runs are kept."""
    return cache.root() / "play"


def pair(progress: Progress) -> list[Player]:
    """The two networks, trained if they are not there. They see the same images in the same order, equally often."""
    players = []
    for row, (title, options) in PAIR.items():
        config = config_for("synthetic", row, epochs=EPOCHS, **options)
        directory = place() / f"{row}-{config.epochs}-epochs"
        training_run.run(config, directory, partial(progress, title))
        players.append(replace(player_of(directory), title=title))
    return players


def organism(number: int, side: int) -> tuple[Picture, str]:
    """A drawn organism that no network was trained on, and its class."""
    label = number % len(synthetic.CLASSES)
    [drawn] = synthetic.draw(np.array([label]), side, seed=synthetic.SEED + 1 + number)
    return np.repeat(drawn[:, :, None], 3, axis=2), synthetic.CLASSES[label]

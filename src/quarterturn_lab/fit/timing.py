"""How long a training step takes on this machine, measured on made-up images."""

import time
from typing import Any

import numpy as np
import torch

from quarterturn_lab import ranks
from quarterturn_lab.data.dataset import Data, Dataset, Scenes, ragged
from quarterturn_lab.runs.environment import pick_device
from quarterturn_lab.runs.model_card import DENSE
from quarterturn_lab.runs.network import net_for
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training import loop

WARM = 2  # steps that do not count
SECONDS = 1.5  # of steps that count
MOST = 12  # steps that count


@ranks.together
def seconds_per_image(config: Config, task: str, classes: tuple[str, ...]) -> float:
    """The seconds of training on one image (or one tile), augmentation included."""
    torch.set_num_threads(config.threads)
    device = pick_device(config.device)
    data = made_up(config, task, classes)
    state = loop.new_state(config, net_for(config, data.classes).to(device), device)
    steps = loop.train(
        config.model_copy(
            update={"epochs": 1000, "class_weights": False, "balanced": False, "keep": "last", "earlier_plans": ()}
        ),
        data,
        state,
    )
    for _ in range(WARM):
        next(steps)
    start, count = time.perf_counter(), 0
    while ranks.agreed(count < MOST and (time.perf_counter() - start < SECONDS or not count)):
        next(steps)
        count += 1
    took = time.perf_counter() - start
    steps.close()
    return took / count / config.batch_images


def made_up(config: Config, task: str, classes: tuple[str, ...]) -> Data:
    """Random images, as many as some batches need, so that no epoch ends while steps are timed."""
    rng, net = np.random.default_rng(0), config.net
    count = config.batch_images * (WARM + MOST + 1)
    places = np.arange(count)
    common: dict[str, Any] = {"classes": classes, "names": tuple(map(str, places)), "train": places, "test": places[:1]}
    common |= {"fingerprint": "", "task": task}
    if task in DENSE:
        shape = (net.side * 2,) * net.axes
        images = [rng.integers(0, 255, (net.channels, *shape), dtype=np.uint8) for _ in range(4)] * (count // 4 + 1)
        labels = [rng.integers(0, len(classes), shape, dtype=np.uint8) for _ in range(4)] * (count // 4 + 1)
        return Scenes(ragged(images[:count]), ragged(labels[:count]), **common)
    pixels = rng.integers(0, 255, (count, net.channels, net.side, net.side), dtype=np.uint8)
    labels_of: Any = places % len(classes) if task == "classes" else rng.random((count, len(classes)), dtype=np.float32)
    return Dataset(pixels.astype(np.float32) if config.floats else pixels, labels_of, **common)

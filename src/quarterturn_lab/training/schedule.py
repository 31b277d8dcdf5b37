"""The learning rate at each step, and the epochs that are scored. Both depend on the settings alone.

A run has one plan, its number of epochs, unless that is changed on the way: then `earlier_plans` has what was planned
before, and until when. A plan that takes the place of another goes on where that one was and ends with its own last
epoch. A plan that follows a finished one begins anew: the run was trained for longer.
"""

import math

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.settings.config import Config


def learning_rate(config: Config, step: int, total: int) -> float:
    """The learning rate at a step: a linear warm-up, then drops by ten, or half a cosine down to zero."""
    place, length = place_of(config, step, total)
    warm = warmup_steps(config, length)
    if place < warm:
        return config.lr * (place + 1) / warm
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * (place - warm) / (length - warm)))
    return config.lr * 0.1 ** sum(place >= drop * length for drop in config.drops)


def place_of(config: Config, step: int, total: int) -> tuple[float, int]:
    """Where a step is in its schedule, and the schedule's length, both in steps as first planned."""
    start, place, length, anew = 0, 0.0, 0, True
    for planned, end in _plans(config):
        last, stop = (total * epoch // config.epochs for epoch in (planned, end))
        if anew:
            place, length = 0.0, last - start
        if step < stop:
            return place + (length - place) * (step - start) / (last - start), length
        place += (length - place) * (stop - start) / (last - start)
        start, anew = stop, planned == end
    raise AssertionError(f"step {step} of {total}")


def scored_epochs(config: Config) -> set[int]:
    """The epochs after which validation images are scored, `eval_points` of each plan."""
    found, start = set[int](), 0
    for planned, end in _plans(config):
        points = {math.ceil(planned * (i + 1) / config.eval_points) for i in range(config.eval_points)}
        found |= {epoch for epoch in points if start < epoch <= end}
        start = end
    return found


def warmup_steps(config: Config, total: int) -> int:
    """The number of steps of the warm-up."""
    steps = round(config.warmup * total) if config.warmup < 1 else int(config.warmup)
    if steps >= total:
        raise ConfigError(
            f"the warm-up takes {steps} steps and the run has {total}: give --warmup as a fraction, such as 0.05"
        )
    return steps


def _plans(config: Config) -> tuple[tuple[int, int], ...]:
    return (*config.earlier_plans, (config.epochs, config.epochs))

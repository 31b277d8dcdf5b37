"""What to train for a folder: network, image size, batch and number of epochs, and why. Nothing here runs anything.

All numbers that depend on the data are here; the settings that do not are those of the experiments `fit` and
`fit-masks` (`settings/experiments.py`).
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from quarterturn_lab import ranks
from quarterturn_lab.data.look import Found
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.runs.model_card import DENSE
from quarterturn_lab.settings.config import Config, checked
from quarterturn_lab.settings.experiments import settings_of
from quarterturn_lab.settings.networks import group_for

# Input sides to choose from. Below 48 pixels the first convolution has stride 1: such images are small as they are.
SIDES = (32, 48, 64, 96, 128)
LARGER = (160, 224)  # for networks of other libraries too: most were made for 224 pixels
STRIDED = 48
TILES = (64, 128)  # sides of tiles, for masks: room for the U-Net's three levels
PATCHES = (24, 32, 48)  # sides of patches of volumes
EPOCHS = 20  # at least so many passes over the images: larger images wait until the minutes allow them
STEPS = 20  # at least so many steps in an epoch of a small set, if batches of 8 allow them
BATCHES = (8, 32)  # the larger one as in the searches of docs/when-to-use.md
TRIAL = 0.25  # share of the minutes for the choice of the symmetry
SCORING = 1 / 3  # of the time at most: images with masks are scored less often on the way
RESERVE = 0.05  # of the minutes, for what is not counted
GAIN = 1.3  # more threads have to be faster by this
FEWEST = 20  # images: with fewer, three parts of them say nothing

# Row of each kind of network; those for groups are rolled, with as many maps as the ordinary one.
IMAGE_ROWS = {"none": "residual-plain", "C4": "residual-c4", "D4": "residual-d4"}
MASK_ROWS = {"none": "baseline", "C4": "roll-all-quarter", "D4": "roll-all-eighth-dihedral"}

# The network's group for images of a symmetry that `auto` found, where it is another. With a minute of training, C4 on
# mirrored images too was ahead of D4 on plankton (docs/when-to-use.md).
LEARNS = {"D4": "C4", "octa-full": "octa", "D4h-1": "D4-1", "D4h-2": "D4-2", "D4h-3": "D4-3"}


@dataclass(frozen=True)
class Size:
    """The size of inputs and batches, and why."""

    side: int
    stem_stride: int
    batch: int
    tiles: int = 1  # from each image in an epoch
    cover: int = 1  # tiles that cover an image
    why: str = ""
    axes: int = 2

    @property
    def positions(self) -> int:
        """Positions of the first maps: the time of a step grows with them."""
        return (self.side // self.stem_stride) ** self.axes


def sizes(found: Found, backbone: bool = False, side: int | None = None) -> list[Size]:
    """The sizes that suit the images, from small to large; only one if the user gives the `side`."""
    middle, train = found.sides[1], found.parts["train"]
    if found.axes == 3:
        fitting = [side] if side else [patch for patch in PATCHES if patch <= max(middle, PATCHES[0])]
        counts = [max(1, min(32, round((middle / each) ** 3 / 2))) for each in fitting]  # few volumes are cubes
        return [Size(each, 1, 4, count, 2 * count, axes=3) for each, count in zip(fitting, counts, strict=True)]
    if found.task in DENSE:
        fitting = [side] if side else [tile for tile in TILES if tile <= max(middle, TILES[0])]
        tiles = [max(1, min(32, round((middle / each) ** 2))) for each in fitting]
        return [
            Size(each, 1, min(16, batch_for(train * count)), count, count)
            for each, count in zip(fitting, tiles, strict=True)
        ]
    every = SIDES + (LARGER if backbone else ())
    enough = [each for each in every if each >= middle][:1]  # larger ones only enlarge the images
    fitting = [side] if side else [each for each in every if each < middle] + enough
    useful = [each for each in fitting if each >= STRIDED] or fitting  # 32 at stride 1 takes the time of 64 at stride 2
    return [Size(each, 2 if each >= STRIDED else 1, batch_for(train)) for each in useful]


def batch_for(samples: int) -> int:
    """The batch size for a number of samples: a power of two that leaves some steps in an epoch.

    >>> batch_for(100), batch_for(600), batch_for(50_000)
    (8, 16, 32)
    """
    low, high = BATCHES
    return int(min(high, max(low, 2 ** math.floor(math.log2(max(samples / STEPS, 1))))))


def size_for(
    found: Found,
    seconds: float | None,
    cost: Callable[[Size], float],
    backbone: bool = False,
    side: int | None = None,
) -> Size:
    """The largest size with enough epochs in these seconds; `cost` is the seconds of an epoch at a size."""
    options, what = sizes(found, backbone, side), "tiles" if found.task in DENSE else "images"
    unit = "pixels"
    if found.axes == 3:
        what, unit = "patches", "voxels"
    affordable = [size for size in options if seconds is None or seconds / cost(size) >= EPOCHS]
    chosen = affordable[-1] if affordable else options[0]
    why = f"{what} of {chosen.side} {unit}"
    if seconds is not None and chosen != options[-1]:
        why += f", so that the minutes allow {EPOCHS} passes or more over all of them" if affordable else ""
    elif side is not None:
        why += ", as you ask for"
    elif what == "images":
        why += ", about what the files have"
    if seconds is not None and not affordable and chosen.tiles > 1:  # fewer tiles, and other ones in each epoch
        fewer = max(1, int(chosen.tiles * seconds / cost(chosen) / EPOCHS))
        batch = chosen.batch if found.axes == 3 else min(16, batch_for(found.parts["train"] * fewer))
        chosen = replace(chosen, tiles=fewer, batch=batch)
        why += f", {fewer} of each {'volume' if found.axes == 3 else 'image'} in an epoch"
    return replace(chosen, why=why)


def epochs_for(seconds: float, epoch: float, rest: float) -> int:
    """The number of epochs that these seconds allow, if one takes `epoch` seconds and scoring takes `rest`.

    >>> epochs_for(600, 20, 60)
    25
    """
    return max(1, int((seconds * (1 - RESERVE) - rest) / epoch))


def check_time(left: float, share: float, epoch: float, rest: float, images: int, spent: float) -> None:
    """Raise if this share of the seconds that are left is too short for one epoch; `spent` are those that went before.

    The message has the minutes that would do.
    """
    share *= 1 - RESERVE
    if left * share >= epoch + rest:
        return
    needed = math.ceil((spent + (epoch + rest) / share) / 6) / 10
    raise ConfigError(
        f"one pass over the {images:,} training images takes about {_minutes(epoch)} and scoring {_minutes(rest)}, "
        f"and {_minutes(max(left, 0) * share)} are left for both: give --minutes {needed:g} or more, --epochs 1, or a "
        "smaller --train-size"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} seconds"


def config_of(
    found: Found, size: Size, symmetry: str, epochs: int, seed: int, options: dict[str, Any], warps: dict[str, Any]
) -> Config:
    """The settings of a run on this folder; `options` are the user's and win."""
    masks, volumes = found.task in DENSE, found.axes == 3
    rows = MASK_ROWS if masks else IMAGE_ROWS
    experiment, row = ("fit-masks" if masks else "fit"), rows.get(symmetry, rows["C4"])
    if volumes:
        experiment, row = "fit-volumes", "baseline" if symmetry == "none" else "roll-octa"
    planned: dict[str, Any] = {
        "data": str(found.folder),
        "channels": found.channels,
        "floats": found.floats,
        "side": size.side,
        "batch": size.batch,
        "epochs": epochs,
        **warps,
        **({"tiles": size.tiles} if masks else {"stem_stride": size.stem_stride, "blocks": 1}),
        **({"invariants": True} if symmetry != "none" and "pool" not in options else {}),
        "ema": average_over(epochs * math.ceil(found.parts["train"] * size.tiles / size.batch)),
        **({"output": "sigmoid"} if found.task == "answers" else {}),
    }
    settings = settings_of(experiment, row, **{**planned, **options})
    if symmetry != "none":
        group, net = group_for(symmetry, found.axes), settings["net"]
        more = group.order // math.gcd(group.order, net.stages[0][0]) if volumes else 1  # 48 orientations in 24 maps
        stages = tuple(tuple(width * more for width in stage) for stage in net.stages)
        settings["net"] = replace(net, stages=stages, group=group.name, divide=group.order)
    settings["score_turns"] = symmetry == "none" and not volumes  # others give the same answer for each turn
    return checked({**settings, "seed": seed})


def average_over(steps: int) -> float:
    """The decay of the average of the weights, so that it covers the last tenth of short training at most.

    >>> average_over(100), average_over(10_000)
    (0.9, 0.99)
    """
    return round(min(0.99, max(0.0, 1 - 10 / steps)), 4)


def cores() -> int:
    """The number of processors that this process may use: those of the machine, shared with those it trains with."""
    every = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, every // (team.local_world if (team := ranks.team()) else 1))


def threads_for(costs: dict[int, float]) -> int:
    """The number of threads, by the seconds of an image with each: more than one only if it is clearly faster.

    On a machine with other work, threads wait for each other.

    >>> threads_for({1: 1.0, 2: 0.9}), threads_for({1: 1.0, 2: 0.6})
    (1, 2)
    """
    return min(costs, key=lambda threads: costs[threads] * (1.0 if threads == 1 else GAIN))


def precision_on(device: torch.device) -> str:
    """bf16 on a GPU that has it. On a CPU float32 is faster for rolled layers, even with instructions for bf16."""
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def warps_of(symmetry: str, axes: int = 2) -> dict[str, Any]:
    """How training images are turned and flipped, for images with this symmetry: as their kind allows, at any angle.

    >>> warps_of("C4")
    {'turn': 360.0, 'flip': False}
    """
    if axes == 3:
        return {"moves": None if symmetry == "none" else symmetry}
    if symmetry == "none":
        return {"turn": 0.0, "flip": False}
    from quarterturn.groups import C4

    group = group_for(symmetry)
    return {"turn": 360.0 if group.exchanged else 0.0, "flip": not set(group.elements) <= set(C4.elements)}


def in_words(config: Config) -> str:
    """The network of a run in a few words."""
    name = f"{config.net.group} network" if config.net.group else "ordinary network"
    if config.backbone:
        return f"{config.backbone} as a {name}" + (f" ({config.how})" if config.net.group else "")
    kind = "U-Net" if config.net.unet else "residual"
    head = ", invariants at its head" if config.net.invariants else ""
    return f"{name} ({kind}, {config.net.stages[0][0]} to {config.net.stages[-1][-1]} maps{head})"

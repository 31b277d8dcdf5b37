"""The experiments as data: baseline, images, training settings and the paper's results."""

from dataclasses import dataclass, field, replace
from typing import Any

from quarterturn_lab.errors import ConfigError, unknown
from quarterturn_lab.settings.config import Config, checked
from quarterturn_lab.settings.networks import (
    BUILDINGS,
    GALAXIES,
    NUCLEI,
    PLANKTON,
    VOLUMES,
    Net,
    edited,
    group_for,
    resized,
    restaged,
    row_of,
)
from quarterturn_lab.settings.options import NETWORK, STAGES, WARPS

POOLING = ("pool-mean", "pool-rms", "pool-max", "mean-relu", "rms-relu", "max-relu")
CONTROLS = ("baseline-linear", "baseline-half-linear")
RESIDUAL_ROWS = ("residual-plain", "residual-c4", "residual-d4")


@dataclass(frozen=True)
class Printed:
    """A line of the paper's tables: size as printed, train and test scores with standard deviations."""

    size: str
    train: tuple[float, float]
    test: tuple[float, float]


@dataclass(frozen=True)
class Experiment:
    """A data set with its baseline and settings. `rows` are trained by `quarterturn table`."""

    about: str
    baseline: Net
    loader: str
    rows: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Printed] = field(default_factory=dict)
    task: str = "classes"
    faster: bool = False  # rotate maps or filters, whichever is faster for the row


# Tables 2, 3 and 4.
PAPER_PLANKTON = {
    "baseline": Printed("2.84M", (0.4064, 0.0044), (0.7035, 0.0039)),
    "baseline-half": Printed("0.82M", (0.5770, 0.0059), (0.7462, 0.0035)),
    "pool-mean": Printed("2.84M", (0.4990, 0.0115), (0.6781, 0.0041)),
    "pool-rms": Printed("2.84M", (0.5441, 0.0076), (0.7042, 0.0035)),
    "pool-max": Printed("2.84M", (0.5385, 0.0127), (0.7048, 0.0057)),
    "mean-relu": Printed("2.84M", (0.5376, 0.0125), (0.6982, 0.0062)),
    "rms-relu": Printed("2.84M", (0.5372, 0.0068), (0.6935, 0.0027)),
    "max-relu": Printed("2.84M", (0.5686, 0.0075), (0.7085, 0.0040)),
    "roll-all-quarter": Printed("0.95M", (0.5007, 0.0087), (0.6961, 0.0052)),
    "roll-dense-half": Printed("2.28M", (0.4868, 0.0106), (0.6764, 0.0041)),
}
PAPER_GALAXIES = {
    "baseline": Printed("14.57M", (0.08161, 0.00021), (0.08343, 0.00019)),
    "baseline-half": Printed("4.75M", (0.08607, 0.00031), (0.08710, 0.00025)),
    "pool-mean": Printed("14.57M", (0.08023, 0.00017), (0.08214, 0.00010)),
    "roll-all-quarter": Printed("6.84M", (0.08078, 0.00024), (0.08261, 0.00017)),
    "roll-dense-half": Printed("14.57M", (0.08013, 0.00016), (0.08200, 0.00009)),
}
PAPER_BUILDINGS = {
    "baseline": Printed("583k", (0.9774, 0.0005), (0.9714, 0.0005)),
    "baseline-half": Printed("151k", (0.9711, 0.0014), (0.9643, 0.0011)),
    "pool-mean": Printed("583k", (0.9806, 0.0012), (0.9722, 0.0005)),
    "roll-all-quarter": Printed("158k", (0.9773, 0.0011), (0.9676, 0.0008)),
    "roll-all-half": Printed("598k", (0.9824, 0.0009), (0.9742, 0.0006)),
}

# The small network of the pilot study: it trains on a CPU.
SMALL = Net(channels=1, side=31, stages=((16, 16), (32, 32), (64, 64)), hidden=(256, 256), outputs=121, dropout=0.2)
PLANKTON_WARPS = {"shift": 10 / 95, "zoom": 1.6, "shear": 20.0, "stretch": 1.3, "flip": True}

# As for the author's galaxies network; shifts of up to 4 of 424 pixels, about one of 64.
GALAXY_WARPS = {"shift": 1 / 64, "zoom": 1.3, "flip": True, "colour": 0.5, "border": "reflection"}
GALAXY_ROWS = ("baseline", "baseline-half", *CONTROLS, "pool-mean", "roll-all-quarter", "roll-dense-half")
DIGITS: dict[str, Any] = {"batch": 64, "divide_batch": False, "drops": (0.75, 0.92), "eval_points": 1} | {
    "augment": {"turn": 360.0, "flip": False}
}
AERIAL = {"eval_points": 4, "eval_train": 4, "augment": {"flip": True, "border": "reflection"}}
# As people train small networks today: the recipe of `fit`, as searches found it (docs/when-to-use.md). The rate is
# for He's initial weights (docs/decisions/0010). Turned images are filled in by reflection and kept sharp, as test
# images are (0029).
SHARP = {"border": "reflection", "interpolation": "bicubic"}
FIT: dict[str, Any] = {"optimizer": "adamw", "lr": 4e-3, "weight_decay": 0.05, "schedule": "cosine", "warmup": 0.05} | {
    "ema": 0.99,
    "divide_batch": False,
}
RECIPE: dict[str, Any] = {**FIT, "batch": 32, "eval_points": 4}
# Volumes: each in units of its own mean and deviation, turned and resized a little, by trilinear interpolation.
VOLUME_WARPS: dict[str, Any] = {"turn": 10.0, "zoom": 1.1, "flip": False, "border": "reflection", "intensity": 0.1}
VOLUME_RECIPE: dict[str, Any] = {**FIT, "batch": 4, "ema": 0.95, "floats": True, "eval_train": 10} | {
    "score_turns": False,
    "augment": VOLUME_WARPS,
}
AERIAL_ROWS = ("baseline", "baseline-half", "pool-mean", "roll-all-quarter", "roll-all-half")

EXPERIMENTS: dict[str, Experiment] = {
    "synthetic": Experiment(
        "organism-like shapes drawn by a program; needs no files and trains in a minute",
        replace(SMALL, side=29, stages=((8, 8), (16, 16), (32, 32)), hidden=(128, 128), outputs=10),
        "synthetic",
        ("baseline", "baseline-linear", "baseline-half", "pool-mean", "roll-all-quarter", "roll-dense-half"),
        {"epochs": 12, "batch": 32, "divide_batch": False, "drops": (0.75, 0.92), "eval_points": 6}
        | {"augment": {"shift": 0.06, "zoom": 1.15, "flip": False}},
    ),
    "cells": Experiment(
        "cells with masks, drawn by a program; needs no files and trains in a minute",
        replace(NUCLEI, channels=1, side=48, stages=((16,), (32,)), hidden=(16,), norm=True),
        "synthetic-cells",
        ("baseline", "roll-all-quarter", "roll-all-eighth-dihedral"),
        {**FIT, "epochs": 8, "batch": 16, "ema": 0.9, "eval_points": 1, "eval_train": 20, "augment": SHARP},
        faster=True,
        task="pixels",
    ),
    "plankton": Experiment(
        "the paper's plankton network, 95 x 95, all training images: days on a CPU",
        PLANKTON,
        "plankton",
        ("baseline", "baseline-half", *CONTROLS, *POOLING, "roll-all-quarter", "roll-dense-half"),
        {"epochs": 250, "weight_decay": 5e-4, "invert": True, "augment": PLANKTON_WARPS},
        PAPER_PLANKTON,
    ),
    "plankton-small": Experiment(
        "plankton at 31 x 31 on 2,000 training images: the paper's comparisons in CPU minutes",
        SMALL,
        "plankton-parts",
        ("baseline", "baseline-half", *CONTROLS, "pool-mean", "roll-all-quarter", "roll-dense-half"),
        {"epochs": 40, "batch": 32, "divide_batch": False, "drops": (0.75, 0.92), "train_size": 2000}
        | {"invert": True, "longest": 28, "augment": {"shift": 0.08, "zoom": 1.3, "flip": True}},
        PAPER_PLANKTON,
    ),
    "plankton-31": Experiment(
        "plankton at 31 x 31 on all training images: CPU hours",
        SMALL,
        "plankton-parts",
        ("baseline", "baseline-half", *CONTROLS, "pool-mean", "roll-all-quarter", "roll-dense-half"),
        {"epochs": 10, "batch": 32, "divide_batch": False, "drops": (0.75, 0.92)}
        | {"invert": True, "longest": 28, "augment": {"shift": 0.08, "zoom": 1.3, "flip": True}},
        PAPER_PLANKTON,
    ),
    **{
        f"recipe-plankton-{name}": Experiment(
            f"plankton at 48 x 48, {about} training images, modern residual networks: CPU minutes",
            replace(SMALL, side=48, stem_stride=2, dropout=0.0),
            "plankton-parts",
            RESIDUAL_ROWS,
            {**RECIPE, **size, "invert": True, "longest": 44}
            | {"augment": {"shift": 0.08, "zoom": 1.3, "flip": True, **SHARP}},
        )
        for name, about, size in (
            ("500", "about 500", {"train_size": 500}),
            ("2000", "2,000", {"train_size": 2000}),
            ("all", "all", {}),
        )
    },
    "recipe-galaxies": Experiment(
        "galaxies at 48 x 48, modern residual networks: CPU minutes",
        replace(SMALL, channels=3, side=48, stem_stride=2, dropout=0.0, outputs=17, output="sigmoid"),
        "galaxies",
        RESIDUAL_ROWS,
        {**RECIPE, "longest": 77, "augment": {**GALAXY_WARPS, **SHARP}},
        task="answers",
    ),
    "recipe-nuclei": Experiment(
        "nuclei, a small U-Net with batch norm on 64 x 64 tiles: CPU minutes",
        replace(NUCLEI, side=64, norm=True),
        "nuclei",
        ("baseline", "baseline-wide", "roll-all-quarter", "roll-all-half"),
        {**RECIPE, "batch": 16, "ema": 0.95, "validation": 0.1, "eval_points": 1, "eval_train": 50}
        | {"augment": {"zoom": 1.2, **SHARP}},
        task="instances",
    ),
    "mnist-rot": Experiment(
        "rotated MNIST with 12,000 training images, made from the MNIST files",
        replace(SMALL, side=28, outputs=10),
        "mnist-rot",
        ("baseline", "baseline-linear", "baseline-half", "pool-mean", "roll-all-quarter", "roll-dense-half"),
        {"epochs": 10, "batch": 64, "divide_batch": False, "augment": {"turn": 360.0, "flip": False}},
    ),
    "mnist-rot-7": Experiment(
        "rotated MNIST without augmentation, for the published networks with seven convolutions",
        replace(SMALL, side=28, outputs=10),
        "mnist-rot",
        ("baseline",),
        {"epochs": 40, "batch": 64, "divide_batch": False, "drops": (0.75, 0.92)}
        | {"eval_points": 1, "augment": {"turn": 0.0, "flip": False}},  # there is no validation set
    ),
    "mnist-rot-choice": Experiment(
        "rotated MNIST for choosing a network: 2,000 training images are held out, test images are not used",
        replace(SMALL, side=28, outputs=10),
        "mnist-rot-held",
        ("baseline",),
        {"epochs": 12, **DIGITS},
    ),
    "mnist-rot-best": Experiment(
        "rotated MNIST for the chosen network, with rotated training images",
        replace(SMALL, side=28, outputs=10),
        "mnist-rot",
        ("baseline",),
        {"epochs": 32, "score_turns": False, **DIGITS},  # predictions are averaged over angles already
    ),
    "folder": Experiment(
        "your own images, in one folder for each class",
        replace(SMALL, channels=3, side=63, norm=True, stem_stride=2),
        "folder",
        ("baseline", "baseline-linear", "pool-mean", "roll-all-quarter", "roll-dense-half", *RESIDUAL_ROWS),
        {"epochs": 40, "batch": 64, "divide_batch": False}
        | {"augment": {"shift": 0.08, "zoom": 1.3, "border": "reflection", "interpolation": "bicubic"}},
        faster=True,
    ),
    "fit": Experiment(
        "your own images, by `quarterturn fit`, which chooses what depends on them (fit/plan.py)",
        replace(SMALL, channels=3, side=64, norm=True),
        "images",
        RESIDUAL_ROWS,
        {**FIT, "batch": 32, "eval_train": 1000, "augment": {"shift": 0.08, "zoom": 1.3, **SHARP}},
    ),
    "fit-masks": Experiment(
        "your own images with masks, by `quarterturn fit`",
        replace(NUCLEI, norm=True),
        "images",
        ("baseline", "roll-all-quarter", "roll-all-eighth-dihedral"),
        {**FIT, "batch": 16, "eval_train": 20, "eval_points": 4, "augment": {"zoom": 1.2, **SHARP}},
        task="instances",
        faster=True,
    ),
    "fit-volumes": Experiment(
        "your own volumes with labels, by `quarterturn fit`",
        VOLUMES,
        "images",
        ("baseline", "roll-mirror-1", "roll-D4-3", "roll-octa"),
        {**VOLUME_RECIPE, "eval_points": 4},
        task="regions",
        faster=True,
    ),
    "hippocampus": Experiment(
        "hippocampus in MR volumes, a small 3-D U-Net on patches of 24 voxels: CPU minutes",
        replace(VOLUMES, side=24, outputs=3),
        "images",
        ("baseline", "roll-mirror-1", "roll-mirrors-1-2-3", "roll-D4-2", "roll-octa", "roll-octa-wide"),
        {**VOLUME_RECIPE, "eval_points": 1},
        task="regions",
        faster=True,
    ),
    "volumes-embedded": Experiment(
        "textures in cells of random orientation, drawn by a program; needs no files",
        replace(VOLUMES, side=16, stages=((48,), (96,)), hidden=(48,), outputs=3),
        "synthetic-volumes",
        ("baseline", "roll-octa", "roll-octa-wide"),
        {**VOLUME_RECIPE, "eval_points": 1, "validation": 0.1, "augment": {**VOLUME_WARPS, "turn": 0.0, "zoom": 1.0}},
        task="regions",
        faster=True,
    ),
    "galaxies": Experiment(
        "the paper's galaxies network, 64 x 64, all training images: days on a CPU",
        GALAXIES,
        "galaxies",
        GALAXY_ROWS,
        {"epochs": 100, "longest": 106, "augment": GALAXY_WARPS},
        PAPER_GALAXIES,
        "answers",
    ),
    "galaxies-small": Experiment(
        "galaxies at 33 x 33, a small network: CPU minutes on a few thousand images",
        replace(SMALL, channels=3, side=33, outputs=37, output="sigmoid"),
        "galaxies",
        GALAXY_ROWS,
        {"epochs": 20, "batch": 32, "divide_batch": False, "drops": (0.75, 0.92), "longest": 53}
        | {"augment": GALAXY_WARPS},
        PAPER_GALAXIES,
        "answers",
    ),
    "buildings": Experiment(
        "the paper's aerial images network on 80 x 80 tiles: days on a CPU",
        BUILDINGS,
        "aerial",
        AERIAL_ROWS,
        {"epochs": 40, "tiles": 256, **AERIAL},
        PAPER_BUILDINGS,
        "pixels",
    ),
    "roads": Experiment(
        "the paper's aerial images network on roads, the sister data set: days on a CPU",
        BUILDINGS,
        "aerial",
        AERIAL_ROWS,
        {"epochs": 40, "tiles": 32, **AERIAL},
        {},
        "pixels",
    ),
    "roads-small": Experiment(
        "roads or buildings with a quarter of the filters and 32 tiles per image: CPU minutes on a few images",
        replace(BUILDINGS, stages=((8,) * 5 + (16,) * 5,), hidden=(64,)),
        "aerial",
        AERIAL_ROWS,
        {"epochs": 20, "tiles": 32, "batch": 16, "divide_batch": False, **AERIAL},
        {},
        "pixels",
    ),
    "nuclei": Experiment(
        "nuclei in microscopy images, segmented by a small U-Net",
        NUCLEI,
        "nuclei",
        ("baseline", "baseline-half", "baseline-linear", "pool-mean", "roll-all-quarter", "roll-all-half"),
        {"epochs": 20, "batch": 16, "divide_batch": False, "eval_points": 4, "eval_train": 50}
        | {"augment": {"zoom": 1.2, "border": "reflection"}},
        {},
        "instances",
    ),
}


def experiment_of(name: str) -> Experiment:
    """The experiment of that name; an unknown name raises an error with the nearest ones."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def split_name(name: str) -> tuple[str, str]:
    """Experiment and row of a name such as plankton/roll-all-quarter."""
    experiment, slash, row = name.partition("/")
    experiment_of(experiment)
    if not slash:
        raise ConfigError(
            f"{name!r} names no row: give EXPERIMENT/ROW, such as {name}/baseline or {name}/roll-all-quarter"
        )
    row_of(row)  # an unknown one raises
    return experiment, row


def settings_of(name: str, row: str, **options: Any) -> dict[str, Any]:
    """All settings of a run, for `config.checked`: experiment, row, then the options that are not None."""
    experiment = experiment_of(name)
    given = {key: value for key, value in options.items() if value is not None}
    changes = {key: given.pop(key) for key in ("outputs", *NETWORK) if key in given}
    warps = {key: given.pop(key) for key in WARPS if key in given}
    layers, width, blocks, hidden = (given.pop(key, None) for key in STAGES)
    if "group" in changes:
        changes["group"] = group_for(changes["group"], experiment.baseline.axes).name
        if edited(experiment.baseline, row).group is None and "backbone" not in given:
            raise ConfigError(
                f"{row} is an ordinary network and has no group: leave --group out, or use pool-mean, say"
            )
    net = resized(edited(experiment.baseline, row, **changes), width, blocks, hidden)
    net = restaged(net, layers) if layers is not None else net
    augment = {**experiment.settings.get("augment", {}), **warps}
    faster = {"rotate": faster_rotation(net)} if net.residual or experiment.faster else {}
    if "backbone" in given:
        net, faster = _around(net), _treatment(net, given)
    settings = {**faster, **experiment.settings, **given, "augment": augment}
    return {
        "experiment": name,
        "row": row,
        "loader": experiment.loader,
        "net": net,
        **settings,
    }


def _around(net: Net) -> Net:
    """What a backbone takes from a row: channels, side, outputs and group. It labels every pixel, or whole images."""
    return replace(net, same=True, unet=True) if net.head == "conv" else net


def _treatment(net: Net, given: dict[str, Any]) -> dict[str, str]:
    """How a backbone gets the group, and whether it rotates maps or filters, if nothing else is asked for."""
    how = given.get("how", "convert" if net.group else "plain")
    if how != "plain" and net.group is None:
        raise ConfigError(f"--how {how} needs a group: give --group D4, or C4 if mirror images differ")
    return {"how": how, "rotate": "filters" if how == "convert" else "maps"}


def faster_rotation(net: Net) -> str:
    """Rotated maps or filters, whichever takes less time: the same network."""
    return "filters" if net.roll == "all" or net.method == "oriented-max" else "maps"


def config_for(name: str, row: str, seed: int = 0, factory: str | None = None, **options: Any) -> Config:
    """The validated settings of a run."""
    return checked({**settings_of(name, row, **options), "seed": seed, "factory": factory})

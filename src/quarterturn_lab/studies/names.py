"""Display names of networks, made from what an entry is: "rolled, half width, D4, 20 epochs"."""

import re
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

from quarterturn_lab.settings.experiments import EXPERIMENTS
from quarterturn_lab.settings.networks import Net, edited
from quarterturn_lab.studies.definition import TURNED, USUAL, Entry, Study

TEST_TIME = "4 turns averaged at test time"
ELEMENTS = {"C4": "turns", "D4": "turns and flips"}
FRACTIONS = {2: "half", 4: "quarter", 8: "eighth"}
POOLS = {"mean": "averaged", "rms": "root mean square", "max": "maximum"}
METHODS = {
    "stack": "stacked over {} inside",
    "oriented-max": "maximum over {} after each layer",
    "gradual-pool": "pooled over {} step by step",
    "symmetric": "filters symmetric under {}",
}
# Options that change a residual network.
SIZES = {
    "width": "{} maps",
    "blocks": "{} blocks a stage",
    "pool": "maximum at the head",
    "invariants": "invariants at the head",
    "hidden": "hidden layer of {}",
    "roll_from": "rolled from stage {} on",
    "side": "images of {} pixels",
}
# Keywords of a network factory, and options of a training, in words.
KEYWORDS = {
    "each": "{} convolutions a stage",
    "kernel": "{0} x {0} windows",
    "mean": "mean over positions",
    "angles": "{} angles averaged at test time",
}
KINDS = {"coupled": "coupled attention"}
# Factories whose names do not say what they make.
FACTORIES = {
    "residual_c4_until_3": ["rolled residual", "C4", "32 maps", "ordinary from stage 3 on"],
    "residual_c4_norms_apart": ["rolled residual", "C4", "32 maps", "norms apart"],
}
OPTIONS = {
    "lr": "learning rate {:g}",
    "batch": "batches of {}",
    "dropout": "dropout {:g}",
    "turn": "turned by {:g} degrees in training",
    "zoom": "zoom {:g}",
    "shear": "shear {:g}",
    "moves": "trained on {}",
}
MOVES = {
    "octa-full": "volumes in all 48 orientations",
    "octa": "volumes in all 24 turns",
    "mirror-1": "mirrored volumes",
}
VOLUMES = {
    "mirror-1": "mirror of the first axis",
    "mirrors-1-2-3": "mirrors of all axes",
    "D4-2": "D4 about the second axis",
    "octa": "24 turns of the cube",
}
# What a name has in it, how to call that, what it means.
GLOSSARY = (
    ("ordinary", "ordinary", "no built-in symmetry."),
    ("rolled", "rolled", "each layer applies its filters in all orientations and sees the maps of all of them."),
    ("dense layers rolled", "dense layers rolled", "the dense layers alone do so."),
    (
        " inside",
        "over turns inside",
        "the network sees the image in all orientations and pools before its last layer.",
    ),
    ("after each layer", "after each layer", "each layer keeps the strongest response over all orientations."),
    ("residual", "residual", "shortcuts, batch norm, strides, a mean over positions."),
    ("ConvNeXt", "ConvNeXt-like", "7x7 depthwise convolutions, layer norms, layers four times as wide inside a block."),
    (" maps", "32 maps", "of the first stage, in all orientations; the later stages have two and four times as many."),
    ("invariants", "invariants at the head", "several numbers of each feature that turns do not change, not its mean."),
    ("hidden layer", "hidden layer of 128", "features, in each orientation, of a layer before the last."),
    ("rolled from", "rolled from stage 2 on", "orientations do not see each other before."),
    ("norms apart", "norms apart", "batch norm treats each orientation as a map of its own: not invariant."),
    ("ordinary from", "ordinary from stage 3 on", "the later stages see orientations as features: not invariant."),
    ("ViT", "ViT", "a small vision transformer."),
    ("coupled", "coupled attention", "all orientations attend to the same tokens, not each to its own."),
    ("mirror", "mirror", "an axis of the volume is reversed, the first from left to right; two or three: all of them."),
    ("24 turns", "24 turns of the cube", "all orientations of a cube that no mirror is needed for."),
    ("48 orient", "trained on", "each training patch is turned or mirrored at random, without interpolation."),
    ("D4 about", "D4 about an axis", "the quarter turns of a plane, each with and without a mirror."),
    ("C4", "C4", "the four quarter turns."),
    ("D4", "D4", "the four quarter turns, each with and without a flip."),
    (" width", "half, quarter, ... width", "filters in a layer, relative to the ordinary network."),
    (" filters", "8-16-32 filters", "filters in the layers of each stage."),
    ("no last ReLU", "no last ReLU", "the last hidden layer has no ReLU, like that of the pooled networks."),
    ("ReLU first", "ReLU first", "that ReLU is kept, before the pooling."),
    (TEST_TIME, TEST_TIME, "predictions for the image at 0, 90, 180 and 270 degrees are averaged: four passes in use."),
    ("4 angles", "4 angles averaged", "predictions for the image at 0, 22.5, 45 and 67.5 degrees are averaged."),
    ("turned by", "turned by 0 degrees", "training images are not turned; for the other networks they are."),
    ("zoom", "zoom, shear", "training images are resized, or sheared in degrees, by up to so much."),
)


def split(side: str) -> tuple[str, bool]:
    """Label, and whether turns are averaged at test time."""
    return side.removesuffix(TURNED), side.endswith(TURNED)


def network_name(entry: Entry) -> str:
    """The network alone.

    >>> network_name(Entry("plankton-31", "roll-all-quarter-dihedral", 3, {"epochs": 20}))
    'rolled, quarter width, D4'
    >>> network_name(Entry("plankton-small", "baseline-half-linear", 3))
    'ordinary, half width, no last ReLU'
    >>> network_name(Entry("plankton-small", "max-relu", 3))
    'maximum over turns inside, ReLU first'
    >>> network_name(Entry("plankton-small", "residual-d4", 3))
    'rolled residual, D4'
    """
    factory = entry.options.get("factory")
    if factory:
        return ", ".join(_of_factory(factory))
    net = edited(EXPERIMENTS[entry.experiment].baseline, entry.row)
    backbone = entry.options.get("backbone")
    sizes = [
        words.format(entry.options[option])
        for option, words in SIZES.items()
        if entry.options.get(option) not in (None, USUAL.get(option))
    ]
    return ", ".join([*(_of_backbone(backbone, net) if backbone else _of_net(net)), *sizes])


def _of_backbone(spec: str, net: Net) -> list[str]:
    """The kind of a network of another library."""
    library, _, name = spec.partition(":")
    return [f"ordinary {name} of {library}"] if net.group is None else [f"rolled {name} of {library}", net.group]


def _of_net(net: Net) -> list[str]:
    if net.convnext:
        return ["ordinary ConvNeXt-like"]
    if net.residual:
        return ["ordinary residual"] if net.group is None else ["rolled residual", net.group]
    width = [_width(1 if net.axes == 3 else net.divide, net.widen)] if net.divide != net.widen else []
    if net.group in VOLUMES:
        return ["rolled", VOLUMES[net.group], *width[: net.widen - 1]]
    if net.group is None:
        return ["ordinary", *width, *([] if net.relu else ["no last ReLU"])]
    elements = ELEMENTS.get(net.group, net.group)
    if net.method != "pool":
        return [METHODS[net.method].format(elements), *width]
    pool = f"{POOLS[net.pool]} over {elements} inside"
    relu = ["ReLU first"] if net.relu else []
    if net.roll == "none":
        return [pool, *width, *relu]
    rolled = ["rolled", *width] if net.roll == "all" else [f"dense layers rolled, {_width(net.divide_dense, 1)}"]
    return [*rolled, net.group, *([pool] if net.pool != "mean" else []), *relu]


def _width(divide: int, widen: int) -> str:
    if widen > 1:
        return "double width" if widen == 2 else f"{widen} times the width"
    return f"{FRACTIONS.get(divide, f'1/{divide}')} width" if divide > 1 else "full width"


def _of_factory(factory: str) -> list[str]:
    """The filters, group and keywords of a factory's network, or the words of its name."""
    module, _, name = factory.partition(":")
    if name in FACTORIES:
        return FACTORIES[name]
    function = getattr(import_module(module), name)
    facts = {key: parameter.default for key, parameter in signature(function).parameters.items()}
    if "filters" not in facts:
        size, kind, *more = name.split("_")
        what = {"vit": "ViT"}.get(size, f"{size} layers")
        return (
            ["ordinary", what] if kind == "plain" else ["rolled", what, kind.upper(), *(KINDS[word] for word in more)]
        )
    keywords = function.keywords if isinstance(function, partial) else {}
    words = [KEYWORDS[key].format(value) for key, value in keywords.items() if key in KEYWORDS]
    return ["rolled", f"{'-'.join(map(str, facts['filters']))} filters", facts["group"].name, *words]


def names(study: Study) -> dict[str, str]:
    """Label -> display name, unique within the study.

    Number of images and epochs are named where a network of the study has several of them, other options where they
    differ from the experiment's.
    """
    networks = {entry.label: network_name(entry) for entry in study.entries}
    several = {
        setting: {(networks[entry.label], _setting(entry, setting)) for entry in study.entries}
        for setting in ("train_size", "epochs")
    }
    shown = [setting for setting, found in several.items() if len(found) > len({network for network, _ in found})]
    return {
        entry.label: ", ".join([networks[entry.label], *_sizes(entry, shown), *_options(entry)])
        for entry in study.entries
    }


def _sizes(entry: Entry, shown: list[str]) -> list[str]:
    images, epochs = (_setting(entry, setting) for setting in ("train_size", "epochs"))
    words = {"train_size": f"{images:,} images" if images else "all images", "epochs": f"{epochs} epochs"}
    return [words[setting] for setting in shown]


def _setting(entry: Entry, setting: str) -> Any:
    return entry.options.get(setting, EXPERIMENTS[entry.experiment].settings.get(setting))


def _options(entry: Entry) -> list[str]:
    usual = EXPERIMENTS[entry.experiment].settings
    return [
        words.format(MOVES.get(entry.options[option], entry.options[option]))
        for option, words in OPTIONS.items()
        if entry.options.get(option) not in (None, usual.get(option))
    ]


def name(study: Study, side: str) -> str:
    """The display name of a side."""
    label, turned = split(side)
    return names(study)[label] + (f", {TEST_TIME}" if turned else "")


def line_name(study: Study, side: str) -> str:
    """The name of a side without its training: what the points of a line have in common."""
    label, turned = split(side)
    return network_name(study.labels[label]) + (f", {TEST_TIME}" if turned else "")


def told(study: Study, text: str) -> str:
    """The text with `{label}` replaced by display names."""
    return re.sub(r"\{(.+?)\}", lambda found: f"*{name(study, found[1])}*", text)


def glossary(shown: Iterable[str]) -> list[str]:
    """A line for each part of the names that a new reader may not know.

    >>> glossary(["ordinary, 40 epochs"])
    ['**ordinary**: no built-in symmetry.']
    """
    found = list(shown)
    return [f"**{title}**: {meaning}" for part, title, meaning in GLOSSARY if any(part in each for each in found)]

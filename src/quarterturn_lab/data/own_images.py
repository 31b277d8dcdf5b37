"""The user's own images, in any layout of `layouts.py`, split into training, validation and test images."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import image_mask_pairs, volumes
from quarterturn_lab.data.dataset import Data, Dataset, Indices, Scenes, Settings, Units
from quarterturn_lab.data.layouts import Layout, layout_of
from quarterturn_lab.data.read_all import refuse, squares
from quarterturn_lab.data.splits import three_parts
from quarterturn_lab.errors import ConfigError


def load(settings: Settings) -> Data:
    """The images, as squares unless they have masks, decoded through the cache. Bad files raise, or are skipped."""
    layout = layout_of(settings)
    if layout.axes != settings.axes:
        what = "volumes" if layout.axes == 3 else "images, not volumes"
        raise ConfigError(f"{layout.root} has {what}: train on it with `quarterturn fit {layout.root}`")
    refuse(layout.bad, settings.skip_bad)
    return _scenes(layout, settings) if layout.meaning else _squares(layout, settings)


def _scenes(layout: Layout, settings: Settings) -> Scenes:
    pairs = [(name, path, layout.labels[name]) for name, path in layout.files.items()]
    scenes = image_mask_pairs.read("own images", pairs, settings, layout.task == "instances", meaning=layout.meaning)
    parts = split(layout, scenes.names, settings)
    assert layout.meaning is not None
    return replace(
        scenes,
        spacings=tuple(
            volumes.spacing(layout.files[name], settings.spacing, settings.max_pixels) for name in scenes.names
        )
        if layout.axes == 3
        else (),
        values=layout.meaning.values if layout.task == "regions" else (),
        task=layout.task,
        classes=layout.classes,
        train=parts["train"],
        valid=parts["valid"],
        test=parts["test"],
        bad=(*layout.bad, *scenes.bad),
        fingerprint=fingerprint_of(scenes.fingerprint, {part: found.tolist() for part, found in parts.items()}),
    )


def _squares(layout: Layout, settings: Settings) -> Dataset:
    read = squares("own images", list(layout.files.items()), settings)
    parts = split(layout, read.names, settings)
    values = [layout.labels[name] for name in read.names]
    labels, units = _labels(layout.task, values, parts["train"])
    where = {part: indices.tolist() for part, indices in parts.items()}
    return Dataset(
        read.array,
        labels,
        layout.classes,
        tuple(read.names),
        parts["train"],
        parts["test"],
        fingerprint_of(read.fingerprint, layout.task, layout.classes, values, where),
        (*layout.bad, *read.bad),
        parts["valid"],
        layout.task,
        tuple(read.bands),
        centred=True,
        units=units,
    )


def split(layout: Layout, names: Sequence[str], settings: Settings) -> dict[str, Indices]:
    """The indices of the training, validation and test images among these names."""
    return three_parts(names, layout.strata(names), layout.group, layout.part, settings.test_part, settings.validation)


def _labels(task: str, values: list[Any], train: Indices) -> tuple[NDArray[Any], Units | None]:
    """The labels as an array. Numbers have mean 0 and deviation 1 over the training images."""
    if task == "classes":
        return np.array(values, dtype=np.int64), None
    if task != "numbers":
        return np.array(values, dtype=np.float32), None
    numbers = np.array(values, dtype=np.float64)
    mean, deviation = numbers[train].mean(axis=0), numbers[train].std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return ((numbers - mean) / deviation).astype(np.float32), Units(tuple(mean.tolist()), tuple(deviation.tolist()))


def fingerprint_of(*contents: object) -> str:
    """A key of images with their labels and parts."""
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:32]

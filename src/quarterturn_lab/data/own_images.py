"""The user's own images, in any layout of `layouts.py`, split into training, validation and test images."""

import hashlib
import json

import numpy as np

from quarterturn_lab.data.dataset import Dataset, Settings
from quarterturn_lab.data.layouts import Layout, layout_of
from quarterturn_lab.data.read_all import refuse, squares
from quarterturn_lab.data.splits import three_parts


def load(settings: Settings) -> Dataset:
    """The images as squares, decoded through the cache. Files that cannot be used raise, or are skipped."""
    layout = layout_of(settings)
    refuse(layout.bad, settings.skip_bad)
    read = squares("own images", list(layout.files.items()), settings)
    parts = split(layout, tuple(read.names), settings)
    labels = np.array([layout.labels[name] for name in read.names], dtype=np.int64)
    return Dataset(
        read.array,
        labels,
        layout.classes,
        tuple(read.names),
        parts["train"],
        parts["test"],
        fingerprint_of(read.fingerprint, read.names, labels.tolist(), {k: v.tolist() for k, v in parts.items()}),
        (*layout.bad, *read.bad),
        parts["valid"],
        layout.task,
        tuple(read.bands),
        centred=True,
    )


def split(layout: Layout, names: tuple[str, ...], settings: Settings) -> dict[str, np.ndarray]:
    """The indices of the training, validation and test images among these names."""
    strata = [layout.labels[name] for name in names]
    return three_parts(names, strata, layout.group, layout.part, settings.test_part, settings.validation)


def fingerprint_of(*contents: object) -> str:
    """A key of images with their labels and parts."""
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:32]

"""Rotated MNIST, made from the MNIST files with a fixed seed: 12,000 training and 50,000 test images."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from quarterturn_lab.data import cache
from quarterturn_lab.data.augment import matrices, warped
from quarterturn_lab.data.dataset import Dataset, Settings
from quarterturn_lab.data.folders import existing
from quarterturn_lab.data.images import fault_of
from quarterturn_lab.errors import DataError
from quarterturn_lab.settings.config import Augment

TREE = (
    "the MNIST files, compressed (.gz) or not:\n  {folder}/train-images-idx3-ubyte, train-labels-idx1-ubyte,"
    "\n  {folder}/t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
)
PARTS = ("train", "t10k")
TRAIN, TEST = 12_000, 50_000
LARGEST = 10**9  # values in a file
SEED = 0  # for the rotations and the choice of images


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of bytes as an array."""
    if fault := fault_of(path):
        raise DataError(f"{path} {fault}")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:3] != b"\0\0\x08" or not 1 <= start[3] <= 3:
                raise DataError(f"{path} is not an idx file of bytes: it must begin with 00 00 08 and 1, 2 or 3 axes")
            sizes = file.read(4 * start[3])
            shape = tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4))
            if math.prod(shape) > LARGEST:
                raise DataError(f"{path} has {shape} values, more than the limit of {LARGEST:,}: give a part of it")
            content = file.read(math.prod(shape) + 1)  # no more than it says: a small file can unpack to any size
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error})") from None
    if len(content) != math.prod(shape):
        found = f"{len(content)} bytes" if len(content) < math.prod(shape) else "more"
        raise DataError(f"{path} is truncated or damaged: expected {shape} values, found {found}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def load(settings: Settings) -> Dataset:
    """Digits rotated by random angles, from 0 to 360 degrees, in the middle of a square of the given side."""
    folder = existing(settings.folder, TREE)
    folder = folder / "mnist" if (folder / "mnist").is_dir() else folder
    paths = [_find(folder, f"{part}-{kind}") for part in PARTS for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    key = cache.fingerprint({"kind": "rotated mnist", "side": settings.side}, [(path.name, path) for path in paths])

    def make() -> cache.Made:
        arrays = [read_idx(path) for path in paths]
        digits, labels = np.concatenate(arrays[0::2]), np.concatenate(arrays[1::2])
        order = np.random.default_rng(SEED).permutation(len(digits))[: TRAIN + TEST]
        return _turned(digits[order], settings.side), {"labels": labels[order].tolist()}

    array, about = cache.cached(key, make)
    count = len(array)
    train = min(TRAIN, count * TRAIN // (TRAIN + TEST)) if count < TRAIN + TEST else TRAIN
    return Dataset(
        array,
        np.array(about["labels"], dtype=np.int64),
        tuple("0123456789"),
        tuple(map(str, range(count))),
        np.arange(train),
        np.arange(train, count),
        key,
    )


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder / name} is missing; expected {TREE.format(folder=folder)}")


def _turned(digits: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    size = digits.shape[1]
    if side < size:
        raise DataError(f"digits of {size} x {size} do not fit into a side of {side}: use --side {size} or more")
    before = (side - size) // 2
    padded = np.pad(digits, ((0, 0), (before, side - size - before), (before, side - size - before)))
    parts = []
    for start in range(0, len(padded), 4096):
        images = torch.from_numpy(padded[start : start + 4096, None].astype(np.float32))
        numbers = np.arange(start, start + len(images))
        parts.append(warped(images, matrices(Augment(flip=False), SEED, 0, numbers)).round().byte().numpy())
    return np.concatenate(parts)

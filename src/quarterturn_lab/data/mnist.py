"""Rotated MNIST, made from the MNIST files with a fixed seed: 12,000 training and 50,000 test images."""

import gzip
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from quarterturn_lab.data import cache
from quarterturn_lab.data.augment import matrices, warped
from quarterturn_lab.data.dataset import Dataset, Settings
from quarterturn_lab.data.folders import existing
from quarterturn_lab.errors import DataError
from quarterturn_lab.settings.config import Augment

TREE = (
    "the MNIST files, compressed (.gz) or not:\n  {folder}/train-images-idx3-ubyte, train-labels-idx1-ubyte,"
    "\n  {folder}/t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
)
PARTS = ("train", "t10k")
TRAIN, TEST = 12_000, 50_000
SEED = 0  # for the rotations and the choice of images


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of bytes as an array."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error})") from None
    if len(content) < 8 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of bytes: it must begin with 00 00 08")
    shape = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(content[3]))
    start = 4 + 4 * len(shape)
    if len(content) - start != int(np.prod(shape)):
        raise DataError(f"{path} is truncated: expected {shape} values, found {len(content) - start} bytes")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


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

"""Runs that take a second, and made-up trees of the published form of each data set."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quarterturn_lab.cli import app
from quarterturn_lab.models.layers import ANSWERS, Questions
from quarterturn_lab.settings.config import Config, checked
from quarterturn_lab.settings.experiments import settings_of
from quarterturn_lab.settings.networks import BUILDINGS, Net, edited

torch.set_num_threads(1)  # small networks: more threads only wait for each other

DATA = Path(__file__).parents[3] / "shared" / "data"
TINY = Net(channels=1, side=15, stages=((8, 8), (8, 8)), hidden=(16, 16), outputs=10, dropout=0.2)
TINY_MAPS = replace(BUILDINGS, channels=2, side=14, stages=((8, 8, 8),), hidden=(16,))

# A few layers of each network, in its own form.
SMALL = {
    "galaxies": Net(3, 16, ((8, 8), (8,)), (16, 16), 37, output="sigmoid", dropout=0.2),
    "buildings": Net(3, 24, ((8,) * 3,), (16,), 2, kernel=5, same=False, pooled=False, head="conv", dropout=0.0),
    "nuclei": Net(3, 32, ((8, 8), (8, 8), (8,)), (8,), 2, unet=True, head="conv", dropout=0.0),
}
SMALL["roads"] = SMALL["buildings"]
TREES = {"galaxies": "galaxy_tree", "buildings": "aerial_tree", "roads": "aerial_tree", "nuclei": "nuclei_tree"}


def small(name: str, row: str, data: Path, net: dict[str, Any] | None = None, **options: Any) -> Config:
    """A short run of one of these experiments: its own settings, on a network of a few layers."""
    settings = {**settings_of(name, row), "net": edited(SMALL[name], row, **(net or {})), "data": str(data)}
    settings |= {"epochs": 2, "batch": 8, "divide_batch": False, "eval_points": 1, "eval_train": 2, "lr": 3e-3}
    settings |= {"longest": 26} if name == "galaxies" else {"tiles": 4 if name != "nuclei" else 1}
    return checked({**settings, **options})


def tiny(row: str = "baseline", net: dict[str, Any] | None = None, **options: Any) -> Config:
    settings: dict[str, Any] = {
        "experiment": "synthetic",
        "row": row,
        "loader": "synthetic",
        "net": edited(TINY, row, **(net or {})),
        "train_size": 60,
        "epochs": 3,
        "batch": 20,
        "divide_batch": False,
        "eval_points": 2,
        "eval_train": 50,
        "augment": {"flip": False},
    }
    return checked({**settings, **options})


def call(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code = 0
    try:
        app.main(arguments.split())
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def weights(directory: Path) -> bytes:
    """The weights of a finished run."""
    return (directory / "model.safetensors").read_bytes()


def worker(config: Config, directory: Path) -> subprocess.Popen[bytes]:
    """A process that trains a run."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "quarterturn_lab.training.worker", str(directory)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(config.model_dump_json().encode())
    process.stdin.close()
    return process


def unsealed(run: Path) -> Path:
    """A finished run without checksums, as older versions wrote them: its files may be changed."""
    found = json.loads((run / "summary.json").read_text())
    found.pop("sha256", None)
    (run / "summary.json").write_text(json.dumps(found))
    return run


def class_folders(root: Path, count: int = 12, classes: tuple[str, ...] = ("ant", "bee"), suffix: str = "png") -> Path:
    """Folders of grey images of several sizes."""
    rng = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (10 + i, 14), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.{suffix}")
    return root


# --- made-up trees of the published form ------------------------------------------------------------------------------


def blobs(rng: np.random.Generator, height: int, width: int, count: int) -> np.ndarray:
    """A map of numbered discs that do not touch."""
    y, x = np.mgrid[:height, :width]
    labels = np.zeros((height, width), dtype=np.uint16)
    for number in range(1, count + 1):
        radius = rng.uniform(3, 7)
        distance = np.hypot(y - rng.uniform(0, height), x - rng.uniform(0, width))
        if not labels[distance < radius + 2].any():
            labels[distance < radius] = number
    return labels


def photo(rng: np.random.Generator, labels: np.ndarray, channels: int = 3) -> np.ndarray:
    """A noisy picture in which the objects are bright."""
    light = 60 + 120 * (labels[..., None] > 0) + rng.normal(0, 12, (*labels.shape, channels))
    return light.clip(0, 255).astype(np.uint8).squeeze()


def galaxy_tree(root: Path, count: int = 20, answers: tuple[str, ...] = ANSWERS, side: int = 424) -> Path:
    """The challenge's folder: JPEGs and a table of 37 columns whose shares obey the decision tree."""
    rng = np.random.default_rng(0)
    (root / "images_training_rev1").mkdir(parents=True)
    votes = Questions(answers)(torch.from_numpy(rng.random((count, len(answers))))).numpy()
    lines = [",".join(("GalaxyID", *answers))]
    y, x = np.mgrid[:side, :side] / side - 0.5
    for i in range(count):
        name = str(100_008 + 15 * i)
        glow = np.exp(-((x / (0.05 + 0.2 * votes[i, 0])) ** 2) - (y / 0.1) ** 2)
        pixels = (255 * glow[..., None] * (1.0, 0.8, 0.6)).astype(np.uint8)
        Image.fromarray(pixels).save(root / "images_training_rev1" / f"{name}.jpg")
        lines.append(",".join([name, *(f"{value:.6f}" for value in votes[i])]))
    (root / "training_solutions_rev1.csv").write_text("\n".join(lines) + "\n")
    return root


def aerial_tree(root: Path, side: int = 130, counts: tuple[int, int, int] = (3, 1, 2)) -> Path:
    """Mnih's folders: .tiff images in colour, .tif masks in red."""
    rng = np.random.default_rng(0)
    for part, count in zip(("train", "valid", "test"), counts, strict=True):
        for kind in ("sat", "map"):
            (root / part / kind).mkdir(parents=True)
        for i in range(count):
            labels = blobs(rng, side, side, 30)
            name = f"{22678915 + 15 * i}_15"
            Image.fromarray(photo(rng, labels)).save(root / part / "sat" / f"{name}.tiff")
            red = np.zeros((side, side, 3), dtype=np.uint8)
            red[labels > 0, 0] = 255
            Image.fromarray(red).save(root / part / "map" / f"{name}.tif")
    return root


def nuclei_tree(root: Path, count: int = 12) -> Path:
    """Grey and stained images of several sizes, square or not, odd or even, with 16-bit maps of instances."""
    rng = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (root / kind).mkdir(parents=True)
    for i in range(count):
        labels = blobs(rng, (48, 57, 40)[i % 3], (48, 44, 61)[i % 3], 8)
        Image.fromarray(photo(rng, labels, 1 if i % 4 else 3)).save(root / "images" / f"cell{i:02d}.png")
        Image.fromarray(labels).save(root / "labels" / f"cell{i:02d}.png")
    return root


# --- volumes ----------------------------------------------------------------------------------------------------------

SHAPE = (9, 11, 8)


def saved(path: Path, array: Any, affine: Any = None) -> Path:
    """A NIfTI file."""
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine), path)
    return path


def scan(number: int, shape: tuple[int, ...] = SHAPE) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    labels = np.zeros(shape, dtype=np.uint8)
    labels[2:5, 3:6, 2:6] = 1
    labels[5:8, 6:9, 3:6] = 2
    return (2.0 * labels + rng.normal(0, 0.3, shape)).astype(np.float32), labels


def folder_of(root: Path, count: int = 8, spacing: tuple[float, ...] = (1, 1, 1), names: str = "Tr") -> Path:
    """Scans and their labels, with two kinds of objects."""
    for number in range(count):
        image, labels = scan(number)
        affine = np.diag([*spacing, 1.0])
        saved(root / f"images{names}" / f"s{number}.nii.gz", image, affine)
        saved(root / f"labels{names}" / f"s{number}.nii.gz", labels, affine)
    return root

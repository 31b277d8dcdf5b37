"""Which symmetry `quarterturn fit` finds in images that are known to have it, or not.

python bench/symmetry.py --data DIR [--only digits plankton] [--epochs 24 64] [--continue]

DIR holds mnist, plankton, galaxies, nuclei and mass_roads; sets that are not there are left out. `--epochs` is as for
`fit`, which spends an eighth of it on each of its two trials. Each row is written the moment it is known, so that an
interrupted run goes on with `--continue`.
"""

import csv
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import parser_for, record, save
from numpy.typing import NDArray
from PIL import Image

from quarterturn_lab.data.mnist import read_idx
from quarterturn_lab.data.synthetic import CLASSES, draw
from quarterturn_lab.fit.fitting import Fit
from quarterturn_lab.fit.request import Request
from quarterturn_lab.progress import Bars

IMAGES = 2860  # of the sets that are made here: two thousand to train on
FEW = 1200


def digits(data: Path, folder: Path, turned: bool = False) -> Path:
    """MNIST in class folders, upright or each turned by some angle."""
    images = read_idx(data / "mnist" / "train-images-idx3-ubyte")[:IMAGES]
    labels = read_idx(data / "mnist" / "train-labels-idx1-ubyte")[:IMAGES]
    angles = np.random.default_rng(0).uniform(0, 360, IMAGES) * turned
    return in_class_folders(images, [str(label) for label in labels], folder, angles)


def pairs(_: Path, folder: Path, images: int = IMAGES, side: int = 48) -> Path:
    """The built-in shapes, each with its mirror image as another class."""
    labels = np.arange(images) % len(CLASSES)
    return in_class_folders(draw(labels, side), [CLASSES[label] for label in labels], folder)


def in_class_folders(
    images: NDArray[np.uint8], labels: list[str], folder: Path, angles: NDArray[np.float64] | None = None
) -> Path:
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(pixels)
        if angles is not None:
            image = image.rotate(float(angles[number]), Image.Resampling.BICUBIC)
        image.save(folder / label / f"{number}.png")
    return folder


Make = Callable[[Path, Path], Path]
# What is right, how to get the folder, and settings. Where D4 is right, C4 is safe.
SETS: dict[str, tuple[str, Make, dict[str, Any]]] = {
    "digits": ("none", digits, {}),
    "turned digits": ("C4", lambda data, folder: digits(data, folder, turned=True), {}),
    "mirrored pairs": ("C4", pairs, {}),
    "few mirrored pairs": ("C4", lambda data, folder: pairs(data, folder, FEW, 64), {}),
    "plankton": ("D4", lambda data, _: data / "plankton" / "train", {"train_size": 2000, "side": 48}),
    "galaxies": ("D4", lambda data, _: data / "galaxies", {"side": 48}),
    "nuclei": ("D4", lambda data, _: data / "nuclei", {"side": 64, "tiles": 4}),
    "roads": ("D4", lambda data, _: data / "mass_roads", {"side": 64}),
}
NEEDED = {
    "digits": "mnist",
    "turned digits": "mnist",
    "mirrored pairs": ".",
    "few mirrored pairs": ".",
    "roads": "mass_roads",
}


def choice(name: str, data: Path, epochs: int) -> dict[str, object]:
    right, make, options = SETS[name]
    with tempfile.TemporaryDirectory() as made, Bars() as bars:
        request = Request(make(data, Path(made) / name.replace(" ", "-")), options={"epochs": epochs, **options})
        fit = Fit(request, Path(made) / "runs", bars)
        fit.threads = 1
        found = fit.look()
        said, why = fit.choose_symmetry(found, fit.choose_size(found))
    assert why is not None
    shares = {key: f"{why[key]:.3f}" for key in ("learned", "up", "hand")}
    return {
        "set": name,
        "right": right,
        "epochs": max(1, round(epochs / 8)),
        "said": said,
        "sure": why["sure"],
    } | shares


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the sets")
    parser.add_argument("--only", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--epochs", type=int, nargs="+", default=[24, 64])
    parser.add_argument("--continue", dest="again", action="store_true", help="keep the rows that there are")
    options = parser.parse_args()
    file = record("symmetry")
    rows: list[dict[str, object]] = list(csv.DictReader(file.open())) if options.again and file.exists() else []
    done = {(row["set"], int(str(row["epochs"]))) for row in rows}
    for name in options.only:
        if not (options.data / NEEDED.get(name, name)).exists():
            continue
        for epochs in options.epochs:
            if (name, max(1, round(epochs / 8))) not in done:
                rows.append(choice(name, options.data, epochs))
                print(rows[-1])
                save("symmetry", rows)


if __name__ == "__main__":
    main()

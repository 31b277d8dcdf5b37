"""Peak memory of `quarterturn predict` against the size of an image, and against the number of images.

    python bench/large_images.py [--largest 20000] [--images 100000]

Masks of made-up tiled TIFF files of 4 : 3, and tables of made-up 32 x 32 PNG files, by small networks that were trained
for an epoch: what is measured is the way through the files. Each command is a process of its own; the system says how
much memory it had at most.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tifffile
from harness import Rows, parser_for, write
from numpy.typing import NDArray
from PIL import Image

from quarterturn_lab.settings.config import checked
from quarterturn_lab.settings.experiments import settings_of
from quarterturn_lab.settings.networks import Net, edited
from quarterturn_lab.training import training_run

ROW = "roll-all-quarter"
PIXELS = Net(3, 32, ((4,), (4,)), (4,), 2, unet=True, head="conv", dropout=0.0)
LABELS = Net(1, 15, ((4,), (4,)), (8,), 2)
CHILD = """
import sys, time
from quarterturn_lab.cli.app import main
start = time.monotonic()
try:
    main(sys.argv[1:])
except SystemExit as end:
    if end.code:
        raise
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak, time.process_time(), time.monotonic() - start)
"""  # not ru_maxrss, which begins with the memory of the process that started it
SHORT = {"epochs": 1, "batch": 8, "divide_batch": False, "eval_points": 1, "eval_train": 2}


def trained(folder: Path) -> dict[str, Path]:
    """Two runs: a U-Net that labels pixels, and a network that labels images."""
    rng = np.random.default_rng(0)
    for part, name, top in (("cells", "images", 256), ("cells", "labels", 2), ("kinds", "a", 256), ("kinds", "b", 256)):
        (folder / part / name).mkdir(parents=True)
        for i in range(12):
            values = rng.integers(0, top, (48, 48, 3) if name == "images" else (48, 48))
            made = values.astype(np.uint16 if name == "labels" else np.uint8)
            Image.fromarray(made).save(folder / part / name / f"{i:02d}.png")
    runs = {}
    for part, experiment, net in (("cells", "nuclei", PIXELS), ("kinds", "fit", LABELS)):
        settings = {**settings_of(experiment, ROW), **SHORT, "net": edited(net, ROW), "data": str(folder / part)}
        runs[part] = folder / f"run-{part}"
        training_run.run(checked(settings), runs[part])
    return runs


def large_image(path: Path, width: int, height: int) -> None:
    """A tiled TIFF, written tile by tile."""
    tile = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)

    def tiles() -> Iterator[NDArray[np.uint8]]:
        for top in range(0, height, 512):
            for left in range(0, width, 512):
                yield np.roll(tile, top // 512 + 37 * (left // 512), axis=0)

    tifffile.imwrite(path, tiles(), shape=(height, width, 3), dtype=np.uint8, tile=(512, 512), photometric="rgb")


def many_images(folder: Path, count: int) -> None:
    """PNG files, a thousand in a folder."""
    rng = np.random.default_rng(0)
    for i in range(count):
        if i % 1000 == 0:
            (folder / f"{i // 1000:03d}").mkdir(parents=True, exist_ok=True)
        path = folder / f"{i // 1000:03d}" / f"{i:06d}.png"
        if not path.exists():
            Image.fromarray(rng.integers(0, 256, (32, 32), dtype=np.uint8)).save(path)


def measured(run: Path, images: Path, out: Path) -> dict[str, object]:
    """What the command needs: peak memory, and seconds of processors and of the clock."""
    command = [sys.executable, "-c", CHILD, "predict", str(run), str(images), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    peak, used, clock = done.stdout.splitlines()[-1].split()
    return {
        "peak memory, MB": round(int(peak) / 1024),
        "CPU seconds": round(float(used)),
        "seconds": round(float(clock)),
    }


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--largest", type=int, default=20000, help="width of the largest image")
    parser.add_argument("--images", type=int, default=100000, help="number of images in the largest folder")
    options = parser.parse_args()
    rows: Rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        runs = trained(folder)
        for by in (20, 8, 4, 2, 1):
            width, height = options.largest // by, options.largest * 3 // 4 // by
            large_image(folder / "image.tif", width, height)
            found = measured(runs["cells"], folder / "image.tif", folder / "mask.tif")
            rows.append({"what": f"a mask of {width:,} x {height:,} pixels", **found})
            print(rows[-1], flush=True)
        for by in (100, 10, 1):
            many_images(folder / "survey", options.images // by)
            found = measured(runs["kinds"], folder / "survey", folder / "table.csv")
            rows.append({"what": f"a table of {options.images // by:,} images of 32 x 32", **found})
            print(rows[-1], flush=True)
    write("large_images", rows)


if __name__ == "__main__":
    main()

"""Damages files of every kind that the lab reads, and gives them to its commands.

The outcome must be a result or one of our errors: another exception, a hang, or more memory than `MEMORY` is a fault.

    python tests/lab/fuzzing.py COUNT SEED      prints what was tried, and the faults, as JSON
"""

import contextlib
import gzip
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from labtools import class_folders, folder_of, saved, scan, tiny, unsealed
from PIL import Image
from safetensors.torch import save_file

from quarterturn_lab.cli import app
from quarterturn_lab.errors import LabError
from quarterturn_lab.hub.folder import from_pretrained
from quarterturn_lab.models import pretrained
from quarterturn_lab.runs.loading import load
from quarterturn_lab.settings.config import checked
from quarterturn_lab.settings.experiments import settings_of
from quarterturn_lab.training import checkpoint, training_run

MEMORY = 2 << 30  # bytes beyond what Python, torch and the rest take
SECONDS = 30  # of processors for one file
PATIENCE = 300  # seconds of the clock, for one that waits: the machine may have other work
NO_MEMORY = "not enough memory"


class Hung(BaseException):
    """A command that took too long."""


@dataclass(frozen=True)
class Target:
    """A whole file, and what reads it: a command, or a function where a command would train first."""

    file: Path
    read: str | Callable[[Path], object]


# --- files ------------------------------------------------------------------------------------------------------------


def targets(root: Path) -> dict[str, Target]:
    """Whole files of every kind below a folder, by name."""
    run = root / "run"
    training_run.run(tiny(epochs=1), run)
    unsealed(run)  # or checksums would notice everything
    found = {**_images(root, run), **_folders(root), **_runs(root, run), **_volumes(root)}
    return {name: found[name] for name in sorted(found)}


def _images(root: Path, run: Path) -> dict[str, Target]:
    """Image files, which `predict` reads as bytes or, with another run, as numbers."""
    rng, found = np.random.default_rng(0), {}
    pixels = rng.integers(0, 256, (18, 14), dtype=np.uint8)
    for suffix in ("png", "jpg", "gif", "bmp", "webp", "pgm", "tif"):
        path = root / f"image.{suffix}"
        Image.fromarray(pixels).save(path)
        found[suffix] = Target(path, f"predict {run} {path} --convert --out {root}/out.csv")
    palette = root / "palette.png"
    Image.fromarray(np.dstack([pixels, pixels, pixels, pixels])).convert("P").save(palette, transparency=3)
    found["palette"] = Target(palette, f"predict {run} {palette} --convert --out {root}/out.csv")
    floats = Path(shutil.copytree(run, root / "floats"))
    card = json.loads((floats / "model.json").read_text())
    card["settings"] |= {"floats": True, "rules": 2}
    (floats / "model.json").write_text(json.dumps(card))
    header = ["SIMPLE  =                    T", "BITPIX  =                  -32", "NAXIS   =                    2"]
    header += ["NAXIS1  =                   14", "NAXIS2  =                   18", "END"]
    values = pixels.astype(">f4").tobytes()
    fits = "".join(card.ljust(80) for card in header).ljust(2880).encode() + values.ljust(2880, b"\0")
    for name, content in {"fits": fits, "packed fits": gzip.compress(fits)}.items():
        path = root / f"{name.replace(' ', '_')}.fits"
        path.write_bytes(content)
        found[name] = Target(path, f"predict {floats} {path} --out {root}/out.csv")
    for name, array in {"float tiff": pixels.astype(np.float32), "16-bit png": pixels.astype(np.uint16) * 200}.items():
        path = root / f"{name.replace(' ', '_')}.{name[-4:].strip().replace('tiff', 'tif')}"
        Image.fromarray(array).save(path)
        found[name] = Target(path, f"predict {floats} {path} --out {root}/out.csv")
    if find_spec("tifffile"):
        import tifffile

        for name, big in {"pages tiff": False, "big pages tiff": True}.items():
            path = root / f"{name.replace(' ', '_')}.tif"
            with tifffile.TiffWriter(path, bigtiff=big) as file:
                for _ in range(2):  # each with a smaller copy below it
                    file.write(pixels, subifds=1, rowsperstrip=4)
                    file.write(pixels[::2, ::2], subfiletype=1, tile=(16, 16))
            found[name] = Target(path, f"predict {floats} {path} --out {root}/out.csv")
    return found


def _folders(root: Path) -> dict[str, Target]:
    """Folders of images with classes, tables and masks, which `data` reads."""
    classes = class_folders(root / "classes", 3)
    table, sample = root / "table/labels.csv", root / "sample.csv"
    class_folders(root / "table", 3)
    rows = [
        f"{path.parent.name}/{path.name},{i / 7:.3f},{i * 1.5}" for i, path in enumerate(root.glob("table/*/*.png"))
    ]
    table.write_text("\n".join(["file,depth,length_um", *rows]) + "\n")
    sample.write_text("\n".join(["image," + ",".join(load(tiny()).classes), "0.png" + ",0.1" * 10]) + "\n")
    for folder in ("masks/images", "masks/masks"):
        (root / folder).mkdir(parents=True)
        for i in range(3):
            levels = np.random.default_rng(i).integers(0, 2 if "masks/m" in folder else 256, (12, 16), dtype=np.uint8)
            Image.fromarray(levels).save(root / folder / f"{i}.png")
    digits = root / "digits/train-images-idx3-ubyte.gz"
    digits.parent.mkdir()
    digits.write_bytes(gzip.compress(b"\0\0\x08\x03" + np.array([5, 8, 8], dtype=">u4").tobytes() + bytes(320)))
    plain = digits.with_name("t10k-labels-idx1-ubyte")
    plain.write_bytes(b"\0\0\x08\x01\0\0\0\x05" + bytes(5))
    settings = root / "run.toml"
    settings.write_text('symmetry = "C4"\nepochs = 3\nside = 15\nlr = 0.001\ndrops = [0.5, 0.9]\nfloats = false\n')
    return {
        "image in a folder": Target(classes / "ant/1.png", f"data verify {classes}"),
        "table": Target(table, f"data info {root}/table --labels labels.csv"),
        "sample submission": Target(
            sample, f"submit {root}/run --sample {sample} --images {classes}/ant --out {root}/o"
        ),
        "mask": Target(root / "masks/masks/1.png", f"data verify {root}/masks"),
        "idx.gz": Target(digits, f"data verify {digits.parent}"),
        "idx": Target(plain, f"data info {digits.parent}"),
        "toml": Target(settings, f"fit {root}/nowhere --config {settings}"),
    }


def _runs(root: Path, run: Path) -> dict[str, Target]:
    """The files of a run, and what is made from it."""
    sealed = Path(shutil.copytree(run, root / "sealed"))
    shutil.rmtree(sealed)
    training_run.run(tiny(epochs=1), sealed)
    _call(f"export {run} --onnx {root}/net.onnx")
    _call(f"export {run} --to hub --out {root}/hub")
    weights = {f"layer{i}.weight": torch.randn(3, 3) for i in range(3)}
    save_file(weights, root / "weights.safetensors")
    torch.save({"state_dict": weights}, root / "weights.pth")
    older = root / "older.pt"
    torch.save(checkpoint.read(run / checkpoint.NEWEST), older)
    image = f"{root}/image.png"
    return {
        "config.json": Target(run / "config.json", f"predict {run} {image} --out {root}/out.csv"),
        "model.json": Target(run / "model.json", f"predict {run} {image} --out {root}/out.csv"),
        "summary.json": Target(run / "summary.json", f"report {run} --output {root}/page"),
        "metrics.jsonl": Target(run / "metrics.jsonl", f"report {run} --output {root}/page"),
        "environment.json": Target(run / "environment.json", f"report {run} --output {root}/page"),
        "config.json, many runs": Target(run / "config.json", f"report {run} --output {root}/page"),
        "config.json, check": Target(run / "config.json", f"check {run}"),
        "model.json, export": Target(run / "model.json", f"export {run} --to torchscript --out {root}/net.pt"),
        "model.safetensors": Target(run / "model.safetensors", f"evaluate {run} --turns 1"),
        "model.safetensors, sealed": Target(sealed / "model.safetensors", f"evaluate {sealed} --turns 1"),
        "onnx": Target(root / "net.onnx", f"predict --onnx {root}/net.onnx {image} --out {root}/out.csv"),
        "checkpoint": Target(run / checkpoint.NEWEST, checkpoint.read),
        "older checkpoint": Target(older, checkpoint.read),
        "weights.safetensors": Target(root / "weights.safetensors", pretrained.read),
        "weights.pth": Target(root / "weights.pth", pretrained.read),
        "hub config.json": Target(root / "hub/config.json", lambda path: from_pretrained(path.parent)),
    }


def _volumes(root: Path) -> dict[str, Target]:
    """Volumes with labels, and a network for them."""
    if not (find_spec("nibabel") and find_spec("tifffile")):
        return {}
    import tifffile

    scans, plain, stacks = folder_of(root / "scans", 3), root / "plain", root / "stacks"
    described = scans / "dataset.json"
    described.write_text('{"labels": {"background": 0, "near": 1, "far": 2}, "channel_names": {"0": "T1"}}')
    sizes = {f"PhysicalSize{axis}": 1.0 for axis in "XYZ"} | {f"PhysicalSize{axis}Unit": "mm" for axis in "XYZ"}
    for kind in ("images", "labels"):
        (stacks / kind).mkdir(parents=True)
        (plain / kind).mkdir(parents=True)
        for number in range(3):
            values = scan(number)[kind == "labels"]
            saved(plain / kind / f"s{number}.nii", values)
            tifffile.imwrite(stacks / kind / f"s{number}.ome.tif", values, ome=True, metadata={"axes": "ZYX", **sizes})
    net = replace(settings_of("hippocampus", "baseline")["net"], side=8, stages=((4,), (4,)), hidden=(4,), outputs=3)
    options = {"net": net, "data": str(plain), "epochs": 1, "batch": 2, "tiles": 1, "eval_points": 0, "eval_train": 1}
    run = root / "run-of-volumes"
    training_run.run(checked({**settings_of("hippocampus", "baseline"), **options, "divide_batch": False}), run)
    image = plain / "images/s1.nii"
    return {
        "nifti": Target(image, f"predict {run} {image} --out {root}/mask.nii.gz"),
        "nifti in a folder": Target(plain / "images/s0.nii", f"data verify {plain}"),
        "packed nifti": Target(scans / "imagesTr/s1.nii.gz", f"data verify {scans}"),
        "nifti labels": Target(plain / "labels/s1.nii", f"data verify {plain}"),
        "stack": Target(stacks / "images/s1.ome.tif", f"data verify {stacks}"),
        "stack labels": Target(stacks / "labels/s1.ome.tif", f"data verify {stacks}"),
        "dataset.json": Target(described, f"data info {scans}"),
    }


# --- damage -----------------------------------------------------------------------------------------------------------

NUMBERS = (
    b"0",
    b"-1",
    b"1e400",
    b"99999999999999999999",
    b"NaN",
    b"null",
    b'"text"',
    b"[]",
    b"{}",
    b"true",
    b"2147483648",
)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content with one to four changes."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(found) + 1)
        kind = rng.randrange(8)
        if kind == 0 and found:
            found[place % len(found)] ^= 1 << rng.randrange(8)
        elif kind == 1 and found:
            found[place % len(found)] = rng.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del found[place:]
        elif kind == 3:
            del found[place : place + rng.randint(1, 16)]
        elif kind == 4:
            found[place:place] = rng.randbytes(rng.randint(1, 16))
        elif kind == 5:
            start = rng.randrange(len(found) + 1)
            found[place:place] = found[start : start + rng.randint(1, 64)]
        elif kind == 6:
            found[place : place + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\0\1\0\0"))
        elif values := list(re.finditer(rb'-?\d+(\.\d+)?|"[^"]*"|true|false|null', bytes(found))):
            value = rng.choice(values)
            found[value.start() : value.end()] = rng.choice(NUMBERS)
    return bytes(found)


# --- outcomes ---------------------------------------------------------------------------------------------------------


def outcome(target: Target, content: bytes) -> str:
    """What became of this content: "result", "error", or why it is a fault."""
    whole = target.file.read_bytes()
    target.file.write_bytes(content)
    try:
        with _limited():
            if callable(target.read):
                target.read(target.file)
                return "result"
            code, errors = _call(target.read)
    except LabError:
        return "error"
    except Hung:
        return f"it took more than {SECONDS} seconds of processors, or {PATIENCE} of the clock"
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in place if "quarterturn_lab" in frame.filename]
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
        return f"{type(error).__name__} {where} {str(error).splitlines()[0][:120] if str(error) else ''}"
    finally:
        target.file.write_bytes(whole)
    if NO_MEMORY in errors:
        return errors.strip()
    return "result" if code in (0, 1) else "error"


def _call(command: str) -> tuple[int, str]:
    """The exit code and the errors of a command."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            app.main(command.split())
        except SystemExit as end:
            return int(end.code or 0), errors.getvalue()
    return 0, errors.getvalue()


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hung

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, SECONDS), signal.ITIMER_REAL: (signal.SIGALRM, PATIENCE)}
    before = {number: signal.signal(number, stop) for number, _ in timers.values()}
    for timer, (_, seconds) in timers.items():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


# --- as a program -----------------------------------------------------------------------------------------------------


def main(count: int, seed: int) -> dict[str, object]:
    """Try so many damaged files with limited memory."""
    rng, tried, faults = random.Random(seed), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["QUARTERTURN_CACHE"] = f"{folder}/cache"
        found = targets(Path(folder))
        for target in found.values():  # imports what the commands need, which a limit must not cut short
            outcome(target, target.file.read_bytes())
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        for i in range(count):
            name = list(found)[i % len(found)]
            ended = outcome(found[name], damaged(found[name].file.read_bytes(), rng))
            tried[ended if ended in ("result", "error") else "fault"] += 1
            if ended not in ("result", "error"):
                faults[f"{name}: {ended}"] += 1
                print(f"{name}: {ended}", file=sys.stderr, flush=True)
    return {"files": count, "kinds": len(found), "seed": seed, **tried, "faults": faults}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2])), indent=1))

"""Exports of a finished run. Each is loaded again and compared with the network before it gets its name."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from quarterturn_lab.errors import ConfigError, unknown
from quarterturn_lab.files import check_replaceable, no_space, unfinished
from quarterturn_lab.hub import folder as hub_folder
from quarterturn_lab.inference import bioimageio, onnx, torchscript, wsinfer
from quarterturn_lab.inference.agreement import Written, agreement
from quarterturn_lab.inference.description import readme
from quarterturn_lab.inference.network import runner
from quarterturn_lab.inference.source import About, Source, source_of
from quarterturn_lab.runs.trust import NOTHING, Trust


def _hub(source: Source, folder: Path, about: About) -> Written:
    hub_folder.write(folder, source.config, source.card, source.net, readme(source, about))
    loaded = hub_folder.from_pretrained(folder, run_code=True)
    cpu = torch.device("cpu")
    return Written({"quarterturn_lab.hub": runner(loaded, cpu)}, runner(source.net, cpu), source.numbers())


Writer = Callable[[Source, Path, About], Written]
TARGETS: dict[str, tuple[Writer, str]] = {  # how it is written, and the end of its file's name, or "" for a folder
    "onnx": (lambda source, path, _: onnx.write(source, path), ".onnx"),
    "torchscript": (lambda source, path, _: torchscript.write(source, path), ".pt"),
    "bioimageio": (bioimageio.write, ".zip"),
    "wsinfer": (wsinfer.write, ""),
    "hub": (_hub, ""),
}


IMAGES_ONLY = ("bioimageio", "wsinfer")


def export(directory: Path, target: str, out: Path, about: About, trust: Trust = NOTHING) -> str:
    """Write a run's network in the form of a target; returns what it takes and what was checked, in words."""
    if target not in TARGETS:
        raise unknown("value of --to", target, TARGETS)
    write, suffix = TARGETS[target]
    if suffix:
        check_replaceable(out)
    if not suffix and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} exists: {target} is a new folder, so give another name, or remove it")
    source = source_of(directory, trust)
    if source.config.net.axes == 3 and target in IMAGES_ONLY:
        raise ConfigError(f"--to {target} is for images, and this network labels volumes: give --to onnx, say")
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = unfinished(out)
    try:
        with no_space(str(out)):
            scratch.mkdir()
            made = scratch / f"network{suffix}"
            found = agreement(write(source, made, about), source.group)
            if not suffix and out.is_dir():
                out.rmdir()
            made.replace(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return f"takes {source.takes}; {found}"

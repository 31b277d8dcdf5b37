"""Export for WSInfer and its QuPath extension, which classify patches of slides: config.json and TorchScript."""

import json
from pathlib import Path

import numpy as np
import torch

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.hub.folder import normalisation
from quarterturn_lab.inference import torchscript
from quarterturn_lab.inference.agreement import Written
from quarterturn_lab.inference.network import runner
from quarterturn_lab.inference.source import About, Source
from quarterturn_lab.inference.tiles import Run

CPU = torch.device("cpu")


def write(source: Source, folder: Path, about: About) -> Written:
    """Write the folder and load it again: pixels go in through the transforms of config.json, as in WSInfer."""
    card = source.card
    if card.task != "classes" or card.settings.floats or source.config.net.channels != 3:
        raise ConfigError(
            "WSInfer gives a network patches in 8-bit colour and takes one class for each: export a network that was "
            "trained so, or use --to onnx"
        )
    if about.spacing is None:
        raise ConfigError(
            f"give --spacing, the micrometres per pixel of the network's input of {source.side} x {source.side}: for "
            f"training images of 512 pixels at 0.25, say, {512 * 0.25 / source.side:g}"
        )
    if not 0 < about.spacing < float("inf"):
        raise ConfigError(f"--spacing {about.spacing}: micrometres per pixel are needed, such as 0.5")
    folder.mkdir()
    torchscript.save(source, source.plain, folder / "torchscript_model.pt")
    mean, std = normalisation(card)
    config = {
        "spec_version": "1.0",
        "architecture": f"quarterturn {source.config.row}",
        "num_classes": len(card.classes),
        "patch_size_pixels": source.side,
        "spacing_um_px": about.spacing,
        "class_names": list(card.classes),
        "transform": [
            {"name": "Resize", "arguments": {"size": source.side}},
            {"name": "ToTensor"},
            {"name": "Normalize", "arguments": {"mean": mean, "std": std}},
        ],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    run = runner(source.net, CPU)
    return Written({"torch.jit": _as_wsinfer(folder)}, lambda pixels: run(card.scaled(pixels)), source.pixels())


def _as_wsinfer(folder: Path) -> Run:
    """The exported network on pixels in 0..255, scaled as its config.json says."""
    transforms = {step["name"]: step for step in json.loads((folder / "config.json").read_text())["transform"]}
    mean, std = (
        np.array(transforms["Normalize"]["arguments"][name], dtype=np.float32)[:, None, None]
        for name in ("mean", "std")
    )
    run = runner(torchscript.load(folder / "torchscript_model.pt"), CPU)
    return lambda pixels: run((pixels / np.float32(255) - mean) / std)

"""Export of a trained network to an ONNX file that includes its model card."""

import os
from pathlib import Path

import torch

import quarterturn as qt
from quarterturn_lab.errors import RunError
from quarterturn_lab.inference.network import for_whole_images
from quarterturn_lab.runs.model_card import KEY
from quarterturn_lab.runs.trained import load_with_card


def export_run(directory: Path, file: Path) -> str:
    """Write the file after comparing it with the network; returns the input sizes it takes, in words."""
    config, card, net = load_with_card(directory)
    if card.is_dense:
        net = for_whole_images(config, net)
    generator = torch.Generator().manual_seed(0)
    example = torch.randn(2, config.net.channels, config.net.side, config.net.side, generator=generator)
    if file.is_dir():
        raise RunError(f"--onnx {file} is a folder: give the name of a file")
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}.onnx")
    try:
        qt.export(net, example, scratch, free="sizes" if card.is_dense else "batch")
        import onnx

        model = onnx.load(str(scratch))
        onnx.helper.set_model_props(model, {KEY: card.to_json()})
        onnx.save(model, str(scratch))
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
    return "any batch, any size" if card.is_dense else f"any batch of {config.net.side} x {config.net.side}"

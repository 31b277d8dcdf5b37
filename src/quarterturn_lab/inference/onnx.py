"""Export to an ONNX file that includes the model card."""

from pathlib import Path

import torch

import quarterturn as qt
from quarterturn_lab.inference.agreement import Written
from quarterturn_lab.inference.network import runner
from quarterturn_lab.inference.predict import NO_SUM, SUM, onnx_runner, seal
from quarterturn_lab.inference.source import Source
from quarterturn_lab.runs.model_card import KEY


def write(source: Source, path: Path) -> Written:
    """Write the file and load it again."""
    save(source, path)
    return Written({"onnxruntime": onnx_runner(path)[0]}, runner(source.net, torch.device("cpu")), source.numbers())


def save(source: Source, path: Path) -> int:
    """Write the file; returns the version of ONNX's operators that it uses."""
    example = torch.from_numpy(source.numbers()[0])
    if not source.card.is_dense:
        example = example.expand(2, -1, -1, -1).contiguous()
    qt.export(source.net, example, path, free="sizes" if source.card.is_dense else "batch")
    import onnx

    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {KEY: source.card.to_json(), SUM: NO_SUM})
    onnx.save(model, str(path))
    seal(path)
    return next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))

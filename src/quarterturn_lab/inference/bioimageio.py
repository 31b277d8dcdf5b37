"""Export to a bioimage.io package: rdf.yaml, TorchScript and ONNX weights, test tensors, and a page about the model.

Pixels go in as files hold them, and probabilities come out: rdf.yaml has both steps.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax  # type: ignore[import-untyped]

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.inference import onnx, torchscript
from quarterturn_lab.inference.agreement import Written
from quarterturn_lab.inference.description import PAPER, headline, page
from quarterturn_lab.inference.network import runner
from quarterturn_lab.inference.predict import onnx_runner
from quarterturn_lab.inference.source import About, Source
from quarterturn_lab.inference.tiles import Run


def write(source: Source, path: Path, about: About) -> Written:
    """Write the package, have bioimageio.spec validate it, and load it again."""
    spec = _package()
    licence = _licence(about.license)
    parts = path.with_name(f"{path.name}.parts")
    parts.mkdir()
    expected = _expected(source)
    inputs = source.pixels()
    pixels = inputs[1][:1] if source.card.is_dense else inputs[0]
    np.save(parts / "test_input.npy", pixels if source.card.settings.floats else pixels.astype(np.uint8))
    np.save(parts / "test_output.npy", expected(pixels).astype(np.float32))
    torchscript.save(source, source.plain, parts / "weights.pt")
    opset = onnx.save(source, parts / "weights.onnx")
    (parts / "documentation.md").write_text(page(source))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what a user may add before publishing it, such as a cover
        spec.save_bioimageio_package(_described(source, parts, about.authors, licence, opset), output_path=path)
        shutil.rmtree(parts)
        shutil.unpack_archive(path, parts)  # what follows knows the package alone
        loaded = spec.load_description(parts / "rdf.yaml", perform_io_checks=True)
    if isinstance(loaded, spec.InvalidDescr):
        raise RunError(f"bioimageio.spec refuses the package: {_complaint(loaded.validation_summary)}")
    return Written(_as_described(loaded, parts), expected, inputs)


def _package() -> Any:
    try:
        from bioimageio import spec
        from loguru import logger
    except ImportError as error:
        raise RunError(f'--to bioimageio needs {error.name}: pip install "quarterturn[bioimageio]"') from None
    logger.disable("bioimageio")  # it logs to the terminal
    return spec


def _licence(name: str | None) -> Any:
    from bioimageio.spec.model.v0_5 import LicenseId

    try:
        return LicenseId(name) if name else None
    except ValueError:
        raise ConfigError(f"--license {name}: give the SPDX name of a licence, such as CC-BY-4.0 or MIT") from None


def _described(source: Source, parts: Path, authors: tuple[str, ...], licence: Any, opset: int) -> Any:
    """The content of rdf.yaml."""
    from bioimageio.spec.model import v0_5 as form

    return form.ModelDescr(
        name=source.title,
        description=headline(source),
        authors=[form.Author(name=name) for name in authors],
        cite=[form.CiteEntry(text=PAPER, url=form.HttpUrl("https://arxiv.org/abs/1602.02660"))],
        license=licence,
        documentation=form.FileDescr(source=parts / "documentation.md"),
        tags=["equivariance", "rotation", "segmentation" if source.card.is_dense else "classification", "quarterturn"],
        inputs=[_input(form, source, parts / "test_input.npy")],
        outputs=[_output(form, source, parts / "test_output.npy")],
        weights=form.WeightsDescr(
            torchscript=form.TorchscriptWeightsDescr(
                source=parts / "weights.pt", pytorch_version=form.Version(torch.__version__.partition("+")[0])
            ),
            onnx=form.OnnxWeightsDescr(source=parts / "weights.onnx", opset_version=opset, parent="torchscript"),
        ),
    )


def _input(form: Any, source: Source, test: Path) -> Any:
    card, side = source.card, source.side
    floats = card.settings.floats
    size = form.ParameterizedSize(min=side, step=source.step) if card.is_dense else side
    gain, offset = card.linear()
    as_float = form.EnsureDtypeDescr(kwargs=form.EnsureDtypeKwargs(dtype="float32"))
    scaled = form.ScaleLinearAlongAxisKwargs(axis=form.AxisId("channel"), gain=list(gain), offset=list(offset))
    return form.InputTensorDescr(
        id=form.TensorId("image"),
        axes=[
            form.BatchAxis(),
            form.ChannelAxis(channel_names=_channels(source.config.net.channels)),
            *(form.SpaceInputAxis(id=form.AxisId(name), size=size) for name in "yx"),
        ],
        data=form.IntervalOrRatioDataDescr(type="float32" if floats else "uint8"),
        test_tensor=form.FileDescr(source=test),
        preprocessing=[as_float, form.ScaleLinearDescr(kwargs=scaled), as_float],  # else spec appends the input's type
    )


def _output(form: Any, source: Source, test: Path) -> Any:
    card = source.card
    axes = [form.BatchAxis(), form.ChannelAxis(channel_names=[*card.classes])]
    for name in "yx" if card.is_dense else "":
        size = form.SizeReference(tensor_id=form.TensorId("image"), axis_id=form.AxisId(name), offset=-2 * card.margin)
        axes.append(form.SpaceOutputAxis(id=form.AxisId(name), size=size))
    channel = form.AxisId("channel")
    if card.task == "answers":
        last = form.ClipDescr(kwargs=form.ClipKwargs(min=0.0, max=1.0))
    elif card.task == "tags":
        last = form.SigmoidDescr()
    elif card.units:
        gain, offset = list(card.units.deviation), list(card.units.mean)
        last = form.ScaleLinearDescr(kwargs=form.ScaleLinearAlongAxisKwargs(axis=channel, gain=gain, offset=offset))
    else:
        last = form.SoftmaxDescr(kwargs=form.SoftmaxKwargs(axis=channel))
    return form.OutputTensorDescr(
        id=form.TensorId("answers"),
        axes=axes,
        data=form.IntervalOrRatioDataDescr(type="float32"),
        test_tensor=form.FileDescr(source=test),
        postprocessing=[last],
    )


def _expected(source: Source) -> Run:
    """The answers to pixels, as the lab computes them; for masks, of both classes."""
    run, card = runner(source.net, torch.device("cpu")), source.card

    def expected(pixels: NDArray[np.float32]) -> NDArray[Any]:
        values = run(card.scaled(pixels))
        return softmax(values, axis=1) if card.is_dense else card.answers(values)

    return expected


def _as_described(description: Any, parts: Path) -> dict[str, Run]:
    """What both weights of the package compute from pixels, with the steps of its description around them."""

    def described(run: Run) -> Run:
        def whole(pixels: NDArray[np.float32]) -> NDArray[Any]:
            values = pixels.astype(description.inputs[0].data.type)
            for step in description.inputs[0].preprocessing:
                values = _stepped(step, values)
            values = run(values)
            for step in description.outputs[0].postprocessing:
                values = _stepped(step, values)
            return values

        return whole

    weights = description.weights
    script = torchscript.load(parts / weights.torchscript.source.path)
    return {
        "torch.jit": described(runner(script, torch.device("cpu"))),
        "onnxruntime": described(onnx_runner(parts / weights.onnx.source.path)[0]),
    }


def _stepped(step: Any, values: NDArray[Any]) -> NDArray[Any]:
    """The steps before and after a network that these packages have."""
    if step.id == "ensure_dtype":
        return values.astype(step.kwargs.dtype)
    if step.id == "scale_linear":
        shape = (-1, *[1] * (values.ndim - 2))
        return values * np.array(step.kwargs.gain).reshape(shape) + np.array(step.kwargs.offset).reshape(shape)
    if step.id == "sigmoid":
        return expit(values)
    if step.id == "clip":
        return values.clip(step.kwargs.min, step.kwargs.max)
    assert step.id == "softmax"
    return softmax(values, axis=1)


def _channels(count: int) -> list[str]:
    return {1: ["grey"], 3: ["red", "green", "blue"]}.get(count, [f"channel{i}" for i in range(count)])


def _complaint(found: Any) -> str:
    """The first errors of a test that failed."""
    errors = [entry.msg for detail in found.details for entry in detail.errors]
    return "; ".join(line.strip().splitlines()[0] for line in errors[:3] if line.strip()) or found.status

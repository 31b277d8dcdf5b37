"""From a network to a file: `to_plain`, torch.export, ONNX, and a comparison of the file with the network."""

import copy
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from quarterturn import ops
from quarterturn._export.plain_network import to_plain
from quarterturn.check import TOLERANCES, in_eval_mode, largest_difference
from quarterturn.errors import ConversionError, QuarterturnError, unknown
from quarterturn.groups import Group

Free = Literal["nothing", "batch", "sizes"]
ROUNDINGS = 4  # a file may differ by so many times the network's own rounding: both round, each in its own order


def export(
    model: nn.Module, example: Tensor, file: str | Path, free: Free = "batch", fold: bool = True
) -> fx.GraphModule:
    """Write an equivariant network to an ONNX file, and return the plain network that the file holds.

    `file` is written for inputs like `example`. `free` says what may differ from the example: "nothing", the "batch"
    size, or the batch size and all map "sizes" (for fully convolutional networks). With `fold`, batch norms are folded
    into convolutions. onnxruntime then runs the file on the example, on its turned copies and, if sizes are free, on
    maps of another shape. If an output differs from the network's, the file is deleted and an error is raised.

    >>> from quarterturn import C4, SliceConv, Pool
    >>> net = nn.Sequential(SliceConv(C4, 1, 2, 3, rotate="filters"), nn.ReLU(), Pool(C4, rotate="filters"))
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plain = export(net, torch.randn(2, 1, 16, 16), folder + "/net.onnx")
    ...     print(sorted(path.name for path in Path(folder).iterdir()))
    ['net.onnx']
    """
    if free not in ("nothing", "batch", "sizes"):
        raise unknown("value of free", free, ("nothing", "batch", "sizes"))
    onnxruntime = _onnxruntime()
    plain = to_plain(model, example, dynamic=free == "sizes", fold=fold)
    plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch fails with others at 1 x 1
    program = _exported(_with_attention_in_order(plain), example, free)
    path = Path(file)
    with _quietly():
        onnx: Any = torch.onnx.export(program, (example,), dynamo=True, verbose=False)
        onnx.save(str(path))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    try:
        _compare(model, plain, session, example, free)
    except QuarterturnError:
        path.unlink()
        raise
    return plain


def group_of(model: nn.Module) -> Group | None:
    """The largest group among the network's layers, or None."""
    attributes = [getattr(module, "group", None) for module in model.modules()]
    return max((a for a in attributes if isinstance(a, Group)), key=lambda group: group.order, default=None)


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        raise ConversionError(f"{error.name} is missing: pip install 'quarterturn[onnx]'") from error
    return onnxruntime


def _with_attention_in_order(plain: fx.GraphModule) -> fx.GraphModule:
    """The network with the results of attention in order in memory.

    Torch's own attention may leave them in another one, which what is written into the file instead of it does not.
    """
    twin = copy.deepcopy(plain)
    for node in twin.graph.nodes:
        if node.target is F.scaled_dot_product_attention:
            with twin.graph.inserting_after(node):
                ordered = twin.graph.call_method("clone", (node,), {"memory_format": torch.contiguous_format})
            node.replace_all_uses_with(ordered, delete_user_cb=lambda user, new=ordered: user is not new)
    twin.recompile()
    return twin


def _exported(plain: nn.Module, example: Tensor, free: Free) -> torch.export.ExportedProgram:
    axes = {"nothing": [], "batch": [0], "sizes": [0, *range(2, example.dim())]}[free]
    if 0 in axes and example.shape[0] == 1:  # torch treats a size of 1 as fixed
        example = torch.cat([example, example])
    shapes = dict.fromkeys(axes, torch.export.Dim.DYNAMIC)
    try:
        return torch.export.export(plain, (example,), dynamic_shapes=(shapes,))
    except (torch._dynamo.exc.UserError, RuntimeError) as error:
        what = "batch and sizes" if free == "sizes" else free
        raise ConversionError(
            f"torch cannot export the network with free {what}: {str(error).strip().splitlines()[0]}"
        ) from error


def _compare(model: nn.Module, plain: nn.Module, session: Any, example: Tensor, free: Free) -> None:
    """Raise unless the file gives the same outputs as the network."""
    name = session.get_inputs()[0].name
    group = group_of(model)
    square = group is None or len(set(example.shape[2:])) == 1
    turned = [ops.act(example, group, g).contiguous() for g in range(group.order)] if group and square else [example]
    inputs = [(model, x) for x in turned]
    if free != "nothing":
        inputs.append((model, torch.randn(3, *example.shape[1:], dtype=example.dtype)))
    if free == "sizes":
        inputs.append((plain, _of_another_shape(plain, example)))
    for reference, x in inputs:
        with in_eval_mode(reference), torch.no_grad():
            expected = reference(x)
        got = [torch.from_numpy(array) for array in session.run(None, {name: x.numpy()})]
        gap, size = largest_difference(expected, got)
        within = gap <= TOLERANCES.get(example.dtype, 1e-4) * size
        if not within and not gap <= ROUNDINGS * _rounding(reference, x, expected):
            raise ConversionError(
                f"the file differs from the network by {gap:.3g} on outputs of size {size:.3g}, for an input of shape "
                f"{tuple(x.shape)}; the file was deleted"
            )


def _rounding(model: nn.Module, x: Tensor, expected: Any) -> float:
    """How far the network's outputs are from its own in float64; 0 where it does not run in float64."""
    try:
        twin = copy.deepcopy(model).double()
        with in_eval_mode(twin), torch.no_grad():
            return largest_difference(expected, twin(x.double()))[0]
    except (RuntimeError, TypeError, ValueError):  # code, or a kernel, that asks for float32
        return 0.0


def _of_another_shape(plain: nn.Module, example: Tensor) -> Tensor:
    """Maps of another shape that the network accepts: with skip connections, some shapes fail."""
    for factor, step in ((1, 1), (1, 3), (2, 0)):
        sizes = [factor * example.shape[2] + step, *example.shape[3:]]
        x = torch.randn(2, example.shape[1], *sizes, dtype=example.dtype)
        try:
            with torch.no_grad(), redirect_stderr(io.StringIO()):  # a traced module prints its errors
                plain(x)
        except RuntimeError:
            continue
        return x
    raise ConversionError(f'the network accepts only maps of size {tuple(example.shape[2:])}: use free="batch"')


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence torch's exporter, which warns about packages that it does not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

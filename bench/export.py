"""Inference of plain twins, in torch and onnxruntime, against an ordinary network of the same widths.

    python bench/export.py [--batch 8] [--repeats 9]

The paper's plankton network at 95x95: "roll all 1/4", and "pool-mean", in which orientations meet only in the pool, so
that it does the work of 4 ordinary networks. Times are CPU seconds of one thread.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import torch
from harness import Rows, medians, parser_for, start_again_with_a_warm_allocator, write
from modes import plain as ordinary
from modes import rolled
from torch import nn

import quarterturn as qt
from quarterturn import Group


def pooled(group: Group) -> nn.Sequential:
    """The ordinary network on every orientation, pooled before its last layer."""
    *body, last = ordinary()
    return nn.Sequential(qt.Slice(group), *body, qt.Pool(group), last)


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def running(path: Path, x: torch.Tensor) -> Callable[[], object]:
    """A run of the file on one thread."""
    opened = session(path)
    feed = {opened.get_inputs()[0].name: np.asarray(x)}
    return lambda: opened.run(None, feed)


def ordinary_file(net: nn.Module, x: torch.Tensor, path: Path) -> None:
    program = torch.export.export(net, (x,))
    onnx = torch.onnx.export(program, (x,), dynamo=True, verbose=False)
    assert onnx is not None
    onnx.save(str(path))


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(options.batch, 1, 95, 95)
    net, twins = ordinary().eval(), {"roll all 1/4": rolled(qt.C4, "filters").eval(), "pool-mean": pooled(qt.C4).eval()}
    torches: dict[str, Callable[[], object]] = {"ordinary": lambda: net(x)}
    sessions: dict[str, Callable[[], object]] = {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for each in (net, *twins.values()):
            each(x)
        path = Path(folder) / "network.onnx"
        ordinary_file(net, x, path)
        sessions["ordinary"] = running(path, x)
        for name, equivariant in twins.items():
            twin = qt.export(equivariant, x, path, free="nothing")
            torches[name], sessions[name] = lambda twin=twin: twin(x), running(path, x)  # type: ignore[misc]
        seconds = {
            runtime: medians(contenders, options.repeats, time.process_time)
            for runtime, contenders in (("torch", torches), ("onnxruntime", sessions))
        }
    rows: Rows = [
        {
            "network": name,
            "runtime": runtime,
            "batch": options.batch,
            "plain twin of ordinary": f"{measured[name] / measured['ordinary']:.2f}",
        }
        for name in twins
        for runtime, measured in seconds.items()
    ]
    write("export", rows)


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()

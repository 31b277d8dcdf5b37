"""Inference of the plain twin of "roll all 1/4", in torch and onnxruntime, against a network of the same widths.

    python bench/export.py [--batch 8] [--repeats 9]

The paper's plankton network at 95x95. Times are CPU seconds of one thread.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import torch
from harness import medians, parser_for, start_again_with_a_warm_allocator, write
from modes import plain as ordinary
from modes import rolled
from torch import nn

import quarterturn as qt


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


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
    net, equivariant = ordinary().eval(), rolled(qt.C4, "filters").eval()
    with torch.no_grad():
        net(x), equivariant(x)
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.onnx" for name in ("ordinary", "plain twin")}
        ordinary_file(net, x, paths["ordinary"])
        twin = qt.export(equivariant, x, paths["plain twin"], free="nothing")
        sessions = {name: session(path) for name, path in paths.items()}
    feed = {name: {s.get_inputs()[0].name: np.asarray(x)} for name, s in sessions.items()}
    rows: list[dict[str, object]] = []
    with torch.no_grad():
        seconds = {
            "torch": medians(
                {"ordinary": lambda: net(x), "plain twin": lambda: twin(x)}, options.repeats, time.process_time
            ),
            "onnxruntime": medians(
                {
                    "ordinary": lambda: sessions["ordinary"].run(None, feed["ordinary"]),
                    "plain twin": lambda: sessions["plain twin"].run(None, feed["plain twin"]),
                },
                options.repeats,
                time.process_time,
            ),
        }
    for runtime, measured in seconds.items():
        ratio = measured["plain twin"] / measured["ordinary"]
        rows.append({"runtime": runtime, "batch": options.batch, "plain twin of ordinary": round(ratio, 2)})
    write("export", rows)


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()

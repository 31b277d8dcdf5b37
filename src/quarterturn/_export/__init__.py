"""Equivariant networks as ordinary ones: `to_plain`, a module of torch, and `export`, an ONNX file."""

from quarterturn._export.onnx_file import export as export
from quarterturn._export.plain_network import to_plain as to_plain

"""Turn equivariant networks into ordinary ones: `to_plain` returns a torch module, `export` writes an ONNX file."""

from quarterturn._export.onnx_file import export as export
from quarterturn._export.plain_network import to_plain as to_plain

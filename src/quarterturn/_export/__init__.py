"""Out again: any equivariant network as an ordinary torch module."""

from quarterturn._export.build import to_plain as to_plain
from quarterturn._export.export import export as export

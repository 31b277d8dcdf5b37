"""Out again: any equivariant network as an ordinary torch module."""

from quarterturn.plain.build import to_plain as to_plain
from quarterturn.plain.export import export as export

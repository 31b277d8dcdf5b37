"""What runs a layer, and why: the one answer that `forward`, the cost table, the benchmarks and `explain` all use."""

from dataclasses import dataclass
from typing import Literal

from quarterturn import fourier
from quarterturn.groups import Group

Code = Literal["kernel", "block-diagonal product", "torch's convolution", "torch's matrix product", "torch's operators"]


@dataclass(frozen=True)
class Execution:
    """The code that runs a layer for an input, and the reason in words; the group, where it is in its Fourier basis.

    >>> from quarterturn import C4
    >>> Execution("kernel", "wide enough to gain", C4).share
    0.375
    """

    code: Code
    why: str
    basis: Group | None = None

    @property
    def share(self) -> float:
        """The part of the products that is left: 6/16 in the basis of C4, 12/64 in that of D4, all without one."""
        return fourier.products(self.basis) / self.basis.order**2 if self.basis else 1.0

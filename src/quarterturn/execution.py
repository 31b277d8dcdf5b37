"""Which code runs a layer, and why. `forward`, the cost table, the benchmarks and `explain` all use this answer."""

from dataclasses import dataclass
from typing import Literal

from quarterturn import fourier
from quarterturn.groups import Group

Code = Literal["kernel", "block-diagonal product", "torch's convolution", "torch's matrix product", "torch's operators"]


@dataclass(frozen=True)
class Execution:
    """The `code` that runs a layer on an input, and `why`; `basis` is the group if it runs in the group-Fourier basis.

    >>> from quarterturn import C4
    >>> Execution("kernel", "wide enough to gain", C4).share
    0.375
    """

    code: Code
    why: str
    basis: Group | None = None

    @property
    def share(self) -> float:
        """The fraction of the multiply-adds that is done: 6/16 in the basis of C4, 12/64 of D4, 1 without a basis."""
        return fourier.products(self.basis) / self.basis.order**2 if self.basis else 1.0

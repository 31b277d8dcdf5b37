"""Whether a network that was written is right, to rounding."""

from collections.abc import Callable

import torch

from quarterturn.check import TOLERANCES


def error_beyond_rounding(error_in: Callable[[torch.dtype], float], dtype: torch.dtype) -> float | None:
    """The error of a network, relative to its output, where it is more than rounding; else None.

    A network that has learnt nothing may amplify rounding. So `error_in` is asked for the error in float64 where that
    in the network's own dtype is too large, and this decides.

    >>> error_beyond_rounding({torch.float32: 0.1, torch.float64: 1e-14}.get, torch.float32)
    >>> error_beyond_rounding({torch.float32: 0.1, torch.float64: 0.1}.get, torch.float32)
    0.1
    """
    if error_in(dtype) <= TOLERANCES.get(dtype, 1e-4):
        return None
    error = error_in(torch.float64)
    return None if error <= 1e-6 else error

"""Whether an export, loaded again, says what the network says, and is as equivariant."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

import quarterturn as qt
from quarterturn.check import TOLERANCES
from quarterturn_lab.errors import RunError
from quarterturn_lab.inference.tiles import Run

TOLERANCE = TOLERANCES[torch.float32]


@dataclass(frozen=True)
class Written:
    """An export that was loaded again: what runs it, what it should say, and for which inputs."""

    runs: dict[str, Run]  # by what it was loaded with
    expected: Run
    inputs: list[NDArray[np.float32]]


def agreement(written: Written, group: qt.Group | None) -> str:
    """What was found, in words; an export that differs raises.

    An ordinary network, or one whose own answers change, is exported as it is: the words say so.
    """
    worst, where = 0.0, " and ".join(written.runs)
    for x in written.inputs:
        expected = written.expected(x)
        for name, run in written.runs.items():
            got = np.asarray(run(x))
            if got.shape != expected.shape:
                raise RunError(f"{name} gives {got.shape} for an input of {x.shape}, the network {expected.shape}")
            gap = float(np.abs(got - expected).max() / np.abs(expected).max())
            worst = gap if not gap <= worst else worst  # NaN stays
    if not worst <= TOLERANCE:
        raise RunError(
            f"the export differs from the network by {worst:.2g} of its largest output in {where}, and was not kept: "
            "this is a bug in quarterturn, please report it"
        )
    said = f"loaded again in {where}, outputs agree with the network to {worst:.0e}"
    if group is None:
        return f"{said}; it is an ordinary network, without a symmetry to check"
    before = _change(written.expected, group, written.inputs)
    if before > TOLERANCE:
        return f"{said}; it is not equivariant to {group.name}, as the network is not: outputs change by {before:.1g}"
    after = max(_change(run, group, written.inputs) for run in written.runs.values())
    if not after <= TOLERANCE:
        raise RunError(
            f"the network is equivariant to {group.name}, the export in {where} is not: outputs change by {after:.2g}. "
            "It was not kept: this is a bug in quarterturn, please report it"
        )
    return f"{said}, and it is equivariant to {group.name} to {after:.0e} ({group.order} orientations)"


def _change(run: Run, group: qt.Group, inputs: list[NDArray[np.float32]]) -> float:
    """The largest equivariance error over the inputs, relative to the outputs."""

    def network(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(run(x.numpy())))

    return max(max(qt.equivariance_error(network, group, torch.from_numpy(x)).relative) for x in inputs)

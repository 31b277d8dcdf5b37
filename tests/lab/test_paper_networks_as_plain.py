"""The paper's networks, dense heads included, as plain networks: equal to the originals in both modes."""

from dataclasses import replace

import pytest
import torch

import quarterturn as qt
from quarterturn_lab.models.build import build
from quarterturn_lab.settings.networks import BUILDINGS, GALAXIES, PLANKTON, Net, edited

ROWS = ("pool-mean", "pool-max", "stack", "roll-dense-half", "roll-all-quarter", "roll-all-eighth-dihedral")


def small(net: Net, side: int) -> Net:
    """The same layers, an eighth as wide."""
    stages = tuple(tuple(max(8, width // 8) for width in stage) for stage in net.stages)
    return replace(net, side=side, stages=stages, hidden=(16,) * len(net.hidden))


@pytest.mark.parametrize("rotate", ["maps", "filters"])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "net", [small(PLANKTON, 31), small(GALAXIES, 32), small(BUILDINGS, 52)], ids=["plankton", "galaxies", "buildings"]
)
def test_the_papers_networks_become_plain(net: Net, row: str, rotate: str) -> None:
    if row == "roll-dense-half" and net.head == "conv":
        row = "roll-all-half"  # it has no dense layer to roll
    model = build(edited(net, row), rotate).double().eval()
    x = torch.randn(2, net.channels, net.side, net.side, dtype=torch.float64)
    plain = qt.to_plain(model, x, fold=True)
    torch.testing.assert_close(plain(x), model(x), rtol=1e-10, atol=1e-10)
    group = qt.D4 if "dihedral" in row else qt.C4
    if row != "stack":
        qt.assert_equivariant(plain, group, x)

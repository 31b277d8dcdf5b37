"""The small vision transformers of the lab: equivariant, of the sizes that they are said to have, and they learn."""

import pytest
import torch
from torch import nn

import quarterturn as qt
from quarterturn_lab.models import vit

EQUIVARIANT = {"vit_c4": qt.C4, "vit_c4_coupled": qt.C4, "vit_d4": qt.D4, "vit_d4_coupled": qt.D4}


def made(name: str, side: int = 16) -> nn.Module:
    torch.manual_seed(0)
    net: nn.Module = getattr(vit, name)(1, side, 5)
    return net.double().eval()


@pytest.mark.parametrize("side", [16, 18])
@pytest.mark.parametrize("name", EQUIVARIANT)
def test_turned_images_get_the_same_answer(name: str, side: int) -> None:
    x = torch.randn(2, 1, side, side, dtype=torch.float64)
    net = made(name, side)
    assert max(qt.equivariance_error(net, EQUIVARIANT[name], x).relative) < 1e-10
    assert net(x).abs().max() > 1e-6


def test_the_ordinary_one_and_a_larger_group_are_found_out() -> None:
    x = torch.randn(2, 1, 16, 16, dtype=torch.float64)
    for name in ("vit_plain", "vit_c4"):
        with pytest.raises(qt.NotEquivariantError):
            qt.assert_equivariant(made(name), qt.D4, x)


def test_linear_layers_have_a_quarter_or_an_eighth_of_the_weights() -> None:
    sizes = {
        name: sum(p.numel() for p in made(name).blocks.parameters() if p.dim() > 1)
        for name in ("vit_plain", *EQUIVARIANT)
    }
    assert sizes["vit_c4"] == sizes["vit_c4_coupled"] == sizes["vit_plain"] / 4
    assert sizes["vit_d4"] == sizes["vit_d4_coupled"] == sizes["vit_plain"] / 8


@pytest.mark.parametrize("name", ["vit_plain", *EQUIVARIANT])
def test_some_steps_lower_the_loss(name: str) -> None:
    net = made(name).train()
    x, labels = torch.randn(20, 1, 16, 16, dtype=torch.float64), torch.arange(20) % 5
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(net(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1e-2

"""Whole networks in both modes: equal outputs and gradients, equivariant, and equal after training."""

import copy
import io

import pytest
import torch
from networks import NETWORKS, UNet
from torch import nn

import quarterturn as qt
from quarterturn import C2, C4, D4, MIRROR, Group

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
each_network = pytest.mark.parametrize("name", NETWORKS)
each_group = pytest.mark.parametrize("group", [C2, MIRROR, C4, D4], ids=lambda g: g.name)


def parameter_names(net: nn.Module) -> list[str]:
    """Without the numbers of the places in a Sequential, which an Unstack shifts."""
    return [name.split(".")[-1] for name in net.state_dict()]


def twins(name: str, group: Group, x: torch.Tensor) -> tuple[nn.Module, nn.Module]:
    maps, filters = (NETWORKS[name](group, rotate).double() for rotate in ("maps", "filters"))
    maps(x), filters(x)  # lazy layers take their shapes
    assert parameter_names(maps) == parameter_names(filters)
    with torch.no_grad():
        for one, two in zip(maps.state_dict().values(), filters.state_dict().values(), strict=True):
            two.copy_(one)
    return maps, filters


@each_network
@each_group
@pytest.mark.parametrize("size", [12, 16, 17])
def test_networks_agree_in_both_modes_and_are_equivariant(name: str, group: Group, size: int) -> None:
    if name == "unet" and size % 4:
        pytest.skip("its skip connections need a multiple of 4")
    x = torch.randn(3, 1, size, size, dtype=torch.float64)
    maps, filters = twins(name, group, x)
    from_maps, from_filters = maps(x), filters(x)
    torch.testing.assert_close(from_filters, from_maps, **CLOSE)
    weights = torch.randn_like(from_maps)
    (from_maps * weights).sum().backward()
    (from_filters * weights).sum().backward()
    for one, two in zip(maps.parameters(), filters.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, **CLOSE)
    for one, two in zip(maps.buffers(), filters.buffers(), strict=True):
        torch.testing.assert_close(two, one, **CLOSE)  # running statistics after a training step
    qt.assert_equivariant(maps, group, x)
    qt.assert_equivariant(filters, group, x)


@each_group
def test_a_segmenter_takes_images_of_any_shape(group: Group) -> None:
    net = UNet(group, "filters").double()
    x = torch.randn(1, 1, 300, 200, dtype=torch.float64)
    assert net(x).shape == (1, 1, 300, 200)
    qt.assert_equivariant(net, group, x)
    if group.exchanged:
        with pytest.raises(qt.ShapeError, match='rotate="filters"'):
            UNet(group, "maps").double()(x)


def test_checkpoints_cross_modes() -> None:
    x = torch.randn(2, 1, 16, 16, dtype=torch.float64)
    trained = UNet(D4, "filters").double().train()
    trained(x)
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    other = UNet(D4, "maps").double()
    other.load_state_dict(torch.load(file), strict=True)
    torch.testing.assert_close(other.eval()(x), trained.eval()(x), **CLOSE)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("size", [31, 32])
def test_training_in_both_modes_gives_the_same_losses(group: Group, size: int) -> None:
    """Real-valued random images have no ties, which max pooling would break in scan order."""
    x = torch.randn(6, 1, size, size, dtype=torch.float64)
    labels = torch.randint(5, (6,))
    losses = []
    for net in twins("plankton", group, x):
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
        losses.append([])
        for _ in range(5):
            loss = nn.functional.cross_entropy(net(x), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-8)
    assert losses[0][-1] < losses[0][0]


def test_the_checker_names_layers_of_filters_mode() -> None:
    net = nn.Sequential(
        qt.SliceConv(C4, 1, 2, 3, rotate="filters"),
        nn.MaxPool2d(3, 2),  # torch's own: right on symmetric grids alone
        qt.RollConv(C4, 2, 2, 3, rotate="filters"),
        qt.Pool(C4, rotate="filters"),
    ).double()
    qt.assert_equivariant(net, C4, torch.randn(2, 1, 13, 13, dtype=torch.float64))
    with pytest.raises(qt.NotEquivariantError, match=r"the first layer that breaks it is '1' \(MaxPool2d"):
        qt.assert_equivariant(net, C4, torch.randn(2, 1, 12, 12, dtype=torch.float64))
    net[1] = qt.MaxPool(C4, 3, 2, rotate="filters")
    qt.assert_equivariant(net, C4, torch.randn(2, 1, 12, 12, dtype=torch.float64))


@pytest.mark.parametrize("rotate", ["maps", "filters"])
def test_networks_copy_export_and_autocast(rotate: str) -> None:
    net = UNet(C4, rotate).eval()
    x = torch.randn(2, 1, 16, 16)
    expected = net(x)
    torch.testing.assert_close(copy.deepcopy(net)(x), expected)
    program = torch.export.export(net, (x,))
    torch.testing.assert_close(program.module()(x), expected, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (net(x).float() - expected).abs().max() < 0.1
    last = net.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, expected, rtol=1e-4, atol=1e-5)


def test_filters_mode_exports_with_free_sizes_strided_layers_too() -> None:
    net = nn.Sequential(
        qt.SliceConv(C4, 1, 2, 3, 2, 1, rotate="filters"),
        nn.ReLU(),
        qt.MaxPool(C4, 3, 2, ceil_mode=True, rotate="filters"),
        qt.RollConv(C4, 2, 2, 4, 2, 1, rotate="filters"),
        qt.Pool(C4, rotate="filters"),
    )
    batch, height, width = (torch.export.Dim(name, min=16) for name in ("batch", "height", "width"))
    x = torch.randn(17, 1, 32, 24)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: batch, 2: height, 3: width},))
    for sizes in ((33, 24), (31, 50)):
        x = torch.randn(16, 1, *sizes)
        torch.testing.assert_close(program.module()(x), net(x), rtol=1e-4, atol=1e-5)

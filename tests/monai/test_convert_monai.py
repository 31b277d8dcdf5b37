"""convert, wrap, to_plain, ONNX and the checker on networks for volumes, made by others."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from volume_networks import NETWORKS, Size, made

import quarterturn as qt
from quarterturn import trees
from quarterturn.check import error_of_answers, largest_difference
from quarterturn.graph.lively import lively

D4_ABOUT_1 = qt.about(qt.D4, 1)
MIRRORS = qt.mirrors(1, 2, 3)
LONG = ["torchvision r3d_18", "torchvision mc3_18", "monai VNet", "monai UNETR", "monai SwinUNETR"]  # to compute

LONGEST = ["torchvision r3d_18", "monai VNet"]


def exact(net: nn.Module, group: qt.Group, x: Tensor) -> bool:
    return error_of_answers(net, group, (x,)) <= 1e-10


def loss(outputs: Any) -> Tensor:
    return torch.stack([y.square().mean() for _, y in trees.leaves(outputs, Tensor)]).sum()


def check(name: str, group: qt.Group, *sizes: Size) -> Any:
    """All that is promised of a converted network, in float64."""
    network, size = NETWORKS[name], sizes[0]
    net, x = made(name, size), network.volumes(size)
    converted = qt.convert(net, group, example=x)
    assert converted.conversion.rolled_share >= 0.8
    with torch.no_grad():
        assert [y.shape for _, y in trees.leaves(converted(x), Tensor)] == [
            y.shape for _, y in trees.leaves(net(x), Tensor)
        ]
    learnt = lively(converted, [x])
    assert error_of_answers(lively(net, [x]), group, (x,)) > 1e-2  # the same check finds the old network out
    for each in sizes:
        assert exact(learnt, group, network.volumes(each))
    with torch.no_grad():
        gap, largest = largest_difference(learnt(x), qt.to_plain(learnt, x)(x))
    assert gap <= 1e-10 * largest
    step = torch.optim.SGD(converted.train().parameters(), 1e-4)
    loss(converted(x)).backward()
    gradients = [p.grad for p in converted.parameters() if p.requires_grad]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert any(g.any() for g in gradients)
    step.step()
    assert exact(converted, group, x)
    return converted


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in LONG])
def test_networks_are_exact_to_the_symmetries_of_a_plane(name: str) -> None:
    network = NETWORKS[name]
    assert not check(name, D4_ABOUT_1, network.size, *network.others).conversion.plain


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONGEST else name for name in NETWORKS]
)
def test_networks_are_exact_to_mirrors(name: str) -> None:
    network = NETWORKS[name]
    group = qt.mirrors(3) if name in LONG else qt.mirrors(1, 3)
    assert not check(name, group, network.size, *network.others).conversion.plain


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_more_networks_are_exact_to_the_symmetries_of_a_plane(name: str) -> None:
    network = NETWORKS[name]
    assert not check(name, D4_ABOUT_1, network.size, *network.others).conversion.plain


CUBES: dict[str, tuple[Size, ...]] = {
    "monai UNet": ((12, 12, 12), (8, 16, 12)),
    "monai AttentionUnet": ((8, 8, 8), (12, 8, 16)),
    "nnunet PlainConvUNet": ((8, 8, 8), (8, 12, 16)),
}


@pytest.mark.parametrize("name", list(CUBES))
def test_networks_are_exact_to_the_turns_of_a_cube(name: str) -> None:
    check(name, qt.OCTA, *CUBES[name])


MORE_CUBES: dict[str, Size] = {
    "monai DynUNet, deep supervision": (16, 16, 16),
    "monai SegResNet": (8, 8, 8),
    "nnunet ResidualEncoderUNet": (8, 8, 8),
    "monai BasicUNet": (33, 33, 33),
    "monai UNETR": (32, 32, 32),
    "monai DenseNet121": (32, 32, 32),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MORE_CUBES))
def test_more_networks_are_exact_to_the_turns_of_a_cube(name: str) -> None:
    check(name, qt.OCTA, MORE_CUBES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["monai UNet", "nnunet PlainConvUNet", "monai AttentionUnet"])
@pytest.mark.parametrize("group", [MIRRORS, qt.for_spacing((1, 1, 3), flip=True), qt.OCTA_FULL])
def test_networks_are_exact_to_larger_groups(name: str, group: qt.Group) -> None:
    check(name, group, (8, 8, 8), (8, 12, 16))


# --- the other ways ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["monai UNet", "nnunet PlainConvUNet", "monai SegResNet"])
def test_wrapped_networks_are_exact(name: str) -> None:
    x = NETWORKS[name].volumes()
    wrapped = qt.wrap(lively(made(name), [x]), D4_ABOUT_1)
    assert exact(wrapped, D4_ABOUT_1, x)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("monai UNet", D4_ABOUT_1),
        ("monai DynUNet", qt.mirrors(1, 3)),
        ("monai DenseNet121", qt.mirrors(3)),
        ("nnunet PlainConvUNet", qt.OCTA),
    ],
)
def test_converted_networks_run_in_onnxruntime(name: str, group: qt.Group, tmp_path: Path) -> None:
    """`export` compares the file with the network, on turned volumes too, and raises if they differ."""
    size = (8, 8, 8) if group is qt.OCTA else NETWORKS[name].size
    x = NETWORKS[name].volumes(size).float()
    net = lively(qt.convert(made(name).float(), group, example=x), [x])
    qt.export(net, x, tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["monai UNet", "nnunet PlainConvUNet"])
def test_one_wrong_filter_is_found(name: str) -> None:
    x = NETWORKS[name].volumes()
    plain = qt.to_plain(lively(qt.convert(made(name), D4_ABOUT_1, example=x), [x]), x)
    qt.assert_equivariant(plain, D4_ABOUT_1, x)
    wrong = copy.deepcopy(plain)
    layer = next(m for m in wrong.modules() if isinstance(m, nn.Conv3d) and max(m.kernel_size) > 1)
    with torch.no_grad():
        layer.weight[0] = layer.weight[0].flip(-1) + 0.1 * torch.randn_like(layer.weight[0])
    with pytest.raises(qt.NotEquivariantError, match="not equivariant to D4-1"):
        qt.assert_equivariant(wrong, D4_ABOUT_1, x)


# --- what cannot be ---------------------------------------------------------------------------------------------------


def test_strides_of_one_axis_need_a_group_that_keeps_it() -> None:
    """The first layer of a video network halves rows and columns, and no frames."""
    net, x = made("torchvision mc3_18"), torch.randn(2, 3, 16, 16, 16, dtype=torch.float64)
    with pytest.raises(qt.ConversionError, match=r"about\(D4, axis\)"):
        qt.convert(net, qt.OCTA, example=x)


def test_position_tables_fix_the_size() -> None:
    net = made("monai UNETR")
    with pytest.raises(qt.ConversionError, match="does not take the example"):
        qt.convert(net, D4_ABOUT_1, example=NETWORKS["monai UNETR"].volumes((32, 32, 32)))


def test_groups_of_the_plane_are_refused() -> None:
    with pytest.raises(qt.QuarterturnError, match="for volumes use OCTA"):
        qt.convert(made("monai UNet"), qt.D4, example=NETWORKS["monai UNet"].volumes())

"""convert: networks of timm, torchvision and segmentation_models_pytorch become exactly equivariant in one call."""

import copy
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import torchvision
from families import SMALLEST, families, parameters
from timmtools import image
from torch import Tensor, nn

import quarterturn as qt
from quarterturn.check import error_of_answers
from quarterturn.graph.lively import images_like, lively

FEW = """
    resnet18 resnet50 resnext50_32x4d seresnet50 densenet121 vgg11 mobilenetv3_small_100 efficientnet_b0 regnety_002
    convnext_atto dla46_c hrnet_w18_small res2net50_14w_8s repvgg_a0 ghostnet_050 skresnet18 resnest14d
    nf_resnet26 resnetv2_50x1_bit ecaresnet26t gcresnext26ts efficientnet_b0_g16_evos tresnet_m
"""  # that run in every build: the smallest of all families do in the slow tests
SEGMENTERS = ["Unet", "FPN"]
MORE_SEGMENTERS = ["UnetPlusPlus", "Linknet", "PSPNet", "DeepLabV3Plus", "UPerNet"]
TORCHVISION = ["googlenet", "squeezenet1_1", "shufflenet_v2_x1_0", "alexnet", "convnext_tiny", "mnasnet0_5"]


def made(name: str) -> nn.Module:
    library, _, name = name.rpartition("/")
    torch.manual_seed(0)
    if library == "smp":
        return getattr(smp, name)("resnet18", encoder_weights=None, classes=2).eval()
    if library == "torchvision":
        options = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
        return getattr(torchvision.models, name)(num_classes=10, **options).eval()
    return timm.create_model(name, num_classes=10).eval()


def gap(a: Tensor, b: Tensor) -> float:
    """The difference of two networks' answers, relative to that between the answers to two images."""
    return float((a - b).abs().max() / (b.amax(0) - b.amin(0)).max())


def is_exact(net: nn.Module, group: qt.Group, x: Tensor) -> bool:
    """To 1e-4 in float32; of networks that amplify rounding, as norms of few numbers do, float64 decides."""
    if error_of_answers(net, group, (x,)) <= 1e-4:
        return True
    return error_of_answers(copy.deepcopy(net).double(), group, (x.double(),)) <= 1e-8


def agree(one: nn.Module, other: nn.Module, x: Tensor) -> bool:
    """The same for two networks."""
    if gap(one(x), other(x)) <= 1e-4:
        return True
    return gap(copy.deepcopy(one).double()(x.double()), copy.deepcopy(other).double()(x.double())) <= 1e-8


def check(name: str, group: qt.Group) -> None:
    model = made(name)
    size = 96 if any(part in name for part in ("inception_", "nasnet")) else 64
    x, many = image(batch=2, size=size), image(batch=8, size=size)
    converted = lively(qt.convert(model, group, example=x), [many])
    turned = qt.convert(model, group, rotate="maps", example=x).eval()
    turned.load_state_dict(converted.state_dict())
    with torch.no_grad():
        assert converted(x).shape == model(x).shape
        assert error_of_answers(lively(model, [many]), group, (x,)) > 1e-2  # the same check finds the old network out
        assert is_exact(converted, group, x)
        assert agree(turned, converted, x)
        assert agree(qt.to_plain(converted, x), converted, x)
    converted.train()
    step = torch.optim.SGD(converted.parameters(), 1e-5)  # deep untrained networks turn chaotic with larger steps
    converted(x).square().mean().backward()
    gradients = [p.grad for p in converted.parameters() if p.requires_grad]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    step.step()
    assert is_exact(converted.eval(), group, x)


@pytest.mark.parametrize("layer", ["CoordAttn", "SimpleCoordAttn", "EfficientLocalAttn", "StripAttn"])
def test_coordinate_attention_of_timm_rolls(layer: str) -> None:
    torch.manual_seed(0)
    attention = getattr(timm.layers.coord_attn, layer)(32)
    layers = (nn.Conv2d(3, 32, 3), attention, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))
    net, x = nn.Sequential(*layers).eval(), image(batch=4, size=20)[..., 2:16]
    converted = qt.convert(net, qt.D4, example=x)
    assert not converted.conversion.plain
    converted = lively(converted, [x])
    with torch.no_grad():
        assert error_of_answers(lively(net, [x]), qt.D4, (x,)) > 1e-2
        assert is_exact(converted, qt.D4, x)
        assert agree(qt.to_plain(converted, x), converted, x)


@pytest.mark.parametrize("name", [*FEW.split(), *(f"smp/{name}" for name in SEGMENTERS)])
def test_converted_networks_are_exact(name: str) -> None:
    check(name, qt.C4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FEW.split(), *(f"smp/{name}" for name in SEGMENTERS)])
def test_converted_networks_are_exact_to_flips(name: str) -> None:
    check(name, qt.D4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALLEST.split() if name not in FEW.split()])
def test_one_network_of_every_family_is_exact(name: str) -> None:
    check(name, qt.C4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*(f"smp/{name}" for name in MORE_SEGMENTERS), *(f"torchvision/{name}" for name in TORCHVISION)]
)
def test_networks_of_other_libraries_are_exact(name: str) -> None:
    check(name, qt.C4)


@pytest.mark.slow
def test_families_are_all_there_with_their_smallest_network() -> None:
    assert SMALLEST.split() == [min(names, key=parameters) for names in families().values()]


def test_what_is_not_known_is_refused_by_name_if_that_is_asked_for() -> None:
    model: Any = timm.create_model("lambda_resnet26t")
    with pytest.raises(qt.ConversionError) as caught:
        qt.convert(model, qt.C4, example=image(size=256), unknown="refuse")
    assert "stages.2.1.self_attn" in str(caught.value)


# --- parts that cannot be followed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "has_plain_parts"),
    [("lambda_resnet26t", True), ("edgenext_xx_small", False), ("efficientvit_b0", False)],
)
def test_networks_with_attention_are_exact_and_mostly_rolled(name: str, has_plain_parts: bool) -> None:
    net, (x,) = made(name), images_like([torch.randn(2, 3, 64, 64)], dim=2)
    converted = qt.convert(net, qt.C4, example=x)
    assert bool(converted.conversion.plain) == has_plain_parts
    assert converted.conversion.rolled_share >= 0.9
    assert is_exact(lively(converted, [x]), qt.C4, x)
    assert not is_exact(lively(net, [x]), qt.C4, x)
    turned = qt.convert(net, qt.C4, rotate="maps", example=x).eval()
    turned.load_state_dict(converted.state_dict())
    with torch.no_grad():
        assert agree(turned, converted.eval(), x)
        assert agree(qt.to_plain(converted, x), converted, x)
    converted.train()(x).square().mean().backward()
    assert all(p.grad is not None for p in converted.parameters() if p.requires_grad)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["botnet26t_256", "halonet26t", "sehalonet33ts", "mobilevit_xxs"])
def test_more_networks_with_attention_are_exact(name: str) -> None:
    net, (x,) = made(name), images_like([torch.randn(2, 3, 256, 256)], dim=2)
    converted = qt.convert(net, qt.C4, example=x)
    assert converted.conversion.rolled_share > 0.8
    assert is_exact(lively(converted, [x]), qt.C4, x)
    assert not is_exact(lively(net, [x]), qt.C4, x)


@pytest.mark.parametrize(
    ("name", "plain"), [("resnet18", ["layer2.0", "layer3.1.conv2"]), ("convnext_atto", "stages.2.blocks.1.mlp")]
)
def test_parts_can_be_kept_plain(name: str, plain: Any) -> None:
    net, (x,) = made(name), images_like([torch.randn(2, 3, 64, 64)], dim=2)
    converted = qt.convert(net, qt.D4, example=x, plain=plain)
    assert [part.path for part in converted.conversion.plain] == ([plain] if isinstance(plain, str) else plain)
    assert is_exact(lively(converted, [x]), qt.D4, x)


# --- backbones and until ----------------------------------------------------------------------------------------------

BACKBONES = ["resnet18", "convnext_atto", "mobilenetv3_small_100", "regnety_002"]


def backbone(name: str, group: qt.Group) -> None:
    (x,) = images_like([torch.randn(2, 3, 64, 64)], dim=2)
    net = timm.create_model(name, features_only=True).eval()
    converted = qt.convert(net, group, example=x, output="stacked")
    for a, b in zip(converted(x), net(x), strict=True):
        assert a.shape[2:] == b.shape[2:]
        assert b.shape[1] <= a.shape[1] < b.shape[1] + group.order
    trial = lively(converted, [x])
    where = {str(i) for i in range(len(converted(x)))}
    exact = error_of_answers(trial, group, (x,), where) <= 1e-4
    assert exact or error_of_answers(trial.double(), group, (x.double(),), where) <= 1e-8
    assert error_of_answers(lively(net, [x]), group, (x,), where) > 1e-2
    assert converted.conversion.after.multiply_adds < 1.3 * converted.conversion.before.multiply_adds


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones(name: str) -> None:
    backbone(name, qt.C4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BACKBONES, "densenet121", "efficientnet_b0", "hrnet_w18_small"])
def test_backbones_to_flips(name: str) -> None:
    backbone(name, qt.D4)


def test_forward_features() -> None:
    (x,) = images_like([torch.randn(2, 3, 64, 64)], dim=2)
    net = timm.create_model("convnext_atto").eval()
    for output in ("pooled", "stacked"):
        converted = qt.convert(net, qt.C4, example=x, method="forward_features", output=output)
        assert converted(x).shape == net.forward_features(x).shape


@pytest.mark.parametrize(
    ("name", "until"),
    [
        ("resnet18", "layer3.1.conv2"),
        ("convnext_atto", "stages.2.blocks.3"),
        ("densenet121", "features.denseblock3.denselayer5"),
        ("smp/Unet", "decoder.blocks.2"),
        ("torchvision/shufflenet_v2_x1_0", "stage3.2.branch2"),
    ],
)
def test_layers_from_until_on_stay(name: str, until: str) -> None:
    net, (x,) = made(name), images_like([torch.randn(2, 3, 64, 64)], dim=2)
    partly = qt.convert(net, qt.C4, example=x, until=until)
    assert partly(x).shape == net(x).shape
    assert 0 < partly.conversion.rolled_share < 1
    there = dict(partly.named_parameters())
    same = [n for n, p in net.named_parameters() if n in there and p.shape == there[n].shape]
    assert any(n.startswith(until) for n in same)
    assert all(torch.equal(net.get_parameter(n), there[n]) for n in same if n.startswith(until))

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
from quarterturn.graph.lively import lively

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
    step = torch.optim.SGD(converted.parameters(), 1e-3)
    converted(x).square().mean().backward()
    gradients = [p.grad for p in converted.parameters() if p.requires_grad]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    step.step()
    assert is_exact(converted.eval(), group, x)


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


@pytest.mark.parametrize(
    ("name", "part"), [("botnet26t_256", "stages.2.1.self_attn"), ("vit_tiny_patch16_224", "blocks.0.attn")]
)
def test_attention_over_positions_runs_as_it_is_or_is_refused_by_name(name: str, part: str) -> None:
    model: Any = timm.create_model(name)
    x = image(batch=2, size=256 if "256" in name else 224)
    with pytest.raises(qt.ConversionError) as caught:
        qt.convert(model, qt.C4, example=x, unknown="refuse")
    assert part in str(caught.value)

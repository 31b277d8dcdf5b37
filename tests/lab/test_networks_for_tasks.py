"""The lab's networks for the tasks of one's own images: any channels, any number of outputs, exact for D4."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from labtools import tiny
from torch import nn

import quarterturn as qt
from quarterturn_lab.inference.network import for_whole_images
from quarterturn_lab.models.build import build
from quarterturn_lab.runs.network import net_for
from quarterturn_lab.settings.networks import NUCLEI, PLANKTON, Net, edited

UNET = replace(NUCLEI, side=16, stages=((8, 8), (16,), (16,)), hidden=(8,))
MASKS = {  # rows for a label of each pixel
    "pool": edited(UNET, "pool-mean", group="D4"),
    "roll": edited(UNET, "roll-all-half", group="D4"),
    "roll, norm": edited(UNET, "roll-all-half", group="D4", norm=True),
    "roll, invariants": edited(UNET, "roll-all-half", group="D4", norm=True, invariants=True),
}


def exact(net: nn.Module, x: torch.Tensor) -> bool:
    return max(qt.equivariance_error(net.double().eval(), qt.D4, x).relative) < 1e-10


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(list(MASKS)), st.sampled_from([1, 2, 7]), st.sampled_from([2, 3, 9]), st.integers(9, 21),
    st.integers(9, 21),
)  # fmt: skip
def test_unets_with_many_classes_turn_with_images_of_any_shape(
    name: str, channels: int, classes: int, height: int, width: int
) -> None:
    net = build(replace(MASKS[name], channels=channels, outputs=classes), "filters")
    x = torch.randn(2, channels, height, width, dtype=torch.float64)
    assert net.double()(x).shape == (2, classes, height, width)
    assert exact(net, x)


def test_an_ordinary_unet_is_found_out() -> None:
    assert not exact(build(replace(UNET, channels=4, outputs=5)), torch.randn(1, 4, 16, 16, dtype=torch.float64))


@pytest.mark.parametrize("name", MASKS)
def test_a_network_that_rotates_maps_takes_whole_images_of_as_many_classes_as_there_are(name: str) -> None:
    config = tiny().model_copy(update={"net": MASKS[name], "rotate": "maps"})  # whose net has two outputs
    made = net_for(config, tuple("abcde")).eval()
    whole = for_whole_images(config, made.float()).double()
    x = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(whole(x), made.double()(x), rtol=1e-10, atol=1e-10)
    assert whole(torch.randn(1, 3, 13, 20, dtype=torch.float64)).shape == (1, 5, 13, 20)


@pytest.mark.parametrize("channels", [1, 2, 7])
@pytest.mark.parametrize("outputs", [1, 40])
def test_whole_images_of_many_channels_have_invariant_tags_and_numbers(channels: int, outputs: int) -> None:
    sizes = {"channels": channels, "side": 17, "outputs": outputs, "stages": ((8,), (16,))}
    net: Net = edited(PLANKTON, "residual-d4", **sizes)
    x = torch.randn(2, channels, 17, 17, dtype=torch.float64)
    for rotate in ("maps", "filters"):
        made = build(net, rotate).double().eval()  # type: ignore[arg-type]
        assert made(x).shape == (2, outputs)
        assert exact(made, x)

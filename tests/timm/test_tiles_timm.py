"""Tiles of segmentation networks of another library, ordinary and converted."""

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch

import quarterturn as qt
from quarterturn_lab.inference.receptive_field import view_of
from quarterturn_lab.inference.whole_images import joined

SIZES = (256, 320)


def unet(**options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    small = {"encoder_weights": None, "encoder_depth": 3, "decoder_channels": (32, 32, 32), "classes": 2}
    return smp.Unet("resnet18", **small, **options).eval()


@pytest.mark.parametrize("group", [None, qt.D4])
def test_tiles_of_a_u_net_are_those_of_the_whole_image(group: qt.Group | None) -> None:
    net = unet() if group is None else qt.convert(unet(), group, example=torch.randn(1, 3, 64, 64))
    net = net.double().eval()
    view = view_of(net, 3, SIZES)
    assert (view.alone, view.step, view.outputs) == ("", 8, SIZES)
    image = np.random.default_rng(0).normal(size=(3, *SIZES))
    assert len(view.tiles(64)) > 9
    with torch.no_grad():
        whole = net(torch.from_numpy(image)[None])[0].numpy()
    assert np.abs(joined(view, view.parts(image, 64)) - whole).max() < 1e-10 * np.abs(whole).max()


def test_squeeze_and_excitation_is_named() -> None:
    view = view_of(unet(decoder_attention_type="scse"), 3, SIZES)
    assert "attention1" in view.alone

"""What the other tests here stand on."""

import segmentation_models_pytorch
import timm
import torch
import torchvision


def test_others_load_and_run() -> None:
    assert torchvision.__version__.startswith("0.28.0")  # conftest.py names operators that this version asks for
    x = torch.randn(1, 3, 32, 32)
    for model in (torchvision.models.resnet18(), timm.create_model("resnet18")):
        assert model.eval()(x).shape == (1, 1000)
    model = segmentation_models_pytorch.Unet("resnet18", encoder_weights=None, classes=2)
    assert model.eval()(x).shape == (1, 2, 32, 32)

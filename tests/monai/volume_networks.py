"""Networks for volumes of MONAI, nnU-Net and torchvision, made small: few filters, all kinds of layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from dynamic_network_architectures.architectures.unet import PlainConvUNet, ResidualEncoderUNet
from monai.networks import nets
from monai.networks.nets import vnet
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn.graph.lively import images_like

Size = tuple[int, int, int]


class SupervisedDynUNet(nets.DynUNet):
    """A DynUNet that gives its outputs of all depths in evaluation too, as a list: it does so in training only."""

    def forward(self, x: Tensor) -> list[Tensor]:
        out = self.output_block(self.skip_layers(x))
        return [out, *(F.interpolate(head, out.shape[2:]) for head in self.heads)]


def dynunet(kind: type[nets.DynUNet], **options: Any) -> nn.Module:
    sizes: dict[str, Any] = {"kernel_size": [3] * 4, "strides": [1, 2, 2, 2], "upsample_kernel_size": [2] * 3}
    return kind(3, 1, 2, **sizes, filters=[8, 16, 32, 32], **options)


class ShortVNet(nn.Module):
    """The parts of a V-Net, with two levels instead of five: its widths cannot be chosen."""

    def __init__(self) -> None:
        super().__init__()
        act = ("elu", {"inplace": True})
        self.first = vnet.InputTransition(3, 1, 16, act)
        self.down, self.up = vnet.DownTransition(3, 16, 1, act), vnet.UpTransition(3, 32, 32, 1, act)
        self.last = vnet.OutputTransition(3, 32, 2, act)

    def forward(self, x: Tensor) -> Tensor:
        whole = self.first(x)
        return self.last(self.up(self.down(whole), whole))


def nnunet(kind: Callable[..., nn.Module], **options: Any) -> nn.Module:
    sizes = {"n_stages": 3, "features_per_stage": [8, 16, 32], "kernel_sizes": 3, "strides": [1, 2, 2]}
    kinds = {"conv_op": nn.Conv3d, "norm_op": nn.InstanceNorm3d, "nonlin": nn.LeakyReLU}
    given = {"norm_op_kwargs": {"affine": True, "eps": 1e-5}, "nonlin_kwargs": {"inplace": True}, "conv_bias": True}
    both = {"input_channels": 1, "num_classes": 2, "n_conv_per_stage_decoder": 1, "deep_supervision": True}
    return kind(**(sizes | kinds | given | both | options))


def unetr(size: Size) -> nn.Module:
    return nets.UNETR(1, 2, size, feature_size=8, hidden_size=48, mlp_dim=96, num_heads=12)


@dataclass(frozen=True)
class Network:
    """How to make a network, and volumes that it takes. Where it takes but one size, that suits D4 about axis 1."""

    make: Callable[..., nn.Module]
    size: Size
    channels: int = 1
    others: tuple[Size, ...] = ()  # further sizes that a converted one takes

    def volumes(self, size: Size | None = None) -> Tensor:
        (x,) = images_like([torch.randn(2, self.channels, *(size or self.size))], dim=3)
        return x.double()


NETWORKS: dict[str, Network] = {
    "torchvision r3d_18": Network(
        lambda: torchvision.models.video.r3d_18(num_classes=5), (6, 17, 20), 3, ((5, 18, 18),)
    ),
    "torchvision mc3_18": Network(
        lambda: torchvision.models.video.mc3_18(num_classes=5), (4, 18, 20), 3, ((5, 17, 17),)
    ),
    "monai UNet": Network(
        lambda: nets.UNet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=2),
        (12, 16, 8),
        1,
        ((20, 12, 12),),
    ),
    "monai BasicUNet": Network(lambda: nets.BasicUNet(features=(8, 8, 16, 16, 32, 8)), (35, 17, 17)),
    "monai SegResNet": Network(
        lambda: nets.SegResNet(init_filters=8, blocks_down=(1, 2, 2), blocks_up=(1, 1)), (8, 16, 12), 1, ((12, 8, 8),)
    ),
    "monai DynUNet": Network(lambda: dynunet(nets.DynUNet, res_block=True), (8, 16, 24), 1, ((24, 16, 16),)),
    "monai DynUNet, deep supervision": Network(
        lambda: dynunet(SupervisedDynUNet, deep_supervision=True, deep_supr_num=2), (16, 8, 24), 1, ((8, 16, 16),)
    ),
    "monai DenseNet121": Network(
        lambda: nets.DenseNet121(3, 1, 5, init_features=16, growth_rate=8), (33, 34, 37), 1, ((32, 35, 35),)
    ),
    "monai VNet, short": Network(ShortVNet, (6, 8, 12), 1, ((4, 8, 8),)),
    "monai VNet": Network(lambda: nets.VNet(out_channels=2), (16, 16, 32)),
    "monai AttentionUnet": Network(
        lambda: nets.AttentionUnet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2)), (8, 16, 12), 1, ((12, 8, 8),)
    ),
    "nnunet PlainConvUNet": Network(lambda: nnunet(PlainConvUNet, n_conv_per_stage=2), (8, 16, 12), 1, ((20, 12, 12),)),
    "nnunet ResidualEncoderUNet": Network(
        lambda: nnunet(ResidualEncoderUNet, n_blocks_per_stage=[1, 2, 2]), (8, 16, 12), 1, ((20, 12, 12),)
    ),
    "monai UNETR": Network(unetr, (48, 32, 32)),
    "monai SwinUNETR": Network(
        lambda: nets.SwinUNETR(1, 2, depths=(2, 1, 1, 1), num_heads=(2, 4, 8, 8), window_size=2, feature_size=12),
        (64, 32, 32),
    ),
}


def made(name: str, size: Size | None = None) -> nn.Module:
    """A network with weights that are the same every time; a few are made for one size of volumes."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    return (network.make(size or network.size) if network.make is unetr else network.make()).double().eval()

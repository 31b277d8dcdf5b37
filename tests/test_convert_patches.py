"""convert: patches that a network's code cuts out of images, in the ways that people write it."""

import pytest
import torch
from test_convert_tokens import Transformer, check
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4
from quarterturn.layers.convolution import SliceConv


class Patches(Transformer):
    def __init__(self, way: str, patch: int = 4, overlap: int = 0) -> None:
        super().__init__(free=0, pool="mean")
        del self.embed
        self.way, self.patch = way, patch
        self.unfold = nn.Unfold(patch + overlap, stride=patch)
        self.linear = nn.Linear(3 * (patch + overlap) ** 2, 32)

    def patches(self, x: Tensor) -> Tensor:
        n, c, height, width = x.shape
        p = self.patch
        if self.way == "reshape":
            parts = x.reshape(n, c, height // p, p, width // p, p).permute(0, 2, 4, 3, 5, 1)
            return parts.reshape(n, (height // p) * (width // p), c * p * p)
        if self.way == "layer":
            return self.unfold(x).transpose(1, 2)
        if self.way == "function":
            return F.unfold(x, p, stride=p).transpose(1, 2)
        return x.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).reshape(n, -1, c * p * p)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(self.patches(x)) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


@pytest.mark.parametrize(
    ("way", "patch", "group"),
    [("reshape", 4, D4), ("reshape", 3, C4), ("layer", 3, D4), ("function", 4, C4), ("method", 4, D4)],
    ids=lambda v: getattr(v, "name", v),
)
def test_patches_become_a_convolution(way: str, patch: int, group: qt.Group) -> None:
    net = check(Patches(way, patch), group, 4 * patch)
    assert isinstance(net.get_submodule("linear"), SliceConv)


def test_patches_that_overlap_are_refused() -> None:
    with pytest.raises(qt.ConversionError, match="overlap"):
        qt.convert(Patches("layer", 3, overlap=1), C4, example=torch.randn(2, 3, 13, 13), unknown="refuse")

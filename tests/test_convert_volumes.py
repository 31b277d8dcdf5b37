"""convert: networks for volumes, as libraries for medical images write them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn.check import error_of_answers, largest_difference
from quarterturn.graph.lively import images_like, lively

D4_ABOUT_1 = qt.about(qt.D4, 1)
MIRRORS = qt.mirrors(1, 2, 3)


def volumes(*size: int, channels: int = 1) -> Tensor:
    (x,) = images_like([torch.randn(2, channels, *size)], dim=3)
    return x.double()


def check(net: nn.Module, group: qt.Group, x: Tensor, plain_parts: bool = False) -> Any:
    """It becomes exact on every element, with layers that share filters, also as plain layers; and it was not."""
    net = net.double().eval()
    converted = qt.convert(net, group, example=x)
    assert bool(converted.conversion.plain) == plain_parts
    learnt = lively(converted, [x])
    assert error_of_answers(learnt, group, (x,)) <= 1e-10
    assert error_of_answers(lively(net, [x]), group, (x,)) > 1e-2
    gap, size = largest_difference(learnt(x), qt.to_plain(learnt, x)(x))
    assert gap <= 1e-10 * size
    return converted


class Stem(nn.Module):
    """The input, once for each channel, is added to what the first layer makes of it, as in a V-Net."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv3d(channels, width, 3, padding=1), nn.Conv3d(width, width, 2, stride=2)
        self.times, self.last = width // channels, nn.Conv3d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.elu(self.b(F.elu(torch.add(self.a(x), x.repeat(1, self.times, 1, 1, 1))))))


@pytest.mark.parametrize(
    ("group", "channels", "width", "cost"),
    [
        (D4_ABOUT_1, 1, 16, 1.1),
        (D4_ABOUT_1, 3, 48, 1.1),
        (qt.OCTA, 1, 48, 1.1),
        (MIRRORS, 2, 24, 1.1),
        (qt.OCTA, 3, 6, 99),
    ],
)
def test_copies_of_the_input_are_as_many_as_features(group: qt.Group, channels: int, width: int, cost: float) -> None:
    net, x = Stem(channels, width), volumes(6, 8, 7, channels=channels)
    done = check(net, group, x).conversion
    assert done.after.multiply_adds <= cost * done.before.multiply_adds


@pytest.mark.parametrize("rotate", ["filters", "maps"])
def test_every_channel_of_the_input_is_copied(rotate: Any) -> None:
    """Also where their number does not divide that of the features."""
    x = volumes(4, 4, 4, channels=3)
    net = qt.convert(Stem(3, 33).double(), qt.mirrors(1), example=x, rotate=rotate)  # 17 features
    for channel in range(3):
        moved = x.clone()
        moved[:, channel] += 1
        with torch.no_grad():
            net.a.weight.zero_()
            assert (net(moved) - net(x)).abs().amax() > 1e-3


class Up(nn.Module):
    """Maps twice as large beside those from before, padded where these have odd sides, as in MONAI's BasicUNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.mix = nn.ConvTranspose3d(width, width, 2, stride=2), nn.Conv3d(2 * width, width, 3, padding=1)

    def forward(self, x: Tensor, skipped: Tensor | None) -> Tensor:
        x = self.up(x)
        if skipped is not None and torch.jit.isinstance(skipped, Tensor):
            missing = [0] * 6
            for i in range(3):
                if skipped.shape[-i - 1] != x.shape[-i - 1]:
                    missing[2 * i + 1] = 1
            x = torch.cat([skipped, F.pad(x, missing, "replicate")], dim=1)
        return F.leaky_relu(self.mix(x))


class UNet(nn.Module):
    """With outputs of two sizes, as for deep supervision, and gates of attention."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.down = nn.Conv3d(1, width, 3, padding=1), nn.Conv3d(width, width, 3, padding=1)
        self.norm, self.up = nn.InstanceNorm3d(width, affine=True), Up(width)
        self.gate, self.heads = nn.Conv3d(width, 1, 1), nn.ModuleList(nn.Conv3d(width, 2, 1) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        full = F.leaky_relu(self.first(x))
        half = F.leaky_relu(self.norm(self.down(F.max_pool3d(full, 2))))
        full = self.up(half, full)
        return [self.heads[0](full * torch.sigmoid(self.gate(full))), self.heads[1](half)]


@pytest.mark.parametrize(
    ("group", "size"),
    [
        (MIRRORS, (6, 7, 9)),
        (D4_ABOUT_1, (7, 8, 8)),
        (D4_ABOUT_1, (6, 9, 7)),
        (qt.for_spacing((1, 1, 3)), (8, 6, 5)),
        (qt.OCTA, (5, 5, 5)),
    ],
)
def test_a_unet_with_several_outputs_is_exact_at_any_size(group: qt.Group, size: tuple[int, ...]) -> None:
    x = volumes(*size)
    assert [tuple(y.shape[2:]) for y in check(UNet(), group, x)(x)] == [size, tuple(n // 2 for n in size)]


def test_padding_along_one_of_two_axes_that_are_exchanged_runs_as_it_is() -> None:
    done = check(UNet(), D4_ABOUT_1, volumes(6, 8, 7), plain_parts=True).conversion
    assert [part.path for part in done.plain] == ["up"]


def test_options_for_one_of_the_axes_that_are_exchanged_name_another_group() -> None:
    net = nn.Sequential(nn.Conv3d(1, 8, 3, stride=(1, 2, 2), padding=1), nn.ReLU(), nn.Conv3d(8, 2, 1))
    check(net, D4_ABOUT_1, volumes(5, 8, 6))
    for group in (qt.about(qt.D4, 3), qt.OCTA):
        with pytest.raises(qt.ConversionError, match=r"mirrors\(1, 2, 3\) or about\(D4, axis\)"):
            qt.convert(net, group, example=volumes(8, 8, 8))


class Windows(nn.Module):
    """Attention in windows that are moved on, with a bias for each relative place and a mask at the border."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift, self.scale = heads, window, shift, (width // heads) ** -0.5
        self.norm, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 3, heads))
        places = torch.stack(torch.meshgrid(*[torch.arange(window)] * 3, indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", (apart * torch.tensor([(2 * window - 1) ** 2, 2 * window - 1, 1])).sum(-1))

    def forward(self, x: Tensor) -> Tensor:
        b, d, h, w, c = x.shape
        sides = [n if n <= self.window else self.window for n in (d, h, w)]
        shifts = [0 if n <= self.window else self.shift for n in (d, h, w)]
        y = self.norm(x)
        if any(shifts):
            y = torch.roll(y, [-s for s in shifts], dims=(1, 2, 3))
        blocks = (b, d // sides[0], sides[0], h // sides[1], sides[1], w // sides[2], sides[2], c)
        y = y.view(blocks).permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, sides[0] * sides[1] * sides[2], c)
        y = self.attend(y, self.mask([int(d), int(h), int(w)], sides, shifts) if any(shifts) else None)
        y = y.view(b, d // sides[0], h // sides[1], w // sides[2], *sides, -1).permute(0, 1, 4, 2, 5, 3, 6, 7)
        y = y.reshape(b, d, h, w, -1)
        return x + (torch.roll(y, shifts, dims=(1, 2, 3)) if any(shifts) else y)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = q @ k.transpose(-2, -1) * self.scale
        weights = weights + self.bias[self.index.clone()[:n, :n].reshape(-1)].reshape(n, n, -1).permute(2, 0, 1)
        if mask is not None:
            count = mask.shape[0]
            weights = weights.view(b // count, count, self.heads, n, n) + mask.unsqueeze(1).unsqueeze(0)
            weights = weights.view(-1, self.heads, n, n)
        return self.proj((weights.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))

    def mask(self, sizes: list[int], sides: list[int], shifts: list[int]) -> Tensor:
        """Which places of a window are not neighbours: those that came from the other end."""
        regions = torch.zeros(1, *sizes, 1, dtype=torch.float64)
        for axis, (size, shift) in enumerate(zip(sizes, shifts, strict=True)):
            came = (torch.arange(size) >= size - shift).double() if shift else torch.zeros(size)
            regions = regions * 2 + came.reshape([-1 if i == axis + 1 else 1 for i in range(5)])
        blocks = [part for size, side in zip(sizes, sides, strict=True) for part in (size // side, side)]
        windows = regions.reshape(blocks).permute(0, 2, 4, 1, 3, 5).reshape(-1, sides[0] * sides[1] * sides[2])
        apart = windows.unsqueeze(1) - windows.unsqueeze(2)
        return apart.masked_fill(apart != 0, -100.0)


class Swin(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches, self.last = nn.Conv3d(1, width, 2, stride=2), nn.ConvTranspose3d(width, 2, 2, stride=2)
        self.blocks = nn.Sequential(Windows(width, 8, 2, 0), Windows(width, 8, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.patches(x).permute(0, 2, 3, 4, 1)).permute(0, 4, 1, 2, 3))


@pytest.mark.parametrize(
    ("group", "size"),
    [(D4_ABOUT_1, (12, 8, 8)), (MIRRORS, (8, 12, 4)), (qt.OCTA, (8, 8, 8))],
)
def test_windows_of_volumes_are_exact(group: qt.Group, size: tuple[int, ...]) -> None:
    """Along a side that is not longer than a window there is but one, and it is not moved on."""
    assert check(Swin(), group, volumes(*size)).conversion.rolled_share > 0.8


def test_windows_with_a_mask_for_unequal_sides_run_as_they_are() -> None:
    done = check(Swin(), D4_ABOUT_1, volumes(4, 8, 12), plain_parts=True).conversion
    assert "blocks.1" in [part.path for part in done.plain]

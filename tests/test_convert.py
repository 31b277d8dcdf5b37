"""convert: any convolutional network in one call. Every part of torch that it knows, in a network of its own."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn._convert import layer_rules
from quarterturn._convert.initial_weights import per_feature, projected, rearranged
from quarterturn._convert.widths import Widths, channels, joined, make_equal, repeated
from quarterturn.check import error_of_answers
from quarterturn.cost import Cost, cost, short
from quarterturn.filters import roll_filters
from quarterturn.graph.lively import images_like, lively
from quarterturn.graph.refusal import Refusal

EXACT = 1e-10


class Code(nn.Module):
    """A network whose forward is a function of its layers."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.run = forward

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def conv(a: int, b: int, k: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(a, b, k, **{"padding": k // 2, **options})


def after(*layers: nn.Module, width: int = 16) -> nn.Sequential:
    """Layers between a first convolution and a global mean with a dense layer."""
    first = [conv(3, width), nn.ReLU()]
    return nn.Sequential(*first, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(5))


def block(forward: Callable[[Any, Tensor], Any], **layers: nn.Module) -> nn.Module:
    """Code between a first convolution and a global mean with a dense layer."""
    layers = {"first": conv(3, 16), **layers, "head": nn.LazyLinear(5)}
    return Code(lambda m, x: m.head(forward(m, F.relu(m.first(x))).mean((2, 3))), **layers)


class DropPath(nn.Module):
    """Stochastic depth, as other libraries write it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty(x.shape[0], 1, 1, 1).bernoulli_(0.5) if self.training else x


class Scaled(nn.Module):
    """A block in the manner of ConvNeXt: channels last, layer norm, a scale for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = conv(16, 16, 7, groups=16)
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.gamma = nn.Parameter(torch.rand(16))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ChannelsLast(nn.Module):
    """A layer on maps whose features are the last axis."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.movedim(1, -1)).movedim(-1, 1)


def without_bias(norm: nn.GroupNorm) -> nn.GroupNorm:
    nn.init.normal_(norm.weight)
    norm.register_parameter("bias", None)
    return norm


def squeeze_and_excite(m: Any, x: Tensor) -> Tensor:
    weights = m.b(F.relu(m.a(x.mean((2, 3), keepdim=True)))).sigmoid()
    return x * weights


def group_spread(m: Any, x: Tensor) -> Tensor:
    """A norm by the spread of groups of features, as in EvoNorm."""
    n, c, h, w = x.shape
    groups = x.reshape(n, 4, c // 4, h, w)
    spread = groups.var((2, 3, 4), keepdim=True).sqrt().expand(groups.shape).reshape(n, c, h, w)
    return x * x.sigmoid() / spread


def selective(m: Any, x: Tensor) -> Tensor:
    """Branches weighed against one another, feature by feature."""
    paths = torch.stack([m.a(x), m.b(x)], dim=1)
    weights = m.c(paths.sum(1).mean((2, 3), keepdim=True)).view(x.shape[0], 2, 16, 1, 1)
    return (paths * torch.softmax(weights, dim=1)).sum(1)


def shuffled(m: Any, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
    a, b = x.chunk(2, dim=1)
    return torch.cat([a, m.a(b)], dim=1)


def split_and_joined(m: Any, x: Tensor) -> Tensor:
    parts = torch.split(x, 4, 1)
    out = [parts[0]]
    for i, part in enumerate(parts[1:]):
        out.append(getattr(m, "abc"[i])(part + out[-1]))
    return torch.cat(out, dim=1)


def spatial_attention(m: Any, x: Tensor) -> Tensor:
    maps = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], dim=1)
    return x * m.a(maps).sigmoid()


def block_attention(m: Any, x: Tensor) -> Tensor:
    """Channel and spatial attention, as it is often written, with a layer that is called twice."""
    n, c, _, _ = x.size()
    both = m.mlp(F.adaptive_avg_pool2d(x, 1).view(n, c)) + m.mlp(F.adaptive_max_pool2d(x, 1).view(n, c))
    x = x * torch.sigmoid(both).unsqueeze(2).unsqueeze(3).expand_as(x)
    maps = torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), dim=1)
    return x * torch.sigmoid(m.a(maps))


def written_out(m: Any, x: Tensor) -> Tensor:
    """A norm over channels, written out, with the parameters of a layer."""
    mean = x.mean(1, keepdim=True)
    spread = (x - mean).pow(2).mean(1, keepdim=True)
    return m.norm.weight[:, None, None] * ((x - mean) / torch.sqrt(spread + 1e-6)) + m.norm.bias[:, None, None]


def super_resolution(m: Any, x: Tensor) -> Tensor:
    mean = m.mean.bias.view(1, 3, 1, 1)
    x = m.a(x - mean)
    return m.up(x + 0.1 * m.b(x)) + mean


def unet(m: Any, x: Tensor) -> Tensor:
    one = F.relu(m.a(x))
    two = F.relu(m.b(F.max_pool2d(one, 2)))
    up = m.up(two)
    return m.last(F.relu(m.c(torch.cat([F.pad(up, (0, 0, 0, 0)), one], dim=1))))


def pyramid(m: Any, x: Tensor) -> Tensor:
    one = F.relu(m.a(x))
    two = F.relu(m.b(one))
    three = F.relu(m.c(two))
    sum2 = m.side(two) + F.interpolate(three, size=two.shape[-2:], mode="nearest")
    sum1 = one + F.interpolate(sum2, size=one.shape[2:], mode="bilinear", align_corners=False)
    return F.interpolate(m.last(sum1), size=x.shape[-2:], mode="bilinear", align_corners=True)


def tokens(m: Any, x: Tensor) -> Tensor:
    """Positions as one axis, and back."""
    n, c, h, w = x.shape
    y = m.mix(m.norm(x.flatten(2).transpose(1, 2)))
    return x + y.transpose(1, 2).reshape(n, c, h, w)


def response(m: Any, x: Tensor) -> Tensor:
    """Global response norm, as in ConvNeXt V2."""
    size = x.norm(p=2, dim=(2, 3), keepdim=True)
    return x + x * (size / (size.mean(dim=1, keepdim=True) + 1e-6))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "batch norm and pools": lambda: after(nn.BatchNorm2d(16), nn.MaxPool2d(3, 2, 1), conv(16, 32, stride=2)),
    "average pool, ceil": lambda: after(nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), conv(16, 16)),
    "valid and dilated": lambda: after(nn.Conv2d(16, 16, 3, dilation=2), nn.Conv2d(16, 8, 2)),
    "even kernel, stride 3": lambda: after(nn.Conv2d(16, 16, 4, stride=3, padding=1)),
    "grouped": lambda: after(conv(16, 32, groups=4), conv(32, 32, groups=8)),
    "depthwise": lambda: after(conv(16, 16, 5, groups=16, stride=2), conv(16, 24, 1), conv(24, 48, groups=24)),
    "one by seven": lambda: after(nn.Conv2d(16, 16, (1, 7), padding=(0, 3)), nn.Conv2d(16, 16, (7, 1), padding=(3, 0))),
    "reflecting": lambda: after(conv(16, 16, padding_mode="reflect"), nn.ReflectionPad2d(1), nn.Conv2d(16, 16, 3)),
    "padding on one side": lambda: after(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(16, 16, 3, stride=2)),
    "norms": lambda: after(nn.GroupNorm(4, 16), nn.InstanceNorm2d(16, affine=True), nn.ReLU(), nn.GroupNorm(1, 16)),
    "norms without bias": lambda: after(without_bias(nn.GroupNorm(2, 16)), ChannelsLast(nn.LayerNorm(16, bias=False))),
    "norm of all": lambda: after(nn.LayerNorm((16, 16, 16), elementwise_affine=False)),
    "local response norm": lambda: after(nn.LocalResponseNorm(3), nn.LPPool2d(2, 3, 2)),
    "prelu": lambda: after(nn.PReLU(16), nn.PReLU(), conv(16, 16)),
    "torch's channel shuffle": lambda: after(nn.ChannelShuffle(2), conv(16, 16, groups=2)),
    "root mean square norm": lambda: after(ChannelsLast(nn.RMSNorm(16)), conv(16, 8)),
    "glu": lambda: after(conv(16, 32), nn.GLU(1)),
    "dropouts": lambda: after(nn.Dropout2d(0.1), DropPath(), nn.Dropout(0.2)),
    "pixel shuffle": lambda: after(conv(16, 32), nn.PixelShuffle(2), conv(8, 16), nn.PixelUnshuffle(2)),
    "up-sampling": lambda: after(nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=1.5, mode="bilinear")),
    "nearest by a half": lambda: after(nn.Upsample(scale_factor=1.5), nn.Upsample(size=(20, 20), mode="bicubic")),
    "widths that do not divide": lambda: after(conv(16, 10), nn.ReLU(), conv(10, 7)),
    "flattened maps": lambda: nn.Sequential(
        conv(3, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 24), nn.ReLU(), nn.Linear(24, 5)
    ),
    "several dense layers": lambda: after(nn.Identity())[:-1].append(
        nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 5), nn.LogSoftmax(1))
    ),
    "residual": lambda: block(lambda m, x: F.relu(x + m.b(F.relu(m.a(x)))), a=conv(16, 16), b=conv(16, 16)),
    "in place": lambda: block(lambda m, x: m.a(x).mul_(2).add_(x).relu_() * torch.sigmoid(x), a=conv(16, 16)),
    "dense connections": lambda: block(
        lambda m, x: m.b(torch.cat([x, F.relu(m.a(x))], 1)), a=conv(16, 12), b=conv(28, 16, 1)
    ),
    "squeeze and excitation": lambda: block(squeeze_and_excite, a=conv(16, 6, 1), b=conv(6, 16, 1)),
    "selective kernels": lambda: block(selective, a=conv(16, 16), b=conv(16, 16, 5), c=conv(16, 32, 1)),
    "channel shuffle": lambda: block(shuffled, a=conv(8, 8)),
    "splits": lambda: block(split_and_joined, a=conv(4, 4), b=conv(4, 4), c=conv(4, 4)),
    "slices": lambda: block(lambda m, x: torch.cat([m.a(x[:, :6]), x[:, 6:]], 1), a=conv(6, 6)),
    "crops": lambda: block(lambda m, x: m.a(x)[:, :, 1:, 1:][..., ::2, ::2], a=conv(16, 16)),
    "spatial attention": lambda: block(spatial_attention, a=conv(2, 1, 7)),
    "block attention": lambda: block(
        block_attention, a=conv(2, 1, 7), mlp=nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16))
    ),
    "a norm called twice": lambda: block(
        lambda m, x: F.relu(m.norm(m.a(m.norm(x))) + m.norm(x[:, :16])), a=conv(16, 16), norm=nn.GroupNorm(2, 16)
    ),
    "norm written out": lambda: block(written_out, norm=nn.LayerNorm(16)),
    "maximum of halves": lambda: block(lambda m, x: torch.max(*x.split(8, dim=1))),
    "super-resolution": lambda: Code(
        super_resolution,
        a=conv(3, 16),
        b=conv(16, 16),
        up=nn.Sequential(conv(16, 48), nn.PixelShuffle(2), conv(12, 3)),
        mean=nn.BatchNorm2d(3),
    ),
    "every second position": lambda: Code(
        lambda m, x: m.a(torch.cat([x[..., i::2, j::2] for i in range(2) for j in range(2)], 1)), a=conv(12, 8)
    ),
    "channels last": lambda: after(Scaled(), Scaled()),
    "tokens": lambda: block(tokens, norm=nn.LayerNorm(16), mix=nn.Linear(16, 16)),
    "global response": lambda: block(response),
    "functional dropout": lambda: block(lambda m, x: F.dropout(x, 0.3, m.training)),
    "transposed": lambda: after(nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1), conv(8, 16)),
    "u-net": lambda: Code(
        unet, a=conv(3, 8), b=conv(8, 16), up=nn.ConvTranspose2d(16, 8, 2, 2), c=conv(16, 8), last=conv(8, 2, 1)
    ),
    "feature pyramid": lambda: Code(
        pyramid, a=conv(3, 8), b=conv(8, 8, stride=2), c=conv(8, 8, stride=2), side=conv(8, 8, 1), last=conv(8, 3, 1)
    ),
    "repeated features": lambda: block(lambda m, x: m.a(x.repeat(1, 2, 1, 1)), a=conv(32, 16)),
    "repeated means": lambda: block(lambda m, x: x * x.mean((2, 3), keepdim=True).repeat(1, 1, *x.shape[2:])),
    "grey images as colours": lambda: Code(
        lambda m, x: m.a(torch.cat([x[:, :1].repeat(1, 2, 1, 1), x[:, 1:2].expand(-1, 3, -1, -1)], 1)), a=conv(5, 8)
    ),
    "directions of features": lambda: block(lambda m, x: m.a(F.normalize(x, dim=1)) + 0.1, a=conv(16, 16)),
    "directions as outputs": lambda: Code(lambda m, x: F.normalize(m.a(x).mean((2, 3)), p=2.0, dim=-1), a=conv(3, 16)),
    "pools of computed sizes": lambda: block(
        lambda m, x: m.a(F.avg_pool2d(x, x.size(-1) // 4, stride=x.size(-1) // 4)) * F.avg_pool2d(x, x.shape[2:]),
        a=conv(16, 16),
    ),
    "global pools of computed sizes": lambda: block(
        lambda m, x: x * torch.sigmoid(F.max_pool2d(x, kernel_size=x.size()[2:]))
    ),
    "denoiser": lambda: Code(lambda m, x: x - m.b(F.relu(m.a(x))), a=conv(3, 16), b=conv(16, 3)),
    "input again": lambda: Code(lambda m, x: m.b(torch.cat([x * 2 - 1, m.a(x)], 1)), a=conv(3, 13), b=conv(16, 4)),
    "input pooled first": lambda: Code(lambda m, x: m.a(F.avg_pool2d(x, 2)), a=conv(3, 4)),
    "softmax of maps": lambda: Code(lambda m, x: torch.softmax(m.a(x), dim=1), a=conv(3, 4)),
    "several outputs": lambda: Code(
        lambda m, x: {"maps": m.b(m.a(x)), "answers": [m.c(m.a(x).mean((2, 3)))]},
        a=conv(3, 8),
        b=conv(8, 2),
        c=nn.Linear(8, 3),
    ),
}  # fmt: skip


def ready(name: str) -> nn.Module:
    return made(NETWORKS[name])


def made(make: Callable[[], nn.Module]) -> nn.Module:
    """The network in float64, with statistics that are not those of a new one."""
    torch.manual_seed(0)
    net = make()
    net(torch.randn(2, 3, 16, 16))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return net.double().eval()


def leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for item in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(item)]


def gap(a: Any, b: Any) -> float:
    return max(float(((x - y).abs().max() / y.abs().max()).detach()) for x, y in zip(leaves(a), leaves(b), strict=True))


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
@pytest.mark.parametrize("name", NETWORKS)
def test_converted_networks_are_exact_in_both_modes_and_out_again(name: str, group: qt.Group) -> None:
    check_exact(ready(name), group)


def check_exact(net: nn.Module, group: qt.Group) -> None:
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    converted = qt.convert(net, group, example=x)
    assert [t.shape for t in leaves(converted(x))] == [t.shape for t in leaves(net(x))]
    (images,) = images_like([x], dim=2)
    assert error_of_answers(lively(converted, [images]), group, (images,)) < EXACT
    assert error_of_answers(lively(net, [images]), group, (images,)) > 1e-3  # the check can fail
    assert max(qt.equivariance_error(converted, group, x).relative) < EXACT
    turned = qt.convert(net, group, rotate="maps", example=x)
    turned.load_state_dict(converted.state_dict())
    assert gap(converted(x), turned(x)) < EXACT
    assert gap(qt.to_plain(converted, x)(x), converted(x)) < EXACT
    assert gap(qt.to_plain(turned, x)(x), converted(x)) < EXACT
    loss = sum(leaf.square().mean() for leaf in leaves(converted.train()(x)))
    loss.backward()
    trained = [p for p in converted.parameters() if p.requires_grad]
    assert trained
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)


@pytest.mark.parametrize("name", ["u-net", "feature pyramid", "channels last", "crops", "padding on one side"])
def test_converted_networks_take_other_sizes_and_maps_that_are_not_square(name: str) -> None:
    net = ready(name)
    converted = qt.convert(net, qt.D4)
    for size in ((24, 20), (16, 12)):
        x = torch.randn(1, 3, *size, dtype=torch.float64)
        assert [t.shape for t in leaves(converted(x))] == [t.shape for t in leaves(net(x))]
        assert max(qt.equivariance_error(converted, qt.D4, x).relative) < EXACT


@pytest.mark.parametrize(
    "name", ["residual", "splits", "channel shuffle", "selective kernels", "channels last", "u-net"]
)
def test_parameters_are_kept_instead_of_widths(name: str) -> None:
    net, x = ready(name), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    narrow, wide = (qt.convert(net, qt.C4, keep=keep, example=x) for keep in ("width", "parameters"))
    assert max(qt.equivariance_error(wide, qt.C4, x).relative) < EXACT
    before = narrow.conversion.before
    assert narrow.conversion.after.parameters < 0.6 * before.parameters
    assert 0.7 < wide.conversion.after.parameters / before.parameters < 1.6
    assert narrow.conversion.after.activations < 1.5 * before.activations < wide.conversion.after.activations


def test_signals_and_volumes() -> None:
    line = nn.Sequential(nn.Conv1d(2, 8, 5, stride=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 6, 3)).double()
    x = torch.randn(2, 2, 64, dtype=torch.float64)
    assert max(qt.equivariance_error(qt.convert(line, qt.FLIP), qt.FLIP, x).relative) < EXACT
    cube = nn.Sequential(nn.Conv3d(1, 24, 3), nn.BatchNorm3d(24), nn.MaxPool3d(2), nn.Conv3d(24, 24, 2)).double()
    y = torch.randn(1, 1, 8, 8, 8, dtype=torch.float64)
    assert max(qt.equivariance_error(qt.convert(cube, qt.OCTA), qt.OCTA, y).relative) < EXACT


# --- what is refused --------------------------------------------------------------------------------------------------


def test_all_that_is_not_known_is_listed_at_once() -> None:
    net = Code(lambda m, x: m.along(m.a(x).flatten(2)), a=conv(3, 8), along=nn.Conv1d(8, 8, 3, padding=1))
    with pytest.raises(qt.ConversionError) as caught:
        qt.convert(net, qt.C4, unknown="refuse")
    message = str(caught.value)
    assert "- along (Conv1d): a convolution over 1 axes does not go with C4" in message
    many = nn.Sequential(conv(3, 8), nn.Softmin(1), conv(8, 8), nn.AdaptiveMaxPool2d((4, 3)), nn.Unfold(3))
    with pytest.raises(qt.ConversionError) as caught:
        qt.convert(many, qt.C4, example=torch.randn(2, 3, 16, 16), unknown="refuse")
    lines = str(caught.value).splitlines()
    assert any(line.startswith("- 1 (Softmin): this layer is not known") for line in lines)
    assert any(line.startswith("- 3 (AdaptiveMaxPool2d)") or "exchanges" in line for line in lines)
    assert any(line.startswith("- 4 (Unfold): its patches overlap") for line in lines)


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda m, x: m.a(x).mean((2, 3), keepdim=True) + m.positions, "'positions' has a number for each part"),
        (lambda m, x: m.a(x).mean(2), "reduces one axis of positions"),
        (lambda m, x: m.a(x).mean((1, 2)), "some axes of positions together with others"),
        (lambda m, x: m.a(x).mean(), "the examples included"),
        (lambda m, x: torch.cat([m.a(x), m.a(x)], dim=2), "another axis than that of the features"),
        (lambda m, x: torch.matmul(m.a(x), m.a(x).transpose(2, 3)), "sums products over some axes of positions"),
        (lambda m, x: m.a(x)[:, 0], "one feature"),
        (
            lambda m, x: F.interpolate(m.a(x), scale_factor=0.5, mode="bilinear", antialias=True),
            "antialias is not known",
        ),
        (
            lambda m, x: (y := m.a(x)) + 0 * y[:, :4].relu_().sum((1, 2, 3), keepdim=True) + y,
            "used as a whole afterwards",
        ),
        (lambda m, x: F.conv2d(m.a(x), m.a.weight[:, :1].repeat(1, 8, 1, 1) * 2), "not computed from one parameter"),
        (
            lambda m, x: F.conv2d(x, m.a.weight.flip(0).cumsum(3).reshape(24, 1, 3, 3), groups=3),
            "not computed from one",
        ),
        (lambda m, x: F.conv2d(x, m.a.weight.reshape(4, -1).tanh().reshape(8, 3, 3, 3)), "cannot be followed"),
        (lambda m, x: F.conv2d(x, m.a(x)[:, :3, :3, :3]), "computed from its input"),
    ],
)
def test_what_cannot_be_exact_raises(forward: Callable[..., Any], why: str) -> None:
    net = Code(forward, a=conv(3, 8))
    net.register_parameter("positions", nn.Parameter(torch.randn(1, 8, 64, 64)))
    with pytest.raises(qt.ConversionError, match=why):
        qt.convert(net, qt.C4)


def test_options_are_checked() -> None:
    net = ready("residual")
    for options, why in (
        ({"group": "C4"}, "expected a Group"),
        ({"keep": "widht"}, "did you mean 'width'"),
        ({"init": "pretraind"}, "did you mean 'pretrained'"),
        ({"rotate": "map"}, "did you mean 'maps'"),
        ({"pool": "median"}, "median"),
        ({"until": "heat"}, "did you mean 'head'"),
        ({"keep": "parameters", "init": "pretrained"}, 'needs keep="width"'),
    ):
        with pytest.raises(qt.QuarterturnError, match=why):
            qt.convert(net, **{"group": qt.C4, **options})  # type: ignore[arg-type]
    with pytest.raises(qt.GroupError, match="4 spatial axes"):
        qt.convert(net, qt.generate("reversed", (-1, 2, 3, 4)))
    with pytest.raises(qt.ConversionError, match="2 example inputs were given, and the network takes fewer"):
        qt.convert(net, qt.C4, example=(torch.randn(2, 3, 16, 16).double(),) * 2)
    with pytest.raises(qt.ConversionError, match="no Conv3d"):
        qt.convert(net, qt.OCTA)
    with pytest.raises(qt.ConversionError, match="channels"):
        qt.convert(net, qt.C4, example=torch.randn(2, 4, 16, 16).double())
    with pytest.raises(qt.ConversionError, match="equally long"):
        qt.convert(net, qt.C4, rotate="maps", example=torch.randn(2, 3, 16, 12).double())
    with pytest.raises(qt.ConversionError, match=r"0 \(SliceConv\): this layer is not known"):
        qt.convert(nn.Sequential(qt.SliceConv(qt.C4, 3, 8, 3), conv(8, 8)), qt.C4, example=torch.randn(2, 3, 16, 16))
    with pytest.raises(qt.ConversionError, match="parametrization"):
        qt.convert(nn.Sequential(torch.nn.utils.parametrizations.weight_norm(conv(3, 8))), qt.C4)


def test_code_that_looks_at_sizes_needs_an_example() -> None:
    net = Code(lambda m, x: m.a(x) if x.shape[-1] > 20 else m.b(x), a=conv(3, 8), b=conv(3, 8, 1))
    with pytest.raises(qt.ConversionError, match="give an example"):
        qt.convert(net, qt.C4)
    assert "a" in dict(qt.convert(net, qt.C4, example=torch.randn(2, 3, 32, 32)).named_children())
    assert "b" in dict(qt.convert(net, qt.C4, example=torch.randn(1, 3, 16, 16)).named_children())
    deciding = Code(lambda m, x: m.a(x) if x.mean() > 0 else x, a=conv(3, 3))
    with pytest.raises(qt.ConversionError, match="values of tensors"):
        qt.convert(deciding, qt.C4, example=torch.randn(2, 3, 16, 16))


def test_the_result_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that keeps torch's own strided pool is found out at an even size."""
    net = after(nn.MaxPool2d(3, 2), conv(16, 16))
    net(torch.randn(2, 3, 16, 16))

    def careless(w: Any, path: str, module: Any, value: Any, example: Any) -> Any:
        out = layer_rules.spatial_pool(w, path, module, value, example)
        w.makers[path] = lambda: copy.deepcopy(module)
        return out

    table = [(types, careless if rule is layer_rules.spatial_pool else rule) for types, rule in layer_rules.LAYER_RULES]
    monkeypatch.setattr(layer_rules, "LAYER_RULES", table)
    with pytest.raises(qt.ConversionError, match="is not equivariant"):
        qt.convert(net, qt.C4, example=torch.randn(2, 3, 16, 16))


def test_what_has_learnt_nothing_is_checked_as_if_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a last layer of zeros, and with an example of zeros, the same fault is found."""
    net = after(nn.MaxPool2d(3, 2), conv(16, 16))
    net(torch.randn(2, 3, 16, 16))
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    x = torch.zeros(2, 3, 16, 16)
    converted = qt.convert(net, qt.C4, example=x)
    assert not converted.get_parameter("6.weight").any()  # it is left as it was
    right = layer_rules.spatial_pool

    def careless(w: Any, path: str, module: Any, value: Any, example: Any) -> Any:
        out = right(w, path, module, value, example)
        w.makers[path] = lambda: copy.deepcopy(module)
        return out

    table = [(types, careless if rule is right else rule) for types, rule in layer_rules.LAYER_RULES]
    monkeypatch.setattr(layer_rules, "LAYER_RULES", table)
    with pytest.raises(qt.ConversionError, match="is not equivariant"):
        qt.convert(net, qt.C4, example=x)


def test_networks_without_answers_to_images_are_checked_as_they_are() -> None:
    """A logarithm of the input has none to negative numbers."""
    net = Code(lambda m, x: m.a(torch.log(x)), a=conv(3, 4))
    x = torch.rand(2, 3, 16, 16, dtype=torch.float64) + 0.1
    converted = qt.convert(net.double(), qt.C4, example=x)
    assert max(qt.equivariance_error(converted, qt.C4, x).relative) < EXACT


def test_rounding_is_told_from_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float32 is off by more than it should be, float64 decides."""
    monkeypatch.setattr("quarterturn.graph.verify.TOLERANCES", {torch.float32: -1.0})
    net = after(nn.MaxPool2d(3, 2), conv(16, 16))
    x = torch.randn(2, 3, 16, 16)
    net(x)
    converted = qt.convert(net, qt.C4, example=x)
    assert next(converted.parameters()).dtype == torch.float32
    assert gap(qt.to_plain(converted, x).double()(x.double()), converted.double()(x.double())) < EXACT


# --- what the network begins with -------------------------------------------------------------------------------------


class OfOurs(nn.Module):
    """A network of all our layers that have weights."""

    def __init__(self, group: qt.Group) -> None:
        super().__init__()
        turn: Any = {"rotate": "filters"}
        self.first, self.norm = qt.SliceConv(group, 3, 8, 3, padding=1, **turn), qt.BatchNorm(group, 8, **turn)
        self.pool, self.deep = qt.MaxPool(group, 2, **turn), qt.DepthwiseConv(group, 8, 3, padding=1, **turn)
        self.mix, self.grouped = (
            qt.RollConv(group, 8, 8, 1, **turn),
            qt.RollConv(group, 8, 8, 3, padding=1, groups=2, **turn),
        )
        self.up = qt.RollConvTranspose(group, 8, 8, 2, stride=2, **turn)
        self.layer, self.groups = qt.LayerNorm(group, 8, **turn), qt.GroupNorm(group, 2, 8, **turn)
        self.hidden, self.head = qt.RollLinear(group, 8, 6, **turn), qt.RollLinear(group, 6, 5, **turn)
        self.end = qt.Pool(group, "max", **turn)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm(self.first(x))))
        x = x + self.grouped(F.relu(self.mix(F.relu(self.deep(x)))))
        x = self.groups(self.layer(self.up(x)))
        return self.end(self.head(F.relu(self.hidden(x.mean((2, 3))))))


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
def test_what_went_out_comes_in_again(group: qt.Group) -> None:
    torch.manual_seed(0)
    net = OfOurs(group).double().eval()
    for module in net.modules():
        if isinstance(module, qt.BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        for name, parameter in module.named_parameters(recurse=False):
            if name == "bias" or isinstance(module, qt.BatchNorm | qt.LayerNorm | qt.GroupNorm):
                nn.init.normal_(parameter)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    again = qt.convert(qt.to_plain(net, x), group, init="pretrained", example=x)
    assert again.conversion.after.parameters == sum(p.numel() for p in net.parameters())
    assert gap(again(x), net(x)) < EXACT
    assert gap(qt.convert(qt.to_plain(net, x), group, example=x)(x), net(x)) > 0.01  # drawn anew


def test_projection_is_the_nearest_bank() -> None:
    torch.manual_seed(0)
    group = qt.D4
    bank = torch.randn(2 * 8, 3 * 8, 3, 3, dtype=torch.float64)

    def expand(weight: Tensor) -> Tensor:
        return roll_filters(weight, group, range(8))

    weight = projected((2, 24, 3, 3), bank, expand)
    rest = bank - expand(weight)
    other = torch.randn_like(weight)
    assert abs(float((rest * expand(other)).sum())) < 1e-9  # what is left is at right angles to all such banks
    assert gap(projected((2, 24, 3, 3), expand(other), expand), other) < EXACT


def test_pretrained_weights_are_read_as_features_and_orientations() -> None:
    """A plain layer of one position becomes the mean of its blocks, and the head sees the mean over orientations."""
    assert per_feature(torch.arange(8.0), range(8), 4, "pretrained").tolist() == [1.5, 5.5]
    assert per_feature(torch.arange(8.0), range(8), 4, "scratch").tolist() == [0, 4]
    assert per_feature(torch.arange(2.0), [0, 1, None, None], 2, "pretrained", rest=9.0).tolist() == [0.5, 9]
    old = torch.arange(16.0).reshape(4, 4)
    assert rearranged(old, [0, 1, 2, 3], [0, 0, 1, None], 1, 1)[:, 3].tolist() == [0, 0, 0, 0]
    assert rearranged(old, range(4), [0, 0, 1, 1], 1, 1)[0].tolist() == [0, 0, 0.5, 0.5]
    grouped = torch.arange(8.0).reshape(4, 2)
    assert rearranged(grouped, range(4), range(4), 2, 1).tolist()[0] == [0, 1, 0, 0]


@pytest.mark.parametrize("keep", ["width", "parameters"])
def test_signals_stay_as_strong_with_weights_drawn_anew(keep: Any) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (conv(64, 64), nn.ReLU())]
    net = nn.Sequential(conv(3, 64), *layers)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    x = torch.randn(4, 3, 32, 32)
    before = float(net(x).square().mean().detach())
    inside: list[float] = []
    for _ in range(6):  # so few features vary much
        found = qt.convert(net, qt.C4, keep=keep)
        found.get_submodule("11").register_forward_hook(lambda *a: inside.append(float(a[2].relu().square().mean())))
        with torch.no_grad():
            found(x)
    assert 0.3 < sum(inside) / len(inside) / before < 3


def test_the_model_itself_stays() -> None:
    net = ready("batch norm and pools").train()
    before = copy.deepcopy(net.state_dict())
    converted = qt.convert(net, qt.C4, init="pretrained")
    assert net.training
    assert converted.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    mine = {id(p) for p in net.parameters()}
    assert not any(id(p) in mine for p in converted.parameters())


def test_names_stay_and_networks_can_be_copied_and_saved() -> None:
    net = ready("channels last")
    converted = qt.convert(net, qt.C4, rotate="maps")
    assert isinstance(converted.get_submodule("2.depthwise"), qt.DepthwiseConv)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    for twin in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert torch.equal(twin(x), converted(x))
        assert twin.conversion == converted.conversion
        assert gap(qt.to_plain(twin, x)(x), converted(x)) < EXACT


# --- partly equivariant -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotate", ["maps", "filters"])
def test_layers_from_until_on_stay_as_they_are(rotate: Any) -> None:
    net, x = ready("batch norm and pools"), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    partly = qt.convert(net, qt.C4, rotate=rotate, until="4")
    assert isinstance(partly.get_submodule("4"), nn.Conv2d)
    assert torch.equal(partly.get_submodule("4").weight, net.get_submodule("4").weight)  # type: ignore[arg-type]
    assert isinstance(partly.get_submodule("0"), qt.SliceConv)
    stacks: list[Tensor] = []
    partly.get_submodule("until.stack").register_forward_hook(lambda *a: stacks.append(a[2]))
    assert partly(x).shape == net(x).shape
    partly(qt.act(x, qt.C4, 1))
    one, two = (t.unflatten(1, (-1, 4)) for t in stacks)
    # orientation g of the turned input is what orientation g + 1 of the input was, turned
    moved = torch.stack([qt.act(one[:, :, (g + 1) % 4], qt.C4, 1) for g in range(4)], dim=2)
    assert gap(two, moved) < EXACT
    assert max(qt.equivariance_error(partly, qt.C4, x).relative) > 1e-3


def test_until_must_be_used() -> None:
    net = Code(lambda m, x: m.a(x), a=conv(3, 8), b=conv(8, 8))
    with pytest.raises(qt.ConversionError, match="until='b' is not used by the network's forward"):
        qt.convert(net, qt.C4, until="b")


@pytest.mark.parametrize("keep", ["width", "parameters"])
@pytest.mark.parametrize("rotate", ["maps", "filters"])
def test_until_takes_channels_that_do_not_divide(rotate: Any, keep: Any) -> None:
    net = nn.Sequential(conv(3, 10), nn.ReLU(), conv(10, 4)).double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    partly = qt.convert(net, qt.C4, rotate=rotate, keep=keep, until="2", example=x)
    assert partly(x).shape == net(x).shape
    assert torch.equal(partly.get_parameter("2.weight"), net[2].weight)
    assert gap(qt.to_plain(partly, x)(x), partly(x)) < EXACT


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_widths_of_pieces() -> None:
    widths = Widths(4, "width")
    axis = channels(104)
    parts = [axis.part(26 * i, 26 * (i + 1)) for i in range(4)]
    assert [widths.of(part) for part in parts] == [7] * 4
    assert widths.of(axis) == 28
    other = channels(104)
    make_equal(axis, other)
    assert widths.of(other) == 28
    assert len(other.segments) == 4
    assert widths.of(joined([channels(3), channels(5)])) == 1 + 2
    assert Widths(4, "parameters").of(channels(64)) == 32
    assert Widths(8, "parameters").of(channels(64)) == math.ceil(64 / math.sqrt(8))


def test_widths_of_shuffled_features() -> None:
    widths = Widths(4, "width")
    half = channels(58)
    axis = repeated(half, 2)
    assert widths.of(axis) == 2 * widths.of(half) == 30
    one, two = axis.split(2)
    assert widths.of(one) == widths.of(two) == 15
    assert widths.sources(repeated(channels(4), 2)) == [0, 2, 4, 6, 1, 3, 5, 7]
    fixed = channels(8, features=8, shared=True)
    with pytest.raises(Refusal, match="fixed"):
        fixed.fixed(4)


def test_widths_of_equal_parts_and_a_whole() -> None:
    axis, other = channels(16), channels(16)
    axis.split(4)
    make_equal(axis, other)
    assert [segment.channels for segment in other.segments] == [4] * 4
    assert Widths(8, "width").of(other) == Widths(8, "width").of(axis) == 4
    with pytest.raises(Refusal, match="16 and 15 channels"):
        make_equal(axis, channels(15))


def test_widths_that_are_not_solved_in_so_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarterturn._convert.widths.STEPS", 3)
    axis = channels(16)
    axis.split(4)
    with pytest.raises(Refusal, match="too many ways"):
        make_equal(axis, channels(16))


def test_rounding_and_groups_are_reported() -> None:
    notes = qt.convert(ready("widths that do not divide"), qt.C4, pool="max").conversion.notes
    assert "2: 10 channels become 3 features x 4 orientations = 12" in notes
    assert any("sees 2 features x 4 orientations, where it saw 7 numbers; its outputs are pooled" in n for n in notes)
    net = nn.Sequential(conv(3, 24), conv(24, 24, groups=8))
    assert "1: groups=8 becomes 2" in qt.convert(net, qt.C4).conversion.notes


def test_costs_are_counted() -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten(), nn.Linear(256, 3)
    )
    found = cost(net, [torch.zeros(2, 2, 4, 4)])
    conv_work, up, dense = 16 * 8 * 2 * 9, 16 * 8 * 4 * 4, 256 * 3
    assert found == Cost(
        sum(p.numel() for p in net.parameters()),
        conv_work + up + dense,
        conv_work + up + dense,
        16 * 8 + 64 * 4 + 3,
    )
    same = nn.Sequential(
        nn.Conv2d(4, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1), nn.ConvTranspose2d(64, 64, 2, 2)
    )
    x = torch.randn(1, 4, 8, 8)
    converted = qt.convert(same, qt.C4, example=x)
    pinned = converted.conversion.after  # the last layer has its 64 features in each orientation
    assert pinned.multiply_adds == cost(qt.to_plain(converted, x), [x]).multiply_adds
    kernel = converted.get_submodule("1").execution(torch.zeros(1, 64, 8, 8)).code == "kernel"
    saved = pinned.multiply_adds - pinned.with_kernel
    assert saved == (64 * 64 * 64 * 9 * (1 - 6 / 16) if kernel else 0)
    assert [short(n) for n in (999, 1000, 25_557_032)] == ["999", "1k", "25.56M"]


def test_summary_shows_all_ways(capsys: pytest.CaptureFixture[str]) -> None:
    text = qt.summary(ready("residual"), qt.C4, (3, 32, 32))
    assert capsys.readouterr().out == text + "\n"
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert {"as it is", "wrap", "convert, keep='width'", "convert, keep='parameters'"} <= set(rows)
    assert "(4.00x)" in rows["wrap"]
    with pytest.raises(qt.OptionError, match="channels and 2 sizes"):
        qt.summary(ready("residual"), qt.C4, (32, 32))
    refused = Code(lambda m, x: m.a(x).mean(2), a=conv(3, 8))
    assert "one axis of positions" in qt.summary(refused, qt.C4, (3, 16, 16))


# --- the checks themselves --------------------------------------------------------------------------------------------


def test_networks_are_made_lively() -> None:
    """Zeros, tiny scales and norms that have seen nothing hide what is behind them; the network itself stays."""
    net = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.PReLU(8, init=1e-6), conv(8, 4))
    nn.init.zeros_(net[3].weight)
    before = copy.deepcopy(net.state_dict())
    (x,) = images_like([torch.zeros(8, 3, 12, 12)], dim=2)
    with torch.no_grad():
        assert (spread := net.eval()(x)).amax(0).sub(spread.amin(0)).max() == 0
        out = lively(net, [x])(x)
        assert out.amax(0).sub(out.amin(0)).max() > 0.1
        norm = lively(net, [x])[:2](x)
    scale, shift = (lively(net, [x]).get_parameter(f"1.{name}") for name in ("weight", "bias"))
    torch.testing.assert_close(norm.mean((0, 2, 3)), shift, atol=1e-4, rtol=0)
    torch.testing.assert_close(norm.std((0, 2, 3)), scale, atol=1e-2, rtol=0)
    assert lively(net, [x]).get_parameter("2.weight").min() >= 0.5
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_images_have_an_up() -> None:
    (x,) = images_like([torch.randn(4, 3, 32, 32) * 5 + 7], dim=2)
    assert 2 < x.std() < 20
    ends = [float(x.select(axis, -1).mean() - x.select(axis, 0).mean()) for axis in (2, 3)]
    assert 2 < ends[0] < ends[1] - 2
    numbers = torch.arange(6).reshape(1, 1, 2, 3)
    assert torch.equal(images_like([numbers], dim=2)[0], numbers)


def test_errors_are_measured_by_the_difference_between_answers() -> None:
    """A small part that is not equivariant is all that tells two answers apart."""
    net = nn.Sequential(conv(1, 2), nn.Flatten(), nn.Linear(2 * 64, 3)).double()
    nn.init.constant_(net[2].bias, 1e6)
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    assert max(qt.equivariance_error(net, qt.C4, x).relative) < 1e-5
    assert error_of_answers(net, qt.C4, (x,)) > 0.1

"""convert: parts that cannot be followed run as they are in every orientation, and the network stays exact."""

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import trees
from quarterturn.check import error_of_answers
from quarterturn.graph.lively import images_like, lively
from quarterturn.layers.plain_part import Given, PlainPart, Seen

EXACT = 1e-10
WIDTH = 18  # which the order of no group here divides


class Part(nn.Module):
    """A part whose code is a function of its layers."""

    def __init__(self, run: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


class Around(nn.Module):
    """A network with a part in the middle, which `use` calls."""

    def __init__(self, part: nn.Module, use: Callable[..., Tensor] | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.middle = nn.Conv2d(3, width, 3, padding=1), part
        self.last, self.head = nn.Conv2d(width, 10, 3, stride=2), nn.Linear(10, 5)
        self.use = use or (lambda m, x: x + m.middle(x))

    def forward(self, x: Tensor) -> Tensor:
        x = self.use(self, F.relu(self.first(x)))
        return self.head(F.relu(self.last(x)).mean((2, 3)))


def attention(m: Any, x: Tensor) -> Tensor:
    """Every position looks at every other, written with matrix products."""
    n, c, h, w = x.shape
    q, k, v = m.qkv(x.flatten(2).transpose(1, 2)).chunk(3, dim=-1)
    mixed = torch.matmul(torch.softmax(q @ k.transpose(-2, -1) / c**0.5, dim=-1), v)
    return mixed.transpose(1, 2).reshape(n, c, h, w)


def pooled_strips(m: Any, x: Tensor) -> Tensor:
    return m.a(x.mean(3, keepdim=True)).flip(2).sigmoid() + x.amax(2, keepdim=True)


def decided(m: Any, x: Tensor) -> Tensor:
    """Code that looks at what it was given: it cannot be traced, but treats examples alike."""
    return m.a(x) if isinstance(x, Tensor) else x


def counted(m: Any, x: Tensor) -> Tensor:
    return m.a(x) * torch.tensor(x.shape[1] * 0.1, dtype=x.dtype)


def layer() -> nn.Conv2d:
    return nn.Conv2d(WIDTH, WIDTH, 3, padding=1)


PARTS: dict[str, Callable[[], nn.Module]] = {
    "Fourier transform": lambda: Part(lambda m, x: torch.fft.irfft2(torch.fft.rfft2(x).abs(), s=x.shape[2:])),
    "sorted channels": lambda: Part(lambda m, x: m.a(x.sort(dim=1).values), a=layer()),
    "cumulative sum": lambda: Part(lambda m, x: 0.1 * torch.cumsum(m.a(x), dim=3), a=layer()),
    "attention": lambda: Part(attention, qkv=nn.Linear(WIDTH, 3 * WIDTH)),
    "strips": lambda: Part(pooled_strips, a=nn.Conv2d(WIDTH, WIDTH, (3, 1), padding=(1, 0))),
    "batch norm inside": lambda: Part(lambda m, x: m.b(m.a(x)).cummax(2).values, a=layer(), b=nn.BatchNorm2d(WIDTH)),
    "flipped positions": lambda: Part(lambda m, x: m.a(x.flip(3)), a=layer()),
    "branch on the type": lambda: Part(decided, a=layer()),
    "branch on the type without layers": lambda: Part(
        lambda m, x: m.a(x) * 2 if torch.is_tensor(x) else m.a(x), a=layer()
    ),
    "array of sizes": lambda: Part(counted, a=layer()),
    "in place": lambda: Part(lambda m, x: m.a(F.relu(x.mul(2), inplace=True)).cumsum(2).mul_(0.1), a=layer()),
    "nested": lambda: Part(
        lambda m, x: m.b(m.inner(m.a(x))),
        a=layer(),
        b=layer(),
        inner=nn.Sequential(nn.ReLU(), Part(lambda m, x: x.flip(2).cumsum(2) * 0.1)),
    ),
}


def ready(net: nn.Module) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2)
    return net.double().eval(), torch.randn(2, 3, 12, 12, dtype=torch.float64)


def gap(a: Any, b: Any) -> float:
    pairs = zip(trees.leaves(a, Tensor), trees.leaves(b, Tensor), strict=True)
    return max(float(((x - y).abs().max() / y.abs().max()).detach()) for (_, x), (_, y) in pairs)


def check(net: nn.Module, group: qt.Group, x: Tensor, **options: Any) -> Any:
    """Exact in both modes and as a plain network; the old network is not. Returns the converted one."""
    converted = qt.convert(net, group, example=x, **options)
    assert converted.conversion.plain
    images = images_like([x], dim=group.dim)
    assert error_of_answers(lively(net, images), group, images) > 1e-3
    assert error_of_answers(lively(converted, images), group, images) < EXACT
    assert max(qt.equivariance_error(converted, group, x).relative) < EXACT
    turned = qt.convert(net, group, rotate="maps", example=x, **options)
    turned.load_state_dict(converted.state_dict())
    assert gap(turned(x), converted(x)) < EXACT
    assert gap(qt.to_plain(converted, x)(x), converted(x)) < EXACT
    return converted


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
@pytest.mark.parametrize("name", PARTS)
def test_parts_that_cannot_be_followed_are_exact(name: str, group: qt.Group) -> None:
    net, x = ready(Around(PARTS[name]()))
    converted = check(net, group, x)
    wide = torch.randn(1, 3, 12, 10, dtype=torch.float64)
    assert max(qt.equivariance_error(converted, group, wide).relative) < EXACT
    assert all(part.path.startswith("middle") for part in converted.conversion.plain)
    converted.train()(x).square().mean().backward()
    for part_name, parameter in converted.named_parameters():
        assert parameter.grad is not None, part_name
        assert parameter.grad.any(), part_name
    for twin in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted.eval()))) if name == "attention" else ():
        assert torch.equal(twin.eval()(x), converted.eval()(x))


def test_the_innermost_part_is_kept() -> None:
    net, x = ready(Around(PARTS["nested"]()))
    assert [part.path for part in qt.convert(net, qt.C4, example=x).conversion.plain] == ["middle.inner.1"]
    inner = qt.convert(net, qt.C4, example=x, plain=["middle.inner", "middle"])  # the outer one takes the other in
    assert {part.path for part in inner.conversion.plain} == {"middle"}


def test_volumes() -> None:
    part = Part(lambda m, x: m.a(x.cumsum(2) * 0.1), a=nn.Conv3d(25, 25, 1))
    net = nn.Sequential(nn.Conv3d(1, 25, 2), nn.Sequential(nn.ReLU(), part), nn.Conv3d(25, 3, 2)).double()
    x = torch.randn(1, 1, 5, 5, 5, dtype=torch.float64)
    converted = qt.convert(net, qt.OCTA, example=x)
    assert [p.path for p in converted.conversion.plain] == ["1.1"]
    assert max(qt.equivariance_error(converted, qt.OCTA, x).relative) < EXACT
    assert max(qt.equivariance_error(net, qt.OCTA, x).relative) > 1e-3


# --- the layer itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
def test_what_is_equivariant_already_comes_out_as_itself(group: qt.Group) -> None:
    torch.manual_seed(0)
    roll = qt.RollConv(group, 2, 3, 3, padding=1, rotate="filters").double()
    part = PlainPart(group, nn.Sequential(roll), channels=2 * group.order, rotate="filters")
    outs = Given(tuple(range(3 * group.order)), part.outputs[0].layout)
    part = PlainPart(group, roll, inputs=part.inputs, outputs=[outs], rotate="filters")
    x = torch.randn(2, 2 * group.order, 7, 6, dtype=torch.float64)
    assert gap(part(x), roll(x)) < EXACT


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
def test_the_layer_is_the_adjoint_of_roll_after_the_part_after_roll(group: qt.Group) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2 * group.order, 2 * group.order, 3, padding=1).double()
    x = torch.randn(2 * group.order, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    rolled = conv(qt.roll(x, group))
    (adjoint,) = torch.autograd.grad(qt.roll(x, group), x, rolled)
    assert gap(PlainPart(group, conv, channels=2 * group.order)(x), adjoint / group.order) < EXACT


@settings(max_examples=40, deadline=None)
@given(
    group=st.sampled_from([qt.C4, qt.D4, qt.C2, qt.MIRROR]),
    features=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    part=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    seed=st.integers(0, 99),
)
def test_any_part_is_equivariant_whatever_its_channels(
    group: qt.Group, features: tuple[int, int], part: tuple[int, int], sizes: tuple[int, int], seed: int
) -> None:
    """Stacked maps that are turned and whose orientations are permuted give such maps, for every element."""
    torch.manual_seed(seed)
    maps = ((0,), (1,), (2,), (3,))
    reads = torch.randint(features[0] * group.order, (part[0],)).tolist()
    gives = torch.randint(part[1], (features[1] * group.order,)).tolist()
    odd = nn.Sequential(nn.Conv2d(*part, 3, padding=(1, 1)), Part(lambda m, x: x.cumsum(2) + x.cummax(3).values))
    layer = PlainPart(group, odd.double(), 0, [Seen(tuple(reads), maps)], [Given(tuple(gives), maps)], rotate="filters")
    x = torch.randn(2, features[0] * group.order, *sizes, dtype=torch.float64)

    def acted(t: Tensor, h: int) -> Tensor:
        moved = t.unflatten(1, (-1, group.order))[:, :, [group.table[g][h] for g in range(group.order)]]
        return qt.act(moved.flatten(1, 2), group, h)

    for h in range(group.order):
        assert (layer(acted(x, h)) - acted(layer(x), h)).abs().max() < EXACT


def test_without_the_roll_it_would_not_be_equivariant() -> None:
    """The checks can fail: the part on stacked maps as they are, in place of the layer."""
    net, x = ready(Around(PARTS["cumulative sum"]()))
    converted = qt.convert(net, qt.C4, example=x)

    class Bare(nn.Module):
        def __init__(self, part: PlainPart) -> None:
            super().__init__()
            self.part = part.part

        def forward(self, y: Tensor) -> Tensor:
            return F.pad(self.part(y[:, :WIDTH]), (0, 0, 0, 0, 0, 2))

    converted.middle = Bare(converted.get_submodule("middle"))
    assert max(qt.equivariance_error(converted, qt.C4, x).relative) > 1e-3


def test_to_torchs_export() -> None:
    net, x = ready(Around(PARTS["attention"]()))
    converted = qt.convert(net, qt.C4, example=x)
    program = torch.export.export(qt.to_plain(converted, x), (x,))
    assert gap(program.module()(x), converted(x)) < EXACT
    assert gap(torch.export.export(converted, (x,), strict=False).module()(x), converted(x)) < EXACT
    net, x = ready(nn.Sequential(nn.Conv2d(3, WIDTH, 3), PARTS["attention"](), nn.Conv2d(WIDTH, 4, 3)))
    converted = qt.convert(net, qt.D4, example=x)
    plain = qt.to_plain(converted)  # for maps of any size
    wide = torch.randn(1, 3, 12, 16, dtype=torch.float64)
    assert gap(plain(wide), converted(wide)) < EXACT


@pytest.mark.parametrize("free", ["batch", "sizes"])
def test_to_onnx(tmp_path: Any, free: Any) -> None:
    part = Part(lambda m, x: m.a(x).cumsum(3) * 0.1, a=layer())
    net, x = ready(nn.Sequential(nn.Conv2d(3, WIDTH, 3), part, nn.Conv2d(WIDTH, 4, 3)))
    converted = qt.convert(net.float(), qt.C4, example=x.float())
    qt.export(converted, x.float(), tmp_path / "net.onnx", free=free)  # compares the file with the network
    assert (tmp_path / "net.onnx").exists()


def test_to_another_device() -> None:
    """Also what is no parameter goes along."""
    net, x = ready(Around(PARTS["cumulative sum"]()))
    converted = qt.convert(net, qt.C4, example=x).to("meta")
    assert converted(x.to("meta")).shape == (2, 5)


# --- what goes in and out ---------------------------------------------------------------------------------------------


def both(m: Any, x: Tensor) -> Tensor:
    two, (one, gate) = m.middle(x, [F.max_pool2d(x, 2)], scale=0.5, mask=None)
    return x * gate + two + F.interpolate(one, scale_factor=2)


def several(m: Any, x: Tensor, others: list[Tensor], scale: float, mask: Any) -> Any:
    assert mask is None
    y = scale * m.a(x).cumsum(2)
    return y, (others[0].flip(3) * 0.1, x.cummax(3).values.mean((2, 3), keepdim=True))


def of_dict(m: Any, x: Tensor) -> Tensor:
    found = m.middle(x)
    return found["maps"] * torch.sigmoid(found["vector"])[:, :, None, None]


def of_namespace(m: Any, x: Tensor) -> Tensor:
    found = m.middle(x)
    return found.maps * found.gate


def channels_last(m: Any, x: Tensor) -> Tensor:
    return x + m.middle(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def as_tokens(m: Any, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    y = x.flatten(2).transpose(1, 2)
    return (y + m.middle(y)).transpose(1, 2).reshape(n, c, h, w)


def as_wider_tokens(m: Any, x: Tensor) -> Tensor:
    n, _, h, w = x.shape
    return m.middle(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(n, WIDTH, h, w)


def with_sizes(m: Any, x: Tensor) -> Tensor:
    return x + m.middle(x.flatten(2).transpose(1, 2), x.shape[2:], x.shape[1]).transpose(1, 2).reshape(x.shape)


def sized(m: Any, y: Tensor, size: Any, channels: int) -> Tensor:
    maps = m.a(y.transpose(1, 2).reshape(-1, channels, *size)).cumsum(3) * 0.1
    return maps.flatten(2).transpose(1, 2)


def as_vectors(m: Any, x: Tensor) -> Tensor:
    return x * torch.sigmoid(m.middle(x.mean((2, 3))))[:, :, None, None]


def twice(m: Any, x: Tensor) -> Tensor:
    return m.middle(F.relu(m.middle(x)))


MEETINGS: dict[str, tuple[Callable[..., Any], Callable[[], nn.Module]]] = {
    "several inputs and outputs": (both, lambda: Part(several, a=layer())),
    "a dict": (of_dict, lambda: Part(lambda m, x: {"maps": x.cumsum(2), "vector": x.cummax(2).values.mean((2, 3))})),
    "a namespace": (
        of_namespace,
        lambda: Part(lambda m, x: SimpleNamespace(maps=m.a(x).cumsum(3), gate=x.cumsum(2)), a=layer()),
    ),
    "channels last": (
        channels_last,
        lambda: Part(lambda m, x: m.a(x).cumsum(2) * 0.1, a=nn.Linear(WIDTH, WIDTH)),
    ),
    "tokens": (as_tokens, lambda: nn.Sequential(Part(lambda m, y: m.a(y).cumsum(1) * 0.1, a=nn.Linear(WIDTH, WIDTH)))),
    "wider tokens": (as_wider_tokens, lambda: Part(lambda m, y: m.a(y).cumsum(1) * 0.1, a=nn.Linear(WIDTH, WIDTH))),
    "tokens with sizes": (with_sizes, lambda: Part(sized, a=layer())),
    "vectors": (as_vectors, lambda: Part(lambda m, v: m.a(v.sort(dim=1).values), a=nn.Linear(WIDTH, WIDTH))),
    "torch's attention, without its weights": (
        lambda m, x: (m.middle(y := x.flatten(2).transpose(1, 2), y, y)[0]).transpose(1, 2).reshape(x.shape),
        lambda: nn.MultiheadAttention(WIDTH, 3, batch_first=True, add_zero_attn=True),
    ),
    "a recurrent layer, without its state": (
        lambda m, x: x * m.middle(x.mean((2, 3)).unsqueeze(1))[0].transpose(1, 2).unsqueeze(3),
        lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
    ),
    "where the largest is, unused": (
        lambda m, x: m.middle(x)[0],
        lambda: Part(lambda m, x: (m.a(x).cumsum(2), x.argmax(1)), a=layer()),
    ),
    "called twice": (twice, lambda: Part(lambda m, x: m.a(x).cumsum(3) * 0.1, a=layer())),
    "patches as tokens": (
        lambda m, x: m.middle(x).transpose(1, 2).reshape(x.shape[0], WIDTH, 6, 6),
        lambda: Part(lambda m, x: m.a(x).cumsum(2).flatten(2).transpose(1, 2), a=nn.Conv2d(WIDTH, WIDTH, 2, 2)),
    ),
    "smaller maps": (
        lambda m, x: m.middle(x),
        lambda: Part(lambda m, x: m.a(x.cumsum(3)), a=nn.Conv2d(WIDTH, WIDTH, 3, stride=2)),
    ),
}


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
@pytest.mark.parametrize("name", MEETINGS)
def test_parts_take_and_give_what_networks_have(name: str, group: qt.Group) -> None:
    use, part = MEETINGS[name]
    net, x = ready(Around(part(), use))
    plain = ["middle"] if name in ("tokens", "wider tokens") else []
    converted = check(net, group, x, plain=plain)
    assert [part.path for part in converted.conversion.plain] == ["middle"]


def test_sizes_that_differ_are_not_the_same_for_all_orientations() -> None:
    net, x = ready(Around(MEETINGS["tokens with sizes"][1](), with_sizes))
    converted = qt.convert(net, qt.C4, example=x)
    with pytest.raises(qt.ShapeError, match="equal sides"):
        converted(torch.randn(1, 3, 12, 10, dtype=torch.float64))


def test_parts_of_which_calls_use_different_outputs() -> None:
    """One layer cannot be both, so the whole is the plain part."""
    part = Part(lambda m, x: (x.cumsum(2) * 0.1, x.flip(3)))
    outer = Part(lambda m, x: m.part(x)[0] + m.part(x + 1)[1], part=part)
    net, x = ready(Around(outer))
    converted = check(net, qt.C4, x)
    assert [p.path for p in converted.conversion.plain] == ["middle"]


def test_outputs_that_cannot_be_told_are_not_used_in_silence() -> None:
    part = Part(lambda m, x: (x.cumsum(2), x.argmax(1)))
    for use in (
        lambda m, x: (y := m.middle(x))[0] * y[1].unsqueeze(1),
        lambda m, x: m.other(m.middle(x)[1], x),
    ):
        net, x = ready(Around(part, use))
        net.other = Part(lambda m, i, x: x * i.unsqueeze(1))
        with pytest.raises(qt.ConversionError, match=r"wrap\(\)"):
            qt.convert(net, qt.C4, example=x)


def test_parts_at_the_input_and_at_the_output() -> None:
    stem = Part(lambda m, x: m.a(x.cumsum(3)), a=nn.Conv2d(3, 10, 3))
    end = Part(lambda m, x: (m.a(x.cumsum(2)), x.cummax(3).values.mean((2, 3))), a=nn.Conv2d(6, 2, 1))
    net, x = ready(nn.Sequential(OrderedDict(stem=stem, body=nn.Conv2d(10, 6, 3), end=end)))
    converted = check(net, qt.D4, x)
    assert [p.path for p in converted.conversion.plain] == ["stem", "end"]
    assert [t.shape for t in converted(x)] == [t.shape for t in net(x)]


def test_what_it_gives_that_cannot_be_told_makes_the_outer_one_plain() -> None:
    inner = Part(lambda m, x: x.cumsum(2).unflatten(1, (3, 6)))
    outer = Part(lambda m, x: m.inner(x).flip(1).flatten(1, 2) * 0.1, inner=inner)
    net, x = ready(Around(outer))
    converted = check(net, qt.C4, x)
    assert [p.path for p in converted.conversion.plain] == ["middle"]


# --- options ----------------------------------------------------------------------------------------------------------


def followed() -> tuple[nn.Module, Tensor]:
    """A network of which everything can be followed."""
    block = nn.Sequential(OrderedDict(a=layer(), norm=nn.BatchNorm2d(WIDTH), relu=nn.ReLU(), b=layer()))
    return ready(Around(block))


@pytest.mark.parametrize("plain", ["middle", "middle.a", ["middle.a", "middle.b"], ["first"], ["head", "middle.norm"]])
def test_parts_that_are_asked_for_stay_plain(plain: Any) -> None:
    net, x = followed()
    names = [plain] if isinstance(plain, str) else plain
    converted = check(net, qt.D4, x, plain=plain)
    assert {part.path for part in converted.conversion.plain} == set(names)
    assert all(part.why == "as you asked" for part in converted.conversion.plain)
    for name in names:
        old, new = net.get_submodule(name), converted.get_submodule(f"{name}.part")
        assert type(old) is type(new)
        for one, other in zip(old.parameters(), new.parameters(), strict=True):
            assert torch.equal(one, other)


def test_keeping_parameters() -> None:
    net, x = ready(Around(PARTS["cumulative sum"]()))
    converted = check(net, qt.C4, x, keep="parameters")
    assert converted.get_submodule("first").out_features == WIDTH // 2


def test_names_that_are_not_there_or_not_used() -> None:
    net, x = followed()
    with pytest.raises(qt.OptionError, match="did you mean 'middle"):
        qt.convert(net, qt.C4, example=x, plain="midle")
    with pytest.raises(qt.OptionError, match="unknown layer in plain ''"):
        qt.convert(net, qt.C4, example=x, plain="")
    net.add_module("spare", layer())
    with pytest.raises(qt.ConversionError, match="plain='spare' is not called"):
        qt.convert(net, qt.C4, example=x, plain="spare")
    with pytest.raises(qt.OptionError, match="did you mean 'refuse'"):
        qt.convert(net, qt.C4, example=x, unknown="refus")  # type: ignore[arg-type]


def test_unknown_parts_can_be_refused() -> None:
    net, x = ready(Around(PARTS["attention"]()))
    with pytest.raises(qt.ConversionError, match=r"(?s)wrap\(\).*middle \("):
        qt.convert(net, qt.C4, example=x, unknown="refuse")
    asked = qt.convert(net, qt.C4, example=x, unknown="refuse", plain="middle")
    assert max(qt.equivariance_error(asked, qt.C4, x).relative) < EXACT


def test_frozen_and_tied_parameters_modes_and_hooks_of_parts() -> None:
    net, x = ready(Around(PARTS["batch norm inside"]()))
    net.train()
    part: Any = net.get_submodule("middle")
    part.b.eval()
    part.a.weight.requires_grad_(False)
    part.run = lambda m, x: m.c(m.b(m.a(x))).cummax(2).values
    part.c = layer().double()
    part.c.weight = part.a.weight
    seen: list[int] = []
    part.b.register_forward_hook(lambda *_: seen.append(1))
    converted = qt.convert(net, qt.C4, example=x)
    new: Any = converted.get_submodule("middle.part")
    assert new.training
    assert not new.b.training
    assert not new.a.weight.requires_grad
    assert new.a.bias.requires_grad
    assert new.c.weight is new.a.weight
    seen.clear()
    converted(x)
    assert seen


def test_errors_that_cannot_be_read_are_errors_still() -> None:
    """A part that looks for something in a dict, by what is only a stand-in while it is read."""
    part = Part(lambda m, x: m.a(x) * {x.shape[2]: 0.5}[x.shape[2]], a=layer())
    net, x = ready(Around(part))
    assert [p.path for p in check(net, qt.C4, x).conversion.plain] == ["middle"]


def test_parts_that_keep_what_they_computed() -> None:
    """A cache of a part does not keep what it was given while it was read."""

    def caching(m: Any, x: Tensor) -> Tensor:
        if "scale" not in m.cache:
            m.cache["scale"] = m.a.weight.mean() * x.new_ones(1)
            m.last = x
        return m.a(x).cumsum(2) * m.cache["scale"]

    net, x = ready(Around(Part(caching, a=layer())))
    part: Any = net.get_submodule("middle")
    part.cache, part.last = {}, None
    expected = net(x)
    part.cache.clear()
    part.last = None
    check(net, qt.C4, x)
    assert not part.cache or isinstance(part.cache["scale"], Tensor)
    assert part.last is None or isinstance(part.last, Tensor)
    assert torch.equal(net(x), expected)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mix",
    [
        lambda m, x: x - x.mean(0, keepdim=True),
        lambda m, x: m.norm(x).cumsum(2),
        lambda m, x: torch.einsum("nchw,mchw,mcij->ncij", x, x, x) / 1000,
        lambda m, x: x if x.sum() > 0 else -x,
        lambda m, x: x * torch.rand(1, dtype=x.dtype),
        lambda m, x: x.cumsum(0).cumsum(2),
    ],
)
def test_parts_that_mix_examples_are_refused_by_name(mix: Callable[..., Tensor]) -> None:
    part = Part(mix, norm=nn.BatchNorm2d(WIDTH, track_running_stats=False))
    net, x = ready(Around(nn.Sequential(nn.ReLU(), part)))
    with pytest.raises(qt.ConversionError, match=r"'middle.1' \(Part\) mixes examples.*wrap\(\)"):
        qt.convert(net, qt.C4, example=x, plain="middle.1")
    with pytest.raises(qt.ConversionError, match=r"wrap\(\)"):
        qt.convert(net, qt.C4, example=x[:1])


def test_parts_that_change_their_input_for_others_are_refused() -> None:
    part = Part(lambda m, x: m.a(x.relu_()).cumsum(2), a=layer())
    net, x = ready(Around(part, lambda m, x: m.middle(x - 0.5)))
    check(net, qt.C4, x)
    net, x = ready(Around(part, lambda m, x: (y := x - 0.5) + m.middle(y)))
    with pytest.raises(qt.ConversionError, match=r"middle changes its input in place.*wrap\(\)"):
        qt.convert(net, qt.C4, example=x)


def test_shapes_that_depend_on_values_are_refused() -> None:
    part = Part(lambda m, x: x[x > 0].reshape(1, -1)[:, :36].reshape(1, 1, 6, 6).expand(2, WIDTH, 6, 6))
    net, x = ready(Around(part, lambda m, x: m.middle(x)))
    with pytest.raises(qt.ConversionError, match=r"wrap\(\)"):
        qt.convert(net, qt.C4, example=x)


def test_networks_that_would_be_one_plain_part_are_refused() -> None:
    net, x = ready(nn.Sequential(Around(PARTS["cumulative sum"]())))
    with pytest.raises(qt.ConversionError, match=r"no layer .* would share filters.*: wrap\(\) it"):
        qt.convert(net, qt.C4, example=x, plain="0")
    alone, x = ready(Part(lambda m, x: m.a(x).cumsum(2), a=nn.Conv2d(3, 4, 3)))
    with pytest.raises(qt.ConversionError, match=r"(?s)wrap\(\).*cumsum"):
        qt.convert(alone, qt.C4, example=x)


def test_our_own_layers_are_no_parts_of_ordinary_networks() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), qt.RollConv(qt.C4, 2, 2, 3, rotate="filters"))
    with pytest.raises(qt.ConversionError, match=r"1 \(RollConv\): this layer is not known"):
        qt.convert(net, qt.C4, example=torch.randn(2, 3, 12, 12))


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_says_what_is_plain_why_and_what_it_costs() -> None:
    net, x = ready(Around(PARTS["cumulative sum"]()))
    found = qt.convert(net, qt.C4, example=x).conversion
    (part,) = found.plain
    own = 144 * WIDTH * WIDTH * 9
    assert (part.path, part.layer, part.multiply_adds) == ("middle", "Part", 4 * own)
    assert "cumsum" in part.why
    others = 144 * WIDTH * 3 * 9 + 25 * 10 * WIDTH * 9 + 10 * 5
    assert found.rolled_share == pytest.approx(others / (others + own))
    assert f"{round(100 * found.rolled_share)} %" in str(found)
    assert "plain, in every orientation: middle (Part)" in str(found)


def test_the_rolled_share_counts_layers_that_share_filters_alone() -> None:
    net, x = followed()
    assert qt.convert(net, qt.C4, example=x).conversion.rolled_share == 1.0
    head = qt.convert(net, qt.C4, example=x, until="last").conversion.rolled_share
    first, middle = 144 * WIDTH * 3 * 9, 2 * 144 * WIDTH * WIDTH * 9
    rest = 25 * 10 * WIDTH * 9 + 10 * 5
    assert head == pytest.approx((first + middle) / (first + middle + rest))

    class Own(nn.Module):
        """Filters that are parameters of a module with code of its own, and a product that is no layer."""

        def __init__(self) -> None:
            super().__init__()
            self.filters = nn.Parameter(torch.randn(WIDTH, WIDTH, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.filters)

    net, x = ready(Around(Own()))
    assert qt.convert(net, qt.C4, example=x).conversion.rolled_share == 1.0

"""What the last layer of a converted network sees: heads, and the layer of invariants that one of them has."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ALL_GROUPS
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, OCTA, Group
from quarterturn._convert.heads import HEADS
from quarterturn.check import error_of_answers
from quarterturn.fourier import irreps
from quarterturn.graph.lively import images_like, lively

EXACT = 1e-10
AXIS = qt.generate("quarter turns about the first axis of a volume, with a flip", (1, 3, -2), (-1, 2, 3))
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


class Code(nn.Module):
    """A network whose forward is a function of its layers."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.run = forward

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def layers_of(dim: int) -> tuple[Any, Any]:
    return getattr(nn, f"Conv{dim}d"), getattr(nn, f"AdaptiveAvgPool{dim}d")


def body(dim: int = 2, width: int = 16) -> nn.Sequential:
    conv, _ = layers_of(dim)
    return nn.Sequential(conv(2, width, 3, padding=1), nn.ReLU(), conv(width, width, 3, padding=1), nn.ReLU())


def vector_net(dim: int = 2, *end: nn.Module, width: int = 16) -> nn.Sequential:
    _, mean = layers_of(dim)
    return nn.Sequential(*body(dim, width), mean(1), nn.Flatten(), nn.Linear(width, 5), *end)


def map_net(dim: int = 2, *end: nn.Module, width: int = 16) -> nn.Sequential:
    return nn.Sequential(*body(dim, width), layers_of(dim)[0](width, 3, 1), *end)


NETS: dict[str, Callable[[int], nn.Module]] = {"vector": vector_net, "maps": map_net}


def images(group: Group, size: int = 9) -> Tensor:
    return torch.randn(2, 2, *[size if group.dim == 2 else 5] * group.dim, dtype=torch.float64)


def assert_exact(net: nn.Module, group: Group, x: Tensor) -> None:
    """Equivariant as if it had learnt, and not constant."""
    seen = images_like((x,), group.dim)
    assert error_of_answers(lively(net, seen), group, seen) < EXACT


# --- the layer --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(ALL_GROUPS), st.integers(1, 3), st.booleans(), st.integers(0, 2**31))
def test_invariants_do_not_see_the_orientation(group: Group, features: int, maps: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = [2] * group.dim if maps else []
    x = torch.randn(group.order * 2, features, *sizes, dtype=torch.float64, generator=generator)
    sliced, stacked = qt.Invariants(group), qt.Invariants(group, rotate="filters")
    found = sliced(x)
    assert found.shape == (2, features * sliced.numbers, *sizes)
    torch.testing.assert_close(stacked(qt.stack(x, group)), found, **CLOSE)
    for g in range(group.order):  # of a turned input, pathway h is what pathway hg was
        pathways = x.unflatten(0, (group.order, 2))[[group.table[h][g] for h in range(group.order)]]
        expected = qt.act(found, group, g) if maps else found
        torch.testing.assert_close(sliced(pathways.flatten(0, 1)), expected, **CLOSE)


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda group: group.name)
def test_mean_and_strengths_add_up_to_the_mean_square(group: Group) -> None:
    x = torch.randn(3, 4 * group.order, dtype=torch.float64)
    found = qt.Invariants(group, rotate="filters")(x).unflatten(1, (4, -1))
    orientations = x.unflatten(1, (4, -1))
    torch.testing.assert_close(found[:, :, 0], orientations.mean(2), **CLOSE)
    torch.testing.assert_close(found[:, :, 1], orientations.amax(2), **CLOSE)
    squares = found[:, :, 0].square() + found[:, :, 2:].square().sum(2)
    torch.testing.assert_close(squares, orientations.square().mean(2), **CLOSE)
    assert found.shape[2] == 1 + len(irreps.irreps(group))


@pytest.mark.parametrize("group", [C4, D4, OCTA], ids=lambda group: group.name)
def test_gradients_are_finite_at_zero_and_where_one_irrep_is_alone(group: Group) -> None:
    for start in (torch.zeros(1, group.order), torch.ones(1, group.order)):
        x = start.double().requires_grad_()
        qt.Invariants(group, rotate="filters")(x).sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
    x = torch.randn(2, 2 * group.order, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(qt.Invariants(group, rotate="filters"), x)


def test_half_floats_do_not_overflow() -> None:
    x = torch.full((1, 4), 1000.0, dtype=torch.float16)
    x[0, 0] = -1000.0
    assert qt.Invariants(C4, rotate="filters")(x).isfinite().all()


def test_wrong_shapes_are_said() -> None:
    with pytest.raises(qt.ShapeError, match="5 features do not hold the 4 orientations of C4"):
        qt.Invariants(C4, rotate="filters")(torch.zeros(1, 5))
    with pytest.raises(qt.ShapeError, match="a batch of 3 does not hold the 4 pathways of C4"):
        qt.Invariants(C4)(torch.zeros(3, 5))


@pytest.mark.parametrize("rotate", ["maps", "filters"])
@pytest.mark.parametrize("group", [C4, D4, OCTA], ids=lambda group: group.name)
def test_networks_with_invariants_become_plain(group: Group, rotate: Any) -> None:
    net = nn.Sequential(
        qt.SliceConv(group, 2, 3, 3, padding=1, rotate=rotate),
        nn.ReLU(),
        qt.RollConv(group, 3, 2, 3, padding=1, rotate=rotate),
        qt.Invariants(group, rotate),
    ).double()
    x = images(group)
    torch.testing.assert_close(qt.to_plain(net, x)(x), net(x), **CLOSE)
    qt.assert_equivariant(net, group, x)


# --- heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rotate", ["maps", "filters"])
@pytest.mark.parametrize("group", [C4, D4, AXIS], ids=["C4", "D4", "a volume"])
@pytest.mark.parametrize("kind", NETS)
def test_every_head_is_exact(kind: str, group: Group, rotate: Any, head: Any) -> None:
    x = images(group)
    net = qt.convert(NETS[kind](group.dim).double(), group, rotate, head=head, example=x)
    assert_exact(net, group, x)
    torch.testing.assert_close(qt.to_plain(net, x)(x), net(x), rtol=1e-10, atol=1e-12)
    sum(p.square().mean() for p in [net(x)]).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("group", [C4, D4], ids=lambda group: group.name)
@pytest.mark.parametrize("kind", NETS)
def test_a_head_of_invariants_in_an_onnx_file(kind: str, group: Group, tmp_path: Path) -> None:
    """On another number of images than the example has; errors are those of float32."""
    onnxruntime = pytest.importorskip("onnxruntime")
    x, other = images(group), torch.cat([images(group), images(group)])
    net = lively(qt.convert(NETS[kind](2).double(), group, head="invariants", example=x), (x,)).eval()
    assert any(isinstance(module, qt.Invariants) for module in net.modules())
    net = net.float()
    plain = qt.export(net, x.float(), tmp_path / "net.onnx")
    assert not any(type(module).__module__.startswith("quarterturn") for module in plain.modules())
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    answer = net(other.float())
    differ = (answer[0] - answer[1]).abs().max()
    for g in range(group.order):
        turned = qt.act(other.float(), group, g).contiguous()
        got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: turned.numpy()})[0])
        assert (got - (qt.act(answer, group, g) if kind == "maps" else answer)).abs().max() < 1e-4 * differ


def test_the_check_of_heads_fails_for_a_head_that_sees_one_orientation() -> None:
    class First(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, 4))[:, :, 0]

    net = qt.convert(vector_net().double(), C4, head="pool")
    net.get_submodule("6").pool = First()  # type: ignore[union-attr]
    with pytest.raises(AssertionError):
        assert_exact(net, C4, images(C4))


@pytest.mark.parametrize("keep", ["width", "parameters"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", NETS)
def test_the_last_layer_sees_what_the_report_says(kind: str, head: Any, keep: Any) -> None:
    x = images(C4)
    net = qt.convert(NETS[kind](2).double(), C4, keep=keep, head=head)
    ((path, numbers),) = net.conversion.heads.items()
    seen: list[int] = []
    net.get_submodule(path).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    net(x)
    features = 4 if keep == "width" else 8
    told = head == "invariants" or (head == "auto" and kind == "vector")
    assert seen == [numbers] == [features * (4 if told else 1)]
    assert f"{path}: the last layer sees {numbers} numbers" in str(net.conversion)


@pytest.mark.parametrize("rotate", ["maps", "filters"])
@pytest.mark.parametrize("kind", NETS)
def test_pooling_before_the_last_layer_is_pooling_after_a_rolled_one(kind: str, rotate: Any) -> None:
    """The function of head="pool" is that of a rolled layer whose outputs are pooled."""
    net, x, seen = qt.convert(NETS[kind](2).double(), D4, rotate, head="pool"), images(D4), []
    path, features = next(iter(net.conversion.heads.items()))
    plain = net.get_submodule(path)
    net.get_submodule(f"{path}.pool").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    out = net(x)
    outs = plain.weight.shape[0]
    rolled: Any = qt.RollLinear(D4, features, outs, rotate=rotate)
    if kind == "maps":
        rolled = qt.RollConv(D4, features, outs, 1, rotate=rotate)
    rolled.double()
    with torch.no_grad():
        split = rolled.weight.unflatten(1, (features, 8))
        split[:, :, 0] += plain.weight - split.sum(2)
        rolled.bias.copy_(plain.bias)
    after = qt.Pool(D4, rotate=rotate)(rolled(seen[0]))
    torch.testing.assert_close(after, out, **CLOSE)
    assert not torch.allclose(qt.Pool(D4, "max", rotate=rotate)(rolled(seen[0])), out)


@pytest.mark.parametrize("pool", ["max", "rms"])
def test_another_pool_is_what_the_user_asks_for(pool: Any) -> None:
    assert not qt.convert(vector_net(), C4, pool=pool).conversion.heads


@pytest.mark.parametrize("pool", ["max", "rms"])
def test_other_pools_come_after_a_rolled_layer(pool: Any) -> None:
    net = qt.convert(vector_net().double(), C4, pool=pool)
    assert isinstance(net.get_submodule("6"), qt.RollLinear)
    assert not net.conversion.heads


def test_what_is_behind_the_last_layer_decides_where_the_mean_is_taken() -> None:
    """A mean may go before what is affine, and before a softmax that ends the network, not before a sigmoid."""
    first: dict[str, Callable[[Any, Tensor], Any]] = {
        "nothing": lambda m, y: y,
        "softmax": lambda m, y: F.softmax(y, dim=1),
        "scale": lambda m, y: 3 * y / 2 + m.shift,
        "sum": lambda m, y: y + y,
    }
    other: dict[str, Callable[[Any, Tensor], Any]] = {
        "sigmoid": lambda m, y: y.sigmoid(),
        "product": lambda m, y: y * y,
        "inverse": lambda m, y: 1 / y,
        "softmax of a square": lambda m, y: F.softmax(y.square(), dim=1).square(),
        "square of a softmax, joined": lambda m, y: F.softmax(y * 2, dim=1) * F.softmax(y.square(), dim=1),
    }
    for name, code in {**first, **other}.items():
        net = Code(lambda m, x, code=code: code(m, m.head(m.body(x).mean((2, 3)))), body=body(), head=nn.Linear(16, 5))
        net.register_parameter("shift", nn.Parameter(torch.randn(5)))
        converted = qt.convert(net.double(), C4, head="pool")
        pooled_first = isinstance(converted.head, nn.Linear)
        if name == "softmax of a square":  # orientations are pooled before the softmax, so the square sees them
            assert not pooled_first
        assert pooled_first == (name in first), name
        assert_exact(converted, C4, images(C4))
        assert_exact(qt.convert(net, C4, head="invariants"), C4, images(C4))


@pytest.mark.parametrize("kind", NETS)
def test_a_converted_network_that_became_plain_can_be_read_back(kind: str) -> None:
    x = images(C4)
    net = qt.convert(NETS[kind](2).double(), C4, head="pool").eval()
    again = qt.convert(qt.to_plain(net, x), C4, init="pretrained", example=x).eval()
    torch.testing.assert_close(again(x), net(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("head", ["pool", "invariants", "hidden"])
@pytest.mark.parametrize("kind", NETS)
def test_heads_start_from_pretrained_weights_as_a_mean(kind: str, head: Any) -> None:
    """An ordinary network that is equivariant: rolled layers made plain, and a last layer that treats them alike."""
    x = images(C4)
    rolled = nn.Sequential(
        qt.SliceConv(C4, 2, 4, 3, padding=1, rotate="filters"),
        nn.ReLU(),
        qt.RollConv(C4, 4, 4, 3, padding=1, rotate="filters"),
        nn.ReLU(),
    ).double()
    weight = torch.randn(5, 4).double().repeat_interleave(4, dim=1)
    last: Any = nn.Linear(16, 5) if kind == "vector" else nn.Conv2d(16, 5, 1)
    last.weight = nn.Parameter(weight.reshape(last.weight.shape))
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if kind == "vector" else []
    old = nn.Sequential(qt.to_plain(rolled, x), *flat, last).double()
    new = qt.convert(old, C4, init="pretrained", head=head, example=x)
    torch.testing.assert_close(new(x), old(x), rtol=1e-10, atol=1e-10)


def test_frozen_heads_keep_their_weights() -> None:
    net = vector_net().double()
    net[-1].weight.requires_grad_(False)
    converted = qt.convert(net, C4, head="pool")
    head = converted.get_submodule("6")
    assert not head.weight.requires_grad
    torch.testing.assert_close(head.weight, net[-1].weight.unflatten(1, (4, 4)).sum(2))


def arrows(*turns: int) -> Tensor:
    """Arrows, far apart from each other, turned by so many quarter turns."""
    arrow, image = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)).double(), torch.zeros(1, 2, 24, 24)
    image = image.double()
    for i, turn in enumerate(turns):
        start = 4 + 10 * i
        image[0, :, start : start + 3, start : start + 3] = arrow.rot90(-turn, (1, 2))
    return image


def told_apart(head: Any, one: Tensor, other: Tensor) -> float:
    """How differently a network with this head answers, as if it had learnt, relative to its answers."""
    net = qt.convert(vector_net().double(), C4, head=head)
    net = lively(net, images_like((one,), 2))
    with torch.no_grad():
        answers = net(one), net(other)
    return float((answers[0] - answers[1]).abs().max() / answers[0].abs().max())


def test_a_mean_cannot_tell_what_invariants_can() -> None:
    """Two arrows at a right angle, or opposite: whatever the weights, the mean over orientations is the same."""
    right_angle, opposite = arrows(0, 1), arrows(0, 2)
    assert told_apart("pool", right_angle, opposite) < EXACT
    assert told_apart("invariants", right_angle, opposite) > 1e-4
    assert told_apart("invariants", right_angle, arrows(2, 3)) < EXACT  # the same, turned


# --- which layers are last --------------------------------------------------------------------------------------------


def test_every_output_has_its_head() -> None:
    net = Code(
        lambda m, x: {"class": m.a(m.body(x).mean((2, 3))), "map": torch.sigmoid(m.b(m.body(x)))},
        body=body(),
        a=nn.Linear(16, 5),
        b=nn.Conv2d(16, 3, 1),
    ).double()
    x = images(C4)
    converted = qt.convert(net, C4, head="invariants")
    assert dict(converted.conversion.heads) == {"a": 16, "b": 16}
    assert_exact(converted, C4, x)
    both = Code(lambda m, x: (m.a(m.body(x).mean((2, 3))), m.b(m.body(x))), body=body(), a=nn.Linear(16, 5))
    both.b = nn.Conv2d(16, 3, 3)
    both.double()
    converted = qt.convert(both, C4, head="max")
    assert dict(converted.conversion.heads) == {"a": 4}
    assert "1 outputs have no last layer" in str(converted.conversion)
    assert_exact(converted, C4, x)


@pytest.mark.parametrize("head", HEADS)
def test_layers_behind_the_last_one(head: Any) -> None:
    """Flattened, resized, averaged, joined with the input: exact, and the last layer sees no orientations."""
    ends: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
        "global mean": lambda m, x, y: F.adaptive_avg_pool2d(y, 1).flatten(1),
        "mean": lambda m, x, y: y.mean((2, 3)),
        "resized to the input": lambda m, x, y: F.interpolate(y, x.shape[2:], mode="bilinear"),
        "resized": lambda m, x, y: F.interpolate(y, scale_factor=2, mode="nearest"),
        "residual": lambda m, x, y: x - y,
        "table": lambda m, x, y: y + m.table,
        "viewed": lambda m, x, y: F.adaptive_avg_pool2d(y, 1).view(m.body(x).size(0), -1),
        "flat": lambda m, x, y: F.softmax(F.adaptive_avg_pool2d(y, 1), dim=1).flatten(1),
    }
    for name, end in ends.items():
        net = Code(lambda m, x, end=end: end(m, x, m.last(m.body(x))), body=body(), last=nn.Conv2d(16, 2, 1))
        net.register_parameter("table", nn.Parameter(torch.randn(1, 1, 9, 9)))
        net.double()
        if head not in ("auto", "pool") and name in ("table", "resized"):  # tables and uneven samples need orientations
            with pytest.raises(qt.ConversionError, match="needs a last layer"):
                qt.convert(net, C4, head=head, example=images(C4))
            continue
        converted = qt.convert(net, C4, head=head, example=images(C4))
        assert_exact(converted, C4, images(C4))


@pytest.mark.parametrize("head", HEADS)
def test_linear_layers_on_maps_with_features_last(head: Any) -> None:
    net = Code(
        lambda m, x: m.last(m.body(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2), body=body(), last=nn.Linear(16, 3)
    ).double()
    converted = qt.convert(net, D4, head=head)
    assert_exact(converted, D4, images(D4))
    assert converted.conversion.heads["last"] == (12 if head == "invariants" else 2)


def test_a_shared_head() -> None:
    def run(m: Any, x: Tensor) -> Any:
        y = m.body(x)
        return m.last(y), m.last(F.max_pool2d(y, 3, 1, 1))

    net = Code(run, body=body(), last=nn.Conv2d(16, 3, 1)).double()
    for head in HEADS:
        converted = qt.convert(net, C4, head=head)
        assert len(converted.conversion.heads) == 1
        assert_exact(converted, C4, images(C4))


def test_a_layer_that_also_feeds_others_is_no_last_layer() -> None:
    def run(m: Any, x: Tensor) -> Any:
        y = m.last(m.body(x).mean((2, 3)))
        return y, m.other(torch.relu(y))

    net = Code(run, body=body(), last=nn.Linear(16, 4), other=nn.Linear(4, 2)).double()
    converted = qt.convert(net, C4, head="pool")
    assert isinstance(converted.last, qt.RollLinear)
    assert dict(converted.conversion.heads) == {"other": 4}
    assert_exact(converted, C4, images(C4))


def test_tied_weights_stay_one() -> None:
    net = Code(
        lambda m, x: (m.a(m.body(x).mean((2, 3))), m.b(m.body(x).amax((2, 3)))),
        body=body(),
        a=nn.Linear(16, 4),
        b=nn.Linear(16, 4),
    ).double()
    net.b.weight = net.a.weight
    converted = qt.convert(net, C4, head="invariants")
    assert converted.b.weight is converted.a.weight
    inner = Code(
        lambda m, x: m.a(torch.relu(m.b(m.body(x).mean((2, 3))))), body=body(), a=nn.Linear(16, 16), b=nn.Linear(16, 16)
    ).double()
    inner.b.weight = inner.a.weight
    converted = qt.convert(inner, C4)  # a layer inside has the same weight: none is pooled before
    assert converted.b.weight is converted.a.weight
    assert_exact(converted, C4, images(C4))


def test_stacked_outputs_are_not_pooled_before_the_last_layer() -> None:
    net = qt.convert(vector_net().double(), C4, output="stacked")
    assert isinstance(net.get_submodule("6"), qt.RollLinear)
    assert not net.conversion.heads


def test_heads_count_as_layers_that_share_filters() -> None:
    assert qt.convert(vector_net(), C4).conversion.rolled_share == 1


@pytest.mark.parametrize("head", HEADS)
def test_outputs_with_features_last(head: Any) -> None:
    net = Code(lambda m, x: torch.tanh(m.last(m.body(x).permute(0, 2, 3, 1))), body=body(), last=nn.Linear(16, 3))
    x = images(D4)
    converted = qt.convert(net.double(), D4, head=head)
    as_maps = Code(lambda m, x: m.net(x).permute(0, 3, 1, 2), net=converted)
    assert_exact(as_maps, D4, x)


@pytest.mark.parametrize("head", ["max", "invariants", "hidden"])
def test_what_has_no_head_is_refused(head: Any) -> None:
    with pytest.raises(qt.ConversionError, match="this network has none: use head='pool'"):
        qt.convert(body(), C4, head=head)
    with pytest.raises(
        qt.ConversionError, match="does not see features at several positions, and this network has none"
    ):
        qt.convert(
            nn.Sequential(*body(), nn.Flatten(), nn.Linear(16 * 81, 5)), C4, head=head, example=images(C4).float()
        )
    with pytest.raises(qt.OptionError, match="do not go together"):
        qt.convert(vector_net(), C4, head=head, until="2")
    with pytest.raises(qt.OptionError, match="do not go together"):
        qt.convert(vector_net(), C4, head=head, output="stacked")
    with pytest.raises(qt.ConversionError, match="this network has none"):
        qt.convert(vector_net(), C4, head=head, plain="6")
    with pytest.raises(qt.OptionError, match="head"):
        qt.convert(vector_net(), C4, head="mean")  # type: ignore[arg-type]


def test_a_hidden_layer_starts_as_strong_as_what_comes_in() -> None:
    torch.manual_seed(0)
    net = qt.convert(vector_net(width=256).double(), C4, head="hidden")
    hidden = net.get_submodule("6.hidden")
    x = torch.randn(64, 256, dtype=torch.float64)
    assert math.isclose(torch.relu(hidden(x)).square().mean().item(), 1, rel_tol=0.3)


def test_copies_and_checkpoints_keep_the_head() -> None:
    net = qt.convert(vector_net().double(), C4, head="hidden")
    other = qt.convert(vector_net().double(), C4, "maps", head="hidden")
    other.load_state_dict(net.state_dict())
    x = images(C4)
    torch.testing.assert_close(other(x), net(x), **CLOSE)
    torch.testing.assert_close(copy.deepcopy(net)(x), net(x), rtol=0, atol=0)

"""Layers for tokens: both layouts agree, every element of every group obeys its law, and bad input is told."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ALL_GROUPS, turned
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C2, C4, D4, MIRROR, Group, kernel
from quarterturn.filters import Rotate, roll_filters
from quarterturn.layers.tokens import roll_tokens, stack_tokens, unstack_tokens

PLANE = (C2, MIRROR, C4, D4)
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


class Block(nn.Module):
    def __init__(self, group: Group, features: int, heads: int, kind: Any, where: dict[str, Any]) -> None:
        super().__init__()
        rotate: Rotate = where["rotate"]
        self.norms = nn.ModuleList(qt.LayerNorm(group, features, rotate=rotate, last=True) for _ in range(2))
        self.attention = qt.Attention(group, features, heads, kind, **where)
        self.hidden = qt.RollLinear(group, features, 2 * features, **where)
        self.back = qt.RollLinear(group, 2 * features, features, **where)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.back(F.gelu(self.hidden(self.norms[1](x))))


class Transformer(nn.Module):
    """A small vision transformer with a class token and a register."""

    def __init__(self, group: Group, rotate: Rotate, patch: int = 3, side: int = 4, kind: Any = "frame") -> None:
        super().__init__()
        features, where = 4, {"rotate": rotate, "extra": 2}
        self.embed = qt.PatchEmbed(group, 3, features, patch, rotate=rotate)
        self.free = qt.ClassTokens(group, features, 2, rotate=rotate)
        self.places = qt.PositionTable(group, features, (side, side), **where)
        self.block = Block(group, features, 2, kind, where)
        self.pool = qt.Pool(group, rotate=rotate)
        self.head = nn.Linear(features, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.places(self.free(self.embed(x))))
        return self.head(self.pool(x[:, 0]))


def learnt(net: nn.Module) -> nn.Module:
    """In float64, with every parameter drawn: a table that has learnt nothing would hide a wrong one."""
    for parameter in net.parameters():
        parameter.data.normal_(std=0.5)
    return net.double()


@pytest.mark.parametrize("group", PLANE, ids=lambda g: g.name)
@pytest.mark.parametrize("kind", ["frame", "coupled"])
@pytest.mark.parametrize("patch", [1, 2, 3])
@pytest.mark.parametrize("side", [4, 5])
def test_a_transformer_is_exact_and_the_same_in_both_layouts(group: Group, kind: str, patch: int, side: int) -> None:
    maps, filters = (learnt(Transformer(group, rotate, patch, side, kind)) for rotate in ("maps", "filters"))  # type: ignore[arg-type]
    filters.load_state_dict(maps.state_dict())
    x = torch.randn(2, 3, side * patch, side * patch, dtype=torch.float64)
    qt.assert_equivariant(maps, group, x)
    qt.assert_equivariant(filters, group, x)
    torch.testing.assert_close(filters(x), maps(x), **CLOSE)
    grads = [torch.autograd.grad(net(x).square().sum(), list(net.parameters())) for net in (maps, filters)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(b, a, **CLOSE)


def test_a_table_in_the_frame_of_the_input_breaks_it_and_is_named() -> None:
    class Wrong(qt.PositionTable):
        def table(self, grid: Any) -> Tensor:
            return self.weight.repeat_interleave(self.group.order, dim=0).unsqueeze(0)

    for group in (C4, D4):
        net = Transformer(group, "filters")
        net.places = Wrong(group, 4, (4, 4), extra=2, rotate="filters")
        learnt(net)
        with pytest.raises(qt.NotEquivariantError, match=r"the first layer that breaks it is 'places'"):
            qt.assert_equivariant(net, group, torch.randn(2, 3, 12, 12, dtype=torch.float64))


def test_laws_of_token_layers() -> None:
    net = learnt(Transformer(D4, "filters", patch=3, side=4))
    laws = {law.path: law for law in qt.laws_by_layer(net, D4, torch.randn(2, 3, 13, 13, dtype=torch.float64))}
    for path in ("free", "places", "block.norms.0", "block.attention.qkv", "block.back"):
        assert laws[path].law == "orientations permuted"
        assert laws[path].error < 1e-10
    assert laws["head"].law == "unchanged"


# --- moving tokens ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    group=st.sampled_from(ALL_GROUPS),
    extra=st.integers(0, 3),
    side=st.integers(1, 3),
    features=st.integers(1, 3),
    examples=st.integers(1, 2),
)
def test_tokens_move_as_maps_and_dense_features_do(
    group: Group, extra: int, side: int, features: int, examples: int
) -> None:
    grid = (side,) * group.dim
    pathways = examples * group.order
    x = torch.randn(pathways, extra + side**group.dim, features, dtype=torch.float64)
    maps = x[:, extra:].transpose(1, 2).unflatten(2, grid)
    for move, ours in ((qt.roll, roll_tokens), (qt.stack, stack_tokens)):
        found = ours(x, group, extra, grid)
        torch.testing.assert_close(found[:, extra:], move(maps, group).flatten(2).transpose(1, 2), rtol=0, atol=0)
        for i in range(extra):
            torch.testing.assert_close(found[:, i], move(x[:, i], group), rtol=0, atol=0)
    torch.testing.assert_close(
        unstack_tokens(stack_tokens(x, group, extra, grid), group, extra, grid), x, rtol=0, atol=0
    )


@settings(max_examples=40, deadline=None)
@given(
    group=st.sampled_from(ALL_GROUPS),
    leading=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    features=st.integers(1, 3),
    out=st.integers(1, 3),
    via=st.sampled_from(["auto", "linear", "fourier"]),
)
def test_a_rolled_linear_layer_takes_any_leading_axes(
    group: Group, leading: list[int], features: int, out: int, via: Any
) -> None:
    layer = qt.RollLinear(group, features, out, rotate="filters", via=via).double()
    x = torch.randn(*leading, features * group.order, dtype=torch.float64)
    bank = roll_filters(layer.weight, group, range(group.order))
    torch.testing.assert_close(
        layer(x), F.linear(x, bank, layer.bias.repeat_interleave(group.order)), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_tokens_through_the_kernel(group: Group) -> None:
    """The same as through torch, gradients too, and equivariant to the bit."""
    if not kernel.is_available(group):
        pytest.skip("no compiled kernel")
    layer = qt.RollLinear(group, 24, 32, rotate="filters")
    x = torch.randn(2, 7, 24 * group.order, requires_grad=True)
    assert layer.execution(x).code == "kernel"
    plain = qt.RollLinear(group, 24, 32, rotate="filters", via="linear")
    plain.load_state_dict(layer.state_dict())
    results = []
    for net in (layer, plain):
        y = net(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *net.parameters()])))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        for h in range(group.order):
            permutation = [group.table[g][h] for g in range(group.order)]

            def permuted(t: Tensor, permutation: list[int] = permutation) -> Tensor:
                return t.unflatten(-1, (-1, group.order))[..., permutation].flatten(-2)

            torch.testing.assert_close(layer(permuted(x)), permuted(layer(x)), rtol=0, atol=0)


# --- positions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", PLANE, ids=lambda g: g.name)
@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (6, 2)])
def test_every_orientation_reads_the_table_in_its_own_frame(group: Group, grid: tuple[int, int]) -> None:
    """Written out position by position where nothing has to be interpolated, and by its law where something has."""
    layer = qt.PositionTable(group, 3, (4, 4), extra=1, rotate="filters").double()
    zero = torch.zeros(1, 1 + grid[0] * grid[1], 3 * group.order, dtype=torch.float64)
    table = layer(zero, grid)
    assert not table[:, 0].any()
    maps = table[:, 1:].transpose(1, 2).unflatten(2, grid)
    if grid == (4, 4):
        for h in range(group.order):
            own = turned(maps[:, h :: group.order], group.elements[h])
            torch.testing.assert_close(own[0], layer.weight.detach(), rtol=0, atol=0)
    for h in range(group.order):
        sides = tuple(grid[abs(a) - 1] for a in group.elements[h])
        permutation = [group.table[g][h] for g in range(group.order)]
        expected = qt.act(maps, group, h).unflatten(1, (3, group.order))[:, :, permutation].flatten(1, 2)
        zeros = torch.zeros(1, 1 + sides[0] * sides[1], 3 * group.order, dtype=torch.float64)
        found = layer(zeros, sides)[:, 1:].transpose(1, 2).unflatten(2, sides)
        torch.testing.assert_close(found, expected, **CLOSE)


def test_a_table_of_one_size_says_so() -> None:
    layer = qt.PositionTable(C4, 2, (3, 5), rotate="filters", interpolate=False)
    with pytest.raises(qt.ShapeError, match=r"table is for a grid of 3 x 5, and an orientation of C4 has one of 5 x 3"):
        layer(torch.zeros(1, 15, 8))
    qt.PositionTable(C2, 2, (3, 5), rotate="filters", interpolate=False)(torch.zeros(1, 15, 4))


def test_images_that_are_not_square() -> None:
    class OnGrid(qt.PositionTable):
        sides = (3, 6)

        def forward(self, x: Tensor, grid: Any = None) -> Tensor:
            return super().forward(x, self.sides)

    for group in (C4, D4):
        net = Transformer(group, "filters", patch=2, side=4)
        net.places = OnGrid(group, 4, (4, 4), extra=2, rotate="filters")
        learnt(net)
        x = torch.randn(1, 3, 6, 12, dtype=torch.float64)
        y = net(x)
        for h, element in enumerate(group.elements):
            net.places.sides = tuple((3, 6)[abs(a) - 1] for a in element)  # type: ignore[assignment]
            torch.testing.assert_close(net(qt.act(x, group, h)), y, **CLOSE)
        net.places.sides = (3, 6)


# --- what is refused, counted and exported ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: qt.Attention(C4, 6, 4), "multiple of heads, got 6 and 4"),
        (lambda: qt.Attention(C4, 6, 2, kind="both"), "both"),  # type: ignore[arg-type]
        (lambda: qt.Attention(C4, 6, 2, dropout=1.0), "dropout must be"),
        (lambda: qt.RollLinear(C4, 6, 2, extra=-1), "extra must be a whole number"),
        (lambda: qt.RollLinear(C4, 6, 2, grid=(3,)), "grid must have 2 whole numbers"),
        (lambda: qt.PositionTable(C4, 6, (0, 2)), "grid must have 2 whole numbers"),
        (lambda: qt.ClassTokens(C4, 6, 0), "count must be"),
    ],
)
def test_options_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(qt.QuarterturnError, match=message):
        make()


def test_tensors_that_cannot_be() -> None:
    with pytest.raises(qt.ShapeError, match="11 tokens, 1 of them without a position, are not a grid with equal sides"):
        qt.RollLinear(C4, 6, 2, extra=1)(torch.zeros(4, 11, 6))
    with pytest.raises(qt.ShapeError, match="this looks like a stacked tensor"):
        qt.RollLinear(C4, 6, 2)(torch.zeros(4, 9, 24))
    with pytest.raises(qt.ShapeError, match="this looks like a sliced"):
        qt.LayerNorm(C4, 6, rotate="filters", last=True)(torch.zeros(4, 9, 6))
    with pytest.raises(qt.ShapeError, match="3 axes"):
        qt.RollLinear(C4, 6, 2)(torch.zeros(4, 3, 3, 6))


def test_explain_counts_attention_and_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    net = Transformer(C4, "filters")
    found = qt.explain(net, torch.randn(1, 3, 12, 12))
    by_path = {work.path: work.multiply_adds for work in found.work}
    assert by_path["block.attention.qkv"] == 18 * 16 * 48
    assert by_path["block.attention"] == 2 * 18 * 18 * 16  # queries by keys, and weights by values
    assert "block.attention" in capsys.readouterr().out


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("kind", ["frame", "coupled"])
def test_to_plain(group: Group, kind: str) -> None:
    net = learnt(Transformer(group, "filters", kind=kind)).eval()
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    plain = qt.to_plain(net, x)
    assert not any(type(module).__module__.startswith("quarterturn") for module in plain.modules())
    y = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(plain(y), net(y), **CLOSE)
    with pytest.raises(qt.ConversionError, match="table of positions is for one size"):
        qt.to_plain(net, x, dynamic=True)
    with pytest.raises(qt.ConversionError, match="rotate='filters', with the same weights"):
        qt.to_plain(learnt(Transformer(group, "maps", kind=kind)), x)


def test_torch_export_of_a_transformer() -> None:
    net = Transformer(D4, "filters").eval()
    x = torch.randn(2, 3, 12, 12)
    exported = torch.export.export(net, (x,))
    torch.testing.assert_close(exported.module()(x), net(x), rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_alone() -> None:
    layer = qt.Attention(C4, 4, 2, dropout=0.5, rotate="filters").double()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))

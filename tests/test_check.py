"""The checker passes on good networks and must fail, by name, on bad ones."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import ALL_GROUPS
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C4, D4, OCTA, Group, NotEquivariantError, assert_equivariant, equivariance_error
from quarterturn.check import largest_difference

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def image(group: Group = C4, side: int = 8, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(3, 1, *[side] * group.dim, dtype=dtype)


def rolled_net(group: Group, *end: nn.Module) -> nn.Sequential:
    conv = CONVOLUTIONS[group.dim]
    return nn.Sequential(
        qt.Slice(group),
        conv(1, 2, 3, stride=2, padding=1),  # even sizes, stride 2: still exact
        nn.ReLU(),
        qt.Roll(group),
        conv(2 * group.order, 3, 2),
        *(end or (qt.Pool(group),)),
    ).double()


def found(net: nn.Module, group: Group = C4, x: Tensor | None = None, **options: str) -> str:
    with pytest.raises(NotEquivariantError) as error:
        assert_equivariant(net, group, image(group) if x is None else x, **options)
    return str(error.value)


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
def test_good_networks_pass(group: Group) -> None:
    assert_equivariant(rolled_net(group), group, image(group, side=4))
    head = nn.Sequential(nn.Flatten(), nn.LazyLinear(5), qt.Pool(group, "max"))
    assert_equivariant(rolled_net(group, *head), group, image(group, side=4))


def test_the_error_of_every_element_is_reported() -> None:
    errors = equivariance_error(nn.Conv2d(1, 2, 3).double(), D4, image())
    assert len(errors.absolute) == len(errors.relative) == 8
    assert errors.absolute[0] == errors.relative[0] == 0.0
    assert min(errors.relative[1:]) > 1e-3
    assert errors.relative[errors.worst] == max(errors.relative)


def test_relative_errors_do_not_depend_on_the_scale() -> None:
    net = nn.Conv2d(1, 2, 3, bias=False).double()
    x = image()
    small, large = equivariance_error(net, C4, x), equivariance_error(net, C4, 1000 * x)
    assert large.absolute[1] == pytest.approx(1000 * small.absolute[1])
    assert large.relative[1] == pytest.approx(small.relative[1])


def test_float32_and_half_tolerances() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert_equivariant(rolled_net(D4).to(dtype), D4, image(dtype=dtype))
    broken = rolled_net(C4, qt.Pool(C4), nn.Conv2d(3, 3, 2)).float()
    assert "'6'" in found(broken, x=image(dtype=torch.float32))


def test_modes_come_back_and_nothing_is_trained() -> None:
    net = nn.Sequential(qt.Slice(C4), nn.BatchNorm2d(1), nn.Dropout(0.5), qt.Pool(C4)).double()
    net[1].eval()
    assert_equivariant(net, C4, image())
    assert [m.training for m in net] == [True, False, True, True]
    assert net[1].num_batches_tracked == 0
    with pytest.raises(NotEquivariantError):
        assert_equivariant(nn.Sequential(net, nn.Conv2d(1, 1, 2).double()), C4, image())
    assert [m.training for m in net] == [True, False, True, True]


# --- the layer that breaks it -----------------------------------------------------------------------------------------


def test_a_convolution_after_pool_is_named() -> None:
    message = found(rolled_net(C4, qt.Pool(C4), nn.Conv2d(3, 3, 2), nn.ReLU()))
    assert "the first layer that breaks it is '6' (Conv2d(3, 3, kernel_size=(2, 2), stride=(1, 1)))" in message
    assert "The worst element is number" in message


class Uneven(nn.Module):
    """Treats the first pathway differently."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([2 * x[:3], x[3:]])


def test_a_layer_that_treats_pathways_differently_is_named() -> None:
    assert "the first layer that breaks it is '5' (Uneven())" in found(rolled_net(C4, Uneven(), qt.Pool(C4)))


class HandWrittenRoll(nn.Module):
    """The indices of the table swapped: right for C4, wrong for D4."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        group = self.group
        parts = x.unflatten(0, (group.order, -1))
        rows = [
            torch.stack([qt.act(parts[group.table[h][g]], group, group.inverse[g]) for g in range(group.order)], dim=2)
            for h in range(group.order)
        ]
        return torch.cat(rows).flatten(1, 2)


def test_a_wrong_permutation_is_named() -> None:
    def net(group: Group) -> nn.Module:
        conv = nn.Conv2d(2 * group.order, 2, 3)
        return nn.Sequential(qt.Slice(group), nn.Conv2d(1, 2, 3), HandWrittenRoll(group), conv, qt.Pool(group)).double()

    assert_equivariant(net(C4), C4, image())
    assert "is '2' (HandWrittenRoll())" in found(net(D4), D4)


class Residual(nn.Module):
    """x + f(x), with an option to break it between its layers, where no layer is to blame."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.first, self.second, self.broken = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1), broken

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = y * torch.arange(y.shape[3], dtype=y.dtype)  # position by position, but alike in all pathways: exact
        y = y.flip(0) if self.broken else y
        return x + self.second(y).relu_()


def test_a_break_between_layers_is_named_by_its_forward() -> None:
    def net(broken: bool) -> nn.Module:
        block = nn.Sequential(nn.Identity(), Residual(broken))
        return nn.Sequential(qt.Slice(C4), Residual(False), block, nn.ReLU(inplace=True), qt.Pool(C4)).double()

    assert_equivariant(net(False), C4, image())
    assert "it breaks inside the forward of '2.1' (Residual)" in found(net(True))


def test_a_break_in_the_model_itself_is_named() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(3)

    assert "the first layer that breaks it is the model (Net())" in found(Net())


def test_plain_layers_on_stacked_maps_are_named_but_pointwise_ones_pass() -> None:
    head = (qt.Stack(D4), nn.ReLU(), nn.MaxPool2d(2, 1))
    assert "is '8' (Conv2d(24, 3" in found(rolled_net(D4, *head, nn.Conv2d(24, 3, 1)), D4)
    assert_equivariant(rolled_net(D4, *head, qt.Unstack(D4), qt.Pool(D4)), D4, image())


def test_in_place_layers_do_not_hide_the_culprit() -> None:
    net = nn.Sequential(qt.Slice(C4), qt.Pool(C4), nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)).double()
    assert "'2' (Conv2d" in found(net)


def test_a_missing_pool_is_said() -> None:
    assert "no layer breaks it, but the output is sliced (pathways permuted: is a Pool missing?)" in found(
        nn.Sequential(qt.Slice(C4), nn.Conv2d(1, 2, 3)).double()
    )
    stacked = nn.Sequential(qt.Slice(C4), nn.Conv2d(1, 2, 3), qt.Stack(C4)).double()
    assert "output is stacked (orientations permuted" in found(stacked)


def test_a_group_that_is_too_small_is_named() -> None:
    assert "the first layer that breaks it is '0' (Slice(C4))" in found(rolled_net(C4), D4)


def test_layers_with_the_features_last_pass() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x.movedim(1, -1)).movedim(-1, 1)

    first = nn.Sequential(qt.Slice(C4), nn.Conv2d(1, 4, 3), qt.Pool(C4), Last())
    assert_equivariant(first.double(), C4, image())
    assert "'4' (Conv2d" in found(nn.Sequential(*first, nn.Conv2d(4, 4, 3)).double())


def test_other_layers_for_other_orientations_are_said() -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Identity(), nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) if x[0, 0, 0, 0] > x[0, 0, -1, -1] else self.two(x)

    assert "it calls different layers" in found(Fickle())


class Aside(nn.Module):
    """The convolution `aside` would break it, but what it gives is thrown away; `guilty` is used."""

    def __init__(self, guilty: nn.Module) -> None:
        super().__init__()
        self.aside, self.guilty = nn.Conv2d(1, 2, 3), guilty

    def forward(self, x: Tensor) -> Tensor:
        self.aside(x)
        return self.guilty(x)


def test_a_layer_whose_output_is_thrown_away_is_not_blamed() -> None:
    assert_equivariant(Aside(nn.ReLU()).double(), D4, image())
    assert "the first layer that breaks it is 'guilty' (Conv2d(1, 3, " in found(Aside(nn.Conv2d(1, 3, 2)).double(), D4)
    nested = nn.Sequential(nn.Tanh(), Aside(nn.Sequential(nn.Tanh(), nn.Conv2d(1, 3, 2)))).double()
    assert "the first layer that breaks it is '1.guilty.1' (Conv2d(1, 3, " in found(nested, D4)


def test_an_output_that_is_thrown_away_beside_one_that_is_used_is_not_blamed() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, SimpleNamespace]:
            return x.tanh(), x.cumsum(2), SimpleNamespace(share=x[0, 0, 0, 0].item())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.two, self.guilty = Two(), nn.Conv2d(1, 1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.guilty(self.two(x)[0])

    assert "the first layer that breaks it is 'guilty' (Conv2d" in found(Net().double(), D4)


@pytest.mark.parametrize(
    "compiled",
    [
        torch.jit.script,
        lambda net: torch.jit.trace(net, image()),
        lambda net: torch.jit.freeze(torch.jit.script(net.eval())),
    ],
    ids=["script", "trace", "freeze"],
)
def test_script_modules_are_layers_as_a_whole(compiled: Callable[[nn.Module], nn.Module]) -> None:
    bad, good = (compiled(nn.Sequential(layer, nn.Tanh()).double()) for layer in (nn.Conv2d(1, 2, 3), nn.ReLU()))
    assert_equivariant(good, D4, image())
    assert_equivariant(nn.Sequential(good, nn.ReLU()), D4, image())
    assert "the first layer that breaks it is the model (Sequential, compiled by torch.jit)" in found(bad, D4)
    within = found(nn.Sequential(nn.Tanh(), good, bad, nn.ReLU()), D4)
    assert "the first layer that breaks it is '2' (Sequential, compiled by torch.jit)" in within
    laws = qt.laws_by_layer(nn.Sequential(good, bad), D4, image())
    assert [(layer.path, layer.error > 1e-3) for layer in laws] == [("0", False), ("1", True)]


def test_functions_are_checked_too() -> None:
    assert_equivariant(lambda x: x.mean((2, 3)), C4, image())
    assert "it is not an nn.Module" in found(lambda x: x.cumsum(2))


# --- outputs and inputs of other kinds --------------------------------------------------------------------------------


def test_directions() -> None:
    def gradient(x: Tensor) -> Tensor:
        return torch.cat([x.roll(-1, axis) - x.roll(1, axis) for axis in range(2, x.dim())], dim=1)

    for group in (C4, D4, OCTA):
        x = image(group)
        assert_equivariant(gradient, group, x, kind="vector")
        assert max(equivariance_error(gradient, group, x).relative) > 1e-3
        net = nn.Sequential(qt.Slice(group, kind="vector"), nn.Tanh(), qt.Pool(group, kind="vector"))
        assert_equivariant(net, group, gradient(x), kind="vector", input_kind="vector")
    conv = nn.Conv2d(2, 2, 3).double()
    broken = nn.Sequential(qt.Slice(C4, kind="vector"), qt.Pool(C4, kind="vector"), conv)
    with pytest.raises(NotEquivariantError, match="is '2' "):
        assert_equivariant(broken, C4, gradient(image()), kind="vector", input_kind="vector")


def test_invariant_maps() -> None:
    def spectrum(x: Tensor) -> Tensor:
        return x.flatten(2).sort().values.unflatten(2, x.shape[2:])

    assert_equivariant(spectrum, C4, image(), kind="invariant")
    with pytest.raises(NotEquivariantError):
        assert_equivariant(spectrum, C4, image())


@dataclass
class Answer:
    scores: Tensor
    mask: Tensor


def test_containers_and_several_inputs() -> None:
    class Net(nn.Module):
        def __init__(self, good: bool) -> None:
            super().__init__()
            self.good = good

        def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> dict:
            mask = x + y if self.good else x + y.cumsum(2)
            return {"both": [Answer((x + y).mean((2, 3)) @ weight, mask)], "logits": (x.amax((2, 3)),), "note": "hello"}

    inputs = (image(), image(), torch.randn(1, 2, dtype=torch.float64))
    assert_equivariant(Net(True), C4, inputs)
    assert "Net" in found(Net(False), x=inputs)


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
def test_each_output_has_its_own_scale(group: Group) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"boxes": 1e12 * x, "scores": x * torch.arange(x[0, 0].numel()).view(x.shape[2:])}

    x = image(group, side=3)
    assert min(equivariance_error(Net(), group, x).relative[1:]) > 1e-3
    assert "of the output 'scores'" in found(Net(), group, x)


def test_outputs_of_two_networks_are_compared_each_on_its_own_scale() -> None:
    large, small = torch.tensor([1e12, 2e12]), torch.tensor([1.0, 2.0])
    gap, size = largest_difference({"a": large, "b": small}, [large + 1e6, small + 1])
    assert (gap, size) == (1.0, 3.0)
    assert largest_difference([large, small], [large, small])[0] == 0.0


@pytest.mark.parametrize(
    ("output", "named"),
    [(object(), "of the model is a object"), ({"a": [object()]}, "a.0 is a object"), (b"", "of the model is a bytes")],
    ids=["alone", "inside", "bytes"],
)
def test_outputs_that_cannot_be_looked_into_are_refused(output: Any, named: str) -> None:
    for outputs in (lambda x: output, lambda x: output if not isinstance(output, dict) else {"y": x, **output}):
        with pytest.raises(qt.QuarterturnError, match=f"the output {named}, which cannot be compared"):
            assert_equivariant(outputs, D4, image())


@pytest.mark.parametrize("output", [None, "text", [], {"aux": None}], ids=repr)
def test_a_model_that_gives_nothing_to_compare_is_refused(output: Any) -> None:
    with pytest.raises(qt.QuarterturnError, match="nothing to compare"):
        assert_equivariant(lambda x: output, D4, image())


def test_namespaces_are_looked_into() -> None:
    assert_equivariant(lambda x: SimpleNamespace(mask=x, rest=[x.mean((2, 3))]), D4, image())
    for broken in (lambda x: SimpleNamespace(mask=x.cumsum(2)), lambda x: {"a": SimpleNamespace(b=x, c=x.cumsum(2))}):
        with pytest.raises(NotEquivariantError):
            assert_equivariant(broken, D4, image())


@pytest.mark.parametrize("number", [Tensor.item, lambda t: t, lambda t: t[None], lambda t: t.item() > 1e-3])
def test_numbers_must_not_change(number: Callable[[Tensor], Any]) -> None:
    """A loss without axes, one number an example, or a number of Python's."""
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    assert_equivariant(lambda x: number(x.sum()), D4, x)
    x[0, 0, 0, 0] = 0
    with pytest.raises(NotEquivariantError):
        assert_equivariant(lambda x: number(x[0, 0, 0, 0]), D4, x)

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return number(x[0, 0, 0, 0])

    assert "the first layer that breaks it is the model (Net())" in found(Net(), D4, x)


@pytest.mark.parametrize("other", [None, "text"])
def test_what_is_no_tensor_must_stay_the_same(other: str | None) -> None:
    assert_equivariant(lambda x: {"mask": x, "aux": other}, D4, image())
    x = image()
    with pytest.raises(NotEquivariantError, match="'aux'"):
        assert_equivariant(lambda y: {"mask": y, "aux": other if y[0, 0, 0, 0] == x[0, 0, 0, 0] else "?"}, D4, x)
    with pytest.raises(NotEquivariantError):
        assert_equivariant(lambda y: {"mask": y} if y[0, 0, 0, 0] == x[0, 0, 0, 0] else [y], D4, x)


@pytest.mark.parametrize(
    "constant",
    [
        lambda x: 0 * x,
        lambda x: 0 * x.sum(),
        lambda x: (0 * x).sigmoid(),
        lambda x: (0 * x).flatten(1).softmax(1),
        lambda x: x > 1e6,
        lambda x: (0 * x).long(),
        lambda x: 0.0,
        lambda x: x[:0],
        lambda x: [0 * x, (0 * x, 0)],
    ],
)
def test_outputs_on_which_the_check_could_not_fail_are_refused(constant: Callable[[Tensor], Any]) -> None:
    for check in (assert_equivariant, equivariance_error):
        with pytest.raises(qt.QuarterturnError, match="the check could not fail"):
            check(constant, D4, image())


def test_a_dead_output_among_others_is_named() -> None:
    with pytest.raises(qt.QuarterturnError, match="the output 'scores' is constant"):
        assert_equivariant(lambda x: {"boxes": x, "scores": 0 * x.mean((2, 3))}, D4, image())
    assert_equivariant(lambda x: {"boxes": x, "loss": 0 * x.sum(), "padded": x > 1e6, "steps": 0}, D4, image())


def test_a_network_that_starts_at_zero_is_converted_though_it_could_not_be_checked() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3)).double()
    nn.init.zeros_(net[2].weight)
    nn.init.zeros_(net[2].bias)
    converted = qt.convert(net, D4, init="pretrained")
    assert not converted(image()).any()
    with pytest.raises(qt.QuarterturnError, match="the check could not fail"):
        assert_equivariant(converted, D4, image())


def test_models_that_write_in_place() -> None:
    x = image()
    before = x.clone()
    assert_equivariant(lambda x: x.mul_(2), D4, x)
    assert torch.equal(x, before)
    assert "is '0' (Conv2d" in found(nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU(inplace=True)).double(), D4, x)
    qt.laws_by_layer(nn.Sequential(nn.ReLU(inplace=True)), D4, x)
    assert torch.equal(x, before)
    kept = torch.empty(3, 1, 8, 8, dtype=torch.float64)
    with pytest.raises(NotEquivariantError):  # the same tensor each time, so that the first answer is lost
        assert_equivariant(lambda x: kept.copy_(x.cumsum(2)), D4, x)


def test_equal_infinities_are_equal_and_hide_nothing() -> None:
    assert_equivariant(lambda x: x.masked_fill(x < 0, -math.inf), D4, image())
    with pytest.raises(NotEquivariantError):
        assert_equivariant(lambda x: torch.cat([x.masked_fill(x < 0, -math.inf), x.cumsum(2)], 1), D4, image())
    errors = equivariance_error(lambda x: x.masked_fill(x.cumsum(2) < 0, -math.inf), D4, image())
    assert max(errors.relative) == max(errors.absolute) == math.inf


def test_nan_at_the_same_places_does_not_pass() -> None:
    with pytest.raises(NotEquivariantError):
        assert_equivariant(lambda x: x.masked_fill(x < 0, math.nan), D4, image())


def test_nan_in_the_input_is_named() -> None:
    with pytest.raises(NotEquivariantError, match=r"the input has values that are not numbers \(NaN\)"):
        assert_equivariant(nn.Conv2d(1, 2, 1), D4, torch.full((1, 1, 4, 4), math.nan))


def test_nan_does_not_pass() -> None:
    class Bad(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * math.nan

    assert "nan" in found(Bad())


@pytest.mark.parametrize(
    "x",
    [torch.zeros(1, 1, 4, 4), torch.randn(2, 3), torch.randn(1, 1, 1, 1), torch.eye(4)[None, None]],
    ids=["zeros", "dense", "one pixel", "diagonal"],
)
def test_inputs_on_which_the_check_could_not_fail_are_refused(x: Tensor) -> None:
    with pytest.raises(qt.ShapeError, match="the check could not fail"):
        assert_equivariant(nn.Identity(), D4, x)


def test_unknown_kinds_are_answered() -> None:
    with pytest.raises(qt.OptionError, match="unknown kind 'invarient': did you mean 'invariant'"):
        equivariance_error(nn.Identity(), C4, image(), kind="invarient")


def test_the_law_of_every_layer() -> None:
    net = rolled_net(D4, qt.Stack(D4), nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, 1)), qt.Pool(D4, rotate="filters"))
    layers = qt.laws_by_layer(net, D4, image())
    assert [layer.path for layer in layers] == ["0", "1", "2", "3", "4", "5", "6.0", "6.1", "7"]
    assert [layer.law for layer in layers] == [
        *["pathways permuted"] * 5,
        *["orientations permuted"] * 3,
        "turned",
    ]
    assert max(layer.error for layer in layers) < 1e-10
    broken = qt.laws_by_layer(nn.Sequential(*net, nn.Conv2d(3, 3, 2).double()), D4, image())
    assert [layer.error > 1e-3 for layer in broken] == [False] * 9 + [True]

"""Chains of layers as one call: the same numbers, as exact, and nothing old in them."""

import copy
import inspect
import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from test_kernel import HALF, defined, each_group, needs_kernel, starts, tensors, turned
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, FLIP, Group, fused, kernel
from quarterturn._convert.converted_network import Converted
from quarterturn.kernel import Finish, border, group_conv
from quarterturn.kernel.finish import IN_PLACE

ACTIVATIONS = pytest.mark.parametrize("activation", border.ACTIVATIONS)


class Block(nn.Module):
    """What networks are made of: a strided short cut, sums, gates, depthwise layers, norms before and behind."""

    def __init__(self, act: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), act())
        self.body = nn.Sequential(
            nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(64),
            act(),
            nn.Conv2d(64, 64, 3, padding=1, groups=64),
            nn.BatchNorm2d(64),
            act(),
            nn.Conv2d(64, 128, 1, bias=False),
            nn.BatchNorm2d(128),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(64, 128, 1, stride=2), nn.BatchNorm2d(128, affine=False))
        self.act = act()
        self.gate = nn.Sequential(nn.Conv2d(128, 16, 1), act(), nn.Conv2d(16, 128, 1), nn.Sigmoid())
        self.before = nn.BatchNorm2d(128)
        self.narrow = nn.Conv2d(128, 16, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.act(self.body(x) + self.shortcut(x))
        x = x * self.gate(x.mean((2, 3), keepdim=True))
        x = x + F.relu(self.before(x))
        x = F.gelu(self.narrow(x))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def trained(net: Converted, x: Tensor) -> Converted:
    """In eval mode, with statistics and affine parameters that do something."""
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, qt.BatchNorm) and layer.weight is not None:
                layer.weight.uniform_(-1, 2)
                layer.bias.normal_()
        net.train()
        for _ in range(3):
            net(x)
    return net.eval()


def converted(group: Group, act: type[nn.Module] = nn.ReLU, side: int = 16, rotate: str = "filters") -> Converted:
    x = torch.randn(2, 3, side, side)
    return trained(qt.convert(Block(act), group, rotate=rotate, example=x), x)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The norms of the chains that ran as one, with a convolution at their head; the list fills."""
    found: list[object] = []
    run = fused._bias_and_scale
    with monkeypatch.context() as patch:
        patch.setattr(fused, "_bias_and_scale", lambda bias, norm: found.append(norm) or run(bias, norm))
        yield found


def one_by_one(net: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():  # with gradients nothing is fused
        return net(x).detach()  # type: ignore[no-any-return]


def in_one(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x)  # type: ignore[no-any-return]


# --- the kernel's part ------------------------------------------------------------------------------------------------


@needs_kernel
@ACTIVATIONS
@pytest.mark.parametrize("size", [0, 1, 7, 8, 16, 33, 70_000])
def test_activations_are_those_of_torch(activation: str, size: int) -> None:
    x = torch.cat([torch.linspace(-120, 120, size - size // 2), torch.randn(size // 2)])
    wanted = IN_PLACE[activation](x.double())
    torch.testing.assert_close(
        kernel.finish_in_place(x.clone(), None, activation).double(), wanted, atol=1e-6, rtol=1e-6
    )
    other = torch.randn(size)
    wanted = IN_PLACE[activation](x.double() + other.double())
    torch.testing.assert_close(
        kernel.finish_in_place(x.clone(), other, activation).double(), wanted, atol=1e-4, rtol=1e-5
    )


@needs_kernel
@ACTIVATIONS
def test_activations_keep_what_is_no_number(activation: str) -> None:
    found = kernel.finish_in_place(torch.tensor([torch.nan, torch.inf, 1.0]), None, activation)
    assert found.isnan().tolist() == [True, False, False]
    assert found[1] == {"relu6": 6, "sigmoid": 1, "hardsigmoid": 1}.get(activation, torch.inf)


def finished(x: Tensor, weight: Tensor, finish: Finish, group: Group, stride: int) -> Tensor:
    side, out = x.shape[2], (x.shape[2] - 1) // stride + 1
    where = starts(group, side, 3, stride, 1, 1, out)
    return group_conv(
        x, weight, None, group, stride=(stride, stride), starts=where, output_size=(out, out), finish=finish
    )


@needs_kernel
@each_group
@ACTIVATIONS
@pytest.mark.parametrize("stride", [1, 2])
def test_the_kernel_finishes_its_sums(group: Group, activation: str, stride: int) -> None:
    x, weight, bias = tensors(group, side=8, out=9)
    plain = defined(x, weight, None, group, stride=stride, padding=1)
    scale, other = torch.randn(9).double(), torch.randn_like(plain)
    wide = [t.repeat_interleave(group.order)[:, None, None] for t in (scale, bias)]
    wanted = IN_PLACE[activation](plain * wide[0] + wide[1] + other)
    finish = Finish(bias.float(), scale.float(), other.float(), activation)
    found = finished(x.float(), weight.float(), finish, group, stride)
    torch.testing.assert_close(found.double(), wanted, atol=5e-5, rtol=1e-5)
    for h in range(group.order):  # as exact as without: every bit
        back = turned(
            finished(
                turned(x.float(), group, h),
                weight.float(),
                finish._replace(other=turned(other.float(), group, h)),
                group,
                stride,
            ),
            group,
            group.inverse[h],
        )
        assert torch.equal(back, found)


@needs_kernel
def test_finished_sums_in_bf16_are_rounded_once() -> None:
    x, weight, bias = (t.to(HALF) for t in tensors(D4, features=8, out=8, side=9))
    other = torch.randn(2, 64, 9, 9).to(HALF)
    half = Finish(bias.float(), torch.rand(8), other, "silu")
    found = finished(x, weight, half, D4, 1)
    single = finished(x.float(), weight.float(), half._replace(other=other.float()), D4, 1)
    assert found.dtype == HALF
    assert torch.equal(found, single.to(HALF))


@needs_kernel
def test_sequences_are_finished_too() -> None:
    layer = qt.RollConv(FLIP, 8, 8, 3, padding=1, rotate="filters", via="fourier")
    x, other, scale = torch.randn(2, 16, 9), torch.randn(2, 16, 9), torch.rand(8)
    with torch.no_grad():
        plain = layer(x) - layer.bias.repeat_interleave(2)[:, None]
        wanted = (plain * scale.repeat_interleave(2)[:, None] + other).relu()
        torch.testing.assert_close(layer.finished(x, Finish(None, scale, other, "relu")), wanted)


@needs_kernel
def test_mistakes_are_answered() -> None:
    x, weight, _ = (t.float() for t in tensors(C4))
    for wrong, message in (
        (Finish(scale=torch.ones(4)), "the scale has one number for each of 5 features"),
        (Finish(other=torch.ones(2, 20, 7, 6)), "what is added to the output must be as the output"),
        (Finish(other=torch.ones(2, 20, 7, 7, dtype=HALF)), "bf16 needs an input in bf16"),
        (Finish(activation="rely"), "did you mean 'relu'"),
    ):
        with pytest.raises(qt.QuarterturnError, match=message):
            finished(x, weight, wrong, C4, 1)


# --- networks ---------------------------------------------------------------------------------------------------------

ACTS = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("rotate", ["filters", "maps"])
def test_in_one_or_one_by_one(group: Group, act: type[nn.Module], rotate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = converted(group, act, rotate=rotate), torch.randn(2, 3, 16, 16)
    with counted(monkeypatch) as chains:
        found = in_one(net, x)
    assert len(chains) == 8
    with counted(monkeypatch) as chains:
        wanted = one_by_one(net, x)
    assert chains == []
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    double, x = net.double(), x.double()
    torch.testing.assert_close(in_one(double, x), one_by_one(double, x), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("side", [15, 16])
def test_every_element_is_as_exact(group: Group, side: int) -> None:
    net = converted(group, nn.SiLU, side).double()
    x = torch.randn(2, 3, side, side, dtype=torch.float64)
    for h in range(group.order):
        torch.testing.assert_close(in_one(net, qt.act(x, group, h)), in_one(net, x), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["running_mean", "running_var", "weight", "bias"])
def test_what_changes_in_place_counts_at_once(name: str) -> None:
    net, x = converted(D4, nn.SiLU), torch.randn(2, 3, 16, 16)
    before = in_one(net, x)
    layers = (layer for layer in net.modules() if isinstance(layer, (qt.BatchNorm, qt.RollConv, qt.SliceConv)))
    changed = 0
    for layer in layers:
        tensor = getattr(layer, name, None)
        if tensor is None:
            continue
        tensor.data.mul_(1.5).add_(0.1)
        after = in_one(net, x)
        assert not torch.equal(after, before), layer
        torch.testing.assert_close(after, one_by_one(net, x), atol=1e-4, rtol=1e-4)
        before, changed = after, changed + 1
    assert changed > 4


def test_training_after_eval_is_training(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = converted(C4), torch.randn(2, 3, 16, 16)
    in_one(net, x)
    twin, net = copy.deepcopy(net).train(), net.train()
    with counted(monkeypatch) as chains, torch.no_grad():
        torch.testing.assert_close(net(x), twin(x))
    assert chains == []
    net.eval()
    next(layer for layer in net.modules() if isinstance(layer, qt.BatchNorm)).train()
    with counted(monkeypatch) as chains:
        in_one(net, x)
    assert len(chains) == 7
    net.train()
    net(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_hooks_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = converted(C4), torch.randn(2, 3, 16, 16)
    wanted, seen = in_one(net, x), []
    hooks = [layer.register_forward_hook(lambda layer, *_: seen.append(layer)) for layer in net.modules()]
    torch.testing.assert_close(in_one(net, x), wanted, atol=1e-4, rtol=1e-4)
    called = [node for node in net.graph.nodes if node.op == "call_module"]
    assert len(seen) == len(called) + 1  # and the network itself
    for hook in hooks:
        hook.remove()
    with counted(monkeypatch) as chains:
        assert torch.equal(in_one(net, x), wanted)
    assert len(chains) == 8
    hook = nn.modules.module.register_module_forward_hook(lambda layer, *_: seen.append(layer))
    try:
        seen.clear()
        in_one(net, x)
    finally:
        hook.remove()
    assert len(seen) == len(called) + 1


def test_other_layers_in_their_place_run() -> None:
    net, x = converted(C4), torch.randn(2, 3, 16, 16)
    in_one(net, x)
    for name, layer in list(net.named_modules()):
        if isinstance(layer, nn.ReLU):
            net.set_submodule(name, nn.Tanh())
    torch.testing.assert_close(in_one(net, x), one_by_one(net, x), atol=1e-5, rtol=1e-5)
    conv = net.get_submodule("body.0")
    conv.forward = lambda x: torch.zeros(2, 64, 8, 8)
    torch.testing.assert_close(in_one(net, x), one_by_one(net, x), atol=1e-5, rtol=1e-5)


def test_copies_and_files_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = converted(D4), torch.randn(2, 3, 16, 16)
    wanted = in_one(net, x)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for twin in (copy.deepcopy(net), torch.load(file, weights_only=False)):
        with counted(monkeypatch) as chains:
            assert torch.equal(in_one(twin, x), wanted)
        assert len(chains) == 8
        with torch.no_grad():
            twin.get_submodule("stem.1").running_mean.add_(1)
        assert not torch.equal(in_one(twin, x), wanted)
        assert torch.equal(in_one(net, x), wanted)


def test_exports_transforms_and_precisions_see_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = converted(C4), torch.randn(2, 3, 16, 16)
    wanted = in_one(net, x)
    with counted(monkeypatch) as chains, torch.no_grad():
        program = torch.export.export(net, (x,))
        mapped = torch.func.vmap(lambda x: net(x[None])[0])(x)
        with torch.autocast("cpu", torch.bfloat16):
            half = net(x)
    assert chains == []
    for found in (program.module()(x), qt.to_plain(net, x)(x), mapped):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(half.float(), wanted, atol=0.3, rtol=0.3)


def test_tracers_find_the_arguments() -> None:
    net = converted(C4)
    assert list(inspect.signature(net.forward).parameters) == ["x"]


def test_sums_that_broadcast() -> None:
    class Broadcast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.narrow = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 16, 1)
            self.first, self.one = nn.Conv2d(3, 64, 1), nn.Conv2d(64, 64, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            mean = x.mean((2, 3), keepdim=True)
            small = self.one(mean)
            return self.narrow((self.conv(x) + mean).relu() + (small + x))

    x = torch.randn(2, 3, 8, 8)
    net = qt.convert(Broadcast(), C4, example=x).eval()
    torch.testing.assert_close(in_one(net, x), one_by_one(net, x), atol=1e-5, rtol=1e-5)


def test_chains_end_where_someone_else_reads() -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.norm(self.conv(x))
            return x.relu(), x

    net = qt.convert(Read(), C4).eval()
    (chain,) = fused.find_chains(net)
    assert len(chain.nodes) == 2
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        rectified, both = net(x)
    for found, wanted in zip((rectified, both), net(x), strict=True):  # the second one with gradients
        torch.testing.assert_close(found, wanted.detach())
    assert both.min() < 0


class TokenBlock(nn.Module):
    """A transformer's block: layers with dropouts before sums, and an activation between two of them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        self.first, self.act, self.drop1 = nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.3)
        self.second, self.drop2 = nn.Linear(2 * width, width), nn.Dropout(0.3)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x).flatten(2).transpose(1, 2)
        x = x + self.drop2(self.second(self.drop1(self.act(self.first(self.norm(x))))))
        return self.head(x.mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("rotate", ["filters", "maps"])
def test_layers_of_tokens_with_dropouts(group: Group, rotate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 16, 16)
    net = qt.convert(TokenBlock(), group, rotate=rotate, example=x).eval()
    assert [len(chain.nodes) for chain in fused.find_chains(net)] == [2, 3]
    with counted(monkeypatch) as chains:
        found = in_one(net, x)
    assert len(chains) == 2
    torch.testing.assert_close(found, one_by_one(net, x), atol=1e-5, rtol=1e-5)
    double = net.double()
    for h in range(group.order):
        turned_input = qt.act(x.double(), group, h)
        torch.testing.assert_close(in_one(double, turned_input), in_one(double, x.double()), atol=1e-10, rtol=1e-10)


def test_a_dropout_that_acts_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 16, 16)
    net = qt.convert(TokenBlock(), C4, example=x).eval()
    wanted = in_one(net, x)
    dropout = net.get_submodule("drop2").train()
    with counted(monkeypatch) as chains:
        assert not torch.equal(in_one(net, x), wanted)
    assert len(chains) == 1
    dropout.eval()
    assert torch.equal(in_one(net, x), wanted)

    class Always(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, self.p, True)

    net.set_submodule("drop2", Always(0.3).eval())
    assert not torch.equal(in_one(net, x), wanted)

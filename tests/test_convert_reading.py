"""convert: what is read of a network is what it does, and code that cannot be read is refused in words."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt


class Asking(nn.Module):
    """A network that asks what it was given before it calls its second layer."""

    def __init__(self, question: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.question = question

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if self.question(y):
            y = self.b(y)
        return F.relu(y)


@pytest.mark.parametrize(
    "question",
    [
        lambda y: isinstance(y, torch.Tensor),
        lambda y: torch.is_tensor(y),
        lambda y: torch.is_grad_enabled(),
        lambda y: not torch.is_grad_enabled(),
        lambda y: type(y) is torch.Tensor,
    ],
)
@pytest.mark.parametrize("gate", [0.0, 1.0])
def test_layers_that_reading_would_leave_out_are_named(question: Any, gate: float) -> None:
    """Also where the layer makes no difference as yet."""
    net = Asking(question)
    nn.init.constant_(net.b.weight, gate)
    with pytest.raises(qt.ConversionError, match=r"other layers .*'b' \(Conv2d\)"):
        qt.convert(net, qt.C4, example=torch.randn(2, 3, 16, 16))


def test_code_may_ask_torchscript_whether_it_has_a_tensor() -> None:
    net, x = Asking(lambda y: torch.jit.isinstance(y, torch.Tensor)).double(), torch.randn(2, 3, 16, 11).double()
    converted = qt.convert(net, qt.D4, example=x)
    assert isinstance(converted.get_submodule("b"), qt.RollConv)
    qt.assert_equivariant(converted, qt.D4, x)


class Chequered(nn.Module):
    """Whether maps are padded is computed with numpy, of their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        missing = (-np.array(x.shape[2:])) % 4
        if missing.any():
            x = F.pad(x, (0, int(missing[1]), 0, int(missing[0])))
        return F.avg_pool2d(self.a(x), int(np.ceil(x.shape[2] / 4)) // 2)


def test_sizes_may_be_numbers_of_numpy() -> None:
    net = Chequered().double()
    for group, *sides in ((qt.D4, 16, 16), (qt.D4, 15, 15), (qt.C2, 13, 22)):
        x = torch.randn(2, 3, *sides, dtype=torch.float64)
        converted = qt.convert(net, group, example=x)
        assert converted(x).shape == net(x).shape
        qt.assert_equivariant(converted, group, x)
    with pytest.raises(qt.ConversionError, match="decides by sizes"):
        qt.convert(net, qt.D4)


def test_functions_that_reading_would_leave_out_are_found() -> None:
    class Doubling(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return 2 * y if torch.is_tensor(y) else y

    with pytest.raises(qt.ConversionError, match="other outputs"):
        qt.convert(Doubling(nn.Conv2d(3, 8, 3)), qt.C4)


def test_random_numbers_are_not_frozen() -> None:
    class Noisy(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.rand(1)

    with pytest.raises(qt.ConversionError, match="random numbers"):
        qt.convert(Noisy(nn.Conv2d(3, 8, 3)), qt.C4)


def test_layers_within_layers_are_called_as_they_are_read() -> None:
    """A batch norm with an activation inside, as other libraries have it, is one layer."""

    class NormAct(nn.BatchNorm2d):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(super().forward(x))

    net = nn.Sequential(nn.Conv2d(3, 8, 3), NormAct(8), nn.Conv2d(8, 4, 3)).double()
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    assert max(qt.equivariance_error(qt.convert(net, qt.D4, example=x), qt.D4, x).relative) < 1e-10
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())


def test_layers_of_training_alone_are_reported() -> None:
    class Auxiliary(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            y = self[0](x)
            return (self[1](y), self[2](y)) if self.training else self[1](y)

    net = Auxiliary(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), nn.Conv2d(8, 2, 3), nn.Conv2d(2, 2, 1))
    notes = qt.convert(net, qt.C4).conversion.notes
    assert "left out, because only training uses them: '2' (Conv2d)" in notes
    with_norm = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Conv2d(8, 4, 3))
    before = {name: tensor.clone() for name, tensor in with_norm.state_dict().items()}
    assert not any("left out" in note for note in qt.convert(with_norm, qt.C4).conversion.notes)
    assert all(torch.equal(before[name], tensor) for name, tensor in with_norm.state_dict().items())


def test_the_model_is_left_without_traces() -> None:
    class Weighted(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1))

    net = Weighted(nn.Conv2d(3, 8, 3))
    before = set(vars(net))
    converted = qt.convert(net, qt.C4)
    assert set(vars(net)) == before
    x = torch.randn(2, 3, 12, 12)
    assert max(qt.equivariance_error(converted, qt.C4, x).relative) < 1e-5
    assert (qt.to_plain(converted)(x) - converted(x)).abs().max() < 1e-5


# --- what a network may be given --------------------------------------------------------------------------------------


class Lazy(nn.Module):
    """Attention between patches, with a table of their distances that is made at the first run, and kept in some way.

    What comes of the table goes through a linear layer, or is multiplied with a parameter before it is kept.
    """

    def __init__(self, keep: str) -> None:
        super().__init__()
        self.keep = keep
        self.patches, self.qk, self.v = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 32), nn.Linear(16, 16)
        self.scale, self.of_distance, self.last = nn.Parameter(torch.ones(3)), nn.Linear(3, 1), nn.Linear(16, 5)
        self.kept: dict[str, Tensor] = {}
        if keep == "buffer":
            self.register_buffer("table", torch.zeros(1, 1, 3), persistent=False)
        elif keep in ("attribute", "learnt"):
            self.table = None

    def distances(self, count: int) -> Tensor:
        if self.keep == "dictionary":
            if str(count) not in self.kept:
                self.kept[str(count)] = self.made(count)
            return self.kept[str(count)]
        if self.table is None or self.table.shape[1] != count:
            self.table = self.made(count) * self.scale if self.keep == "learnt" else self.made(count)
        return self.table

    def made(self, count: int) -> Tensor:
        side = int(count**0.5)
        rows, columns = torch.arange(count) // side, torch.arange(count) % side
        down, right = rows[:, None] - rows, columns[:, None] - columns
        return torch.stack([down, right, down**2 + right**2], dim=-1).to(self.last.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        q, k = self.qk(x).chunk(2, dim=-1)
        near = self.of_distance(self.distances(x.shape[1])).squeeze(-1).softmax(dim=-1)
        attention = (q @ k.transpose(-2, -1)).softmax(dim=-1) + near
        return self.last((attention @ self.v(x)).mean(dim=1))


@pytest.mark.parametrize("keep", ["buffer", "attribute", "dictionary", "learnt"])
def test_a_network_that_has_run_is_read_like_a_new_one(keep: str) -> None:
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    model = Lazy(keep).double()
    before = {name: value for name, value in vars(model).items() if not name.startswith("_")}
    shapes = {name: tuple(buffer.shape) for name, buffer in model.named_buffers()}
    first, second = (qt.convert(model, qt.D4, example=x) for _ in range(2))
    assert {name: value for name, value in vars(model).items() if not name.startswith("_")} == before
    assert {name: tuple(buffer.shape) for name, buffer in model.named_buffers()} == shapes
    model(torch.cat([x, x], dim=2)[:, :, :24, :8]) if keep == "buffer" else model(x)
    third = qt.convert(model, qt.D4, example=x)
    for other in (second, third) if keep != "learnt" else (second,):
        other.load_state_dict(first.state_dict())
        assert str(other.graph) == str(first.graph)
        assert torch.equal(other(x), first(x))
    qt.assert_equivariant(first, qt.D4, x)
    if keep == "learnt":
        first(x).sum().backward()
        assert first.scale.grad is not None


class Options(nn.Module):
    """A forward with the options that many have."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, scale: float = 2.0, *, return_dict: bool = False, **rest: Any
    ) -> Any:
        y = self.a(x) * scale
        if mask is not None:
            y = y * mask
        if return_dict:
            return {"maps": y}
        return y


class AnyNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3)

    def forward(self, *args: Tensor) -> Tensor:
        return self.a(sum(args))


def test_arguments_with_defaults_keep_them() -> None:
    net, x = Options().double(), torch.randn(2, 3, 12, 12, dtype=torch.float64)
    for example in (x, None, [x]):
        converted = qt.convert(net, qt.D4, example=example)
        assert converted(x).shape == net(x).shape
        assert max(qt.equivariance_error(converted, qt.D4, x).relative) < 1e-10
    with pytest.raises(TypeError, match="mask"):  # which would be left out
        converted(x, mask=x)
    both = (x, torch.rand(2, 8, 10, 10, dtype=torch.float64))
    masked = qt.convert(net, qt.D4, example=both)
    assert max(qt.equivariance_error(masked, qt.D4, both).relative) < 1e-10


def test_any_number_of_arguments() -> None:
    net, x = AnyNumber().double(), torch.randn(2, 3, 12, 12, dtype=torch.float64)
    for inputs in ((x,), (x, x.flip(0))):
        converted = qt.convert(net, qt.D4, example=inputs)
        assert max(qt.equivariance_error(converted, qt.D4, inputs).relative) < 1e-10


def test_what_is_no_network_or_no_input_is_refused() -> None:
    x = torch.randn(2, 3, 12, 12)
    for model in (torch.relu, Options):
        with pytest.raises(qt.OptionError, match="needs a network, an nn.Module"):
            qt.convert(model, qt.C4, example=x)  # type: ignore[arg-type]
        with pytest.raises(qt.OptionError, match="needs a model, an nn.Module"):
            qt.wrap(model, qt.C4)  # type: ignore[arg-type]
    for example in ((2, 3, 12, 12), (), "x", x.numpy()):
        with pytest.raises(qt.OptionError, match="a tensor or a tuple of tensors"):
            qt.convert(Options(), qt.C4, example=example)  # type: ignore[arg-type]
    with pytest.raises(qt.OptionError, match="'a.weight' is on the meta device"):
        qt.convert(Options().to("meta"), qt.C4)
    with pytest.raises(qt.ConversionError, match="does not take the example input"):
        qt.convert(Options(), qt.C4, example=x.long())

    class Two(Options):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
            return self.a(x + y)

    with pytest.raises(qt.ConversionError, match="1 example input was given, and the network takes more"):
        qt.convert(Two(), qt.C4, example=x)


def test_sides_that_go_apart_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A pool that rounds one side up and not the other; nothing is printed."""
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ZeroPad2d((0, 1, 0, 0)), nn.Conv2d(8, 8, 3, stride=2))
    with pytest.raises(qt.ConversionError, match="different shapes"):
        qt.convert(net, qt.C4, example=torch.randn(2, 3, 12, 10))
    assert capsys.readouterr() == ("", "")


class Transposed(nn.Module):
    """A non-local block that uses attributes of tensors which are tensors themselves."""

    def __init__(self, one: Any, other: Any) -> None:
        super().__init__()
        self.first, self.q, self.k = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)
        self.one, self.other = one, other

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        weights = (self.one(self.q(x).flatten(2)) @ self.k(x).flatten(2)).softmax(-1)
        return self.head((x.flatten(2) @ self.other(weights)).mean(2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda y: y.mT, lambda y: y.mT),
        (lambda y: y.mH, lambda y: y.real.mT),
        (lambda y: y.transpose(1, 2).data, lambda y: y.permute(2, 1, 0).T.mT),
    ],
)
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_attributes_that_are_tensors_are_followed(one: Any, other: Any) -> None:
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    net = qt.convert(Transposed(one, other).double(), qt.D4, example=x, unknown="refuse")
    assert not net.conversion.plain
    assert max(qt.equivariance_error(net, qt.D4, x).relative) < 1e-10


def test_attributes_that_say_what_a_tensor_is_are_those_of_the_tensor() -> None:
    """And what tensors do not have, stand-ins do not have either."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            odd = y.is_cuda or y.is_quantized or y.is_nested or y.is_complex() or torch.is_complex(y) or y.itemsize != 4
            return y if odd or hasattr(y, "decompose") or y.device.type != "cpu" else self.b(y)

    net = qt.convert(Asks(), qt.C4, example=torch.randn(2, 3, 9, 8))
    assert dict(net.named_modules()).keys() >= {"a", "b"}


# --- code that cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (lambda y: y * float(np.asarray(y.mean())), "makes a tensor or an array of the values of another"),
        (lambda y: y * torch.tensor(y.mean()), "makes a tensor or an array of the values of another"),
        (lambda y: y * torch.tensor(y.shape[2] * 1.0), "makes a tensor or an array of sizes"),
        (lambda y: y if y.sum() > 0 else -y, "decides by values of tensors"),
        (lambda y: y[{}["missing"]], "does not take the example"),
    ],
)
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_messages_say_what_the_code_does_and_where(code: Any, why: str) -> None:
    class Inner(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return code(y)

    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.ReLU(), Inner()))
    with pytest.raises(qt.ConversionError, match=why) as caught:
        qt.convert(net, qt.C4, example=torch.randn(2, 3, 12, 12), unknown="refuse")
    if "example" not in why:
        assert "in 1.1 (Inner)" in str(caught.value)
        assert "wrap()" in str(caught.value)

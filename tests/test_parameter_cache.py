"""Turned filters that are kept between calls are never those of other weights."""

import copy
import gc
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import quarterturn as qt
from quarterturn import D4, parameter_cache
from quarterturn.windows import windows_for

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "SliceConv": lambda: qt.SliceConv(D4, 16, 2, 3, stride=2, padding=1, rotate="filters"),
    "RollConv": lambda: qt.RollConv(D4, 2, 2, 3, stride=2, padding=1, rotate="filters", via="conv"),
    "PathConv": lambda: qt.PathConv(D4, 2, 2, 3, padding=1, rotate="filters"),
    "PoolConv": lambda: qt.PoolConv(D4, 2, 2, 3, padding=1, rotate="filters"),
    "DepthwiseConv": lambda: qt.DepthwiseConv(D4, 2, 3, stride=2, padding=1, rotate="filters"),
    "RollConvTranspose": lambda: qt.RollConvTranspose(D4, 2, 2, 3, rotate="filters"),
    "RollLinear": lambda: qt.RollLinear(D4, 2, 2, rotate="filters", via="linear"),
}


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> nn.Module:
    return LAYERS[request.param]().double()


def input_of(layer: nn.Module) -> Tensor:
    return torch.randn(2, 16, dtype=torch.float64) if layer.weight.dim() == 2 else torch.randn(2, 16, 6, 6).double()


def made_anew(layer: nn.Module, x: Tensor) -> Tensor:
    """What a new layer with these parameters gives; with gradients nothing is kept."""
    with torch.enable_grad():
        for parameter in layer.parameters():
            assert parameter.requires_grad
        return layer(x).detach()


def scale_data(layer: nn.Module) -> None:
    layer.weight.data.mul_(2)


def scale_one_number(layer: nn.Module) -> None:
    layer.weight.data.view(-1)[-1] += 1


def scale_through_numpy(layer: nn.Module) -> None:
    layer.weight.detach().numpy()[:] *= 3


def load(layer: nn.Module) -> None:
    layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()})


def load_and_assign(layer: nn.Module) -> None:
    layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()}, assign=True)


def step(layer: nn.Module) -> None:
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with torch.enable_grad():
        layer(input_of(layer)).sum().backward()
    optimizer.step()


def swap(layer: nn.Module) -> None:
    layer.weight.data = layer.weight.data.flip(0) + 1


def to_another_precision(layer: nn.Module) -> None:
    layer.half().double()


CHANGES = (scale_data, scale_one_number, scale_through_numpy, load, load_and_assign, step, swap, to_another_precision)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=lambda context: context.__name__)
def test_no_change_of_the_weights_goes_unseen(layer: nn.Module, change: Callable, context: Callable) -> None:
    x = input_of(layer)
    with context():
        before = layer(x)
        torch.testing.assert_close(layer(x), before, rtol=0, atol=0)
    change(layer)
    with context():
        after = layer(x)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, made_anew(layer, x), rtol=0, atol=0)


def test_filters_are_kept_without_gradients_alone(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = torch.Tensor.index_select
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *args: made.append(args) or original(*args))
    monkeypatch.setattr(qt.ops, "_turn", lambda *args: made.append(args) or args[0])  # what a PathConv calls
    x = input_of(layer)

    def count() -> int:
        made.clear()
        layer(x)
        return len(made)

    assert count() == count() > 0
    with torch.no_grad():
        assert count() > 0
        assert count() == 0
    layer.requires_grad_(False)
    assert count() == 0
    layer.requires_grad_(True)
    assert count() > 0


def test_what_inference_mode_kept_can_be_differentiated_through(layer: nn.Module) -> None:
    layer.requires_grad_(False)
    x = input_of(layer)
    with torch.inference_mode():
        layer(x)
    x.requires_grad_()
    layer(x).sum().backward()
    assert x.grad is not None


def test_copies_and_pickles_are_layers_of_their_own(layer: nn.Module) -> None:
    x = input_of(layer)
    with torch.no_grad():
        before = layer(x)
        size = len(pickle.dumps(layer))
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)):
            torch.testing.assert_close(other(x), before, rtol=0, atol=0)
            other.weight.data.mul_(2)
            torch.testing.assert_close(other(x), made_anew(other, x), rtol=0, atol=0)
            torch.testing.assert_close(layer(x), before, rtol=0, atol=0)
        assert len(pickle.dumps(layer)) == size
        assert set(layer.state_dict()) == {"weight", "bias"}


def test_transforms_see_the_weights_that_they_are_given(layer: nn.Module) -> None:
    x = input_of(layer)
    weights = dict(layer.named_parameters())
    with torch.no_grad():
        layer(x)
        twice = {name: 2 * value for name, value in weights.items()}
        torch.testing.assert_close(torch.func.functional_call(layer, twice, (x,)), 2 * layer(x))
        many = {name: torch.stack([value, 2 * value]) for name, value in weights.items()}
        of_each = torch.func.vmap(lambda w: torch.func.functional_call(layer, w, (x,)))(many)
        torch.testing.assert_close(of_each[1], 2 * of_each[0])
        _, along = torch.func.jvp(lambda w: torch.func.functional_call(layer, w, (x,)), (weights,), (weights,))
        torch.testing.assert_close(along, layer(x))
        gradient = torch.func.grad(lambda w: torch.func.functional_call(layer, w, (x,)).sum())(weights)
    layer(x).sum().backward()
    torch.testing.assert_close(gradient["weight"], layer.weight.grad)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_compilers_and_exporters_read_the_weights(layer: nn.Module) -> None:
    x = input_of(layer)
    with torch.no_grad():
        layer(x)
        compiled = torch.compile(layer, backend="eager")
        exported = torch.export.export(layer, (x,)).module()
        traced = torch.jit.trace(layer, (x,))
        for made in (compiled, exported, traced):
            torch.testing.assert_close(made(x), layer(x))
        for module in (layer, exported, traced):
            for parameter in module.parameters():
                parameter.data = parameter.data * 2
        for made in (compiled, exported, traced):
            torch.testing.assert_close(made(x), layer(x))


def test_fake_tensors_leave_nothing_behind(layer: nn.Module) -> None:
    x = input_of(layer)
    with torch.no_grad():
        with FakeTensorMode(allow_non_fake_inputs=True):
            layer(input_of(layer))
        out = layer(x)
    assert type(out) is Tensor
    torch.testing.assert_close(out, made_anew(layer, x), rtol=0, atol=0)


def test_the_memory_format_is_followed() -> None:
    layer = qt.RollConv(D4, 2, 2, 3, padding=1, rotate="filters", via="conv")
    x = torch.randn(2, 16, 6, 6)
    with torch.no_grad():
        for memory_format in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
            layer.to(memory_format=memory_format)
            assert layer(x).is_contiguous(memory_format=memory_format)


def test_nothing_outlives_the_parameter() -> None:
    layer = LAYERS["RollConv"]()
    with torch.no_grad():
        layer(torch.randn(2, 16, 6, 6))
    gc.collect()
    before = len(parameter_cache._kept)
    del layer
    gc.collect()
    assert len(parameter_cache._kept) == before - 1


@pytest.mark.parametrize("side", [7, 8, 9, 10])
def test_larger_windows_stay_within_their_bounds(side: int) -> None:
    for size, stride, dilation in ((3, 2, 1), (3, 2, 2), (1, 2, 1), (2, 3, 1), (5, 4, 2)):
        windows = windows_for(D4, size, stride, size // 2, dilation)
        larger = qt.windows.widened(D4, (side, side), windows)
        if larger is not None:
            assert [w.count(side) for w in larger.windows] == [w.count(side) for w in windows]
            assert all(w.size - sum(zeros) == size for w, zeros in zip(larger.windows, larger.zeros, strict=True))

"""convert: what is read of a network is what it does, and code that cannot be read is refused in words."""

from typing import Any

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

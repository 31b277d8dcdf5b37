"""A network of timm whose batch norms have activations of their own, in two processes that share a batch."""

import pytest
import torch
from processes import in_processes
from torch import Tensor

import quarterturn as qt
from quarterturn_lab.models.libraries import library

timm = library("timm")


def step(images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Answers and gradients of a network in training."""
    torch.manual_seed(0)
    net = timm.create_model("test_efficientnet", num_classes=5, drop_path_rate=0.0).double().train()
    answers = qt.sync_batch_norm(net)(images)
    answers.square().sum().backward()
    return answers.detach(), {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def batch() -> Tensor:
    return torch.randn(6, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def in_one_of_two(rank: int) -> tuple[Tensor, dict[str, Tensor]]:
    return step(batch().split((4, 2))[rank])


@pytest.mark.slow
def test_two_processes_are_as_one() -> None:
    assert any(isinstance(m, timm.layers.BatchNormAct2d) for m in timm.create_model("test_efficientnet").modules())
    answers, gradients = step(batch())
    (first, some), (second, others) = in_processes(2, in_one_of_two)
    torch.testing.assert_close(torch.cat([first, second]), answers, rtol=1e-8, atol=1e-10)
    for name, gradient in gradients.items():
        torch.testing.assert_close(some[name] + others[name], gradient, rtol=1e-8, atol=1e-8)

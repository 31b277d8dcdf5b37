"""Batch norms whose statistics run over all processes that share a batch: ours and torch's, on CPUs and GPUs."""

from typing import Any, TypeVar

from torch import Tensor, nn

from quarterturn.errors import OptionError
from quarterturn.layers.batch_norm import several_processes, stacked_batch_norm
from quarterturn.layers.norms import BatchNorm, running

Net = TypeVar("Net", bound=nn.Module)


def sync_batch_norm(net: Net, on: bool = True) -> Net:
    """Let every batch norm of a network take its statistics over all processes of torch.distributed; gives the network.

    In training, a batch that is split over processes is then normalised as it would be in one. Statistics of our norms
    run over orientations too. The network `net` is changed in place: parameters, buffers and their names stay. It works
    with any backend, gloo on CPUs included, which torch's SyncBatchNorm does not. timm's norms with an activation are
    known too. `on=False` switches it off again.

    >>> from quarterturn import C4
    >>> net = sync_batch_norm(nn.Sequential(BatchNorm(C4, 8, rotate="filters"), nn.BatchNorm2d(8)))
    >>> [norm.synchronised for norm in net]
    [True, True]
    """
    norms = {
        name: module for name, module in net.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    }
    for name, norm in norms.items():
        if not isinstance(norm, (BatchNorm, _Synchronised, nn.SyncBatchNorm)) and _twin(type(norm)) is None:
            raise OptionError(
                f"{name or 'the network'} is a {type(norm).__name__}, a batch norm with code of its own, which cannot "
                "be synchronised: use BatchNorm1d, 2d or 3d of torch.nn, or quarterturn.BatchNorm"
            )
    for norm in norms.values():
        if twin := _twin(type(norm)):
            norm.__class__ = twin
        if isinstance(norm, (BatchNorm, _Synchronised)):
            norm.synchronised = on
    return net


class _Synchronised(nn.modules.batchnorm._BatchNorm):
    """A batch norm of torch's whose statistics run over all processes in training."""

    synchronised = False

    @property
    def is_shared(self) -> bool:
        return self.training and self.synchronised and several_processes()

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_shared:
            return super().forward(x)
        self._check_input_dim(x)
        mean, var, momentum = running(self)
        return stacked_batch_norm(x, self.num_features, mean, var, self.weight, self.bias, momentum, self.eps, True)


class _WithActivation(_Synchronised):
    """The norm of timm that has a dropout and an activation behind it, in a forward that is all its own."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return self.act(self.drop(y)) if self.is_shared else y


class _BatchNorm1d(_Synchronised, nn.BatchNorm1d):
    pass


class _BatchNorm2d(_Synchronised, nn.BatchNorm2d):
    pass


class _BatchNorm3d(_Synchronised, nn.BatchNorm3d):
    pass


SYNCHRONISED: dict[type, Any] = {
    nn.BatchNorm1d: _BatchNorm1d,
    nn.BatchNorm2d: _BatchNorm2d,
    nn.BatchNorm3d: _BatchNorm3d,
}


def _twin(kind: Any) -> Any:
    """The synchronised form of a type of norms, with its layers and options; None if it is not known."""
    has_activation = kind.__name__ == "BatchNormAct2d" and issubclass(kind, nn.BatchNorm2d)
    if has_activation and kind not in SYNCHRONISED and not issubclass(kind, _Synchronised):
        SYNCHRONISED[kind] = type(kind.__name__, (_WithActivation, kind), {"__module__": __name__})
    return SYNCHRONISED.get(kind)

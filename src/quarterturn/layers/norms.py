"""Norms that share their parameters between orientations. Both layouts give the same numbers.

Batch norm takes its statistics over examples and orientations together. Instance, group and layer norm take them for
each orientation separately. `features` and `num_groups` count those of one pathway.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn import ops
from quarterturn.errors import OptionError
from quarterturn.filters import Rotate, check_features, check_last, check_options, split_orientations
from quarterturn.groups import Group
from quarterturn.layers.batch_norm import expanded, several_processes, stacked_batch_norm
from quarterturn.layers.layer_norm import has_kernel, stacked_layer_norm


def _check(x: Tensor, group: Group, features: int, rotate: Rotate) -> None:
    check_features(x, group, features, "stacked" if rotate == "filters" else "sliced", dense=x.dim() == 2)


class _Norm(nn.Module):
    """Base class of the norms without running statistics: their affine parameters, named as in torch."""

    def __init__(
        self,
        group: Group,
        features: int,
        eps: float = 1e-5,
        affine: bool = True,
        rotate: Rotate = "maps",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_options(group, rotate, features=features)
        self.group, self.features, self.eps, self.rotate = group, features, eps, rotate
        self.weight = nn.Parameter(torch.ones(features, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features, device=device, dtype=dtype)) if affine else None

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.features}, eps={self.eps}, rotate={self.rotate!r}"


class _NotForTorch(OptionError, AttributeError):
    """The error for an attribute of torch's norms that ours lacks; `hasattr` gives False."""


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over examples, orientations and positions together; parameters and buffers are named as in torch.

    It is a subclass of torch's batch norms, so that tools such as `update_bn` find it by its type. `sync_batch_norm`
    makes the statistics in training run over all processes that share a batch.

    >>> from quarterturn import C4
    >>> BatchNorm(C4, 8, rotate="filters")(torch.randn(2, 32, 5, 7)).shape
    torch.Size([2, 32, 5, 7])
    """

    synchronised = False  # set by sync_batch_norm

    def __init__(
        self,
        group: Group,
        features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        rotate: Rotate = "maps",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_options(group, rotate, features=features)
        super().__init__(features, eps, momentum, affine, track_running_stats, device, dtype)
        self.group, self.features, self.rotate = group, features, rotate
        if rotate == "filters":
            del self.num_features

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("affine", self.weight is not None)  # missing in older files
        if self.rotate == "maps":
            self.__dict__.setdefault("num_features", self.features)

    def __getattr__(self, name: str) -> Any:
        if name == "num_features":
            raise _NotForTorch(
                "a BatchNorm for stacked maps has .features but no .num_features, so that torch's tools, such as "
                "SyncBatchNorm.convert_sync_batchnorm, do not replace it by a norm that takes orientations for "
                "features and shares no statistics between them. Call quarterturn.sync_batch_norm(net) instead"
            )
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.group, self.features, self.rotate)
        mean, var, momentum = running(self)
        use_batch = self.training or self.running_mean is None
        if self.training and self.synchronised and several_processes():
            return stacked_batch_norm(x, self.features, mean, var, self.weight, self.bias, momentum, self.eps, True)
        if self.rotate == "maps":
            return F.batch_norm(x, mean, var, self.weight, self.bias, use_batch, momentum, self.eps)
        if use_batch:
            return stacked_batch_norm(x, self.features, mean, var, self.weight, self.bias, momentum, self.eps)
        mean, var, weight, bias = (expanded(t, self.group.order) for t in (mean, var, self.weight, self.bias))
        return F.batch_norm(x, mean, var, weight, bias, False, momentum, self.eps)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.features}, eps={self.eps}, rotate={self.rotate!r}"


def running(norm: nn.modules.batchnorm._BatchNorm) -> tuple[Tensor | None, Tensor | None, float]:
    """The running mean and variance that a batch norm uses or updates now, and its momentum; counts the batch."""
    momentum = norm.momentum if norm.momentum is not None else 0.0
    if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            momentum = 1.0 / float(norm.num_batches_tracked)
    if norm.track_running_stats or not norm.training:
        return norm.running_mean, norm.running_var, momentum
    return None, None, momentum


class InstanceNorm(_Norm):
    """Instance norm: normalises each feature of each example and orientation over its positions.

    >>> from quarterturn import C4
    >>> InstanceNorm(C4, 8, rotate="filters")(torch.randn(2, 32, 5, 7)).shape
    torch.Size([2, 32, 5, 7])
    """

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.group, self.features, self.rotate)
        if self.rotate == "maps":
            return F.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)
        weight, bias = expanded(self.weight, self.group.order), expanded(self.bias, self.group.order)
        return F.instance_norm(x, weight=weight, bias=bias, eps=self.eps)


class GroupNorm(_Norm):
    """Group norm: normalises each of `num_groups` groups of features, for each example and orientation, over positions.

    >>> from quarterturn import C4
    >>> GroupNorm(C4, 2, 8, rotate="filters")(torch.randn(2, 32, 5, 7)).shape
    torch.Size([2, 32, 5, 7])
    """

    def __init__(
        self,
        group: Group,
        num_groups: int,
        features: int,
        eps: float = 1e-5,
        affine: bool = True,
        rotate: Rotate = "maps",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(group, features, eps, affine, rotate, device, dtype)
        check_options(group, num_groups=num_groups)
        if features % num_groups:
            raise OptionError(f"features must be a multiple of num_groups, got {features} and {num_groups}")
        self.num_groups = num_groups

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.group, self.features, self.rotate)
        if self.rotate == "maps":
            return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        # move orientations into the batch: (N, C*G, *S) -> (N, G, C, *S) -> (N*G, C, *S)
        beside = split_orientations(x, self.group).transpose(1, 2)
        out = F.group_norm(beside.flatten(0, 1), self.num_groups, self.weight, self.bias, self.eps)
        return out.unflatten(0, (x.shape[0], self.group.order)).transpose(1, 2).flatten(1, 2)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.num_groups}, {self.features}, eps={self.eps}, rotate={self.rotate!r}"


class LayerNorm(_Norm):
    """Layer norm: normalises the features at each position, for each example and orientation.

    It takes maps, features first. With `last=True` features are the last axis, as those of tokens `(N, T, C*G)`.

    >>> from quarterturn import C4
    >>> LayerNorm(C4, 8, rotate="filters")(torch.randn(2, 32, 5, 7)).shape
    torch.Size([2, 32, 5, 7])
    >>> LayerNorm(C4, 8, rotate="filters", last=True)(torch.randn(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        group: Group,
        features: int,
        eps: float = 1e-5,
        affine: bool = True,
        rotate: Rotate = "maps",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        last: bool = False,
    ) -> None:
        super().__init__(group, features, eps, affine, rotate, device, dtype)
        self.last = last

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("last", False)  # missing in older files

    def forward(self, x: Tensor) -> Tensor:
        if self.last:
            check_last(x, self.group, self.features, "stacked" if self.rotate == "filters" else "sliced")
            return self._over_last(x)
        _check(x, self.group, self.features, self.rotate)
        rows = x.movedim(1, -1)
        if self.rotate == "filters" and (
            ops.features_are_last(x) or has_kernel(rows, self.features, self.weight, self.bias)
        ):
            return self._over_last(rows).movedim(
                -1, 1
            )  # what follows takes features last, and copies are from close by
        if self.rotate == "filters" and self._are_few(x):
            return _normalised_over_few(x, self.features, self.weight, self.bias, self.eps)
        split = split_orientations(x, self.group) if self.rotate == "filters" else x
        out = F.layer_norm(split.movedim(1, -1), (self.features,), self.weight, self.bias, self.eps).movedim(-1, 1)
        return out.flatten(1, 2) if self.rotate == "filters" else out

    def _over_last(self, x: Tensor) -> Tensor:
        """Layer norm with features as the last axis."""
        if self.rotate == "maps":
            return F.layer_norm(x, (self.features,), self.weight, self.bias, self.eps)
        return stacked_layer_norm(x, self.features, self.weight, self.bias, self.eps)

    def _are_few(self, x: Tensor) -> bool:
        """Whether torch's layer norm, which takes the features of one position at a time, has too few of them."""
        graph = torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in self.parameters()))
        if self.features > (FEW_IN_TRAINING if graph else FEW) or x.device.type != "cpu":
            return False
        tensors = [t for t in (x, self.weight, self.bias) if t is not None]
        same = all(t.dtype == x.dtype for t in tensors) and x.dtype in (torch.float32, torch.float64)
        return same and not torch.is_autocast_enabled("cpu")  # half floats need sums in float32


FEW = 20  # features of an orientation up to which layer norm is faster in steps, features first
FEW_IN_TRAINING = 8


def _normalised_over_few(x: Tensor, features: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Layer norm over the features of stacked maps, all positions of all orientations at a time."""
    split = x.contiguous().view(x.shape[0], features, -1)
    centred = split - split.mean(1, keepdim=True)
    out = centred * (centred.square().mean(1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        out = out * weight[:, None] if bias is None else torch.addcmul(bias[:, None], out, weight[:, None])
    return out.view(x.shape)

"""Convolutions whose filters are computed from their parameters in every call, as weight standardisation does."""

from torch import Tensor, nn

from quarterturn.layers.convolution import DepthwiseConv, RollConv, SliceConv
from quarterturn.parameter_cache import kept, may_be_kept


class _Computed(nn.Module):
    """`weight` is what `compute` makes of the parameter of that name and of others of the layer.

    A layer that turns its filters is equivariant whatever its filters are, so any computation keeps it so.
    """

    others: tuple[str, ...] = ()

    def compute_from(self, compute: nn.Module, **others: Tensor) -> None:
        """From now on the filters are `compute(weight, *others)`, and the others are parameters of the layer."""
        for name, tensor in others.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)
        self.add_module("compute", compute)
        self.others = tuple(others)

    @property
    def weight(self) -> Tensor:
        stored = self._parameters.get("weight")
        if stored is None:
            raise AttributeError("weight")
        compute = self._modules.get("compute")
        if compute is None:
            return stored
        others = [getattr(self, name) for name in self.others]
        if not all(map(may_be_kept, (stored, *others))):
            filters: Tensor = compute(stored, *others)
            return filters
        numbers = tuple(tuple(tensor.flatten().tolist()) for tensor in others)
        return kept(stored, (compute, numbers), lambda: nn.Parameter(compute(stored, *others), requires_grad=False))


class ComputedSliceConv(_Computed, SliceConv):  # type: ignore[misc]
    """A `SliceConv` with computed filters."""


class ComputedRollConv(_Computed, RollConv):  # type: ignore[misc]
    """A `RollConv` with computed filters.

    >>> import torch
    >>> from quarterturn import C4
    >>> class Centred(nn.Module):
    ...     def forward(self, weight: Tensor) -> Tensor:
    ...         return weight - weight.mean((1, 2, 3), keepdim=True)
    >>> layer = ComputedRollConv(C4, 2, 3, 3)
    >>> layer.compute_from(Centred())
    >>> layer.weight.sum((1, 2, 3)).abs().max() < 1e-5
    tensor(True)
    >>> [name for name, _ in layer.named_parameters()]
    ['weight', 'bias']
    """


class ComputedDepthwiseConv(_Computed, DepthwiseConv):  # type: ignore[misc]
    """A `DepthwiseConv` with computed filters."""

"""Rules for convolutions and dense layers: the filters of all orientations are stacked into one layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn._export.plain_tensor import (
    PlainTensor,
    apply_flatten,
    apply_pending,
    copied_layer,
    input_of,
    on_pathways,
    output_of,
    sizes_of,
    some_orientations,
)
from quarterturn._export.plain_writer import PlainWriter, is_ours
from quarterturn.filters import roll_filters, slice_filters
from quarterturn.graph.refusal import Refusal
from quarterturn.groups import Group
from quarterturn.layers.convolution import PoolConv, RollConv, SliceConv
from quarterturn.layers.transposed import spread
from quarterturn.windows import Placement, Window, by_placement, pad, pad_for, placement, windows_for

CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, Callable[..., nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def _layer(maker: Callable[..., nn.Module], weight: Tensor, bias: Tensor | None, **options: Any) -> nn.Module:
    """A torch layer with these weights."""
    layer = maker(bias=bias is not None, device=weight.device, dtype=weight.dtype, **options)
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


@dataclass(frozen=True)
class Filters:
    """The weights and options of a convolution, for one pathway or for all orientations."""

    weight: Tensor
    bias: Tensor | None
    groups: int = 1
    padding_mode: str = "zeros"

    @classmethod
    def of(cls, module: Any) -> "Filters":
        return cls(module.weight, module.bias, module.groups, module.padding_mode)

    def are_one_for_each_feature(self) -> bool:
        return self.weight.shape[0] == self.weight.shape[1] * self.groups == self.groups


def _written(w: PlainWriter, path: str, proxy: Any, filters: Filters, where: Placement, sizes: Sequence[Any]) -> Any:
    """Write a torch convolution with its windows at this placement."""
    padding = [placed.padding for placed in where]
    if filters.padding_mode != "zeros" or None in padding:
        proxy = pad_for(proxy, where, sizes, filters.padding_mode)
        padding = [0] * len(where)
    options = {
        "in_channels": filters.weight.shape[1] * filters.groups,
        "out_channels": filters.weight.shape[0],
        "kernel_size": tuple(filters.weight.shape[2:]),
        "stride": tuple(p.window.stride for p in where),
        "padding": tuple(padding),
        "dilation": tuple(p.window.dilation for p in where),
        "groups": filters.groups,
    }
    return w.layer(path, _layer(CONVOLUTIONS[len(where)], filters.weight, filters.bias, **options), proxy)


def _convolve(
    w: PlainWriter,
    path: str,
    tensor: PlainTensor,
    group: Group,
    windows: Sequence[Window],
    filters: Filters,
    sees: str | None,
) -> PlainTensor:
    """Write a convolution. Each orientation `sees` all orientations ("roll"), the plain input ("slice"), or itself."""
    sizes = sizes_of(tensor, group.dim)

    def run(where: Placement, orientations: list[int]) -> Any:
        if sees is None and not filters.are_one_for_each_feature():
            return _each_by_itself(w, path, tensor, group, filters, where, orientations)
        expand = roll_filters if sees == "roll" else slice_filters
        bank = expand(filters.weight, group, orientations)
        bias = None if filters.bias is None else filters.bias.repeat_interleave(len(orientations))
        if sees is not None:
            return _written(w, path, tensor.proxy, replace(filters, weight=bank, bias=bias), where, sizes)
        maps = some_orientations(w, tensor, group, orientations)
        own = replace(filters, weight=bank, bias=bias, groups=bank.shape[0])
        return _written(w, path, maps, own, where, sizes_of(tensor, group.dim))

    proxy = by_placement(group, sizes, windows, run)
    return replace(tensor, proxy=proxy, group=group, pending=None, features=filters.weight.shape[0], sizes=None)


def _each_by_itself(
    w: PlainWriter,
    path: str,
    tensor: PlainTensor,
    group: Group,
    filters: Filters,
    where: Placement,
    orientations: list[int],
) -> Any:
    """Write a grouped convolution in which orientations do not see each other; they become the slow feature index."""
    if group.order == 1:
        return _written(w, path, tensor.proxy, filters, where, sizes_of(tensor, group.dim))
    count = len(orientations)
    maps = some_orientations(w, tensor, group, orientations)
    slow = maps.unflatten(1, (-1, count)).transpose(1, 2).flatten(1, 2)
    bank = torch.cat([ops.act(filters.weight, group, group.inverse[h]) for h in orientations])
    bias = None if filters.bias is None else filters.bias.repeat(count)
    own = replace(filters, weight=bank, bias=bias, groups=filters.groups * count)
    out = _written(w, path, slow, own, where, sizes_of(tensor, group.dim))
    return out.unflatten(1, (count, filters.weight.shape[0])).transpose(1, 2).flatten(1, 2)


def our_convolution(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    if isinstance(module, SliceConv) and tensor.turned is None:
        if tensor.group is not None:
            raise Refusal("it needs a plain tensor, but gets pathways")
        sees: str | None = "slice"
    else:
        tensor = apply_pending(w, input_of(module, tensor))
        sees = "roll" if isinstance(module, RollConv) else None
    out = _convolve(w, path, tensor, module.group, module.windows, Filters.of(module), sees)
    return output_of(module, out)


def pool_convolution(w: PlainWriter, path: str, module: PoolConv, tensor: PlainTensor) -> PlainTensor:
    tensor = apply_pending(w, apply_flatten(input_of(module, tensor)))
    sizes = sizes_of(tensor, module.group.dim)
    where = placement(module.group.elements[0], sizes, module.windows)
    filters = replace(Filters.of(module), weight=module.bank())
    return PlainTensor(_written(w, path, tensor.proxy, filters, where, sizes))


@on_pathways
def torchs_convolution(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    assert tensor.group is not None
    windows = windows_for(tensor.group, module.kernel_size, module.stride, module.padding, module.dilation)
    return _convolve(w, path, tensor, tensor.group, windows, Filters.of(module), tensor.pending)


@on_pathways
def transposed(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    group = tensor.group
    assert group is not None
    if is_ours(module):
        tensor = apply_pending(w, tensor)
        windows = module.windows
    elif tensor.pending != "roll":
        raise Refusal("a transposed convolution needs a Roll before it")
    else:
        windows = windows_for(group, module.kernel_size, module.stride, module.padding, module.dilation)
    cut = zip(windows, module.output_padding, strict=True)
    windows = [replace(window, after=window.after - extra) for window, extra in cut]
    sizes = sizes_of(tensor, group.dim)

    def run(where: Placement, orientations: list[int]) -> Any:
        bank = roll_filters(module.weight, group, orientations, transposed=True)
        bias = None if module.bias is None else module.bias.repeat_interleave(len(orientations))
        options = {
            "in_channels": bank.shape[0],
            "out_channels": bank.shape[1] * module.groups,
            "kernel_size": tuple(bank.shape[2:]),
            "stride": tuple(p.window.stride for p in where),
            "dilation": tuple(p.window.dilation for p in where),
            "groups": module.groups,
        }
        full = [(n - 1) * p.window.stride + p.window.span for p, n in zip(where, sizes, strict=True)]
        out = w.layer(path, _layer(TRANSPOSED[group.dim], bank, None, **options), tensor.proxy)
        out = pad(out, [(-p.start, p.start + p.count - size) for p, size in zip(where, full, strict=True)])
        return out if bias is None else out + w.constant("bias", bias.reshape(-1, *[1] * group.dim))

    proxy = by_placement(group, sizes, windows, run, spread)
    return replace(tensor, proxy=proxy, pending=None, features=module.weight.shape[1] * module.groups, sizes=None)


# --- dense layers -----------------------------------------------------------------------------------------------------


def _dense(w: PlainWriter, path: str, module: Any, tensor: PlainTensor, group: Group) -> PlainTensor:
    """Write a dense layer that sees all orientations."""
    bank = roll_filters(module.weight, group, range(group.order))
    bias = None if module.bias is None else module.bias.repeat_interleave(group.order)
    layer = _layer(nn.Linear, bank, bias, in_features=bank.shape[1], out_features=bank.shape[0])
    return replace(tensor, proxy=w.layer(path, layer, tensor.proxy), pending=None, features=module.out_features)


@on_pathways
def roll_linear(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    return _dense(w, path, module, apply_pending(w, apply_flatten(tensor)), module.group)


def linear(w: PlainWriter, path: str, module: nn.Linear, tensor: PlainTensor) -> PlainTensor:
    group = tensor.group
    if group is None:
        return replace(copied_layer(w, path, module, tensor), dense=True)
    if group.order == 1:
        flat = replace(tensor, proxy=tensor.proxy.flatten(1), flat=False) if tensor.flat else tensor
        return replace(copied_layer(w, path, module, flat), dense=True)
    if tensor.flat:  # a linear layer on flattened maps is a convolution with filters of their size
        features, *sizes = _maps_seen(module, tensor)
        if w.dynamic and any(size != 1 for size in sizes):
            raise Refusal("a linear layer on flattened maps takes maps of one size only, so sizes cannot be free")
        filters = Filters(module.weight.unflatten(1, (features, *sizes)), module.bias)
        seen = replace(tensor, sizes=tuple(sizes))
        out = _convolve(w, path, seen, group, windows_for(group, tuple(sizes)), filters, tensor.pending)
        return replace(out, proxy=out.proxy.flatten(1), flat=False, dense=True)
    if tensor.pending == "roll":
        return _dense(w, path, module, tensor, group)
    tensor = apply_pending(w, tensor)
    options = {"in_channels": module.in_features, "out_channels": module.out_features, "kernel_size": 1}
    layer = _layer(nn.Conv1d, module.weight.unsqueeze(2), module.bias, **options)
    split = tensor.proxy.unflatten(1, (module.in_features, group.order))
    return replace(tensor, proxy=w.layer(path, layer, split).flatten(1, 2), features=module.out_features)


def _maps_seen(module: nn.Linear, tensor: PlainTensor) -> tuple[int, ...]:
    """The features and sizes of the maps that were flattened before this linear layer."""
    assert tensor.group is not None
    dim = tensor.group.dim
    if tensor.sizes is not None:
        positions = int(torch.Size(tensor.sizes).numel())
        return (module.in_features // positions, *tensor.sizes)
    if tensor.features is None:
        raise Refusal("the shape of the flattened maps is unknown: give to_plain an example input")
    features = tensor.features * (tensor.group.order if tensor.pending == "roll" else 1)
    side = round((module.in_features / features) ** (1 / dim))
    if features * side**dim != module.in_features:
        raise Refusal("the flattened maps are not square, and their shape is unknown: give to_plain an example input")
    return (features, *[side] * dim)

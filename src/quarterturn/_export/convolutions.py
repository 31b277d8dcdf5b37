"""Convolutions and dense layers in a plain network: the filters of all orientations, stacked once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn._export.values import Refusal, Value, Writer, kept, left_as, oriented, sizes_of, stacked, unflattened
from quarterturn.filters import roll_filters, slice_filters
from quarterturn.groups import Group
from quarterturn.layers.convolution import DepthwiseConv, PathConv, SliceConv
from quarterturn.layers.linear import RollLinear
from quarterturn.layers.transposed import RollConvTranspose, spread
from quarterturn.windows import Placement, Window, by_placement, pad, pad_for, windows_for

CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, Callable[..., nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def _layer(maker: Callable[..., nn.Module], weight: Tensor, bias: Tensor | None, **options: Any) -> nn.Module:
    """A layer of torch's with these weights."""
    layer = maker(bias=bias is not None, device=weight.device, dtype=weight.dtype, **options)
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def _convolution(
    w: Writer,
    path: str,
    proxy: Any,
    weight: Tensor,
    bias: Tensor | None,
    where: Placement,
    sizes: Sequence[Any],
    groups: int,
    mode: str,
) -> Any:
    padding = [placed.padding for placed in where]
    if mode != "zeros" or None in padding:
        proxy = pad_for(proxy, where, sizes, mode)
        padding = [0] * len(where)
    options = {
        "in_channels": weight.shape[1] * groups,
        "out_channels": weight.shape[0],
        "kernel_size": tuple(weight.shape[2:]),
        "stride": tuple(p.window.stride for p in where),
        "padding": tuple(padding),
        "dilation": tuple(p.window.dilation for p in where),
        "groups": groups,
    }
    return w.call(path, _layer(CONVOLUTIONS[len(where)], weight, bias, **options), proxy)


def _convolve(
    w: Writer,
    path: str,
    value: Value,
    group: Group,
    windows: Sequence[Window],
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    mode: str = "zeros",
    sees: str | None = None,
) -> Value:
    """A convolution of all orientations. `sees`: "slice" the plain input, "roll" all orientations, None its own."""
    sizes = sizes_of(value, group.dim)

    def run(where: Placement, orientations: list[int]) -> Any:
        expanded = None if bias is None else bias.repeat_interleave(len(orientations))
        if sees == "slice":
            bank = slice_filters(weight, group, orientations)
            return _convolution(w, path, value.proxy, bank, expanded, where, sizes, groups, mode)
        if sees == "roll":
            bank = roll_filters(weight, group, orientations)
            return _convolution(w, path, value.proxy, bank, expanded, where, sizes, groups, mode)
        return _each_its_own(w, path, value, group, where, orientations, weight, bias, groups, mode)

    proxy = by_placement(group, sizes, windows, run)
    return replace(value, proxy=proxy, group=group, pending=None, features=weight.shape[0], sizes=None)


def _each_its_own(
    w: Writer,
    path: str,
    value: Value,
    group: Group,
    where: Placement,
    orientations: list[int],
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    mode: str,
) -> Any:
    """Orientations that do not see each other: a grouped convolution, for which they become the slow feature index."""
    features = weight.shape[1] * groups
    split = value.proxy.unflatten(1, (features, group.order))
    if len(orientations) < group.order:
        split = split.index_select(2, w.constant("orientations", torch.tensor(orientations)))
    if weight.shape[0] == weight.shape[1] * groups == groups:  # a filter for each feature: they may stay where they are
        maps = value.proxy if len(orientations) == group.order else split.flatten(1, 2)
        bank = slice_filters(weight, group, orientations)
        expanded = None if bias is None else bias.repeat_interleave(len(orientations))
        return _convolution(w, path, maps, bank, expanded, where, sizes_of(value, group.dim), bank.shape[0], mode)
    slow = split.transpose(1, 2).flatten(1, 2)
    bank = torch.cat([ops.act(weight, group, group.inverse[h]) for h in orientations])
    expanded = None if bias is None else bias.repeat(len(orientations))
    sizes = sizes_of(value, group.dim)
    out = _convolution(w, path, slow, bank, expanded, where, sizes, groups * len(orientations), mode)
    return out.unflatten(1, (len(orientations), weight.shape[0])).transpose(1, 2).flatten(1, 2)


def our_convolution(w: Writer, path: str, module: Any, value: Value) -> Value:
    if isinstance(module, SliceConv):
        if value.group is not None:
            raise Refusal("it needs an ordinary tensor, not pathways")
        sees: str | None = "slice"
    else:
        value = stacked(w, oriented(module, value))
        sees = None if isinstance(module, DepthwiseConv | PathConv) else "roll"
    value = _convolve(
        w,
        path,
        value,
        module.group,
        module.windows,
        module.weight,
        module.bias,
        module.groups,
        module.padding_mode,
        sees,
    )
    return left_as(module, value)


def torchs_convolution(w: Writer, path: str, module: Any, value: Value) -> Value:
    if value.group is None:
        return kept(w, path, module, value)
    windows = windows_for(value.group, module.kernel_size, module.stride, module.padding, module.dilation)
    return _convolve(
        w,
        path,
        value,
        value.group,
        windows,
        module.weight,
        module.bias,
        module.groups,
        module.padding_mode,
        value.pending,
    )


def transposed(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, RollConvTranspose)
    if not ours and value.group is None:
        return kept(w, path, module, value)
    if ours:
        value = stacked(w, oriented(module, value))
        windows, extra = module.windows, module.output_padding
    else:
        if value.pending != "roll":
            raise Refusal("a transposed convolution needs a Roll before it")
        assert value.group is not None
        windows = windows_for(value.group, module.kernel_size, module.stride, module.padding, module.dilation)
        extra = module.output_padding
    group = value.group
    assert group is not None
    windows = [replace(window, after=window.after - e) for window, e in zip(windows, extra, strict=True)]
    sizes = sizes_of(value, group.dim)

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
        out = w.call(path, _layer(TRANSPOSED[group.dim], bank, None, **options), value.proxy)
        out = pad(out, [(-p.start, p.start + p.count - size) for p, size in zip(where, full, strict=True)])
        return out if bias is None else out + w.constant("bias", bias.reshape(-1, *[1] * group.dim))

    proxy = by_placement(group, sizes, windows, run, spread)
    out = replace(value, proxy=proxy, pending=None, features=module.weight.shape[1] * module.groups, sizes=None)
    return left_as(module, out) if ours else out


# --- dense layers -----------------------------------------------------------------------------------------------------


def roll_linear(w: Writer, path: str, module: RollLinear, value: Value) -> Value:
    value = stacked(w, unflattened(oriented(module, value)))
    bank = roll_filters(module.weight, module.group, range(module.group.order))
    bias = None if module.bias is None else module.bias.repeat_interleave(module.group.order)
    layer = _layer(nn.Linear, bank, bias, in_features=bank.shape[1], out_features=bank.shape[0])
    out = replace(value, proxy=w.call(path, layer, value.proxy), features=module.out_features)
    return left_as(module, out)


def linear(w: Writer, path: str, module: nn.Linear, value: Value) -> Value:
    if value.group is None:
        return replace(kept(w, path, module, value), dense=True)
    group = value.group
    if value.flat:  # a linear layer on flattened maps is a convolution with filters of their size
        seen = _maps_seen(module, value)
        if w.dynamic and any(size != 1 for size in seen[1:]):
            raise Refusal("a linear layer on flattened maps takes maps of one size only, not any size")
        weight = module.weight.unflatten(1, seen)
        windows = windows_for(group, seen[1:])
        out = _convolve(
            w, path, replace(value, sizes=seen[1:]), group, windows, weight, module.bias, 1, sees=value.pending
        )
        return replace(out, proxy=out.proxy.flatten(1), flat=False, dense=True)
    if value.pending == "roll":
        bank = roll_filters(module.weight, group, range(group.order))
        bias = None if module.bias is None else module.bias.repeat_interleave(group.order)
        layer = _layer(nn.Linear, bank, bias, in_features=bank.shape[1], out_features=bank.shape[0])
        return replace(value, proxy=w.call(path, layer, value.proxy), pending=None, features=module.out_features)
    value = stacked(w, value)
    weight = module.weight.unsqueeze(2)
    options = {"in_channels": module.in_features, "out_channels": module.out_features, "kernel_size": 1}
    layer = _layer(nn.Conv1d, weight, module.bias, **options)
    split = value.proxy.unflatten(1, (module.in_features, group.order))
    return replace(value, proxy=w.call(path, layer, split).flatten(1, 2), features=module.out_features)


def _maps_seen(module: nn.Linear, value: Value) -> tuple[int, ...]:
    """Features and sizes of the maps that were flattened for a linear layer."""
    assert value.group is not None
    dim = value.group.dim
    if value.sizes is not None:
        positions = int(torch.Size(value.sizes).numel())
        return (module.in_features // positions, *value.sizes)
    if value.features is None:
        raise Refusal("the shape of the flattened maps is not known: give to_plain an example input")
    features = value.features * (value.group.order if value.pending == "roll" else 1)
    side = round((module.in_features / features) ** (1 / dim))
    if features * side**dim != module.in_features:
        raise Refusal("the flattened maps are not square, and their shape is not known: give to_plain an example input")
    return (features, *[side] * dim)

"""What becomes of each layer in a plain network: one rule each, from a layer and a value to a value."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn.conv import DepthwiseConv, RollConv, SliceConv
from quarterturn.dense import RollLinear
from quarterturn.filters import roll_filters, slice_filters
from quarterturn.groups import Group
from quarterturn.layers import Pool, Roll, Slice, Stack, Unstack
from quarterturn.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm
from quarterturn.plain.values import Refusal, Value, Writer, stacked, unflattened
from quarterturn.spatial import (
    AdaptiveAvgPool,
    AdaptiveMaxPool,
    AvgPool,
    EachOrientation,
    MaxPool,
    Upsample,
    avg_pool,
    max_pool,
)
from quarterturn.transposed import RollConvTranspose, spread
from quarterturn.windows import Placement, Window, by_placement, pad, slide, slide_and_keep_padding, windows_for

Rule = Callable[[Writer, str, Any, Value], Value]
CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, Callable[..., nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
INSTANCE_NORMS: dict[int, Callable[..., nn.Module]] = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
POINTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
    nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink,
    nn.Hardshrink, nn.Threshold, nn.Identity, nn.Dropout, nn.AlphaDropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.FeatureAlphaDropout,
)  # fmt: skip
SYMMETRIC = (
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip


def rule_for(module: nn.Module) -> Rule:
    """The rule of the layer's type; torch's own layers on ordinary tensors stay as they are."""
    for types, rule in RULES:
        if isinstance(module, types):
            return rule
    return _unknown


def is_known(module: nn.Module) -> bool:
    return rule_for(module) is not _unknown or type(module).__module__.startswith("torch.nn.")


def _unknown(w: Writer, path: str, module: nn.Module, value: Value) -> Value:
    if value.group is None and type(module).__module__.startswith("torch.nn."):
        return _kept(w, path, module, value)
    raise Refusal("this layer is not known on pathways" if value.group else "this layer is not known")


def _kept(w: Writer, path: str, module: nn.Module, value: Value) -> Value:
    """The layer as it is: it treats features alike, or the tensor is an ordinary one."""
    value = unflattened(value) if value.group is None else value
    return replace(value, proxy=w.call(path, copy.deepcopy(module), value.proxy), sizes=None, features=None)


def _oriented(module: Any, value: Value) -> Value:
    """The input of one of our layers, as a value with a group: filters mode gives its tensors stacked."""
    if value.group is None and module.rotate == "filters":
        return replace(value, group=module.group)
    if value.group != module.group or module.rotate == "filters":
        raise Refusal("it does not get the tensor that it needs: sliced for rotate='maps', stacked for 'filters'")
    return value


def _left_as(module: Any, value: Value) -> Value:
    """The output of one of our layers: in filters mode it is an ordinary tensor again."""
    return replace(value, group=None, pending=None) if module.rotate == "filters" else value


def _sizes(value: Value, dim: int) -> Sequence[Any]:
    return value.sizes if value.sizes is not None else [value.proxy.size(2 + axis) for axis in range(dim)]


# --- the four operations ----------------------------------------------------------------------------------------------


def _slice(w: Writer, path: str, module: Slice, value: Value) -> Value:
    if value.group is not None or module.kind != "scalar":
        raise Refusal("only ordinary tensors of scalars can be sliced here")
    return replace(value, group=module.group, pending="slice")


def _roll(w: Writer, path: str, module: Roll, value: Value) -> Value:
    if value.group != module.group:
        raise Refusal("it needs pathways of its own group")
    return replace(stacked(w, unflattened(value) if value.flat else value), pending="roll")


def _stack(w: Writer, path: str, module: Stack, value: Value) -> Value:
    if value.group != module.group:
        raise Refusal("it needs pathways of its own group")
    return replace(stacked(w, unflattened(value)), group=None)


def _unstack(w: Writer, path: str, module: Unstack, value: Value) -> Value:
    if value.group is not None:
        raise Refusal("it needs a stacked tensor")
    return replace(unflattened(value), group=module.group)


def _pool(w: Writer, path: str, module: Pool, value: Value) -> Value:
    if module.kind != "scalar" or not isinstance(module.fn, str):
        raise Refusal("only the mean, max and rms of scalars are known")
    value = stacked(w, unflattened(_oriented(module, value)))
    orientations = value.proxy.unflatten(1, (-1, module.group.order))
    if module.fn == "mean":
        pooled = orientations.mean(2)
    elif module.fn == "max":
        pooled = orientations.amax(2)
    else:
        pooled = orientations.square().mean(2).clamp_min(1e-24).sqrt()
    return Value(pooled, sizes=value.sizes)


# --- convolutions -----------------------------------------------------------------------------------------------------


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
        proxy = pad(proxy, [placed.pads(n) for placed, n in zip(where, sizes, strict=True)], mode)
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
    sizes = _sizes(value, group.dim)

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
    slow = split.transpose(1, 2).flatten(1, 2)
    bank = torch.cat([ops.act(weight, group, group.inverse[h]) for h in orientations])
    expanded = None if bias is None else bias.repeat(len(orientations))
    sizes = _sizes(value, group.dim)
    out = _convolution(w, path, slow, bank, expanded, where, sizes, groups * len(orientations), mode)
    return out.unflatten(1, (len(orientations), weight.shape[0])).transpose(1, 2).flatten(1, 2)


def _our_convolution(w: Writer, path: str, module: Any, value: Value) -> Value:
    if isinstance(module, SliceConv):
        if value.group is not None:
            raise Refusal("it needs an ordinary tensor, not pathways")
        sees: str | None = "slice"
    else:
        value = stacked(w, _oriented(module, value))
        sees = None if isinstance(module, DepthwiseConv) else "roll"
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
    return _left_as(module, value)


def _torchs_convolution(w: Writer, path: str, module: Any, value: Value) -> Value:
    if value.group is None:
        return _kept(w, path, module, value)
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


def _transposed(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, RollConvTranspose)
    if not ours and value.group is None:
        return _kept(w, path, module, value)
    if ours:
        value = stacked(w, _oriented(module, value))
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
    sizes = _sizes(value, group.dim)

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
    return _left_as(module, out) if ours else out


# --- dense layers -----------------------------------------------------------------------------------------------------


def _roll_linear(w: Writer, path: str, module: RollLinear, value: Value) -> Value:
    value = stacked(w, unflattened(_oriented(module, value)))
    bank = roll_filters(module.weight, module.group, range(module.group.order))
    bias = None if module.bias is None else module.bias.repeat_interleave(module.group.order)
    layer = _layer(nn.Linear, bank, bias, in_features=bank.shape[1], out_features=bank.shape[0])
    out = replace(value, proxy=w.call(path, layer, value.proxy), features=module.out_features)
    return _left_as(module, out)


def _linear(w: Writer, path: str, module: nn.Linear, value: Value) -> Value:
    if value.group is None:
        return replace(_kept(w, path, module, value), dense=True)
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
        return replace(out, proxy=out.proxy.flatten(1), flat=False)
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


# --- norms ------------------------------------------------------------------------------------------------------------


def _repeated(tensor: Tensor | None, group: Group) -> Tensor | None:
    return None if tensor is None else tensor.detach().repeat_interleave(group.order)


def _batch_norm(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, BatchNorm)
    if not ours and value.group is None:
        return _kept(w, path, module, value)
    value = stacked(w, _oriented(module, value) if ours else value)
    group = value.group
    assert group is not None
    if module.running_mean is None:
        raise Refusal("without running statistics it depends on the batch")
    value = unflattened(value)
    maker = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[1 if value.dense else group.dim]
    features = module.running_mean.shape[0] * group.order
    norm = maker(features, module.eps, affine=module.weight is not None, dtype=module.running_mean.dtype)
    state = {name: _repeated(tensor, group) for name, tensor in module.state_dict().items() if tensor.dim()}
    norm.load_state_dict({**norm.state_dict(), **state})
    return _norm_left(w, path, module, value, norm, ours)


def _norm_left(w: Writer, path: str, module: Any, value: Value, norm: nn.Module, ours: bool) -> Value:
    out = replace(value, proxy=w.call(path, norm, value.proxy))
    return _left_as(module, out) if ours else out


def _instance_norm(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, InstanceNorm)
    if not ours and value.group is None:
        return _kept(w, path, module, value)
    value = stacked(w, _oriented(module, value) if ours else value)
    group = value.group
    assert group is not None
    if getattr(module, "running_mean", None) is not None:
        raise Refusal("instance norm with running statistics is not known")
    weight, bias = _repeated(module.weight, group), _repeated(module.bias, group)
    count = module.features if ours else module.num_features
    norm = INSTANCE_NORMS[group.dim](count * group.order, module.eps, affine=weight is not None)
    if weight is not None and bias is not None:
        norm.weight, norm.bias = nn.Parameter(weight), nn.Parameter(bias)
    return _norm_left(w, path, module, value, norm, ours)


def _group_norm(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, GroupNorm)
    if not ours and value.group is None:
        return _kept(w, path, module, value)
    value = stacked(w, _oriented(module, value) if ours else value)
    group = value.group
    assert group is not None
    features = module.features if ours else module.num_channels
    # orientations become the slow feature index, so that groups do not mix them
    norm = nn.GroupNorm(module.num_groups * group.order, features * group.order, module.eps, module.weight is not None)
    if module.weight is not None:
        norm.weight = nn.Parameter(module.weight.detach().repeat(group.order))
        norm.bias = nn.Parameter(module.bias.detach().repeat(group.order))
    slow = value.proxy.unflatten(1, (features, group.order)).transpose(1, 2).flatten(1, 2)
    out = w.call(path, norm, slow).unflatten(1, (group.order, features)).transpose(1, 2).flatten(1, 2)
    return _left_as(module, replace(value, proxy=out)) if ours else replace(value, proxy=out)


def _layer_norm(w: Writer, path: str, module: LayerNorm, value: Value) -> Value:
    value = stacked(w, _oriented(module, value))
    norm = nn.LayerNorm(module.features, module.eps, elementwise_affine=module.weight is not None)
    if module.weight is not None and module.bias is not None:
        norm.weight, norm.bias = (
            nn.Parameter(module.weight.detach().clone()),
            nn.Parameter(module.bias.detach().clone()),
        )
    split = value.proxy.unflatten(1, (module.features, module.group.order)).movedim(1, -1)
    return _left_as(module, replace(value, proxy=w.call(path, norm, split).movedim(-1, 1).flatten(1, 2)))


# --- spatial layers ---------------------------------------------------------------------------------------------------


def _spatial_pool(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, MaxPool | AvgPool)
    if not ours and value.group is None:
        return _kept(w, path, module, value)
    is_max = isinstance(module, MaxPool | nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d)
    value = stacked(w, _oriented(module, value) if ours else value)
    group = value.group
    assert group is not None
    if ours:
        windows = module.windows
    else:
        if getattr(module, "return_indices", False) or getattr(module, "divisor_override", None):
            raise Refusal("return_indices and divisor_override are not known")
        dilation = module.dilation if is_max else 1
        windows = windows_for(group, module.kernel_size, module.stride, module.padding, dilation, module.ceil_mode)
    pool = max_pool if is_max else avg_pool
    place = slide_and_keep_padding if not is_max and module.count_include_pad else slide
    sizes = _sizes(value, group.dim)

    def run(where: Placement, orientations: list[int]) -> Any:
        maps = value.proxy
        if len(orientations) < group.order:
            split = maps.unflatten(1, (-1, group.order))
            maps = split.index_select(2, w.constant("orientations", torch.tensor(orientations))).flatten(1, 2)
        return pool(maps, where, sizes)

    out = replace(value, proxy=by_placement(group, sizes, windows, run, place), sizes=None)
    return _left_as(module, out) if ours else out


def _symmetric(w: Writer, path: str, module: Any, value: Value) -> Value:
    """Layers that lie symmetrically on every grid: as they are, also before a roll."""
    out = replace(value, proxy=w.call(path, copy.deepcopy(module), value.proxy), sizes=None)
    size = getattr(module, "output_size", None)
    if (
        value.group is not None
        and size is not None
        and all(s == 1 for s in (size if isinstance(size, tuple) else (size,)))
    ):
        out = replace(out, sizes=(1,) * value.group.dim)
    return out


def _our_adaptive_pool(w: Writer, path: str, module: Any, value: Value) -> Value:
    kind = "Avg" if isinstance(module, AdaptiveAvgPool) else "Max"
    torchs = getattr(nn, f"Adaptive{kind}Pool{module.group.dim}d")(
        module.output_size if module.group.dim > 1 else module.output_size[0]
    )
    out = _symmetric(w, path, torchs, _oriented(module, value))
    return _left_as(module, out)


def _upsample(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, Upsample)
    if not ours and value.group is None:
        return _kept(w, path, module, value)
    value = _oriented(module, value) if ours else value
    group = value.group
    assert group is not None
    mode = (
        module.mode if not ours or module.mode == "nearest" else {1: "linear", 2: "bilinear", 3: "trilinear"}[group.dim]
    )
    torchs = nn.Upsample(module.size, module.scale_factor, mode, module.align_corners)
    factors = module.scale_factor if isinstance(module.scale_factor, tuple | list) else (module.scale_factor,)
    whole = module.size is None and all(f == int(f) for f in factors)
    if not whole and (mode == "nearest" or not (module.align_corners or module.size is not None)):
        raise Refusal("up-sampling by a factor that is not whole does not lie symmetrically on the grid")
    out = replace(value, proxy=w.call(path, torchs, value.proxy), sizes=None)
    return _left_as(module, out) if ours else out


def _each_orientation(w: Writer, path: str, module: EachOrientation, value: Value) -> Value:
    value = _oriented(module, value)
    return _left_as(module, rule_for(module.layer)(w, f"{path}.layer", module.layer, value))


def _prelu(w: Writer, path: str, module: nn.PReLU, value: Value) -> Value:
    if value.group is None or module.num_parameters == 1:
        return _kept(w, path, module, value)
    value = stacked(w, value)
    assert value.group is not None
    prelu = nn.PReLU(module.num_parameters * value.group.order)
    prelu.weight = nn.Parameter(module.weight.detach().repeat_interleave(value.group.order))
    return replace(value, proxy=w.call(path, prelu, value.proxy))


def _flatten(w: Writer, path: str, module: nn.Flatten, value: Value) -> Value:
    if module.start_dim != 1 or module.end_dim != -1:
        return _unknown(w, path, module, value)
    return replace(value, flat=True)


def _pointwise(w: Writer, path: str, module: nn.Module, value: Value) -> Value:
    return replace(value, proxy=w.call(path, copy.deepcopy(module), value.proxy))


RULES: list[tuple[Any, Rule]] = [
    (Slice, _slice),
    (Roll, _roll),
    (Stack, _stack),
    (Unstack, _unstack),
    (Pool, _pool),
    ((SliceConv, RollConv, DepthwiseConv), _our_convolution),
    ((RollConvTranspose, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _transposed),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), _torchs_convolution),
    (RollLinear, _roll_linear),
    (nn.Linear, _linear),
    ((BatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm),
    ((InstanceNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _instance_norm),
    ((GroupNorm, nn.GroupNorm), _group_norm),
    (LayerNorm, _layer_norm),
    (
        (MaxPool, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, AvgPool, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        _spatial_pool,
    ),
    ((AdaptiveAvgPool, AdaptiveMaxPool), _our_adaptive_pool),
    (SYMMETRIC, _symmetric),
    ((Upsample, nn.Upsample), _upsample),
    (EachOrientation, _each_orientation),
    (nn.PReLU, _prelu),
    (nn.Flatten, _flatten),
    (POINTWISE, _pointwise),
]

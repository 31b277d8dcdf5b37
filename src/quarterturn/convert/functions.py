"""What becomes of each function and method that the network's code calls."""

import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from quarterturn import pointwise
from quarterturn.convert import modules, shapes
from quarterturn.convert.layers import Crop
from quarterturn.convert.values import (
    Batch,
    Blocks,
    Extra,
    Orientations,
    Position,
    Value,
    broadcast,
    like,
    number,
    plain,
)
from quarterturn.convert.widths import Features, Refusal, joined
from quarterturn.convert.writer import Writer, result
from quarterturn.layers import Pool

CONVOLUTIONS: dict[Any, tuple[int, bool]] = {
    F.conv1d: (1, False), F.conv2d: (2, False), F.conv3d: (3, False), F.conv_transpose1d: (1, True),
    F.conv_transpose2d: (2, True), F.conv_transpose3d: (3, True),
}  # fmt: skip
REDUCTIONS = {"mean", "sum", "amax", "amin", "std", "var", "norm", "max", "min", "prod", "logsumexp"}
SAME = {"expand_as", "type_as", "to", "float", "contiguous", "clone", "detach"}
NAMED = (
    "flatten", "reshape", "permute", "transpose", "movedim", "swapaxes", "swapdims", "unsqueeze", "squeeze",
    "unflatten", "split", "chunk", "tensor_split", "narrow", "cat", "concat", "stack", "unbind", "softmax",
    "log_softmax", *REDUCTIONS,
)  # fmt: skip
NAMES: dict[Any, str] = {
    **{getattr(torch, name): name for name in NAMED if hasattr(torch, name)},
    operator.getitem: "getitem", F.softmax: "softmax", F.log_softmax: "log_softmax", F.pad: "pad", F.glu: "glu",
    F.interpolate: "interpolate", F.upsample: "interpolate", torch.linalg.vector_norm: "norm", torch.norm: "norm",
    F.pixel_shuffle: "pixel_shuffle", F.pixel_unshuffle: "pixel_shuffle", F.linear: "linear",
    F.batch_norm: "batch_norm", F.layer_norm: "layer_norm", F.group_norm: "group_norm",
    F.instance_norm: "instance_norm", torch.channel_shuffle: "channel_shuffle",
}  # fmt: skip
# They look at every position by itself, so an ordinary tensor may go through them before it is sliced.
BY_POSITION = {"cat", "concat", "getitem", "split", "chunk", "softmax", "log_softmax", "narrow"}
RESHAPING = {"flatten", "reshape", "view", "unflatten", "view_as", "reshape_as"}
ORDERING = {"permute", "transpose", "movedim", "swapaxes", "swapdims", "t"}


def name_of(target: Any) -> str | None:
    """One name for a function and for the method that does the same."""
    target = pointwise.NOT_IN_PLACE.get(target, target)
    return target if isinstance(target, str) else NAMES.get(target)


class Functions:
    """The rules for the functions of one network."""

    def __init__(self, w: Writer, owner: Callable[[fx.Node], str], ends: Callable[[fx.Node], bool]) -> None:
        self.w, self.owner, self.ends = w, owner, ends

    def __call__(self, node: fx.Node, args: Any, kwargs: Any, example: Any) -> Any:
        values = leaves([args, kwargs])
        path = f"{self.owner(node)}.{node.name}".strip(".")
        tensors = [v for v in values if v.kind not in ("number",)]
        if all(v.kind in ("number", "constant") for v in values):
            return self.numbers(node, args, kwargs, values, example)
        if all(v.kind != "oriented" for v in tensors):
            kept = self.on_plain(node, args, kwargs, tensors, example)
            if kept is not None:
                return kept
        return self.on_oriented(node, path, args, kwargs, tensors, example)

    # --- ordinary tensors and numbers ---------------------------------------------------------------------------------

    def numbers(self, node: fx.Node, args: Any, kwargs: Any, values: list[Value], example: Any) -> Any:
        """What is made of sizes and parameters alone."""
        if any(v.kind == "number" and v.node is None for v in values) or (values and node.target is getattr):
            if values and node.target is getattr and args[1] == "shape":
                return number(example)
            if isinstance(example, Tensor):
                raise Refusal("it makes a tensor from a number of features or examples")
            return number(example, None)
        source = values[0].source if len(values) == 1 and is_view(values[0].example, example) else None
        if isinstance(example, Tensor) and any(v.kind == "constant" for v in values):
            return Value("constant", lambda: self.record(node, args, kwargs), example, source=source)
        new = self.record(node, args, kwargs)
        return Value("constant", new, example) if isinstance(example, Tensor) else number(example, new)

    def on_plain(self, node: fx.Node, args: Any, kwargs: Any, values: list[Value], example: Any) -> Any:
        """A function of ordinary tensors, as it is, unless it looks at positions."""
        w, name = self.w, name_of(node.target)
        if name == "size" or (node.target is getattr and args[1] == "shape"):
            return number(example, self.record(node, args, kwargs))
        maps = [v for v in values if v.kind == "plain" and len(v.shape) > 2]
        alike = self.is_pointwise(node.target) or name in BY_POSITION
        if maps and not alike:
            return None
        if maps and name in ("getitem", "cat", "concat", "split", "chunk", "narrow", "softmax", "log_softmax"):
            if not _along_channels(name, args, kwargs, len(maps[0].shape)):
                return None
        if any(v.node is None for v in leaves([args, kwargs])):
            raise Refusal("it uses a number of features or examples of the network inside")
        new = self.record(node, args, kwargs)
        if isinstance(example, tuple | list):
            return type(example)(
                plain(item, w.function(operator.getitem, new, i)) for i, item in enumerate(example)
            )
        return plain(example, new)

    def record(self, node: fx.Node, args: Any, kwargs: Any) -> fx.Node:
        """The same call in the new network; nothing works in place."""
        target = pointwise.NOT_IN_PLACE.get(node.target, node.target)
        old, named = mapped([args, {k: v for k, v in kwargs.items() if k != "inplace"}], self.node_of)
        return self.w.graph.create_node(node.op, target, tuple(old), named)

    def node_of(self, value: Value) -> Any:
        if callable(value.node):  # a constant is written where it is used as it is
            return value.node()
        if value.node is None:
            raise Refusal("it uses a number of features or examples in a way that is not known")
        return value.node

    def is_pointwise(self, target: Any) -> bool:
        target = pointwise.NOT_IN_PLACE.get(target, target)
        return target in pointwise.FUNCTIONS or (isinstance(target, str) and target in pointwise.METHODS)

    # --- tensors with orientations ------------------------------------------------------------------------------------

    def on_oriented(
        self, node: fx.Node, path: str, args: Any, kwargs: Any, values: list[Value], example: Any
    ) -> Any:
        w, name, target = self.w, name_of(node.target), node.target
        first = next(v for v in values if v.kind != "constant")
        if name == "size" or (target is getattr and args[1] == "shape"):
            return self.sizes(first, args, example)
        if target is F.dropout or name == "dropout":
            return self.dropout(path, args, kwargs, example)
        if self.is_pointwise(target):
            return self.pointwise(node, path, args, kwargs, values, example)
        if target in CONVOLUTIONS:
            return self.convolution(path, target, args, kwargs, example)
        if name == "interpolate" and _option(args, kwargs, 1, "size") is not None:
            return self.interpolate(path, args, kwargs, example)
        if target in pointwise.AS_LAYERS:
            options = {k: v for k, v in kwargs.items() if v is not None and k not in ("antialias", "recompute_scale_factor")}
            if any(isinstance(v, Value) for v in leaves([args[1:], options])):
                raise Refusal("its options are computed")
            layer = pointwise.AS_LAYERS[target](*args[1:], **options)
            rule = modules.rule_for(layer)
            assert rule is not None
            return rule(w, path, layer, args[0], example)
        if name in RESHAPING:
            return shapes.reshape(w, path, first, example)
        if name in ORDERING:
            return shapes.permute(w, path, first, _order(name, args, kwargs, len(first.axes or first.shape)), example)
        if name == "unsqueeze":
            return shapes.insert_axis(w, path, first, _option(args, kwargs, 1, "dim"), example)
        if name == "squeeze":
            return self.squeeze(path, args, kwargs, first, example)
        if name in REDUCTIONS:
            return self.reduce(node, path, args, kwargs, w.oriented(first, path), example)
        rule = getattr(self, f"on_{name}", None) if name else None
        if rule is None:
            raise Refusal("this function is not known")
        return rule(node, path, args, kwargs, w.oriented(first, path), example)

    def sizes(self, value: Value, args: Any, example: Any) -> Any:
        """Sizes of maps can be had in the new network; numbers of examples and features are other ones there."""
        w = self.w
        asked = args[1] if len(args) > 1 and args[1] != "shape" else None
        if value.kind != "oriented":
            return number(example, w.method("size", value.node, *([asked] if asked is not None else [])))

        def one(axis: Sequence[Any], size: int) -> Value:
            if axis and all(isinstance(c, Position) for c in axis) and len(axis) == 1 and value.form == "maps":
                return number(size, w.method("size", value.node, 2 + axis[0].axis))
            return number(size, 1 if not axis else None)

        if asked is not None:
            return one(value.axes[asked], example)
        return tuple(one(axis, size) for axis, size in zip(value.axes, value.shape, strict=True))

    def dropout(self, path: str, args: Any, kwargs: Any, example: Any) -> Value:
        """The function, read in eval mode, becomes a layer, so that it acts in training."""
        p = _option(args, kwargs, 1, "p", 0.5)
        return modules._kept(self.w, self.w.free(path), nn.Dropout(p), args[0], example)

    def pointwise(self, node: fx.Node, path: str, args: Any, kwargs: Any, values: list[Value], example: Any) -> Value:
        w = self.w
        tensors = {id(v): w.oriented(v, path) for v in values if v.kind in ("plain", "oriented")}
        several = list(tensors.values())
        axes = broadcast(several)
        constants = [v for v in values if v.kind == "constant" and _vector_axis(v, axes) is not None]
        narrow = any(_channels(v.axes) != _channels(axes) for v in several)
        if any(v.form == "beside" for v in several) or narrow:
            if constants and not narrow:
                tensors = {key: w.usual(v, path) for key, v in tensors.items()}
            elif constants:
                raise Refusal("a parameter for each channel meets tensors of other axes")
            else:
                tensors = {key: w.beside(v, path) for key, v in tensors.items()}
        several = list(tensors.values())
        if several[0].form != "beside":
            as_maps = any(v.form == "maps" for v in several)
            if len(several) > 1 or constants:
                tensors = {k: w.maps(v, path) if as_maps else w.dense(v, path) for k, v in tensors.items()}
            several = list(tensors.values())
        like_this = like(several[0], axes=axes, example=example)
        if constants and not any(isinstance(c, Features | Blocks) for c in like_this.components):
            raise Refusal("a parameter for each channel meets a tensor without features")

        def node_of(value: Value) -> Any:
            if id(value) in tensors:
                return tensors[id(value)].node
            if value in constants:
                _check_vector(value, axes)
                return w.feature_parameter(value, like_this)
            if value.kind == "constant" and value.example.numel() != 1:
                raise Refusal("a parameter with a number for each position, or for other axes, is not known")
            return self.node_of(value)

        target = pointwise.NOT_IN_PLACE.get(node.target, node.target)
        old, named = mapped([args, {k: v for k, v in kwargs.items() if k != "inplace"}], node_of)
        return result(like_this, w.graph.create_node(node.op, target, tuple(old), named), example)

    def convolution(self, path: str, target: Any, args: Any, kwargs: Any, example: Tensor) -> Value:
        dim, turned = CONVOLUTIONS[target]
        names = ("input", "weight", "bias", "stride", "padding")
        names += ("output_padding", "groups", "dilation") if turned else ("dilation", "groups")
        options = {**dict(zip(names, args, strict=False)), **kwargs}
        value, weight, bias = options.pop("input"), options.pop("weight"), options.pop("bias", None)
        given = [v for v in (weight, bias) if v is not None]
        if any(v.kind != "constant" or v.source is None for v in given) or leaves(options):
            raise Refusal("its filters are computed by the network, such as by weight standardisation")
        stored = operator.attrgetter(weight.source)(self.w.model)
        old = modules.Convolution(
            dim,
            weight.example,
            None if bias is None else bias.example,
            **options,
            trained=isinstance(stored, nn.Parameter),
        )
        path = weight.source.removesuffix(".weight")
        return (modules.transposed if turned else modules.convolution)(self.w, path, old, value, example)

    def interpolate(self, path: str, args: Any, kwargs: Any, example: Tensor) -> Value:
        size, mode = _option(args, kwargs, 1, "size"), _option(args, kwargs, 3, "mode", "nearest")
        align = _option(args, kwargs, 4, "align_corners")
        if isinstance(size, Value) and isinstance(size.example, int) or isinstance(size, int):
            size = [size] * self.w.group.dim
        return modules.resize(self.w, path, mode, align, args[0], mapped(size, self.node_of), example)

    def squeeze(self, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        dims = _option(args, kwargs, 1, "dim")
        if dims is None:
            return shapes.reshape(self.w, path, value, example)
        which = [dims] if isinstance(dims, int) else list(dims)
        which = [i for i in which if value.shape[i] == 1]
        return shapes.drop_axes(self.w, path, value, which, example) if which else value

    def reduce(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Any) -> Any:
        """A mean, say, over axes: over all positions, over features, or over the orientations that were split off."""
        w, name = self.w, name_of(node.target)
        is_norm = name == "norm"
        dims = _option(args, kwargs, 2 if is_norm else 1, "dim")
        if not isinstance(dims, int | tuple | list):
            raise Refusal("it reduces over all axes, the examples included, or in a way that is not known")
        rank = len(value.axes)
        gone = sorted({d % rank for d in ([dims] if isinstance(dims, int) else dims)})
        keep = bool(kwargs.get("keepdim", next((a for a in args[2:] if isinstance(a, bool)), False)))
        held = [c for i in gone for c in value.axes[i]]
        left = tuple(
            () if i in gone else axis for i, axis in enumerate(value.axes) if keep or i not in gone
        )
        if held and all(isinstance(c, Orientations) for c in held):
            return self.pool(name, path, value, example)
        positions = [c for c in held if isinstance(c, Position)]
        if positions and {p.axis for p in positions} != set(range(w.group.dim)):
            raise Refusal("it reduces over some of the axes that the group exchanges or reverses")
        if any(isinstance(c, Batch | Blocks) for c in held):
            raise Refusal("it reduces over the examples")
        single = example[0] if isinstance(example, tuple) else example
        if value.form != "beside" and positions and len(positions) == len(held) and single is example:
            value = w.maps(value, path)
            options = {k: v for k, v in kwargs.items() if k not in ("dim", "keepdim")}
            rest = [args[1]] if is_norm and len(args) > 1 else []
            axes = tuple(range(2, 2 + w.group.dim))
            new = w.graph.create_node(node.op, node.target, (value.node, *rest), {**options, "dim": axes, "keepdim": True})
            return result(value, new, example, axes=left)
        value = w.beside(value, path)
        new = w.graph.create_node(node.op, node.target, (value.node, *args[1:]), dict(kwargs))
        if single is not example:
            return (result(value, w.function(operator.getitem, new, 0), single, axes=left), number(None))
        return result(value, new, example, axes=left)

    def pool(self, name: str | None, path: str, value: Value, example: Tensor) -> Value:
        """The orientations are pooled by the old network itself."""
        fn = {"mean": "mean", "amax": "max"}.get(name or "")
        if fn is None:
            raise Refusal(f"orientations can be pooled by mean and amax, not by {name}")
        w = self.w
        value.features.fixed(value.features.channels // w.group.order)
        node = w.helper(f"{path}.pool", lambda: Pool(w.group, fn, rotate=w.rotate), value.node)
        return plain(example, node)

    # --- by name ------------------------------------------------------------------------------------------------------

    def on_getitem(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Any) -> Any:
        items = list(args[1]) if isinstance(args[1], tuple) else [args[1]]
        if Ellipsis in items:
            at = items.index(Ellipsis)
            missing = len(value.axes) - sum(item is not None for item in items) + 1
            items[at : at + 1] = [slice(None)] * missing
        if leaves(items):
            items = mapped(items, lambda v: v.example)  # sizes, as they are in the example
        crops: dict[int, slice] = {}
        axis = 0
        for item in items:
            if item is None:
                value = shapes.insert_axis(self.w, path, value, axis, value.example.unsqueeze(axis))
                axis += 1
            elif isinstance(item, slice):
                if item != slice(None):
                    value = self.take(path, value, axis, item, crops)
                axis += 1
            elif isinstance(item, int):
                part = value.example.select(axis, item)
                value = self.select(path, value, axis, item, part)
            else:
                raise Refusal("it picks by a list or a tensor")
        if crops:
            slices = [crops.get(i, slice(None)) for i in range(self.w.group.dim)]
            value = modules.each_orientation(self.w, self.w.free(path), Crop(slices), value, example)
        return like(value, example=example)

    def take(self, path: str, value: Value, axis: int, item: slice, crops: dict[int, slice]) -> Value:
        held = value.axes[axis]
        picked = value.example[(*[slice(None)] * axis, item)]
        if len(held) == 1 and isinstance(held[0], Features) and item.step in (None, 1):
            start, stop, _ = item.indices(value.shape[axis])
            return shapes.some_features(self.w, path, value, start, stop, picked)
        if len(held) == 1 and isinstance(held[0], Position):
            crops[held[0].axis] = item
            return value
        if shapes.extra_axes(value, [axis]):
            value = self.w.beside(value, path)
            new = self.w.function(operator.getitem, value.node, (*[slice(None)] * axis, item))
            axes = tuple((Extra(picked.shape[axis]),) if i == axis else a for i, a in enumerate(value.axes))
            return result(value, new, picked, axes=axes)
        raise Refusal("it takes a part of an axis in a way that is not known")

    def select(self, path: str, value: Value, axis: int, item: int, part: Tensor) -> Value:
        if not shapes.extra_axes(value, [axis]):
            raise Refusal("it picks one feature, position or example")
        value = self.w.beside(value, path)
        axes = tuple(a for i, a in enumerate(value.axes) if i != axis)
        return result(value, self.w.method("select", value.node, axis, item), part, axes=axes)

    def on_split(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Any) -> Any:
        dim = _option(args, kwargs, 2, "dim", 0)
        return self.parts(path, value, dim, example)

    on_chunk = on_split
    on_tensor_split = on_split

    def on_unbind(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Any) -> Any:
        dim = _option(args, kwargs, 1, "dim", 0) % len(value.axes)
        return tuple(self.select(path, value, dim, i, part) for i, part in enumerate(example))

    def on_narrow(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Any) -> Any:
        dim, start, length = args[1:4]
        crops: dict[int, slice] = {}
        value = self.take(path, value, dim % len(value.axes), slice(start, start + length), crops)
        if crops:
            raise Refusal("it takes a part of the maps")
        return value

    def parts(self, path: str, value: Value, dim: int, example: Sequence[Tensor]) -> Any:
        dim %= len(value.axes)
        crops: dict[int, slice] = {}
        found, start = [], 0
        for part in example:
            stop = start + part.shape[dim]
            found.append(like(self.take(path, value, dim, slice(start, stop), crops), example=part))
            start = stop
        if crops:
            raise Refusal("it takes a part of the maps")
        return tuple(found)

    def on_cat(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        w = self.w
        values = [w.oriented(v, path) for v in _option(args, kwargs, 0, "tensors")]
        dim = _option(args, kwargs, 1, "dim", kwargs.get("axis", 0)) % len(values[0].axes)
        if all(len(v.axes[dim]) == 1 and isinstance(v.axes[dim][0], Features) for v in values):
            if any(v.form == "beside" for v in values):
                values = [w.usual(v, path) for v in values]
            is_maps = any(v.form == "maps" for v in values)
            values = [w.maps(v, path) if is_maps else w.dense(v, path) for v in values]
            features = joined([v.features for v in values])
            others = [like(v, axes=tuple(() if i == dim else a for i, a in enumerate(v.axes))) for v in values]
            axes = tuple((features,) if i == dim else a for i, a in enumerate(broadcast(others)))
            return result(values[0], w.function(torch.cat, [v.node for v in values], 1), example, axes=axes)
        if all(shapes.extra_axes(v, [dim]) for v in values):
            values = [w.beside(v, path) for v in values]
            axes = list(broadcast([like(v, axes=(*v.axes[:dim], (), *v.axes[dim + 1 :])) for v in values]))
            axes[dim] = (Extra(example.shape[dim]),)
            return result(values[0], w.function(torch.cat, [v.node for v in values], dim), example, axes=tuple(axes))
        raise Refusal("it joins tensors along another axis than that of the features")

    on_concat = on_cat

    def on_stack(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        w = self.w
        values = [w.beside(v, path) for v in args[0]]
        dim = _option(args, kwargs, 1, "dim", 0) % (len(value.axes) + 1)
        axes = list(broadcast(values))
        axes.insert(dim, (Extra(len(values)),))
        return result(values[0], w.function(torch.stack, [v.node for v in values], dim), example, axes=tuple(axes))

    def on_softmax(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        dim = _option(args, kwargs, 1, "dim")
        if not isinstance(dim, int):
            raise Refusal("give softmax its axis: dim=1")
        held = value.axes[dim]
        if any(isinstance(c, Features) for c in held) and len(held) == 1 and self.ends(node):
            pooled = self.w.pooled(value, path)  # the mean of what goes in, not of what comes out, sums up to one
            return plain(example, self.w.graph.create_node(node.op, node.target, (pooled.node, *args[1:]), dict(kwargs)))
        if not held or not all(isinstance(c, Features | Extra) for c in held):
            raise Refusal("it normalises over positions or examples")
        value = self.w.beside(value, path)
        new = self.w.graph.create_node(node.op, node.target, (value.node, *args[1:]), dict(kwargs))
        return result(value, new, example)

    on_log_softmax = on_softmax

    def on_pad(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        amounts = [v.example if isinstance(v, Value) else v for v in _option(args, kwargs, 1, "pad")]
        mode, fill = _option(args, kwargs, 2, "mode", "constant"), _option(args, kwargs, 3, "value")
        if any(isinstance(v, Value) for v in _option(args, kwargs, 1, "pad")):
            self.w.notes.append(f"{path}: pads by {amounts}, as for the size of the example")
        while len(amounts) > 2 * self.w.group.dim and amounts[-2:] == [0, 0]:
            amounts = amounts[:-2]
        return modules.pad(self.w, self.w.free(path), amounts, mode, fill, value, example)

    def on_glu(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        return shapes.glu(self.w, path, value, _option(args, kwargs, 1, "dim", -1), example)

    def on_expand_as(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        return self.on_expand(node, path, args, kwargs, value, example)

    def on_expand(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        """What is multiplied or added next expands by itself."""
        if all(self.is_pointwise(user.target) for user in node.users):
            return value
        raise Refusal("it expands a tensor")

    def on_linear(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        weight, bias = _option(args, kwargs, 1, "weight"), _option(args, kwargs, 2, "bias")
        if any(v is not None and (v.kind != "constant" or v.source is None) for v in (weight, bias)):
            raise Refusal("its weights are computed by the network")
        path = weight.source.removesuffix(".weight")
        return modules.linear(self.w, path, weight.example, None if bias is None else bias.example, value, example)

    def on_batch_norm(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        old, source = self.as_layer(names, args, kwargs)
        old.track_running_stats = old.running_mean is not None
        return modules.batch_norm(self.w, source, old, value, example)

    def on_layer_norm(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        old, source = self.as_layer(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs, path)
        return modules.layer_norm(self.w, source, old, value, example)

    def on_group_norm(self, node: fx.Node, path: str, args: Any, kwargs: Any, value: Value, example: Tensor) -> Value:
        old, source = self.as_layer(("input", "num_groups", "weight", "bias", "eps"), args, kwargs, path)
        return modules.group_norm(self.w, source, old, value, example)

    def as_layer(self, names: Sequence[str], args: Any, kwargs: Any, path: str = "") -> tuple[Any, str]:
        """The parameters of a function that does what a layer does, and the path of that layer."""
        given: dict[str, Any] = {"weight": None, "bias": None, "eps": 1e-5, "momentum": 0.1, "running_mean": None}
        given |= {**dict(zip(names, args, strict=False)), **kwargs}
        tensors = {k: v for k, v in given.items() if isinstance(v, Value) and k != "input"}
        if any(v.kind != "constant" or v.source is None for v in tensors.values()):
            raise Refusal("its parameters are computed by the network")
        found = SimpleNamespace(**{k: tensors[k].example if k in tensors else v for k, v in given.items()})
        source = next((v.source.rpartition(".")[0] for v in tensors.values() if v.source), self.w.free(path))
        return found, source or self.w.free(path)


# --- arguments --------------------------------------------------------------------------------------------------------


def leaves(tree: Any) -> list[Value]:
    """All values in the arguments of a call."""
    found: list[Value] = []
    mapped(tree, lambda v: found.append(v))
    return found


def mapped(tree: Any, change: Callable[[Value], Any]) -> Any:
    """The arguments of a call, with every value changed."""
    if isinstance(tree, Value):
        return change(tree)
    if isinstance(tree, slice):
        return slice(*(mapped(item, change) for item in (tree.start, tree.stop, tree.step)))
    if isinstance(tree, list | tuple):
        items = [mapped(item, change) for item in tree]
        return tuple(items) if isinstance(tree, tuple) else items
    return {key: mapped(item, change) for key, item in tree.items()} if isinstance(tree, dict) else tree


def is_view(before: Any, after: Any) -> bool:
    """Whether a constant is another, in a shape with at most one axis that is longer than one."""
    both = isinstance(before, Tensor) and isinstance(after, Tensor)
    return both and before.numel() == after.numel() and sum(n > 1 for n in after.shape) <= 1


def _option(args: Any, kwargs: Any, place: int, name: str, default: Any = None) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)


def _order(name: str, args: Any, kwargs: Any, rank: int) -> list[int]:
    order = list(range(rank))
    if name == "permute":
        given = _option(args, kwargs, 1, "dims")
        dims = list(given) if isinstance(given, tuple | list) else list(args[1:])
        return [d % rank for d in dims]
    if name == "t":
        return order[::-1]
    if name == "movedim":
        return _moved(rank, _option(args, kwargs, 1, "source"), _option(args, kwargs, 2, "destination"))
    names = {"transpose": ("dim0", "dim1"), "swapaxes": ("axis0", "axis1"), "swapdims": ("dim0", "dim1")}[name]
    a, b = (_option(args, kwargs, 1 + i, names[i]) % rank for i in range(2))
    order[a], order[b] = order[b], order[a]
    return order


def _moved(rank: int, source: Any, target: Any) -> list[int]:
    sizes = torch.empty(tuple(range(2, rank + 2)), device="meta").movedim(source, target).shape
    return [size - 2 for size in sizes]


def _vector_axis(constant: Value, axes: Sequence[Any]) -> int | None:
    """The axis along which a parameter has more than one number."""
    long = [i for i, n in enumerate(constant.example.shape) if n > 1]
    return long[0] - constant.example.dim() + len(axes) if len(long) == 1 else None


def _check_vector(constant: Value, axes: Sequence[Any]) -> None:
    axis = _vector_axis(constant, axes)
    held = axes[axis] if axis is not None else ()
    if len(held) != 1 or not isinstance(held[0], Features):
        raise Refusal("a parameter with a number for each position, or for other axes, is not known")


def _channels(axes: Sequence[Any]) -> int:
    """How many channels the old tensor has; one, if it has no axis for them."""
    found = [c if isinstance(c, Features) else c.features for axis in axes for c in axis if isinstance(c, Features | Blocks)]
    return found[0].channels if found else 1


def _along_channels(name: str, args: Any, kwargs: Any, rank: int) -> bool:
    if name == "getitem":
        items = args[1] if isinstance(args[1], tuple) else (args[1],)
        rest = [item for i, item in enumerate(items) if i != 1]
        return Ellipsis not in items and all(item == slice(None) for item in rest if item is not None)
    place = 2 if name in ("split", "chunk") else 1
    dim = _option(args, kwargs, place, "dim", 0)
    return isinstance(dim, int) and dim % rank == 1


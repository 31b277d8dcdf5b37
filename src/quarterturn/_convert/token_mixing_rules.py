"""Linear layers over positions, as MLP-Mixer, ResMLP and gMLP have them: each orientation in its own frame."""

from typing import Any

import torch
from torch import Tensor, nn

from quarterturn._convert.axes import Axis, Mixed, axis_size
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.initial_weights import drawn
from quarterturn._convert.position_tables import check_sides
from quarterturn._convert.tracked_value import TrackedValue, free_tokens, is_token_axis, result
from quarterturn.layers.token_mixing import TokenMixing, Tokens


def mixes_tokens(w: EquivariantWriter, axis: Axis) -> bool:
    """Whether a linear layer over this axis mixes tokens, or what has been mixed of them."""
    return is_token_axis(w.group.dim, axis) or (len(axis) == 1 and isinstance(axis[0], Mixed))


def mix_tokens(
    w: EquivariantWriter, path: str, weight: Tensor, bias: Tensor | None, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """The layer with the old number of inputs and outputs: the same weights in every orientation."""
    value = w.orientations_in_batch(value, path)
    last = value.axes[-1]
    mixed = last[0] if isinstance(last[0], Mixed) else None
    tokens = last if mixed is None else mixed.tokens
    after: Axis = tokens if axis_size(tokens) == len(weight) else (Mixed(len(weight), tokens),)
    what = TrackedValue("constant", example=weight, axes=(tokens,), names=(f"{path}.weight",))
    grid = tuple(p.size for p in what.positions_in_order)
    check_sides(w, what, grid)
    known: Tokens = (free_tokens(what), grid)
    before, behind = (None if mixed else known), (None if after is not tokens else known)
    w.check_same_use(path, ("over tokens", before, behind))

    def make() -> nn.Module:
        options: Any = {"device": weight.device, "dtype": weight.dtype, "rotate": w.rotate}
        layer = TokenMixing(w.group, weight.shape[1], len(weight), bias is not None, before, behind, **options)
        keep = w.init == "pretrained" or not weight.requires_grad
        with torch.no_grad():
            layer.weight.copy_(weight if keep else drawn(weight, weight, 1, 1))
            if bias is not None:
                layer.bias.copy_(bias)
        layer.weight.requires_grad_(weight.requires_grad)
        return layer

    return result(value, w.layer(path, make, value.node), example, axes=(*value.axes[:-1], after))

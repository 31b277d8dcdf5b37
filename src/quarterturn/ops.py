"""The paper's four operations on plain tensors: slice, pool, stack and roll, by turning the maps.

A network has one pathway for each element of the group. There are two layouts for them:

- *sliced* `(G*N, C, *S)`: pathways in the batch, pathway k of example n at `k*N + n`, each in its own frame;
- *stacked* `(N, C*G, *S)`: orientations in the features, orientation the fastest index, all in the input's frame.

The same functions take dense tensors `(N, C)`, which have no axes to turn.

Except for `act`, each operation turns pieces of its input and moves them to new places. It is described by a list of
*moves* (`_Moves`). One function carries out any such list; its backward carries out the reversed list.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from quarterturn import kernel
from quarterturn.errors import OptionError, ShapeError, unknown
from quarterturn.groups import Element, Group, check_group, groups_for

Kind = Literal["scalar", "vector"]
PoolFunction = Literal["mean", "max", "rms"] | Callable[[Tensor], Tensor]


def act(x: Tensor, group: Group, g: int, kind: Kind = "scalar") -> Tensor:
    """Turn maps by element number `g` of the group: the paper's r x (section 4.2).

    Maps `(N, C, *S)` -> `(N, C, *S')`, where the element may exchange axes; dense tensors stay unchanged. With
    `kind="vector"` the features are directions of `group.dim` components each (component i along axis i, the fastest
    index). Their components turn too, also in dense tensors.

    >>> from quarterturn import C4
    >>> act(torch.tensor([[[[1, 2], [3, 4]]]]), C4, 1)  # clockwise
    tensor([[[[3, 1],
              [4, 2]]]])
    """
    _check_axes(x, group)
    _check_kind(x, group, kind)
    return _turn(x, group.elements[g], kind)


def slice(x: Tensor, group: Group, kind: Kind = "scalar") -> Tensor:
    """Put all orientations of the input into the batch: S(x) = [x, r x, r^2 x, r^3 x]^T (Table 1).

    `(N, C, *S)` -> `(G*N, C, *S)`, or dense `(N, C)` -> `(G*N, C)`. Pathway g holds g x. `kind` is that of `act`.

    >>> from quarterturn import C4
    >>> slice(torch.zeros(2, 3, 5, 5), C4).shape
    torch.Size([8, 3, 5, 5])
    """
    _check_axes(x, group)
    _check_kind(x, group, kind)
    _check_square(x, group)
    return _carry_out(x, _slice_moves(group), kind)


def stack(x: Tensor, group: Group) -> Tensor:
    """Realign the pathways and put them into the features: T(x) = [x_0, r^-1 x_1, r^-2 x_2, r^-3 x_3] (Table 1).

    Sliced `(G*N, C, *S)` -> stacked `(N, C*G, *S)`: feature `c*G + g` holds g^-1 x_g of feature c.

    >>> from quarterturn import C4
    >>> stack(torch.zeros(8, 3, 5, 5), C4).shape
    torch.Size([2, 12, 5, 5])
    """
    _check_axes(x, group)
    _check_pathways(x, group)
    _check_square(x, group)
    return _carry_out(x, _stack_moves(group))


def unstack(x: Tensor, group: Group) -> Tensor:
    """Undo `stack`: pathway g holds g times orientation g.

    Stacked `(N, C*G, *S)` -> sliced `(G*N, C, *S)`.

    >>> from quarterturn import C4
    >>> x = torch.randn(8, 3, 5, 5)
    >>> torch.equal(unstack(stack(x, C4), C4), x)
    True
    """
    _check_axes(x, group)
    _check_orientations(x, group)
    _check_square(x, group)
    return _carry_out(x, _stack_moves(group).reversed())


def roll(x: Tensor, group: Group) -> Tensor:
    """Let each pathway see all others, realigned to it: R(x) = [T(x), T(sigma x), ...]^T (Table 1).

    Sliced `(G*N, C, *S)` -> sliced `(G*N, C*G, *S)`: pathway h, feature `c*G + g` holds g^-1 x_{gh} of feature c.

    >>> from quarterturn import C4
    >>> roll(torch.zeros(8, 3, 5, 5), C4).shape
    torch.Size([8, 12, 5, 5])
    """
    _check_axes(x, group)
    _check_pathways(x, group)
    _check_square(x, group)
    return _carry_out(x, _roll_moves(group))


def pool(x: Tensor, group: Group, fn: PoolFunction = "mean", kind: Kind = "scalar") -> Tensor:
    """Realign the pathways and reduce them to one: P(x) = p(x_0, r^-1 x_1, r^-2 x_2, r^-3 x_3) (Table 1).

    Sliced `(G*N, C, *S)` -> `(N, C, *S)`. `fn` is "mean", "max", "rms" or a function that reduces the leading axis
    of a `(G, N, C, *S)` tensor and does not depend on the order of the pathways. `kind` is that of `act`.

    >>> from quarterturn import C4
    >>> pool(torch.arange(4.0).reshape(4, 1), C4, "max")
    tensor([[3.]])
    """
    _check_axes(x, group)
    _check_pathways(x, group)
    _check_kind(x, group, kind)
    _check_square(x, group)
    reduce = pool_function(fn, kind)
    if fn == "mean" and x.dtype in (torch.float32, torch.float64):  # half floats would round after each addition
        return _carry_out(x, _slice_moves(group).reversed(), kind) / group.order
    realigned = _carry_out(x, _realign_moves(group), kind)
    out = reduce_pathways(reduce, realigned.unflatten(0, (group.order, x.shape[0] // group.order)))
    return out.movedim(1, -1).contiguous().movedim(-1, 1) if features_are_last(x) else out


def slice_stacked(x: Tensor, group: Group) -> Tensor:
    """Repeat the maps for every orientation of a stacked tensor: the same as `stack(slice(x))`.

    `(N, C, *S)` -> stacked `(N, C*G, *S)`.

    >>> from quarterturn import C4
    >>> slice_stacked(torch.zeros(1, 3, 5, 7), C4).shape
    torch.Size([1, 12, 5, 7])
    """
    _check_axes(x, group)
    return x.unsqueeze(2).expand(-1, -1, group.order, *x.shape[2:]).flatten(1, 2)


def pool_stacked(x: Tensor, group: Group, fn: PoolFunction = "mean", kind: Kind = "scalar") -> Tensor:
    """`pool` for stacked tensors, whose orientations share the input's frame: `pool_stacked(stack(x)) == pool(x)`.

    Stacked `(N, C*G, *S)` -> `(N, C, *S)`. Maps are already aligned; only the components of directions are turned.

    >>> from quarterturn import C4
    >>> pool_stacked(torch.arange(4.0).reshape(1, 4), C4, "max")
    tensor([[3.]])
    """
    check_stacked(x, group)
    reduce = pool_function(fn, kind)
    orientations = x.unflatten(1, (x.shape[1] // group.order, group.order)).movedim(2, 0)
    if kind == "vector":
        _check_kind(orientations[0], group, kind)
        turned = [_turn_components(part, group.elements[group.inverse[g]]) for g, part in enumerate(orientations)]
        orientations = torch.stack(turned)
    return reduce_pathways(reduce, orientations)


# --- pool functions ---------------------------------------------------------------------------------------------------


def _rms(x: Tensor) -> Tensor:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x  # squares of half floats overflow
    square = wide.square().mean(0)
    return square.clamp_min(1e-24).sqrt().to(x.dtype)  # clamped, so that the gradient at zero is zero, not NaN


POOL_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.amax(0),
    "rms": _rms,
}


def pool_function(fn: PoolFunction, kind: Kind = "scalar") -> Callable[[Tensor], Tensor]:
    """The pool function with this name, or `fn` itself if it is a function; raises if it cannot be equivariant."""
    if callable(fn):
        return fn
    if fn not in POOL_FUNCTIONS:
        raise unknown("pool function", fn, POOL_FUNCTIONS)
    if kind == "vector" and fn != "mean":
        raise OptionError(
            f"fn={fn!r} takes directions component by component, which is not equivariant: "
            'use fn="mean", or an equivariant function of your own'
        )
    return POOL_FUNCTIONS[fn]


def reduce_pathways(reduce: Callable[[Tensor], Tensor], pathways: Tensor) -> Tensor:
    """Apply a pool function to realigned pathways (G, N, ...) and check that it removes only the first axis."""
    out = reduce(pathways)
    if not isinstance(out, Tensor) or out.shape != pathways.shape[1:]:
        came = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ShapeError(
            f"a pool function gets pathways of shape {tuple(pathways.shape)} and must reduce the leading axis to "
            f"return shape {tuple(pathways.shape[1:])}; it gave {came}"
        )
    return out


# --- moves: which piece of the input goes where -----------------------------------------------------------------------


class _Moves(NamedTuple):
    """An operation as a list of moves: (pathway, orientation) of the output, the same of the input, and an element.

    Each piece is turned by its element. Pieces that arrive at the same place are summed.
    """

    group: Group
    places_in: tuple[int, int]  # how many pathways and orientations the input has
    places_out: tuple[int, int]
    moves: tuple[tuple[tuple[int, int], tuple[int, int], int], ...]

    def reversed(self) -> "_Moves":
        """The transpose of the operation: its backward, and also its inverse if it only rearranges pieces."""
        back = tuple((start, end, self.group.inverse[g]) for end, start, g in self.moves)
        return _Moves(self.group, self.places_out, self.places_in, back)


def _slice_moves(group: Group) -> _Moves:
    order = group.order
    return _Moves(group, (1, 1), (order, 1), tuple(((g, 0), (0, 0), g) for g in range(order)))


def _stack_moves(group: Group) -> _Moves:
    order = group.order
    return _Moves(group, (order, 1), (1, order), tuple(((0, g), (g, 0), group.inverse[g]) for g in range(order)))


def _realign_moves(group: Group) -> _Moves:
    order = group.order
    return _Moves(group, (order, 1), (order, 1), tuple(((g, 0), (g, 0), group.inverse[g]) for g in range(order)))


def _roll_moves(group: Group) -> _Moves:
    order = group.order
    moves = (((h, g), (group.table[g][h], 0), group.inverse[g]) for h in range(order) for g in range(order))
    return _Moves(group, (order, 1), (order, order), tuple(moves))


def _carry_out(x: Tensor, moves: _Moves, kind: Kind = "scalar") -> Tensor:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return _concatenate(x, moves, kind)
    return _Write.apply(x, moves, kind)


def _concatenate(x: Tensor, moves: _Moves, kind: Kind) -> Tensor:
    """The moves in plain torch operators, which compilers can fuse and exporters support."""
    places = _places(x, moves.places_in)
    pieces: dict[tuple[int, int], Tensor] = {}
    for end, start, g in moves.moves:
        piece = _turn(places[start[0], :, :, start[1]], moves.group.elements[g], kind)
        pieces[end] = pieces[end] + piece if end in pieces else piece
    pathways, orientations = moves.places_out
    rows = [
        torch.cat([pieces[p, o].unsqueeze(2) for o in range(orientations)], dim=2).flatten(
            1, 2
        )  # torch.export fails on torch.stack here
        for p in range(pathways)
    ]
    return torch.cat(rows)


_CACHED = 1 << 21  # bytes of a piece that stay in the cache until they are copied, measured by bench/ops.py


class _Write(torch.autograd.Function):
    """The moves in eager mode: each piece is written straight into the output, without temporaries to concatenate."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, moves: _Moves, kind: Kind) -> Tensor:
        (pathways_in, orientations_in), (pathways, orientations) = moves.places_in, moves.places_out
        n, c = x.shape[0] // pathways_in * pathways, x.shape[1] // orientations_in * orientations
        last = features_are_last(x)
        out = x.new_empty(n, *x.shape[2:], c).movedim(-1, 1) if last else x.new_empty(n, c, *x.shape[2:])
        if kind == "scalar" and kernel.suits_moves(x, last):
            named = [(end, start, moves.group.elements[g]) for end, start, g in moves.moves]
            return kernel.carry_out(x, out, last, moves.places_in, moves.places_out, named)
        source, target = _places(x, moves.places_in), _places(out, moves.places_out)
        at_once = max(1, _CACHED // max(1, source[0, :1, :, 0].nbytes))
        for part_in, part_out in zip(source.split(at_once, dim=1), target.split(at_once, dim=1), strict=True):
            written = set()
            for end, start, g in moves.moves:
                piece = _turn(part_in[start[0], :, :, start[1]], moves.group.elements[g], kind)
                place = part_out[end[0], :, :, end[1]]
                if end in written:
                    place.add_(piece)
                else:
                    place.copy_(piece)
                    written.add(end)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Moves, Kind], output: Tensor) -> None:
        _, ctx.moves, ctx.kind = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Write.apply(grad, ctx.moves.reversed(), ctx.kind), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return _Write.apply(tangent, ctx.moves, ctx.kind)


def _places(x: Tensor, places: tuple[int, int]) -> Tensor:
    """The view (pathway, N, C, orientation, *S) of a tensor; `places` counts its pathways and orientations."""
    pathways, orientations = places
    n, c = x.shape[0] // pathways, x.shape[1] // orientations
    return x.unflatten(1, (c, orientations)).unflatten(0, (pathways, n))


def _turn(x: Tensor, element: Element, kind: Kind = "scalar") -> Tensor:
    if kind == "vector":
        x = _turn_components(x, element)
    return x if x.dim() == 2 else turn_maps(x, element)


def turn_maps(x: Tensor, element: Element) -> Tensor:
    """Reverse axes, then exchange axes. The exchange is only a view, so a later copy moves the data once.

    There are no checks, so that the function also works on the proxies of a tracer.
    """
    reversed_axes = [1 - a for a in element if a < 0]
    x = x.flip(reversed_axes) if reversed_axes else x
    return x.permute(0, 1, *(abs(a) + 1 for a in element))


def _turn_components(x: Tensor, element: Element) -> Tensor:
    components = x.unflatten(1, (x.shape[1] // len(element), len(element))).unbind(2)
    turned = [components[a - 1] if a > 0 else -components[-a - 1] for a in element]
    return torch.stack(turned, dim=2).flatten(1, 2)


def features_are_last(x: Tensor) -> bool:
    """Whether the tensor is in torch's channels_last memory format; with one feature, only the strides show it."""
    return x.dim() > 3 and x.stride(1) == 1 and (x.shape[1] == 1 or not x.is_contiguous())


# --- checks of shapes and options -------------------------------------------------------------------------------------


def _check_axes(x: Tensor, group: Group) -> None:
    check_group(group)
    if x.dim() not in (2, 2 + group.dim):
        raise ShapeError(
            f"{group.name} has {group.dim} spatial axes, so it takes maps with {2 + group.dim} axes or dense features "
            f"with 2, got {x.dim()} axes: {tuple(x.shape)}" + (f"; {groups_for(x.dim() - 2)}" if x.dim() > 2 else "")
        )


def _check_kind(x: Tensor, group: Group, kind: Kind) -> None:
    if kind not in ("scalar", "vector"):
        raise unknown("kind", kind, ("scalar", "vector"))
    if kind == "vector" and x.shape[1] % group.dim:
        raise ShapeError(
            f'kind="vector" needs {group.dim} features for each direction, one for each axis, got {x.shape[1]} features'
        )


def _check_pathways(x: Tensor, group: Group) -> None:
    if x.shape[0] % group.order:
        raise ShapeError(
            f"a batch of {x.shape[0]} does not hold the {group.order} pathways of {group.name}: "
            f"its size must be a multiple of {group.order}; slice() makes such a batch"
        )


def _check_orientations(x: Tensor, group: Group) -> None:
    if x.shape[1] % group.order:
        raise ShapeError(
            f"{x.shape[1]} features do not hold the {group.order} orientations of {group.name}: "
            f"their number must be a multiple of {group.order}; stack() makes such features"
        )


def check_stacked(x: Tensor, group: Group) -> None:
    """Raise unless the number of axes and features is that of a stacked tensor."""
    _check_axes(x, group)
    _check_orientations(x, group)


def _check_square(x: Tensor, group: Group) -> None:
    if x.dim() == 2:
        return
    for axes in group.exchanged:
        sizes = [x.shape[axis + 1] for axis in axes]
        if any(size != sizes[0] for size in sizes):
            raise ShapeError(
                f"{group.name} exchanges the axes {axes}, so turning maps needs them equally long, got "
                f'{" x ".join(map(str, x.shape[2:]))}: pad or crop to equal sides, or use layers with rotate="filters"'
            )

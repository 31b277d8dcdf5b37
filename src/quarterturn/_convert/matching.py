"""Which old channels become one feature of "pretrained" weights: those that respond alike to turned images.

Unless told otherwise, G neighbouring channels are read as the orientations of one feature. In an ordinary network they
lie in any order, and the mean of their filters keeps little. Here the old network is run on images in all orientations.
Channel i fits as orientation g of a feature whose orientation 0 is channel r, if its response to an image is like that
of r to the image turned by g: orbits of channels are put together by the correlation of these, the best ones first.
Responses are means over positions, so nothing has to be turned back.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn import ops
from quarterturn._convert.axes import Batch, Component, Features, HeadFeatures, HeadIndex, size_of
from quarterturn._convert.tracked_value import TrackedValue
from quarterturn._convert.widths import Piece
from quarterturn.check import in_eval_mode
from quarterturn.errors import OptionError
from quarterturn.graph.capture import Captured, first_line
from quarterturn.groups import Group

CHUNK = 64  # images that are run at a time
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CHANNELS = (Features, HeadIndex, HeadFeatures)


def match_channels(captured: Captured, values: Mapping[fx.Node, Any], group: Group, images: Tensor) -> None:
    """Give every piece of channels the order in which neighbours are most like orientations of one feature."""
    tracked = {node: value for node, value in values.items() if _is_followed(value)}
    responses = [_responses(captured, tracked, ops.act(images, group, g)) for g in range(group.order)]
    pieces: dict[Piece, list[list[Tensor]]] = {}
    heads: dict[Piece, int] = {}
    for node, value in tracked.items():
        start = 0
        for segment in value.features.segments:
            stop = start + segment.channels
            found = [r[node][:, start:stop].unflatten(1, (-1, segment.times)).mean(2) for r in responses]
            pieces.setdefault(segment.piece, []).append(found)
            split = next((c for c in value.components if isinstance(c, HeadIndex)), None)
            if split is not None and segment.channels == value.features.channels:
                heads[segment.piece] = split.heads
            start = stop
    in_groups = set(_in_groups(captured, values))
    for piece, places in pieces.items():
        if not piece.shared and piece not in in_groups:
            alike = functools.reduce(torch.add, (_alike(group, found) for found in places)).cpu()
            piece.order = orbits_of_heads(alike, heads[piece]) if piece in heads else orbits(alike)


def orbits(alike: Tensor) -> list[int]:
    """Channels so that G in a row are an orbit; `alike[g, i, r]` is how well i fits as orientation g of r.

    >>> turn = torch.eye(4)[[2, 3, 0, 1]]
    >>> orbits(torch.stack([torch.eye(4), turn]))
    [0, 2, 1, 3]
    """
    order, count, _ = alike.shape
    free, found = torch.ones(count, dtype=torch.bool), []
    others = alike[1:].masked_fill(torch.eye(count, dtype=torch.bool), -torch.inf)
    best, places = others.max(1)  # for each orientation and each channel that may be the first
    while int(free.sum()) >= order:
        members = [int(best.sum(0).masked_fill(~free, -torch.inf).argmax())]
        free[members[0]] = False
        for each in others[:, :, members[0]]:
            members.append(int(each.masked_fill(~free, -torch.inf).argmax()))
            free[members[-1]] = False
        found += members
        others[:, members] = -torch.inf
        for g, gone in enumerate(torch.isin(places, torch.tensor(members)) & free):
            best[g, gone], places[g, gone] = others[g][:, gone].max(0)
    return [*found, *(i for i in range(count) if free[i])]


def orbits_of_heads(alike: Tensor, heads: int) -> list[int]:
    """The same for channels that are heads of attention: an orientation gets whole heads, if these can be divided."""
    order, count, _ = alike.shape
    if heads % order:
        return orbits(alike)
    size = count // heads
    split = alike.unflatten(2, (heads, size)).unflatten(1, (heads, size))
    best = orbits(split.amax(2).mean(-1))
    found = []
    for start in range(0, heads, order):
        first, *others = best[start : start + order]
        columns = [list(range(size)), *(_assigned(split[1 + g, h, :, first]) for g, h in enumerate(others))]
        numbers = [[head * size + i for i in column] for head, column in zip((first, *others), columns, strict=True)]
        found += [i for orbit in zip(*numbers, strict=True) for i in orbit]
    return found


def _assigned(alike: Tensor) -> list[int]:
    """For each column a row of its own, the best pairs first."""
    alike, rows = alike.clone(), [0] * alike.shape[1]
    for _ in rows:
        row, column = divmod(int(alike.argmax()), alike.shape[1])
        rows[column] = row
        alike[row], alike[:, column] = -torch.inf, -torch.inf
    return rows


def _alike(group: Group, responses: list[Tensor]) -> Tensor:
    """Correlations of the responses `(examples, channels)` to images in each orientation, as `orbits` wants them."""
    centred = [r.float() - r.float().mean(0) for r in responses]
    strength = torch.stack(centred).square().mean((0, 1)).sqrt()
    scaled = [r / strength.clamp(min=1e-6 * float(strength.max()) + 1e-30) for r in centred]
    pairs = [[scaled[k].t() @ scaled[group.table[g][k]] for k in range(group.order)] for g in range(group.order)]
    return torch.stack([torch.stack(each).mean(0) / len(responses[0]) for each in pairs])


class _Means(fx.Interpreter):
    """Runs the network that was read, and keeps the mean over positions of what its nodes give."""

    def __init__(self, captured: Captured, tracked: Mapping[fx.Node, TrackedValue]) -> None:
        super().__init__(captured.model, graph=captured.graph)
        self.tracked = tracked
        self.kept: dict[fx.Node, list[Tensor]] = {node: [] for node in tracked}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self.tracked:
            self.kept[n].append(_over_positions(result, self.tracked[n].components))
        return result


def _responses(captured: Captured, tracked: Mapping[fx.Node, TrackedValue], images: Tensor) -> dict[fx.Node, Tensor]:
    runs = _Means(captured, tracked)
    try:
        with torch.no_grad(), in_eval_mode(captured.model):
            for part in images.split(CHUNK):
                runs.run(part.clone())
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise OptionError(
            f"match= needs images that the network takes in every orientation, and it does not take "
            f"{tuple(images.shape)}: {first_line(error)}"
        ) from error
    return {node: torch.cat(parts) for node, parts in runs.kept.items()}


def _over_positions(x: Tensor, components: list[Component]) -> Tensor:
    """The mean over everything but examples and channels."""
    sizes = [-1 if isinstance(c, Batch) else size_of(c) for c in components]
    batch = next(i for i, c in enumerate(components) if isinstance(c, Batch))
    channels = [i for i, c in enumerate(components) if isinstance(c, CHANNELS)]
    rest = [i for i in range(len(components)) if i not in (batch, *channels)]
    apart = x.reshape(sizes).permute(batch, *channels, *rest).flatten(1, len(channels))
    return apart.flatten(2).mean(2) if rest else apart


def _is_followed(value: Any) -> bool:
    """Whether it is a tensor with orientations, examples once, and channels once or as heads."""
    if not isinstance(value, TrackedValue) or value.kind != "oriented" or not isinstance(value.example, Tensor):
        return False
    kinds = [type(c) for c in value.components]
    channels = [kind for kind in kinds if kind in CHANNELS]
    return kinds.count(Batch) == 1 and channels in ([Features], [HeadIndex, HeadFeatures])


def _in_groups(captured: Captured, values: Mapping[fx.Node, Any]) -> Iterable[Piece]:
    """Pieces that lie in groups, of convolutions or norms: these belong together, and are not mixed."""
    for node in captured.graph.nodes:
        layer = captured.modules.get(str(node.target)) if node.op == "call_module" else None
        several = isinstance(layer, nn.GroupNorm) and 1 < layer.num_groups < layer.num_channels
        if isinstance(layer, CONVOLUTIONS):
            several = 1 < layer.groups < layer.in_channels
        for value in [values[n] for n in (node, *node.all_input_nodes)] if several else []:
            if _is_followed(value):
                yield from (segment.piece for segment in value.features.segments)

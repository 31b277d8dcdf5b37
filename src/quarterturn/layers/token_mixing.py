"""A linear layer over positions, as MLP-Mixers have it: each orientation in its own frame, with the same weights."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn import ops
from quarterturn.execution import Execution
from quarterturn.filters import Rotate, check_rotate
from quarterturn.groups import Group

Tokens = tuple[int, tuple[int, ...]]  # how many have no position and come first, and the grid of the others


class TokenMixing(nn.Module):
    """Mix the tokens of each orientation, in its own frame: a linear layer over the last axis of `(N*G, ..., T)`.

    Orientations are beside the examples, all in the input's frame with `rotate="filters"`, in their own with
    `rotate="maps"`. Instead of the tokens, columns and rows of the weight are turned. `tokens_in` and `tokens_out` say
    what the last axis holds before and after; `None` is no tokens, but what has been mixed of them.

    >>> from quarterturn import C4
    >>> TokenMixing(C4, 9, 20, tokens_in=(0, (3, 3)), rotate="filters")(torch.zeros(8, 5, 9)).shape
    torch.Size([8, 5, 20])
    """

    order_in: Tensor | None
    order_out: Tensor | None

    def __init__(
        self,
        group: Group,
        in_tokens: int,
        out_tokens: int,
        bias: bool = True,
        tokens_in: Tokens | None = None,
        tokens_out: Tokens | None = None,
        rotate: Rotate = "maps",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.rotate = group, rotate
        plain = nn.Linear(in_tokens, out_tokens, bias, device, dtype)
        self.weight, self.bias = plain.weight, plain.bias
        for name, tokens in (("order_in", tokens_in), ("order_out", tokens_out)):
            places = None if tokens is None else token_orders(group, *tokens).to(plain.weight.device)
            self.register_buffer(name, places, persistent=False)

    def execution(self, x: Tensor) -> Execution:
        """Which code runs this layer, and why."""
        return Execution("torch's matrix product", "it mixes positions, not orientations")

    def forward(self, x: Tensor) -> Tensor:
        if self.rotate == "maps":
            return F.linear(x, self.weight, self.bias)
        order = self.group.order
        weights = torch.stack([self._turned(self.weight, h) for h in range(order)])
        rows = x.unflatten(0, (-1, order)).transpose(0, 1)
        out = rows.flatten(1, -2) @ weights.transpose(1, 2)
        if self.bias is not None:
            out = out + torch.stack([self._turned(self.bias, h) for h in range(order)]).unsqueeze(1)
        return out.reshape(*rows.shape[:-1], self.weight.shape[0]).transpose(0, 1).flatten(0, 1)

    def _turned(self, weight: Tensor, h: int) -> Tensor:
        """The weight or bias as orientation h has it, in the input's frame."""
        if self.order_in is not None and weight.dim() > 1:
            weight = weight.index_select(1, self.order_in[h])
        return weight if self.order_out is None else weight.index_select(0, self.order_out[h])

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.weight.shape[1]}, {self.weight.shape[0]}, rotate={self.rotate!r}"


def token_orders(group: Group, extra: int, grid: Sequence[int]) -> Tensor:
    """For each orientation and token the one that it is in the orientation's own frame, `(G, T)`.

    >>> from quarterturn import MIRROR
    >>> token_orders(MIRROR, 1, (1, 3))
    tensor([[0, 1, 2, 3],
            [0, 3, 2, 1]])
    """
    maps = torch.arange(math.prod(grid)).reshape(1, 1, *grid)
    turned = [ops.turn_maps(maps, group.elements[inverse]).flatten() for inverse in group.inverse]
    return torch.stack([torch.cat([torch.arange(extra), extra + places]) for places in turned])

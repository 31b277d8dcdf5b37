"""Self-attention over tokens: for each orientation by itself, or one for all of them."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn.errors import OptionError, unknown
from quarterturn.filters import Rotate, check_options
from quarterturn.groups import Group
from quarterturn.layers.beside import to_batch, to_features
from quarterturn.layers.linear import RollLinear
from quarterturn.layers.tokens import check_token_options, stack_tokens, unstack_tokens

Kind = Literal["frame", "coupled"]
KINDS = ("frame", "coupled")


class Attention(nn.Module):
    """Self-attention of stacked tokens `(N, T, features*G)`, or of sliced ones `(G*N, T, features)`.

    `kind="frame"`: every orientation has `heads` heads of its own, and attends to its own features. `kind="coupled"`:
    products of queries and keys are summed over orientations, so that all of them attend to the same tokens. Features
    and heads are those of one orientation. `dropout` drops attention weights in training. Sliced tokens need `extra`
    and `grid`, as `RollLinear` does.

    >>> from quarterturn import C4
    >>> Attention(C4, 16, heads=2, rotate="filters")(torch.zeros(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        group: Group,
        features: int,
        heads: int,
        kind: Kind = "frame",
        bias: bool = True,
        dropout: float = 0.0,
        rotate: Rotate = "maps",
        extra: int = 0,
        grid: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_options(group, rotate, features=features, heads=heads)
        check_token_options(group, extra, grid)
        if kind not in KINDS:
            raise unknown("kind of attention", kind, KINDS)
        if features % heads:
            raise OptionError(f"features must be a multiple of heads, got {features} and {heads}")
        if not 0 <= dropout < 1:
            raise OptionError(f"dropout must be at least 0 and less than 1, got {dropout!r}")
        self.group, self.features, self.heads, self.kind, self.rotate = group, features, heads, kind, rotate
        self.dropout, self.extra, self.grid = dropout, extra, grid
        options: dict[str, Any] = {"rotate": rotate, "device": device, "dtype": dtype, "extra": extra, "grid": grid}
        self.qkv = RollLinear(group, features, 3 * features, bias, **options)
        self.proj = RollLinear(group, features, features, **options)

    def forward(self, x: Tensor) -> Tensor:
        given = self.qkv(x)
        where = (self.group, self.extra, self.grid)
        if self.rotate == "maps" and self.kind == "coupled":  # all of them are needed at once
            return self.proj(unstack_tokens(self.attended(stack_tokens(given, *where), self.group.order), *where))
        return self.proj(self.attended(given, 1 if self.rotate == "maps" else self.group.order))

    def attended(self, given: Tensor, order: int) -> Tensor:
        """What each token gets of the others, for queries, keys and values `(N, T, 3*C*G)` of so many orientations."""
        apart = self.kind == "frame" and order > 1  # orientations are as examples
        if apart:
            given = to_batch(given, order).flatten(0, 1)
        heads = given.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # coupled, they have all orientations
        rate = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], dropout_p=rate).transpose(1, 2).flatten(2)
        return to_features(out.unflatten(0, (-1, order))) if apart else out

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.features}, heads={self.heads}, kind={self.kind!r}, rotate={self.rotate!r}"

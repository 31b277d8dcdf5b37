"""Dense layers in the group-Fourier basis, in plain torch: their matrix becomes block diagonal."""

import torch
from torch import Tensor

from quarterturn.errors import ShapeError
from quarterturn.fourier import irreps
from quarterturn.groups import Group


def group_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, blocks: tuple[Tensor, ...] | None = None
) -> Tensor:
    """A dense layer on stacked features: stack(linear(roll(unstack(x)), weight)), with fewer products.

    Stacked `(N, in*G)` and weight `(out, in*G)` -> stacked `(N, out*G)`, for any group, device and precision. `blocks`
    are the `weight_blocks` of the weight, if the caller has them already.

    >>> from quarterturn import D4
    >>> group_linear(torch.randn(2, 3 * 8), torch.randn(5, 3 * 8), None, D4).shape
    torch.Size([2, 40])
    """
    order = group.order
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or x.shape[1] % order:
        raise ShapeError(
            f"expected stacked features (N, in*{order}) and weights (out, in*{order}), got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}"
        )
    batch, features, out = len(x), x.shape[1] // order, len(weight)
    forward, back = _transforms(group, x.dtype, x.device)
    of_x = torch.mm(forward, x.reshape(-1, order).t()).view(order, batch, features)
    parts, row = [], 0
    for irrep, block in zip(irreps.irreps(group), blocks or weight_blocks(weight, group), strict=True):
        d, n = irrep.dimension, len(irrep.columns)
        left = of_x[row : row + n * d].view(n, d, batch, features).transpose(1, 2).reshape(n * batch, d * features)
        parts.append((left @ block).view(n, batch, d, out).transpose(1, 2).reshape(n * d, batch * out))
        row += n * d
    y = torch.mm(torch.cat(parts).t(), back).view(batch, out, order)
    if bias is not None:
        y = y + bias[:, None]
    return y.reshape(batch, out * order)


def group_pointwise(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, blocks: tuple[Tensor, ...] | None = None
) -> Tensor:
    """A 1x1 convolution of stacked maps: `group_linear` at every position.

    Stacked `(N, in*G, *S)` and weight `(out, in*G, 1, ...)` -> stacked `(N, out*G, *S)`, features last in memory.

    >>> from quarterturn import OCTA
    >>> group_pointwise(torch.randn(2, 24, 3, 3, 3), torch.randn(5, 24, 1, 1, 1), None, OCTA).shape
    torch.Size([2, 120, 3, 3, 3])
    """
    last = x.movedim(1, -1)
    y = group_linear(last.reshape(-1, last.shape[-1]), weight.flatten(1), bias, group, blocks)
    return y.view(*last.shape[:-1], y.shape[-1]).movedim(-1, 1)


def weight_blocks(weight: Tensor, group: Group) -> tuple[Tensor, ...]:
    """The matrix of each irrep, `(d*in, d*out)`, from a weight `(out, in*G)` or `(out, in*G, 1, ...)`.

    >>> from quarterturn import D4
    >>> [tuple(block.shape) for block in weight_blocks(torch.randn(5, 24), D4)]
    [(3, 5), (3, 5), (3, 5), (3, 5), (6, 10)]
    """
    order, out, features = group.order, len(weight), weight.shape[1] // group.order
    forward, _ = _transforms(group, weight.dtype, weight.device)
    of_weight = torch.mm(forward, weight.reshape(-1, order).t()).view(order, out, features)
    found, row = [], 0
    for irrep in irreps.irreps(group):
        d, rows = irrep.dimension, irrep.dimension * len(irrep.columns)
        matrix = _blocks(of_weight[row : row + rows], irrep)  # (d in, d out, out, features)
        found.append(matrix.permute(0, 3, 1, 2).reshape(d * features, d * out))
        row += rows
    return tuple(found)


def _blocks(rows: Tensor, irrep: irreps.Irrep) -> Tensor:
    """The block of an irrep, W^[j, a] = sum of W[s] rho(s)[j, a], from the rows of the transformed weight."""
    d = irrep.dimension
    if len(irrep.columns) == d:  # the rows hold every entry: row (b, a) holds rho[a, b]
        return rows.view(d, d, *rows.shape[1:]).transpose(0, 1)
    mixing = torch.as_tensor(_mixing(irrep), dtype=rows.dtype, device=rows.device)
    return torch.tensordot(mixing, rows, dims=1).view(d, d, *rows.shape[1:])


def _mixing(irrep: irreps.Irrep):  # type: ignore[no-untyped-def]
    """The matrix (d * d, rows) that gives every entry of the irrep from those of its independent columns."""
    d = irrep.dimension
    known = irrep.matrices[:, :, list(irrep.columns)].transpose(2, 1, 0).reshape(-1, len(irrep.matrices))
    every = irrep.matrices.reshape(len(irrep.matrices), d * d).T
    return every @ known.T * d / len(irrep.matrices)


def _transforms(group: Group, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    forward = torch.as_tensor(irreps.transform(group), dtype=dtype, device=device)
    return forward, forward / forward.square().sum(1, keepdim=True)

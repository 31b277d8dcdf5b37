"""Rules for tokens, which are stacked: `(N, T, C*G)`, features last."""

from typing import Any

import torch

from quarterturn._export.convolution_rules import our_convolution, roll_linear
from quarterturn._export.plain_tensor import PlainTensor
from quarterturn._export.plain_writer import PlainWriter
from quarterturn.graph.refusal import Refusal
from quarterturn.layers.attention import Attention
from quarterturn.layers.tokens import ClassTokens, PatchEmbed, PositionTable, as_tokens


def _check_stacked(module: Any) -> None:
    if module.rotate != "filters":
        raise Refusal("sliced tokens are not supported: make the network with rotate='filters', with the same weights")


def patch_embed(w: PlainWriter, path: str, module: PatchEmbed, tensor: PlainTensor) -> PlainTensor:
    _check_stacked(module)
    maps = our_convolution(w, f"{path}.proj", module.proj, tensor)
    return PlainTensor(as_tokens(maps.proxy))


def class_tokens(w: PlainWriter, path: str, module: ClassTokens, tensor: PlainTensor) -> PlainTensor:
    _check_stacked(module)
    mine = w.constant(path, module.weight.detach().repeat_interleave(module.group.order, dim=1).unsqueeze(0))
    return PlainTensor(torch.cat([mine.expand(tensor.proxy.size(0), -1, -1), tensor.proxy], dim=1))


def position_table(w: PlainWriter, path: str, module: PositionTable, tensor: PlainTensor) -> PlainTensor:
    _check_stacked(module)
    if w.dynamic:
        raise Refusal("a table of positions is for one size, so sizes cannot be free")
    with torch.no_grad():
        table = as_tokens(module.table(module.grid))
        table = torch.nn.functional.pad(table, (0, 0, module.extra, 0))
    return PlainTensor(tensor.proxy + w.constant(path, table))


def attention(w: PlainWriter, path: str, module: Attention, tensor: PlainTensor) -> PlainTensor:
    _check_stacked(module)
    given = roll_linear(w, f"{path}.qkv", module.qkv, tensor)
    attended = module.attended(given.proxy, module.group.order)
    return roll_linear(w, f"{path}.proj", module.proj, PlainTensor(attended))

"""A row of bench/convert.py for a small member of a family of timm's transformers, hybrids and mixers."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import Group, trees
from quarterturn.check import error_of_answers
from quarterturn.graph.lively import images_like, lively

D4_TOO = """
    vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 beit_base_patch16_224 eva02_tiny_patch14_224 cait_xxs24_224
    xcit_nano_12_p8_224 mixer_s16_224 resmlp_12_224 pvt_v2_b0 vit_relpos_small_patch16_224
"""

Errors = Callable[..., str]  # of an error on images, for networks, as a text; in float64 where rounding is amplified


def transformer_row(
    family: str, name: str, model: nn.Module, size: int, text_of: Errors, gap: Callable[..., float]
) -> dict[str, object]:
    """What became of a network; raises where it is refused."""
    net, x, seconds = timed_conversion(model, size)
    done = net.conversion
    with torch.no_grad():
        can_fail = error_of_answers(AsMaps(lively(model, [x])), qt.C4, (x,)) > 1e-2  # the old network does
        learnt = lively(net, [x])
        twin = text_of(lambda x, one, other: gap(one(x), other(x)), x, qt.to_plain(learnt, x), learnt)
    return {
        "family": family,
        "network": name,
        "size": size,
        **relative_costs(done),
        "error, C4": _error(learnt, qt.C4, x, text_of) if can_fail else "cannot fail",
        "error, D4": _of_d4(model, x, text_of) if name.split()[-1] in D4_TOO.split() else "",
        "plain twin": twin,
        "error after a step": _after_a_step(net, x, text_of),
        "plain parts, or why not": ", ".join(sorted({part.layer for part in done.plain})),
        "seconds": f"{seconds:.1f}",
    }


def timed_conversion(model: nn.Module, size: int) -> tuple[Any, Tensor, float]:
    """The converted network, two images of that size, and the seconds that it took."""
    (x,) = images_like([torch.randn(2, 3, size, size)], dim=2)
    start = time.perf_counter()
    net = qt.convert(model, qt.C4, example=x)
    return net, x, time.perf_counter() - start


def relative_costs(done: Any) -> dict[str, object]:
    """What a converted network has and does, relative to the old one."""
    before, after = done.before, done.after
    return {
        "rolled": f"{100 * done.rolled_share:.0f} %",
        "parameters": f"{after.parameters / before.parameters:.2f}",
        "multiply-adds": f"{after.multiply_adds / before.multiply_adds:.2f}",
        "with the kernel": f"{after.with_kernel / before.multiply_adds:.2f}",
    }


def refused_row(family: str, name: str, size: int, why: str) -> dict[str, object]:
    """The row of a network that is not converted."""
    columns = ("parameters", "multiply-adds", "with the kernel", "error, C4", "error, D4", "plain twin")
    row: dict[str, object] = {"family": family, "network": name, "size": size, "rolled": "refused"}
    row |= dict.fromkeys((*columns, "error after a step"), "")
    return {**row, "plain parts, or why not": why, "seconds": ""}


class AsMaps(nn.Module):
    """A network whose tokens, if it returns such, come out as maps of equal sides: these can be turned."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return trees.mapped(self.net(x), Tensor, lambda _, t: t if t.dim() != 3 else self.maps(t))

    def maps(self, tokens: Tensor) -> Tensor:
        side = math.isqrt(tokens.shape[1])
        return tokens[:, -side * side :].mT.unflatten(2, (side, side))


def _error(net: nn.Module, group: Group, x: Tensor, text_of: Errors) -> str:
    with torch.no_grad():
        return text_of(lambda x, net: error_of_answers(net, group, (x,)), x, AsMaps(net))


def _of_d4(model: nn.Module, x: Tensor, text_of: Errors) -> str:
    return _error(lively(qt.convert(model, qt.D4, example=x), [x]), qt.D4, x, text_of)


def _after_a_step(net: nn.Module, x: Tensor, text_of: Errors) -> str:
    """The error after a step of training, in which every parameter that learns has a gradient."""
    net.train()
    out = net(x)
    torch.stack([t.float().square().mean() for _, t in trees.leaves(out, Tensor)]).sum().backward()
    torch.optim.SGD(net.parameters(), 1e-3).step()
    return _error(net.eval(), qt.C4, x, text_of)

"""How equivariant a network is, layer by layer: the error of each output under the law that fits it best."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import Group

LAWS = ("unchanged", "turned", "pathways permuted", "orientations permuted")


@dataclass(frozen=True)
class Layer:
    """A layer's output for turned inputs: the law that fits best over all elements, and its largest relative error."""

    name: str
    kind: str
    law: str
    error: float


@torch.no_grad()
def by_layer(net: nn.Module, group: Group, x: Tensor) -> list[Layer]:
    """The laws of all layers without layers of their own, in the order in which they run."""
    net.eval()
    before = _outputs(net, x)
    after = [_outputs(net, qt.act(x, group, g).contiguous()) for g in range(group.order)]
    found = []
    for name, output in before.items():
        worst = dict.fromkeys(LAWS, 0.0)
        for g in range(group.order):
            turned, expected = after[g][name], _expected(output, group, g, len(x))
            for law in LAWS:
                wanted = expected.get(law)
                fits = wanted is not None and wanted.shape == turned.shape
                size = max(float(turned.abs().max()), 1e-30)
                error = float((wanted - turned).abs().max()) / size if fits and wanted is not None else float("inf")
                worst[law] = max(worst[law], error)
        best = min(LAWS, key=lambda law: worst[law])
        found.append(Layer(name, type(net.get_submodule(name)).__name__, best, worst[best]))
    return found


def _outputs(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    handles = []
    for name, module in net.named_modules():
        if name and not list(module.children()):

            def keep(_module: nn.Module, _inputs: object, output: object, name: str = name) -> None:
                if isinstance(output, Tensor):
                    found[name] = output.clone()

            handles.append(module.register_forward_hook(keep))
    try:
        net(x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _expected(a: Tensor, group: Group, h: int, examples: int) -> dict[str, Tensor]:
    """What each law says of the output for the input turned by h; only laws that the shape allows."""
    laws = {"unchanged": a}
    maps = a.dim() == 2 + group.dim
    permutation = [group.table[g][h] for g in range(group.order)]
    sliced = len(a) % (group.order * examples) == 0
    if maps:
        laws["turned"] = qt.act(a, group, h)
    if sliced:
        laws["pathways permuted"] = a.unflatten(0, (group.order, -1))[permutation].flatten(0, 1)
    if a.dim() > 1 and a.shape[1] % group.order == 0 and not sliced:
        orientations = a.unflatten(1, (-1, group.order))[:, :, permutation].flatten(1, 2)
        laws["orientations permuted"] = qt.act(orientations, group, h) if maps else orientations
    return laws

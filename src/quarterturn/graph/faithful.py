"""Whether the graph that was read is the network that runs.

While a network is read its tensors are stand-ins, gradients are off and it is in eval mode. Code that asks for such
things may then take another path than it takes when it runs, and leave out layers without a word. So the network is run
on the example, with and without gradients, and must call the same layers and give the same outputs.
"""

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn.check import TOLERANCES, in_eval_mode, largest_difference
from quarterturn.errors import ConversionError
from quarterturn.graph.capture import Captured

WHY = (
    "Code that asks isinstance(x, torch.Tensor), torch.is_tensor(x) or torch.is_grad_enabled() decides otherwise while "
    "it is read, and random numbers are drawn only once: write the network without them"
)


def check_faithful(captured: Captured, inputs: Sequence[Tensor], hint: str = "") -> None:
    """Raise unless the network calls the layers, and gives the outputs, that were read. `hint` ends the message."""
    nodes = [node for node in captured.graph.nodes if node.op == "call_module"]
    read = Counter(id(captured.modules[str(node.target)]) for node in nodes)
    expected = outputs_read(captured)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), in_eval_mode(captured.model):
            called, result = _run(captured, captured.model, inputs)
        mode = "with gradients" if gradients else "on the example"
        differing = _named(captured, (read - called) + (called - read))
        if differing:
            what = f"the network calls other layers when it runs {mode} than when its code is read: {differing}"
            raise ConversionError(f"{what}. {WHY}{hint}")
        gap, size = largest_difference(expected, result)
        if gap > max(TOLERANCES.get(x.dtype, 1e-4) for x in inputs) * size:
            raise ConversionError(
                f"the network gives other outputs when it runs {mode} than when its code is read. {WHY}{hint}"
            )


def layers_of_training(captured: Captured, inputs: Sequence[Tensor]) -> str:
    """The layers that the network calls in training mode only, as those of auxiliary outputs: they are not read."""
    try:
        twin = copy.deepcopy(captured.model).train()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            called, _ = _run(captured, twin, inputs)
    except (RuntimeError, ValueError):  # no copy, or it does not take the example in training, as norms of one number
        return ""
    paths = {id(module): path for path, module in twin.named_modules()}
    known = {str(node.target) for node in captured.graph.nodes if node.op == "call_module"}
    read = {id(captured.modules[path]) for path in known}
    return _named(captured, Counter(i for i in (id(captured.modules[paths[c]]) for c in called) if i not in read))


def outputs_read(captured: Captured) -> Any:
    """What the network returned for the example while it was read."""
    output = next(node for node in captured.graph.nodes if node.op == "output")
    return fx.node.map_arg(output.args[0], captured.example)


def _run(captured: Captured, model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Counter[int], Any]:
    """How often the model, or a copy of it, calls each layer that is one node of the graph, and what it gives."""
    called: Counter[int] = Counter()
    depth = 0  # layers inside such a layer do not count
    handles = []

    def enter(module: nn.Module, args: Any) -> None:
        nonlocal depth
        if depth == 0:
            called[id(module)] += 1
        depth += 1

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        nonlocal depth
        depth -= 1

    try:
        for path, module in model.named_modules():
            if captured.is_leaf(module, path):
                handles.append(module.register_forward_pre_hook(enter))
                handles.append(module.register_forward_hook(leave))
        return called, model(*(x.clone() for x in inputs))
    finally:
        for handle in handles:
            handle.remove()


def _named(captured: Captured, modules: Counter[int]) -> str:
    found = [
        f"{path!r} ({type(module).__name__})"
        for path, module in captured.model.named_modules()
        if id(module) in modules
    ]
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")

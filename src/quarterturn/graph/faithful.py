"""Whether the graph that was read is the network that runs.

While a network is read its tensors are stand-ins, gradients are off and it is in eval mode. Code that asks for such
things may then take another path than it takes when it runs, and leave out layers without a word. So the network is run
on the example, with and without gradients, and must call the same layers and give the same outputs.
"""

import copy
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn.check import TOLERANCES, in_eval_mode, largest_difference
from quarterturn.graph.capture import Captured
from quarterturn.graph.refusal import RefusedParts

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
        tolerance = max(TOLERANCES.get(x.dtype, 1e-4) for x in inputs)
        if not differing and _agree(expected, result, tolerance):
            continue
        what = f"calls other layers when it runs {mode} than when its code is read: {differing}" if differing else ""
        what = what or f"gives other outputs when it runs {mode} than when its code is read"
        with torch.set_grad_enabled(gradients), in_eval_mode(captured.model):
            part = _first_that_differs(captured, inputs, tolerance)
        raise RefusedParts(f"the network {what}. {WHY}{hint}", {part: f"it {what}"}, captured.callers)


def _agree(expected: Any, got: Any, tolerance: float) -> bool:
    gap, size = largest_difference(expected, got)
    return gap <= tolerance * size


def _first_that_differs(captured: Captured, inputs: Sequence[Tensor], tolerance: float) -> str:
    """The innermost module that runs otherwise than it was read: it calls others, or gives something else."""
    ran: list[tuple[tuple[str, ...], Any]] = []
    stack, handles = [""], []

    def enter(path: str) -> Any:
        return lambda module, args: stack.append(path)

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        ran.append((tuple(stack), result))
        stack.pop()

    leaves = {path for path, module in captured.modules.items() if path and captured.is_leaf(module, path)}
    try:
        for path, module in captured.model.named_modules():
            if path:
                handles.append(module.register_forward_pre_hook(enter(path)))
                handles.append(module.register_forward_hook(leave))
        captured.model(*(x.clone() for x in inputs))
    finally:
        for handle in handles:
            handle.remove()
    ran = [(calls, result) for calls, result in ran if leaves.isdisjoint(calls[:-1])]
    for (read_in, expected), (ran_in, result) in zip(captured.outputs, ran, strict=False):
        if read_in != ran_in:
            shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(read_in, ran_in, strict=False))
            return [one for one, _ in shared][-1]
        if not _agree(expected, result, tolerance):
            return ran_in[-1]
    return ""


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
            if captured.is_leaf(captured.modules[path], path):
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

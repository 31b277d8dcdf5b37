"""Writes the plain network."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn.graph.writing import copied, free_name, put_tensor


def is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("quarterturn.")


class PlainWriter:
    """Collects the layers and function calls that the rules of `to_plain` write."""

    def __init__(self, dynamic: bool, dtype: torch.dtype) -> None:
        self.dynamic = dynamic  # the network must take maps of any size
        self.dtype = dtype  # of the network's numbers
        self.root, self.graph = nn.Module(), fx.Graph()
        self.parts: dict[str, str] = {}  # the names of plain parts, which may be called several times
        self.tracer = fx.proxy.GraphAppendingTracer(self.graph)

    def proxy(self, node: fx.Node) -> Any:
        """A proxy of a tensor: operations on it are added to the graph."""
        return fx.Proxy(node, self.tracer)

    def layer(self, path: str, module: nn.Module, proxy: Any) -> Any:
        """Add a layer, and return its output. Layers of ours that `convert` put below it are written by themselves."""
        for below in [name for name, child in module.named_children() if is_ours(child)]:
            delattr(module, below)
        name = self.free_name(path)
        self.root.add_module(name, module)
        return self.proxy(self.graph.call_module(name, (proxy.node,)))

    def constant(self, path: str, tensor: Tensor) -> Any:
        """Add a tensor that belongs to the network."""
        name = self.free_name(path)
        put_tensor(self.root, name, copied(tensor))
        return self.proxy(self.graph.get_attr(name))

    def finish(self) -> fx.GraphModule:
        """The finished network."""
        self.graph.lint()
        return fx.GraphModule(self.root, self.graph, "Plain").eval()

    def free_name(self, path: str) -> str:
        """A name like the path that no layer or tensor has yet."""
        name = path.replace(".", "_") or "layer"
        name = name if name.isidentifier() else f"layer_{name}"
        return free_name(name, lambda taken: hasattr(self.root, taken))

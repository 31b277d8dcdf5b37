"""The plain network, while it is written."""

from typing import Any

from torch import Tensor, fx, nn

from quarterturn.graph.writing import copied, free_name, put_tensor


class PlainWriter:
    """What the rules of `to_plain` write into: torch's layers, and functions of proxies."""

    def __init__(self, dynamic: bool) -> None:
        self.dynamic = dynamic  # maps of any size are to go through
        self.root, self.graph = nn.Module(), fx.Graph()
        self.tracer = fx.proxy.GraphAppendingTracer(self.graph)

    def proxy(self, node: fx.Node) -> Any:
        """A stand-in for a tensor: what is done with it is written down."""
        return fx.Proxy(node, self.tracer)

    def layer(self, path: str, module: nn.Module, proxy: Any) -> Any:
        """Write down a layer."""
        name = self._free_name(path.replace(".", "_") or "layer")
        self.root.add_module(name, module)
        return self.proxy(self.graph.call_module(name, (proxy.node,)))

    def constant(self, path: str, tensor: Tensor) -> Any:
        """Write down a tensor of the network itself."""
        name = self._free_name(path.replace(".", "_"))
        put_tensor(self.root, name, copied(tensor))
        return self.proxy(self.graph.get_attr(name))

    def finish(self) -> fx.GraphModule:
        """The network that was written."""
        self.graph.lint()
        return fx.GraphModule(self.root, self.graph, "Plain").eval()

    def _free_name(self, name: str) -> str:
        name = name if name.isidentifier() else f"layer_{name}"
        return free_name(name, lambda taken: hasattr(self.root, taken))

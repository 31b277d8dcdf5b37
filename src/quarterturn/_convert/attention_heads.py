"""Whether a reshape of the old network makes the heads of attention: what follows tells."""

from collections.abc import Iterator

from torch import fx, nn

from quarterturn.graph.torch_functions import name_of

PRODUCTS = ("matmul", "bmm", "scaled_dot_product_attention", "attended")
TAKES_APART = ("unbind", "getitem", "chunk", "split", "tensor_split", "select", "narrow")
ENDS = ("linear", "conv2d", "softmax", "cat")  # beyond these there are other features
KEEP = (nn.Identity, nn.Dropout, nn.LayerNorm, nn.RMSNorm)
FAR = 60  # nodes that are looked at


def makes_heads(model: nn.Module, node: fx.Node, axes: int) -> bool:
    """Whether features that a node splits into so many axes are heads, and the features of each.

    Of two axes the first may also be queries, keys and values, which are taken apart then.
    """
    if axes < 2 or not any(name_of(user.target) in PRODUCTS for user in _following(model, node)):
        return False
    return axes > 2 or not _is_taken_apart(node)


def _following(model: nn.Module, node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that use what it makes, as long as these are the same features; norms of queries and keys keep them."""
    waiting = list(node.users)
    seen: set[fx.Node] = set()
    while waiting and len(seen) < FAR:
        user = waiting.pop(0)
        if user in seen or user.op == "output":
            continue
        seen.add(user)
        yield user
        name = name_of(user.target)
        if user.op == "call_module":
            kept = isinstance(model.get_submodule(str(user.target)), KEEP)
        else:
            kept = name not in ENDS and name not in PRODUCTS
        waiting += user.users if kept else ()


def _is_taken_apart(node: fx.Node) -> bool:
    for user in node.users:
        if user.op == "call_module":
            continue
        if name_of(user.target) in TAKES_APART or (
            name_of(user.target) in ("permute", "transpose") and _is_taken_apart(user)
        ):
            return True
    return False

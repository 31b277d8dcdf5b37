"""Whether a reshape of the old network makes the heads of attention: what follows tells."""

from collections.abc import Collection, Iterator, Sequence

from torch import fx, nn

from quarterturn.graph.pointwise import is_pointwise
from quarterturn.graph.torch_functions import PERMUTATIONS, name_of, option, permutation

PRODUCTS = ("matmul", "bmm", "scaled_dot_product_attention", "attended")
TAKES_APART = ("unbind", "getitem", "chunk", "split", "tensor_split", "select", "narrow")
ENDS = ("linear", "conv2d", "softmax")  # beyond these there are other features
KEEP = (nn.Identity, nn.Dropout, nn.LayerNorm, nn.RMSNorm, nn.MaxPool2d, nn.AvgPool2d)
FAR = 60  # nodes that are looked at


def makes_heads(
    model: nn.Module, node: fx.Node, axes: Sequence[int], rank: int, known: Collection[fx.Node] = ()
) -> bool:
    """Whether features that a node splits into these axes, of so many, are heads, and the features of each.

    Of two axes the first may also be queries, keys and values, which are taken apart then. Features that meet heads,
    number by number, are such too; `known` has the nodes that have made heads before.
    """
    if len(axes) < 2 or not any(
        name_of(user.target) in PRODUCTS or _meets_heads(node, user, known) for user in _following(model, node)
    ):
        return False
    return len(axes) > 2 or not _is_taken_apart(node, axes[0], rank)


def _meets_heads(node: fx.Node, user: fx.Node, known: Collection[fx.Node]) -> bool:
    """Whether it brings what a node has made together with what others have made, number by number, and these heads."""
    if not is_pointwise(user.target) or len(user.all_input_nodes) < 2:
        return False
    waiting, seen = list(user.all_input_nodes), {node}
    while waiting and len(seen) < FAR:
        before = waiting.pop(0)
        if before in seen:
            continue
        seen.add(before)
        if before in known:
            return True
        keeps = is_pointwise(before.target) or name_of(before.target) in (*PERMUTATIONS, *TAKES_APART)
        waiting += before.all_input_nodes if keeps else ()
    return False


def _following(model: nn.Module, node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that use what it makes, as long as these are the same features; norms of queries and keys keep them."""
    waiting = list(node.users)
    seen: set[fx.Node] = set()
    while waiting and len(seen) < FAR:
        user = waiting.pop(0)
        if user in seen or user.op == "output" or user.target in (getattr, "size"):  # sizes are no features
            continue
        seen.add(user)
        yield user
        name = name_of(user.target)
        if user.op == "call_module":
            kept = _keeps_features(model.get_submodule(str(user.target)))
        else:
            kept = name not in ENDS and name not in PRODUCTS and not _joins_features(user)
        waiting += user.users if kept else ()


def _keeps_features(layer: nn.Module) -> bool:
    """Whether a layer looks at each feature by itself, or normalises them."""
    depthwise = isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels == layer.out_channels
    return depthwise or isinstance(layer, KEEP)


def _joins_features(node: fx.Node) -> bool:
    """Whether tensors are joined along the second or the last axis, where features are; along others, tokens are."""
    if name_of(node.target) not in ("cat", "concat"):
        return False
    return node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0) in (0, 1, -1)


def _is_taken_apart(node: fx.Node, axis: int, rank: int) -> bool:
    """Whether the tensor is taken apart along this axis, perhaps in another order of its axes."""
    for user in node.users:
        name = None if user.op == "call_module" else name_of(user.target)
        if name in TAKES_APART and _where(user, str(name)) in (axis, axis - rank, None):
            return True
        if name in PERMUTATIONS:
            order = permutation(str(name), rank, user.args[1:], user.kwargs)
            if _is_taken_apart(user, order.index(axis), rank):
                return True
    return False


def _where(node: fx.Node, name: str) -> int | None:
    """Along which axis such a call takes a tensor apart; None where it is not told in one number."""
    if name == "getitem":
        return 0 if isinstance(node.args[1], int | slice) else None
    place = 1 if name in ("unbind", "select", "narrow") else 2
    dim = option(node.args, node.kwargs, place, "dim", 0)
    return dim if isinstance(dim, int) else None

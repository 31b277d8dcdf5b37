"""How long a network should take on a CPU: measured rates for what its operators do.

Products (convolutions, matrix products) take their multiply-adds at a rate that depends on the code and on how wide the
layer is. Everything else takes time by the bytes that it reads and writes. Beside that, every call of a layer costs
something. The rates are in `rates.json`, for each class of processors, and made by `bench/rates.py`.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from quarterturn import kernel
from quarterturn.check import in_eval_mode

KERNEL, PRODUCTS, OTHER, CALLS = "the kernel", "torch's products", "other operators", "calls"  # what takes time
FILE = Path(__file__).with_name("rates.json")
Points = Sequence[tuple[float, float]]
MATRIX_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "matmul"}
SIMILAR = {  # operators that are not in the table, and those that take as long
    "relu_": "relu", "clamp_min": "relu", "clamp": "relu", "leaky_relu": "relu", "hardtanh": "relu", "silu_": "silu",
    "relu6": "relu", "none": "copy", "hardswish_": "hardswish", "hardsigmoid": "hardswish", "tanh": "gelu",
    "exp": "sigmoid", "add_": "add", "sub": "add", "mul": "add", "mul_": "add", "div": "add", "clone": "copy",
    "copy_": "copy", "_to_copy": "copy", "cat": "copy", "stack": "copy", "constant_pad_nd": "copy",
    "index_select": "copy", "repeat": "copy", "fill_": "relu", "sum": "mean", "equal": "mean", "var_mean": "mean",
    "amax": "mean", "avg_pool2d": "max_pool2d_with_indices", "_adaptive_avg_pool2d": "mean",
    "native_group_norm": "native_layer_norm", "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
}  # fmt: skip
NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "lift_fresh", "scalar_tensor"}


def estimate(model: nn.Module, examples: Sequence[Tensor]) -> dict[str, float]:
    """What a forward pass in eval mode should take on one thread of this processor: seconds, by what takes them.

    Maps have their features last. The network runs before it is counted, because filters are turned in its first pass
    and kept. On another device than the CPU there is no estimate.

    >>> found = estimate(nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), [torch.zeros(1, 8, 16, 16)])
    >>> found["torch's products"] > 0, found["the kernel"]
    (True, 0.0)
    """
    if any(x.device.type != "cpu" for x in examples):
        return {}
    clock = _Clock(current())
    inputs = [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in examples]
    with in_eval_mode(model), torch.no_grad():
        try:
            model(*(x.clone() for x in inputs))
        except RuntimeError:  # it views its maps as they lie in memory
            inputs = list(examples)
        with _counting_calls(clock):
            model(*(x.clone() for x in inputs))
        again = [x.clone() for x in inputs]
        with clock, kernel.watched(clock.of_kernel):
            model(*again)
    return clock.found


class _Clock(TorchDispatchMode):
    """Adds up what operators, and calls of the kernel, should take."""

    def __init__(self, rates: "Rates") -> None:
        super().__init__()
        self.rates, self.found = rates, dict.fromkeys((KERNEL, PRODUCTS, OTHER, CALLS), 0.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        what, seconds = self.rates.time_of(func, args, kwargs, out)
        self.found[what] += seconds
        return out

    def of_kernel(self, name: str, tensors: tuple[Tensor | None, ...]) -> None:
        there = [t for t in tensors if t is not None]
        if name == "convolve":
            self.found[KERNEL] += self.rates.time_of_product(*_of_kernel(there[1], there[-1]))
            return
        moved = sum(map(_bytes, there))
        within = name.removeprefix("within ")  # an activation in the same pass: what it takes beyond moving the bytes
        spared = self.rates.time_of_bytes("copy", moved) if within != name else 0.0
        self.found[OTHER] += max(0.0, self.rates.time_of_bytes(within, moved) - spared)


@contextmanager
def _counting_calls(clock: _Clock) -> Iterator[None]:
    """Add what calls of layers cost beside their operators; where someone looks, layers run one by one."""

    def called(module: nn.Module, *_: Any) -> None:
        ours = type(module).__module__.startswith("quarterturn.") and hasattr(module, "execution")
        clock.found[CALLS] += clock.rates.layers["ours" if ours else "torch"]

    hook = nn.modules.module.register_module_forward_pre_hook(called)
    try:
        yield
    finally:
        hook.remove()


@dataclass(frozen=True)
class Rates:
    """What was measured on one class of processors."""

    name: str
    products: dict[str, Points]  # multiply-adds in a second, by the width of the layer
    operators: dict[str, Points]  # seconds, by bytes
    layers: dict[str, float]  # seconds of a call, beside its operators: of torch's layers, and of ours

    def time_of(self, func: Any, args: Any, kwargs: Any, out: Any) -> tuple[str, float]:
        """What an operator of torch is called in the estimate, and its seconds."""
        name = func._overloadpacket.__name__
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        outputs = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        unseen = func.namespace == "quarterturn"  # the kernel reports its calls
        if name in NOTHING or func.is_view or unseen or (not outputs and name != "equal"):
            return OTHER, 0.0
        product = _product(name, args, outputs[0]) if outputs else None
        if product is not None:
            return PRODUCTS, self.time_of_product(*product)
        known = SIMILAR.get(name, name)
        if known == "copy" and any(t.dim() > 3 and t.stride() != outputs[0].stride() for t in tensors):
            known = "copy to another layout"
        return OTHER, self.time_of_bytes(known, sum(map(_bytes, tensors)) + sum(map(_bytes, outputs)))

    def time_of_product(self, kind: str, multiply_adds: float, width: float) -> float:
        return multiply_adds / rate_at(self.products.get(kind, self.products["convolution"]), width)

    def time_of_bytes(self, name: str, moved: float) -> float:
        return time_at(self.operators.get(SIMILAR.get(name, name), self.operators["add"]), moved)


def _of_kernel(weight: Tensor, out: Tensor) -> tuple[str, float, float]:
    """The kind of a convolution of the kernel, its multiply-adds as defined, and how many maps it has."""
    kind = f"kernel{' 1x1' if weight[0, 0].numel() == 1 else ''}, {out.shape[1] // weight.shape[0]} orientations"
    return kind, float(out.numel() * weight[0].numel()), math.sqrt(out.shape[1] * weight.shape[1])


def _product(name: str, args: Any, out: Tensor) -> tuple[str, float, float] | None:
    """The kind of a product, its multiply-adds, and the width of the layer; None for other operators."""
    if name == "convolution":
        x, weight, transposed, groups = args[0], args[1], args[6], args[8]
        multiply_adds = float((x if transposed else out).numel() * weight[0].numel())
        if groups > 1 and weight.shape[1] == 1:
            return "depthwise", multiply_adds, float(weight.shape[2:].numel())
        width = math.sqrt(weight.shape[0] / groups * weight.shape[1])
        kind = "1x1 convolution" if weight.shape[2:].numel() == 1 else "convolution"
        return kind, multiply_adds, width
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        query, key = args[:2]
        multiply_adds = float(query.numel() * key.shape[-2] + out.numel() * key.shape[-2])
        return "dense", multiply_adds, (query.shape[-2] * key.shape[-2] * query.shape[-1]) ** (1 / 3)
    if name in MATRIX_PRODUCTS:
        left, right = [t for t in args if isinstance(t, Tensor)][-2:]
        multiply_adds = float(out.numel() * left.shape[-1])
        return "dense", multiply_adds, (left.shape[-2] * left.shape[-1] * right.shape[-1]) ** (1 / 3)
    return None


def _bytes(tensor: Tensor) -> int:
    """What is read or written of a tensor; an expanded one is read as it is stored."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def rate_at(points: Points, width: float) -> float:
    """A rate between measured ones, along straight lines of logarithms; beyond them that of the nearest.

    >>> round(rate_at([(1, 1), (100, 10)], 10), 2), rate_at([(1, 1), (100, 10)], 1000)
    (3.16, 10)
    """
    if width <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if width <= x1:
            return math.exp(math.log(y0) + math.log(width / x0) / math.log(x1 / x0) * math.log(y1 / y0))
    return points[-1][1]


def time_at(points: Points, moved: float) -> float:
    """A time between measured ones; beyond them in proportion, and never less than the shortest, which is a call.

    >>> time_at([(1, 2), (100, 10)], 0), time_at([(1, 2), (100, 10)], 200)
    (2, 20.0)
    """
    last, seconds = points[-1]
    return seconds * moved / last if moved > last else rate_at(points, moved)


@lru_cache(maxsize=1)
def current() -> Rates:
    """The rates of this processor, or of the class that is nearest to it."""
    table = json.loads(FILE.read_text())
    capability = torch.backends.cpu.get_cpu_capability().lower()
    name = capability if capability in table else "avx2"
    return Rates(name, **table[name])

"""Roll, slice, stack and pool mean, forward and backward, against the naive form and a copy of the same bytes.

    python bench/ops.py [--repeats 15] [--threads 2]

`of naive` is the time relative to rot90 + cat, `of copy` relative to `out.copy_(src)` of the larger side's bytes. One
thread: CPU time; more: wall time.
"""

import time
from collections.abc import Callable

import torch
from harness import medians, run
from torch import Tensor

import quarterturn as qt
from quarterturn import C4

PLANES, LAST = torch.contiguous_format, torch.channels_last
INPUTS = (
    ((64, 32, 95, 95), PLANES),
    ((256, 128, 24, 24), PLANES),
    ((128, 256, 12, 12), PLANES),
    ((64, 32, 95, 95), LAST),
    ((256, 128, 24, 24), LAST),
    ((128, 256, 12, 12), LAST),
    ((128, 16, 4, 4), LAST),
    ((128, 256), PLANES),  # dense
)


def turned(x: Tensor, times: int) -> Tensor:
    return x if x.dim() == 2 else torch.rot90(x, -times, (2, 3))


def naive_slice(x: Tensor) -> Tensor:
    return torch.cat([turned(x, g) for g in range(4)])


def naive_stack(x: Tensor, first: int = 0) -> Tensor:
    parts = x.chunk(4)
    return torch.stack([turned(parts[(first + g) % 4], -g) for g in range(4)], dim=2).flatten(1, 2)


def naive_roll(x: Tensor) -> Tensor:
    return torch.cat([naive_stack(x, h) for h in range(4)])


def naive_pool(x: Tensor) -> Tensor:
    return torch.stack([turned(part, -g) for g, part in enumerate(x.chunk(4))]).mean(0)


OPERATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "roll": (lambda x: qt.roll(x, C4), naive_roll),
    "slice": (lambda x: qt.slice(x, C4), naive_slice),
    "stack": (lambda x: qt.stack(x, C4), naive_stack),
    "pool mean": (lambda x: qt.pool(x, C4), naive_pool),
}


def backward(operation: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    x = x.clone().requires_grad_()
    y = operation(x)
    gradient = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, x, gradient, retain_graph=True)


def measure(repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for shape, memory_format in INPUTS:
        for name, (ours, naive) in OPERATIONS.items():
            x = torch.randn(shape).contiguous(memory_format=memory_format)
            y = ours(x)
            torch.testing.assert_close(y, naive(x))
            source = torch.randn_like(max(x, y, key=torch.numel))
            target = torch.empty_like(source)
            contenders: dict[str, Callable[[], object]] = {
                "copy": lambda target=target, source=source: target.copy_(source),  # type: ignore[misc]
                "naive forward": lambda x=x, naive=naive: naive(x),  # type: ignore[misc]
                "ours forward": lambda x=x, ours=ours: ours(x),  # type: ignore[misc]
                "naive backward": backward(naive, x),
                "ours backward": backward(ours, x),
            }
            clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
            seconds = medians(contenders, repeats, clock)
            for direction in ("forward", "backward"):
                mine, theirs = seconds[f"ours {direction}"], seconds[f"naive {direction}"]
                rows.append(
                    {
                        "operation": name,
                        "input": "x".join(map(str, shape)),
                        "features last": "yes" if memory_format == LAST or len(shape) == 2 else "no",
                        "direction": direction,
                        "threads": torch.get_num_threads(),
                        "of naive": round(mine / theirs, 2),
                        "of copy": round(mine / seconds["copy"], 2),
                        "naive of copy": round(theirs / seconds["copy"], 2),
                    }
                )
    return rows


if __name__ == "__main__":
    run("ops", __doc__, measure, repeats=15, threads=(1, 2))

"""What grows how: a training step of the lab's residual network against group, width, side, and two processes.

    python bench/scale.py [--repeats 7]

`ms an image` is CPU time of forward and backward with one thread. `kept MB an image` is what the backward pass needs of
an image; `gradients MB` is what each process sends and receives in a step, whatever the batch, and `statistics KB` what
synchronised batch norms add. `two processes` is the shortest wall time of a step of two processes (gloo) that share the
batch, relative to one process with all of it; it needs two idle cores (CPU time would count their waiting, too). `loss
differs` is the largest relative difference of their losses in the first steps.
"""

import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import Rows, medians, run
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import quarterturn as qt
from quarterturn_lab.models.build import build, initialise
from quarterturn_lab.settings.networks import PLANKTON, edited, resized

BATCH = 16
ROWS = {"none": "residual-plain", "C4": "residual-c4", "D4": "residual-d4"}
# Group, maps of the first stage in all orientations, side.
SIZES = (
    ("none", 32, 64), ("C4", 32, 64), ("D4", 32, 64),
    ("C4", 64, 64), ("D4", 64, 64),
    ("C4", 32, 32), ("C4", 32, 128), ("D4", 32, 128),
)  # fmt: skip
TOGETHER = (("none", 32, 64), ("D4", 32, 64))  # those that are timed in two processes, too
STEPS = 4


def network(group: str, width: int, side: int) -> nn.Module:
    torch.manual_seed(0)
    net = replace(resized(edited(PLANKTON, ROWS[group]), width, 1), channels=1, side=side, stem_stride=2)
    made = build(net, "filters" if group != "none" else "maps")
    initialise(made, 0, 0.1)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def step(net: nn.Module, x: Tensor, y: Tensor) -> float:
    net.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    return loss.item()


def kept(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """MB that the backward pass needs of each image."""
    sizes: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}

    def see(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(net(x), y)
    del loss
    return sum(sizes.values()) / len(y) / 1e6


def batch(side: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH, 1, side, side), torch.arange(BATCH) % 121


def losses_and_time(rank: int, world: int, folder: str, size: tuple[str, int, int], repeats: int) -> None:
    """One of `world` processes: the losses of some steps of SGD, and the shortest wall time of a step."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)
    bare = network(*size)
    net = DistributedDataParallel(qt.sync_batch_norm(bare)) if world > 1 else bare
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x, y = (t.chunk(world)[rank] for t in batch(size[2]))
    found, seconds = [], []
    for number in range(STEPS + repeats):
        distributed.barrier()
        start = time.perf_counter()
        value = torch.tensor(step(net, x, y))
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        distributed.all_reduce(value)
        if number < STEPS:
            found.append(float(value) / world)
    if rank == 0:
        torch.save((found, min(seconds)), Path(folder) / f"{world}")
    distributed.destroy_process_group()


def together(size: tuple[str, int, int], repeats: int) -> tuple[float, float]:
    """The time of two processes relative to one, and the largest relative difference of losses."""
    found: dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for world in (1, 2):
            multiprocessing.spawn(losses_and_time, (world, folder, size, repeats), nprocs=world)
            found[world] = torch.load(Path(folder) / f"{world}")
    (one, time_1), (two, time_2) = found[1], found[2]
    return time_2 / time_1, max(abs(a - b) / a for a, b in zip(one, two, strict=True))


def measure(repeats: int) -> Rows:
    rows: Rows = []
    for group, width, side in SIZES:
        net, (x, y) = network(group, width, side).train(), batch(side)

        def once(net: nn.Module = net, x: Tensor = x, y: Tensor = y) -> float:
            return step(net, x, y)

        seconds = medians({"": once}, repeats, time.process_time)[""]
        norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        features = sum(len(m.weight) for m in norms)
        both = together((group, width, side), 10 * repeats) if (group, width, side) in TOGETHER else None
        rows.append(
            {
                "group": group,
                "width": width,
                "side": side,
                "ms an image": round(1000 * seconds / BATCH, 2),
                "kept MB an image": round(kept(net, x, y), 2),
                "gradients MB": round(sum(p.numel() for p in net.parameters()) * 4 / 1e6, 3),
                "statistics KB": round((4 * features + len(norms)) * 4 / 1e3, 2),
                "two processes": round(both[0], 2) if both else "",
                "loss differs": f"{both[1]:.0e}" if both else "",
            }
        )
    return rows


if __name__ == "__main__":
    run("scale", __doc__, measure, repeats=7)

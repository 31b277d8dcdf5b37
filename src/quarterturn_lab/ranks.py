"""Several processes that train one network together, started by torchrun, by Slurm or by `launch`.

One of them, rank 0, runs the command: it plans, prints and writes. The others wait for it and run what is marked as
`together`, with the same arguments. Inside such a function each has its share of the work; outside, rank 0 is alone.
"""

import functools
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quarterturn_lab import stopping
from quarterturn_lab.errors import ConfigError, Diverged, LabError, Lost, RunError

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

Value = TypeVar("Value")
# How long the others wait for rank 0, which may decode all images first. Processes that end are noticed at once.
PATIENCE = timedelta(hours=12)
LOST = 3  # the exit code of a process whose others have ended


class NeedsProcesses(Exception):
    """The command was given --devices, and has to be started again in that many processes."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


@dataclass
class Team:
    """The processes of a run, from the view of one of them."""

    rank: int
    world: int
    local_rank: int
    local_world: int  # processes on this machine
    cluster: Any  # Fabric's view of who started them
    sharing: bool = False  # inside a function that all run
    broken: bool = False  # such a function has failed: the others do not listen


_team: Team | None = None


def rank() -> int:
    """The number of this process among those that share the work at hand."""
    return _team.rank if _team and _team.sharing else 0


def world() -> int:
    """The number of processes that share the work at hand."""
    return _team.world if _team and _team.sharing else 1


def team() -> Team | None:
    """The processes of this command; None if it is one."""
    return _team


# --- beginning --------------------------------------------------------------------------------------------------------


@contextmanager
def leading(devices: int = 1) -> Iterator[bool]:
    """Whether this process runs the command. The others have done their part when this returns."""
    global _team
    if devices < 1:
        raise ConfigError(f"--devices {devices}: give the number of processes or GPUs that share each batch, 1 or more")
    found = _find_team()
    if found is None:
        if devices > 1:
            _check_gpus(devices)
            raise NeedsProcesses(devices)
        yield True
        return
    if devices not in (1, found.world):
        raise ConfigError(f"--devices {devices}, but {found.world} processes were started: leave --devices out")
    _join(found)
    _team = found
    try:
        if found.rank:
            try:
                _follow(found)
            except stopping.Stopped as stop:  # rank 0 says so
                found.broken = True
                sys.exit(stop.code)
            yield False
        else:
            try:
                yield True
            finally:
                if not found.broken:
                    _tell(None)
    finally:
        _team = None
        if not found.broken:
            from torch import distributed

            distributed.destroy_process_group()


def _find_team() -> Team | None:
    """The processes that torchrun or Slurm has started, if this is one of several."""
    given = os.environ
    if "TORCHELASTIC_RUN_ID" in given:
        from lightning_fabric.plugins.environments import TorchElasticEnvironment

        elastic = TorchElasticEnvironment()
        local = int(given["LOCAL_WORLD_SIZE"])
        found = Team(elastic.global_rank(), elastic.world_size(), elastic.local_rank(), local, elastic)
        return found if found.world > 1 else None
    tasks = int(given.get("SLURM_NTASKS", "1"))
    if tasks == 1 or given.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    if "SLURM_STEP_ID" not in given:
        raise ConfigError(
            f"this Slurm job has {tasks} tasks, and the command was not started by srun: write `srun quarterturn ...`"
        )
    if "SLURM_NTASKS_PER_NODE" not in given:
        raise ConfigError("start tasks with `srun --ntasks-per-node N`: each machine needs the same number of them")
    from lightning_fabric.plugins.environments import SLURMEnvironment

    slurm = SLURMEnvironment()
    local = tasks // int(given.get("SLURM_NNODES", "1"))
    return Team(slurm.global_rank(), slurm.world_size(), slurm.local_rank(), local, slurm)


def _check_gpus(devices: int) -> None:
    import torch

    if torch.cuda.is_available() and devices > torch.cuda.device_count():
        raise ConfigError(
            f"--devices {devices}, and this machine has {torch.cuda.device_count()} GPUs: give as many or fewer, or "
            "start the command on several machines with torchrun or srun"
        )


def _join(found: Team) -> None:
    """Connect to the others."""
    import logging
    import warnings

    import torch
    from torch import distributed

    for message in ("Grad strides do not match bucket view strides", "find_unused_parameters=True was specified"):
        warnings.filterwarnings("ignore", message)  # hints of DDP about speed
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    # Objects travel by gloo in any case; gradients of GPUs by nccl.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = found.cluster.main_address, str(found.cluster.main_port)
    try:
        store, _, _ = next(distributed.rendezvous("env://", found.rank, found.world, timeout=PATIENCE))
        # torchrun keeps its store for a restart, in which the addresses of killed processes are still found.
        store = distributed.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        distributed.init_process_group(backend, timeout=PATIENCE, world_size=found.world, rank=found.rank, store=store)
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"process {found.rank} of {found.world} cannot reach the others ({str(error).splitlines()[0]}): check "
            "MASTER_ADDR, MASTER_PORT and, for gloo, GLOO_SOCKET_IFNAME"
        ) from None


def where(found: Team) -> dict[str, Any]:
    """What Fabric has to know about the processes."""
    return {
        "devices": found.local_world,
        "num_nodes": found.world // found.local_world,
        "plugins": [found.cluster],
    }


def launch(count: int, function: Callable[..., Any], *arguments: Any) -> int:
    """Call a function in so many processes of this machine, by torch's elastic agent; returns the exit code."""
    import logging

    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.CRITICAL)  # the agent repeats in many lines what the process has said in one
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=f"quarterturn-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    try:
        elastic_launch(settings, function)(*arguments)
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            raise RunError(
                f"process {number} of {count} was killed ({name}): run the same command again to resume"
            ) from None
        return failure.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    finally:
        logging.disable(logging.NOTSET)
    return 0


def tell_torchrun(message: str) -> None:
    """Leave a message for torchrun, which shows it as the root cause below its traceback; else nothing happens."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not os.path.exists(path):
        found = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            Path(path).write_text(json.dumps({"message": found}))


# --- working together -------------------------------------------------------------------------------------------------


def together(function: Callable[..., Value]) -> Callable[..., Value]:
    """Mark a function of a module that all processes run at once. Rank 0 calls it.

    Positional arguments are sent to the others. Keyword arguments stay with rank 0, such as where to show progress.
    """

    @functools.wraps(function)
    def call(*shared: Any, **own: Any) -> Value:
        if _team is None or _team.sharing:
            return function(*shared, **own)
        _tell((function.__module__, function.__name__, shared))
        return _together(_team, functools.partial(function, *shared, **own))

    return call


def _together(found: Team, work: Callable[[], Value]) -> Value:
    found.sharing = True
    try:
        return work()
    except BaseException as error:
        found.broken = True
        if isinstance(error, RuntimeError) and _is_lost(error):
            raise Lost(
                "another process of this run has ended. The last checkpoint is kept: run the same command again to "
                "resume"
            ) from None
        raise
    finally:
        found.sharing = False


def _is_lost(error: RuntimeError) -> bool:
    """Whether an error says that another process cannot be reached any more."""
    from torch import distributed

    return isinstance(error, distributed.DistError) or "gloo" in str(error).lower()


def _tell(job: tuple[str, str, tuple[Any, ...]] | None) -> None:
    from torch import distributed

    distributed.broadcast_object_list([job], 0)


def _follow(found: Team) -> None:
    """Run what rank 0 asks for, until it has no more."""
    from torch import distributed

    from quarterturn.errors import QuarterturnError

    while True:
        job: list[Any] = [None]
        try:
            distributed.broadcast_object_list(job, 0)
        except RuntimeError as error:
            found.broken = True
            if _is_lost(error):
                sys.exit(LOST)
            raise
        if job[0] is None:
            return
        module, name, shared = job[0]
        function = getattr(importlib.import_module(module), name)
        try:
            _together(found, functools.partial(function.__wrapped__, *shared))
        except (Diverged, ConfigError, QuarterturnError):  # of the settings or the loss: rank 0 says the same
            sys.exit(2)
        except LabError as error:
            if isinstance(error.__context__, RuntimeError) and _is_lost(error.__context__):
                sys.exit(LOST)
            raise RunError(f"process {found.rank} of {found.world}: {error}") from None


def agreed(value: Value) -> Value:
    """Rank 0's value, for all: what depends on the clock of a process must not differ between them."""
    if world() == 1:
        return value
    from torch import distributed

    held = [value]
    distributed.broadcast_object_list(held, 0)
    return held[0]


def gathered(value: Value) -> list[Value]:
    """The values of all processes, on rank 0; the others get an empty list."""
    if world() == 1:
        return [value]
    from torch import distributed

    found: list[Any] | None = [None] * world() if rank() == 0 else None
    distributed.gather_object(value, found)
    return found or []


def summed(value: "Tensor") -> "Tensor":
    """The sum over all processes, in place."""
    if world() > 1:
        from torch import distributed

        distributed.all_reduce(value)
    return value


@contextmanager
def first_on_each_machine() -> Iterator[None]:
    """One process of each machine goes first: what it leaves on the disk, the others find."""
    if world() == 1:
        yield
        return
    from torch import distributed

    assert _team is not None
    if _team.local_rank:
        distributed.barrier()
    yield
    if not _team.local_rank:
        distributed.barrier()

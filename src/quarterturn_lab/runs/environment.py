"""The machine of a run: its device, its description, and known faults."""

import functools
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from quarterturn_lab import ranks
from quarterturn_lab.data.dataset import Data
from quarterturn_lab.errors import RunError
from quarterturn_lab.settings.config import Config

CPUINFO = Path("/proc/cpuinfo")
# On some processors with AMX, bf16 matrix products of torch 2.13 crash with an illegal instruction. Without AMX they
# work.
WITHOUT_AMX = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x, x[0])"


def describe(config: Config, data: Data, device: torch.device) -> dict[str, Any]:
    """Versions, hardware and data of a run, for environment.json."""
    return {
        "quarterturn": version("quarterturn"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": config.threads,
        "processes": ranks.world(),
        "batch_images": config.batch_images,
        "batch_pathways": config.batch_images * config.net.pathways,
        "classes": list(data.classes),
        "data": data.fingerprint,
        "skipped": list(data.bad),
    }


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is the GPU if there is one, else the CPU. Each process has its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and (team := ranks.team()):
        name = f"cuda:{team.local_rank}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RunError(f"device {name!r} cannot be used ({str(error).splitlines()[0]}): use --device cpu") from None
    return device


def processor() -> str:
    """The name of this machine's processor, if the system reports one."""
    try:
        lines = CPUINFO.read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@functools.cache
def bf16_fault() -> str | None:
    """What to do if bf16 matrix products crash on this machine; None if they work.

    They are tried in a separate process, and only on processors with AMX.
    """
    try:
        if "amx_bf16" not in CPUINFO.read_text():
            return None
    except OSError:
        return None
    if subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, check=False).returncode >= 0:
        return None
    return f"bf16 matrix products of torch crash on this processor: set {'='.join(WITHOUT_AMX)} before starting"

"""What a run ran on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from quarterturn_lab.config import Config
from quarterturn_lab.data.dataset import Data


def environment(config: Config, data: Data, device: torch.device) -> dict[str, Any]:
    """What the run ran on, and the numbers that follow from its settings."""
    return {
        "quarterturn": version("quarterturn"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": config.threads,
        "batch_images": config.batch_images,
        "batch_pathways": config.batch_images * config.net.pathways,
        "classes": list(data.classes),
        "data": data.fingerprint,
        "skipped": list(data.bad),
    }


def processor() -> str:
    """The name of this machine's processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

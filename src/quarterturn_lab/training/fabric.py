"""Lightning Fabric for a run: its device, its precision, and how many processes share a batch."""

from inspect import signature
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from quarterturn_lab import ranks
from quarterturn_lab.settings.config import Config

# torch 2.13 has renamed it.
SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in signature(DistributedDataParallel).parameters
)
NAMES: dict[str, Literal["bf16-mixed", "16-mixed"]] = {"bf16": "bf16-mixed", "fp16": "16-mixed"}


class _Mixed(MixedPrecision):
    """Fabric's mixed precision, but inputs stay float32, fp16 runs on CPUs too, and fused optimisers can be clipped."""

    def convert_input(self, data: Any) -> Any:
        return data

    def unscale_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)


def fabric_for(config: Config, device: torch.device) -> Fabric:
    """Fabric on this device, for the processes that share the work: alone, or data-parallel (DDP)."""
    mixed = [_Mixed(NAMES[config.precision], device.type)] if config.precision in NAMES else []
    team = ranks.team()
    if team is None or ranks.world() == 1:
        devices = 1 if device.index is None else [device.index]
        # Named, because Fabric would take any Slurm job for one that it shares with others.
        return Fabric(accelerator=device.type, devices=devices, plugins=[LightningEnvironment(), *mixed])
    # Networks of others may have parameters without a gradient. Statistics of batch norms are equal everywhere.
    theirs = config.backbone is not None or config.factory is not None
    options: dict[str, Any] = {SYNC_BUFFERS: False, "find_unused_parameters": theirs}
    settings = ranks.where(team)
    settings["plugins"] += mixed
    fabric = Fabric(accelerator=device.type, strategy=DDPStrategy(**options), **settings)
    fabric.launch()
    return fabric

"""Lightning Fabric for a run: its device, its precision, and how many processes share a batch."""

from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from quarterturn_lab.settings.config import Config

NAMES: dict[str, Literal["bf16-mixed", "16-mixed"]] = {"bf16": "bf16-mixed", "fp16": "16-mixed"}


class _Mixed(MixedPrecision):
    """Fabric's mixed precision, but inputs stay float32, fp16 runs on CPUs too, and fused optimisers can be clipped."""

    def convert_input(self, data: Any) -> Any:
        return data

    def unscale_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)


def fabric_for(config: Config, device: torch.device) -> Fabric:
    """One process on this device."""
    mixed = _Mixed(NAMES[config.precision], device.type) if config.precision in NAMES else None
    return Fabric(accelerator=device.type, devices=1 if device.index is None else [device.index], plugins=mixed)

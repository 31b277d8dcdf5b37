"""A run that takes a second: a small network on a few synthetic images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from quarterturn_lab.config import Config, checked
from quarterturn_lab.nets import Net, edited

torch.set_num_threads(1)  # small networks: more threads only wait for each other

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
TINY = Net(channels=1, side=15, stages=((8, 8), (8, 8)), hidden=(16, 16), outputs=10, dropout=0.2)
TINY_MAPS = Net(
    channels=2,
    side=14,
    stages=((8, 8, 8),),
    hidden=(16,),
    outputs=2,
    kernel=5,
    same=False,
    pooled=False,
    head="conv",
    dropout=0.0,
)


def tiny(row: str = "baseline", net: dict[str, Any] | None = None, **options: Any) -> Config:
    settings: dict[str, Any] = {
        "experiment": "synthetic",
        "row": row,
        "loader": "synthetic",
        "net": edited(TINY, row, **(net or {})),
        "train_size": 60,
        "epochs": 3,
        "batch": 20,
        "divide_batch": False,
        "eval_points": 2,
        "eval_train": 50,
        "augment": {"flip": False},
    }
    return checked({**settings, **options})


def class_folders(root: Path, count: int = 12, classes: tuple[str, ...] = ("ant", "bee"), suffix: str = "png") -> Path:
    """Folders of grey images of several sizes."""
    rng = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (10 + i, 14), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.{suffix}")
    return root

"""Networks of others need torchvision, whose compiled part does not load beside a torch without CUDA."""

import torch

collect_ignore_glob = []
try:
    import torchvision  # noqa: F401
except ModuleNotFoundError:
    collect_ignore_glob = ["*"]  # these tests are for the environment that `make test-timm` makes
except RuntimeError:  # operator torchvision::nms does not exist: name it, nothing here calls it
    library = torch.library.Library("torchvision", "FRAGMENT")  # gone with the names when nothing refers to it
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

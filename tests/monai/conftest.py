"""These tests are for the environment that `make test-monai` makes, in which there are networks for volumes."""

from importlib.util import find_spec

collect_ignore_glob = []
if find_spec("monai") is None or find_spec("torchvision") is None:
    collect_ignore_glob = ["*"]
else:
    from quarterturn_lab.models.libraries import library

    library("torchvision")  # names the operators that it asks for beside a torch without CUDA

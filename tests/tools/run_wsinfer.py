"""Runs in .venv-tools: `python run_wsinfer.py MODEL_FOLDER SLIDES RESULTS` does what `wsinfer run` does.

The command itself asks the Hugging Face hub for its list of models before it reads any option, so that it needs a
network; the functions behind it do not.
"""

import json
import sys
from pathlib import Path

import torch

# torchvision of the package index does not load beside a torch without CUDA: these two have no name there.
operators = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    operators.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from wsinfer.modellib.models import LocalModelTorchScript  # noqa: E402
from wsinfer.modellib.run_inference import run_inference  # noqa: E402
from wsinfer.patchlib import segment_and_patch_directory_of_slides  # noqa: E402
from wsinfer_zoo.client import ModelConfiguration  # noqa: E402

folder, slides, results = map(Path, sys.argv[1:])
config = ModelConfiguration.from_dict(json.loads((folder / "config.json").read_text()))
model = LocalModelTorchScript(config=config, model_path=str(folder / "torchscript_model.pt"))
segment_and_patch_directory_of_slides(
    wsi_dir=slides,
    save_dir=results,
    patch_size_px=config.patch_size_pixels,
    patch_spacing_um_px=config.spacing_um_px,
    min_object_size_um2=1000.0,
)
failed = run_inference(wsi_dir=slides, results_dir=results, model_info=model, batch_size=4, num_workers=0)
assert failed == ([], []), failed

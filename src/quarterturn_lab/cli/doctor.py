"""The command `doctor`: what is installed, what this machine can do, and how to install what is missing."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version

NEEDED = (
    "quarterturn",
    "torch",
    "numpy",
    "cyclopts",
    "pydantic",
    "rich",
    "safetensors",
    "matplotlib",
    "jinja2",
    "pillow",
    "scipy",
    "lightning-fabric",
    "tomlkit",
)
EXTRAS = {
    "onnx": 'pip install "quarterturn[onnx]", for export',
    "onnxscript": 'pip install "quarterturn[onnx]", for export',
    "onnxruntime": 'pip install "quarterturn[onnx]", for export and predict --onnx',
    "astropy": 'pip install "quarterturn[fits]", for FITS images',
    "tifffile": 'pip install "quarterturn[tiff]", for TIFF images with many channels',
    "tensorboard": 'pip install "quarterturn[tensorboard]", for --tensorboard',
    "gradio": 'pip install "quarterturn[play]", for play',
}


def doctor() -> bool:
    """Print one line for each item; True if nothing required is missing."""
    import torch

    import quarterturn as qt
    from quarterturn_lab.data import cache
    from quarterturn_lab.runs.environment import bf16_fault

    good = True

    def say(fine: bool, name: str, text: str, needed: bool = True) -> None:
        nonlocal good
        good = good and (fine or not needed)
        print(f"{'ok ' if fine else '-- ' if not needed else 'BAD'}  {name:<14} {text}")

    say(sys.version_info >= (3, 10), "python", platform.python_version())
    for name in NEEDED:
        found = _version(name)
        say(found is not None, name, found or 'missing: pip install "quarterturn[lab]"')
    for name, fix in EXTRAS.items():
        found = _version(name)
        say(found is not None, name, found or f"not installed: {fix}", needed=False)
    cores = os.cpu_count() or 1
    say(True, "processor", f"{cores} cores, {torch.backends.cpu.get_cpu_capability()}")
    chosen = qt.kernels()
    say(chosen.path is not None, "kernel", f"{chosen.code}: {chosen.why}", needed=False)
    say(bf16_fault() is None, "bf16", bf16_fault() or "matrix products work", needed=False)
    cuda = torch.cuda.is_available()
    say(cuda, "gpu", torch.cuda.get_device_name() if cuda else "none: runs use the CPU", needed=False)
    folder = cache.root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable, text = os.access(folder, os.W_OK), f"{folder}, {shutil.disk_usage(folder).free / 1e9:.1f} GB free"
    except OSError as error:
        writable, text = False, f"{folder}: {error}; set QUARTERTURN_CACHE to another folder"
    say(writable, "cache", text)
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    say(browser is not None, "browser", browser or "no chromium: the test of the report is skipped", needed=False)
    from quarterturn_lab.models.build import build
    from quarterturn_lab.settings.networks import PLANKTON, edited

    errors = []
    for rotate in ("maps", "filters"):
        net = build(edited(PLANKTON, "roll-all-quarter", side=17, stages=((8, 8),)), rotate).double()
        errors.append(max(qt.equivariance_error(net, qt.C4, torch.randn(2, 1, 17, 17, dtype=torch.float64)).relative))
    say(max(errors) < 1e-10, "equivariance", f"largest error {max(errors):.1e}, rotating maps and rotating filters")
    return good


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

"""Compile the Fourier kernel while the wheel is built, also for `pip install -e .`; without a compiler, do without."""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelHook(BuildHookInterface):
    """Puts the compiled kernel beside its source, from where the wheel takes it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = _load(Path(self.root) / "src" / "quarterturn" / "kernel" / "compiler.py")
        try:
            build.compile_all()
        except OSError as error:
            for old in build.HERE.glob("_kernel_*.so"):  # of another version, perhaps
                old.unlink()
            self.app.display_warning(f"quarterturn is installed without its kernel and runs through conv2d: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _load(path: Path) -> Any:
    """The module in that file, without the package around it, which needs torch."""
    spec = importlib.util.spec_from_file_location("kernel_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

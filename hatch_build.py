"""Compile the Fourier kernel while the wheel is built, also for `pip install -e .`; without a compiler, do without.

The wheel is tagged py3-none: the kernel is plain C functions that no version of Python knows of.
"""

import importlib.util
import re
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class KernelHook(BuildHookInterface):
    """Puts the compiled kernel beside its source, from where the wheel takes it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = _load(Path(self.root) / "src" / "quarterturn" / "kernel" / "compiler.py")
        try:
            build.compile_all()
        except OSError as error:
            for old in build.HERE.glob("_*.so"):  # of another version, perhaps
                old.unlink()
            self.app.display_warning(f"quarterturn is installed without its kernel and runs through conv2d: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


class ReadmeHook(MetadataHookInterface):
    """Puts the README into the metadata as a package index can show it, where there are no files beside it."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_links_to_files(text)}


def without_links_to_files(text: str) -> str:
    """Markdown with the words of links to files instead of the links, and without pictures from files."""
    text = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def _load(path: Path) -> Any:
    """The module in that file, without the package around it, which needs torch."""
    spec = importlib.util.spec_from_file_location("kernel_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

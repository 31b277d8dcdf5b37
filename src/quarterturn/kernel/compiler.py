"""Compiling the kernel, once for each instruction set. Standard library alone: the build environment has no torch."""

import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "src"
FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Wno-psabi")
AVX2 = ("-mavx2", "-mfma")
AVX512 = (*AVX2, "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mprefer-vector-width=512")
CODES = {"portable": (), "avx2": AVX2, "avx512": AVX512, "avx512bf16": (*AVX512, "-mavx512bf16")}


def compiler() -> str | None:
    """The C++ compiler: $CXX, or the first of c++, g++ and clang++ that is there."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for found in map(shutil.which, names) if found), None)


def file_of(code: str, folder: Path = HERE) -> Path:
    """Where the kernel compiled for that instruction set is."""
    return folder / f"_kernel_{code}.so"


def compile_kernel(code: str, folder: Path = HERE, *flags: str) -> Path:
    """Compile the kernel for one instruction set into the folder; raises OSError where that fails."""
    program = compiler()
    if program is None:
        raise OSError("no C++ compiler found: install g++ or clang++, or name one in CXX")
    path = file_of(code, folder)
    new = path.with_suffix(f".{os.getpid()}.new")  # a running process keeps the file that it has loaded
    command = [program, *FLAGS, *CODES[code], *flags, str(SOURCES / "kernel.cpp"), "-o", str(new)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)} failed:\n{done.stderr}")
    new.replace(path)
    return path


def compile_all(folder: Path = HERE) -> list[Path]:
    """Compile for every instruction set of this machine's kind; what is newer than all sources stays."""
    codes = list(CODES) if platform.machine().lower() in ("x86_64", "amd64") else ["portable"]
    sources = [Path(__file__), *SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]
    changed = max(path.stat().st_mtime for path in sources)

    def make(code: str) -> Path:
        path = file_of(code, folder)
        is_new = path.exists() and path.stat().st_mtime > changed
        return path if is_new else compile_kernel(code, folder)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(make, codes))

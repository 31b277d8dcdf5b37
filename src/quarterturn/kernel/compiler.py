"""Compiling the kernel, once for each instruction set, and telling whether a compiled one fits its sources.

Each compiled file holds a fingerprint of what it was made from. One that holds another is never loaded: it might read
lists of numbers of another layout. Standard library alone: the build environment has no torch.
"""

import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
# Two libraries, each for every instruction set: the C++ file, and all that it is made from.
PARTS = {
    "kernel": ("src/kernel.cpp", ("border.py", "src")),
    "volumes": (
        "src/volumes/volumes.cpp",
        ("volume_border.py", "src/volumes", "src/border.h", "src/threads.h", "src/vectors.h"),
    ),
}
FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Wno-psabi")
AVX2 = ("-mavx2", "-mfma")
AVX512 = (*AVX2, "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mprefer-vector-width=512")
CODES = {"portable": (), "avx2": AVX2, "avx512": AVX512, "avx512bf16": (*AVX512, "-mavx512bf16")}


def compiler() -> str | None:
    """The C++ compiler: $CXX, or the first of c++, g++ and clang++ that is there."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for found in map(shutil.which, names) if found), None)


def codes() -> list[str]:
    """The instruction sets of this machine's kind."""
    return list(CODES) if platform.machine().lower() in ("x86_64", "amd64") else ["portable"]


def file_of(code: str, folder: Path = HERE, part: str = "kernel") -> Path:
    """Where the library compiled for that instruction set is."""
    return folder / f"_{part}_{code}.so"


def fingerprint(code: str, part: str = "kernel") -> str:
    """What a library for that instruction set is made from: C++ sources, the layout of what Python hands it, flags."""
    found = hashlib.sha256(repr((FLAGS, CODES[code])).encode())
    given = [HERE / name for name in PARTS[part][1]]
    folders = ([path] if path.is_file() else sorted([*path.glob("*.cpp"), *path.glob("*.h")]) for path in given)
    for path in [path for paths in folders for path in paths]:
        content = path.read_bytes()
        found.update(f"\n{path.name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def fits(code: str, folder: Path = HERE, part: str = "kernel") -> bool:
    """Whether the library in that folder is there and was made from these sources; the file is read, not loaded."""
    try:
        return f"built from {fingerprint(code, part)}".encode() in file_of(code, folder, part).read_bytes()
    except OSError:
        return False


def compile_kernel(code: str, folder: Path = HERE, *flags: str, part: str = "kernel") -> Path:
    """Compile a library for one instruction set into the folder; raises OSError where that fails."""
    program = compiler()
    if program is None:
        raise OSError("no C++ compiler found: install g++ or clang++, or name one in CXX")
    path = file_of(code, folder, part)
    new = path.with_suffix(f".{os.getpid()}.new")  # a running process keeps the file that it has loaded
    made_from = fingerprint(code, part)
    named = f'-DQUARTERTURN_FINGERPRINT="{made_from}"'
    command = [program, *FLAGS, *CODES[code], named, *flags, str(HERE / PARTS[part][0]), "-o", str(new)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(command)} failed:\n{done.stderr}")
        if fingerprint(code, part) != made_from:
            raise OSError(f"the sources in {SOURCES} changed while they were compiled: compile again")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path


def compile_all(folder: Path = HERE) -> list[Path]:
    """Compile both libraries for every instruction set of this machine's kind; what fits stays.

    One process compiles at a time: others wait and find it done.
    """

    def make(what: tuple[str, str]) -> Path:
        part, code = what
        return file_of(code, folder, part) if fits(code, folder, part) else compile_kernel(code, folder, part=part)

    with _alone_in(folder), ThreadPoolExecutor() as pool:
        return list(pool.map(make, itertools.product(PARTS, codes())))


def is_checkout() -> bool:
    """Whether this is the project's own tree, as after `pip install -e .`, and not an installed package."""
    return (HERE.parent.parent.parent / "hatch_build.py").is_file()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, if this system has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / "_kernel.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, or the process ends
        yield


if __name__ == "__main__":  # python -I compiler.py FOLDER CODE,CODE [FLAG ...]
    _folder, _codes, *_flags = sys.argv[1:]
    _all = itertools.product(PARTS, dict.fromkeys(_codes.split(",")))
    with ThreadPoolExecutor() as _pool:
        list(_pool.map(lambda what: compile_kernel(what[1], Path(_folder), *_flags, part=what[0]), _all))

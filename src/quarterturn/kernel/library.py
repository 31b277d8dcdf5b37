"""Finding and calling the compiled kernel: plain C functions, pointers and sizes."""

import ctypes
import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quarterturn.kernel.compiler import HERE, file_of
from quarterturn.kernel.plan import Plan

CODES = ("portable", "avx2", "avx512", "avx512bf16")  # by the number that quarterturn_processor() gives
PRECISIONS = (torch.float32, torch.bfloat16)  # of maps in memory, by the kernel's number; weights are float32
PAIRS = 2  # the kernel's number for maps in bf16 and products of pairs of such numbers
_log = logging.getLogger("quarterturn")


class Kernels(NamedTuple):
    """What runs the group convolutions on this machine: a name, the file, and why."""

    code: str
    path: str | None
    why: str


def choose(folder: Path = HERE) -> Kernels:
    """The best compiled kernel in the folder that this processor runs."""
    base = file_of("portable", folder)
    if not base.exists():
        return Kernels(
            "conv2d", None, "the kernel is not compiled: install with a C++ compiler (g++ or clang++) present"
        )
    try:
        best = int(ctypes.CDLL(str(base)).quarterturn_processor())
    except OSError as error:
        return Kernels("conv2d", None, f"the kernel does not load: {error}")
    for number in range(best, -1, -1):
        path = file_of(CODES[number], folder)
        if path.exists():
            return Kernels(CODES[number], str(path), f"the processor runs {CODES[best]} code")
    return Kernels("conv2d", None, "no compiled kernel runs on this processor")


@lru_cache(maxsize=1)
def kernels() -> Kernels:
    """Which code runs the group convolutions on CPU, and why.

    >>> kernels().code in (*CODES, "conv2d")
    True
    """
    chosen = choose()
    _log.info("group convolutions on CPU run through %s: %s", chosen.code, chosen.why)
    return chosen


class Library:
    """The kernel's functions, with their arguments in Python's types."""

    def __init__(self, path: str) -> None:
        self._functions = ctypes.CDLL(path)
        size, pointer = ctypes.c_int64, ctypes.c_void_p
        for name, arguments in {
            "packed_size": [pointer, size],
            "pack": [pointer, size, pointer, size, size, pointer, pointer, size, pointer],
            "convolve": [pointer, size, pointer, pointer, pointer, pointer, size, pointer],
            "weight_gradient": [pointer, size, pointer, pointer, size, size, pointer, pointer, pointer, size, pointer],
            "move": [pointer, size, pointer, pointer, size, pointer],
            "fingerprint": [pointer, size],
        }.items():
            function = getattr(self._functions, f"quarterturn_{name}")
            function.argtypes = arguments
            function.restype = size if name in ("packed_size", "fingerprint") else ctypes.c_int
        self._parallel = _torchs_pool()

    def pack(self, plan: Plan, pairs: bool, weight: Tensor, out_stride: int, in_stride: int) -> Tensor:
        precision = PAIRS if pairs else 0
        packed = torch.empty(self._functions.quarterturn_packed_size(plan.numbers, precision))
        data = (weight.data_ptr(), out_stride, in_stride, plan.weight_places, packed.data_ptr())
        self._run("pack", plan.numbers, precision, *data)
        return packed

    def convolve(self, plan: Plan, pairs: bool, x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor) -> None:
        data = (x.data_ptr(), packed.data_ptr(), _pointer(bias), y.data_ptr())
        self._run("convolve", plan.numbers, PAIRS if pairs else PRECISIONS.index(x.dtype), *data)

    def weight_gradient(
        self, plan: Plan, x: Tensor, grad: Tensor, out_stride: int, in_stride: int, weight: Tensor, bias: Tensor | None
    ) -> None:
        data = (
            x.data_ptr(),
            grad.data_ptr(),
            out_stride,
            in_stride,
            plan.weight_places,
            weight.data_ptr(),
            _pointer(bias),
        )
        self._run("weight_gradient", plan.numbers, PRECISIONS.index(x.dtype), *data)

    def move(self, numbers: Sequence[int], features_last: bool, x: Tensor, y: Tensor) -> None:
        self._run("move", (ctypes.c_int64 * len(numbers))(*numbers), features_last, x.data_ptr(), y.data_ptr())

    def fingerprint(self, x: Tensor) -> int:
        """A number that changes with the values."""
        return int(self._functions.quarterturn_fingerprint(x.data_ptr(), x.numel()))

    def _run(self, name: str, *arguments: object) -> None:
        status = getattr(self._functions, f"quarterturn_{name}")(*arguments, torch.get_num_threads(), self._parallel)
        if status:
            raise MemoryError(f"quarterturn's kernel failed in {name} (status {status}): not enough memory")


@lru_cache(maxsize=1)
def library() -> Library | None:
    """The kernel, or None where there is none to run."""
    path = kernels().path
    return None if path is None else Library(path)


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _torchs_pool() -> int | None:
    """The address of GOMP_parallel in the OpenMP library that torch has loaded, so that both share its threads."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    for path in sorted({line.split()[-1] for line in lines if "/libgomp" in line or "/libomp" in line}):
        function = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None

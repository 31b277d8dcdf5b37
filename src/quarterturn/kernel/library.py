"""Finding and calling the compiled kernel: plain C functions, pointers and sizes."""

import ctypes
import logging
import os
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from quarterturn.errors import KernelError, ShapeError
from quarterturn.kernel import border, compiler, volume_border
from quarterturn.kernel.border import Numbers
from quarterturn.kernel.checks import PRECISIONS
from quarterturn.kernel.compiler import HERE, file_of, fits
from quarterturn.kernel.finish import Finish
from quarterturn.kernel.plan import Plan

CODES = tuple(compiler.CODES)  # by the number that quarterturn_processor() gives
PAIRS = 2  # the kernel's number for maps in bf16 and products of pairs of such numbers
FOLDER = "QUARTERTURN_KERNEL"  # names a folder with other compiled kernels, such as those of `make sanitize`
_log = logging.getLogger("quarterturn")


class Kernels(NamedTuple):
    """What runs the group convolutions on this machine: a name, the file, and why."""

    code: str
    path: str | None
    why: str


def choose(folder: Path = HERE) -> Kernels:
    """The best compiled kernel in the folder that fits these sources and that this processor runs."""
    base = file_of("portable", folder)
    if not base.exists():
        return _none("the kernel is not compiled: install with a C++ compiler (g++ or clang++) present")
    if not fits("portable", folder):
        return _none(_stale(base))
    try:
        best = int(ctypes.CDLL(str(base)).quarterturn_processor())
    except OSError as error:
        return _none(f"the kernel does not load: {error}")
    why = f"the processor runs {CODES[best]} code"
    for code in reversed(CODES[: best + 1]):
        path = file_of(code, folder)
        if fits(code, folder):
            return Kernels(code, str(path), why)
        why += f"; {_stale(path)}" if path.exists() else f"; {path.name} is not there"
    return _none("no compiled kernel runs on this processor")


def _none(why: str) -> Kernels:
    return Kernels("conv2d", None, why)


def _stale(path: Path) -> str:
    how = "pip install -e ." if compiler.is_checkout() else "pip install --force-reinstall quarterturn"
    return f"{path} was compiled from other sources than these and is not used: reinstall ({how})"


def renew(folder: Path = HERE) -> str | None:
    """Compile what is missing or was compiled from other sources; why that failed, if it did."""
    if all(fits(code, folder, part) for part in compiler.PARTS for code in compiler.codes()):
        return None
    if compiler.compiler() is None:
        return "no C++ compiler is there to compile it by itself: install g++ or clang++"
    if not os.access(folder, os.W_OK):
        return f"it cannot be compiled by itself: {folder} is not writable"
    _log.warning("the kernel in %s does not fit its sources: compiling it, which takes a minute or two", folder)
    try:
        compiler.compile_all(folder)
    except OSError as error:
        return f"compiling it by itself failed: {error}"
    return None


@lru_cache(maxsize=1)
def kernels() -> Kernels:
    """Which code runs the group convolutions on CPU, and why.

    >>> kernels().code in (*CODES, "conv2d")
    True
    """
    named = os.environ.get(FOLDER)
    failure = renew() if named is None and compiler.is_checkout() else None
    chosen = choose(HERE if named is None else Path(named))
    if failure is not None:
        chosen = chosen._replace(why=f"{chosen.why}; {failure}")
    _log.info("group convolutions on CPU run through %s: %s", chosen.code, chosen.why)
    return chosen


class _Compiled:
    """A compiled library, and what its statuses mean."""

    signatures: ClassVar[dict[str, tuple[tuple[type, ...], type]]]  # types of the arguments and result of each function

    def __init__(self, path: str) -> None:
        self._functions = ctypes.CDLL(path)
        for name, (arguments, result) in self.signatures.items():
            function = getattr(self._functions, f"quarterturn_{name}")
            function.argtypes, function.restype = arguments, result
        self._parallel = _torchs_pool()

    def _run(self, name: str, *arguments: object) -> None:
        run = getattr(self._functions, f"quarterturn_{name}")
        self._answer(name, run(*arguments, torch.get_num_threads(), self._parallel))

    def _answer(self, name: str, status: int) -> None:
        if status == border.FINE:
            return
        reason = self._functions.quarterturn_reason().decode()
        if status == border.NO_MEMORY:
            raise MemoryError(f"not enough memory for quarterturn's kernel ({name}): use smaller batches")
        if status == border.WRONG_SIZE:
            raise ShapeError(f"{reason} does not have the size that the plan of the kernel's {name} needs")
        if status == border.NOT_A_PLAN:
            raise KernelError(
                f"the kernel refused the plan of {name}: {reason}. Are all sizes sensible? Else report this"
            )
        raise RuntimeError(f"quarterturn's kernel failed in {name} (status {status}): {reason}")


class VolumeLibrary(_Compiled):
    """The functions for volumes; weights are in the Fourier basis (volume_plan.py)."""

    signatures = volume_border.FUNCTIONS

    def convolve(self, numbers: Numbers, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> None:
        self._run("volume_convolve", *_list(numbers), *_data(x), *_data(weight), *_data(bias), *_data(y))

    def weight_gradient(self, numbers: Numbers, x: Tensor, grad: Tensor, weight: Tensor) -> None:
        self._run("volume_weight_gradient", *_list(numbers), *_data(x), *_data(grad), *_data(weight))


class Library(_Compiled):
    """The kernel's functions, with their arguments in Python's types."""

    signatures = border.FUNCTIONS

    def pack(self, plan: Plan, pairs: bool, weight: Tensor, out_stride: int, in_stride: int) -> Tensor:
        head = (*_list(plan.numbers), PAIRS if pairs else 0)
        size = ctypes.c_int64()
        self._answer("packed_size", self._functions.quarterturn_packed_size(*head, ctypes.byref(size)))
        packed = torch.empty(size.value)
        self._run("pack", *head, *_data(weight), out_stride, in_stride, *_list(plan.weight_places), *_data(packed))
        return packed

    def convolve(self, plan: Plan, pairs: bool, x: Tensor, packed: Tensor, finish: Finish, y: Tensor) -> None:
        head = (*_list(plan.numbers), PAIRS if pairs else PRECISIONS.index(x.dtype))
        added = (*_data(finish.bias), *_data(finish.scale), *_data(finish.other))
        activation = border.ACTIVATIONS.index(finish.activation)
        self._run("convolve", *head, *_data(x), *_data(packed), *added, activation, *_data(y))

    def finish(self, x: Tensor, other: Tensor | None, activation: str) -> None:
        """Add what is as large and lies in memory as x does, and take the activation, in place."""
        self._run("finish", *_data(x), *_data(other), border.ACTIVATIONS.index(activation))

    def weight_gradient(
        self, plan: Plan, x: Tensor, grad: Tensor, out_stride: int, in_stride: int, weight: Tensor, bias: Tensor
    ) -> None:
        head = (*_list(plan.numbers), PRECISIONS.index(x.dtype))
        where = (out_stride, in_stride, *_list(plan.weight_places))
        self._run("weight_gradient", *head, *_data(x), *_data(grad), *where, *_data(weight), *_data(bias))

    def depthwise_gradient(self, numbers: Numbers, x: Tensor, grad: Tensor, weight: Tensor) -> None:
        """The gradient `(*k, C)` to the filters of a depthwise convolution of dense maps, features last."""
        self._run("depthwise_gradient", *_list(numbers), *_data(x), *_data(grad), *_data(weight))

    def max_pool(self, numbers: Numbers, x: Tensor, y: Tensor, taken: Tensor | None) -> None:
        """Max pooling of dense stacked maps, features last; `taken`, in int32, keeps what the gradient needs."""
        self._run("max_pool", *_list(numbers), *_data(x), *_data(y), *_data(taken))

    def max_pool_gradient(self, numbers: Numbers, grad: Tensor, taken: Tensor, of_x: Tensor) -> None:
        self._run("max_pool_gradient", *_list(numbers), *_data(grad), *_data(taken), *_data(of_x))

    def normalise(
        self,
        x: Tensor,
        order: int,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
    ) -> None:
        """Batch norm of dense stacked maps, features last; also gives mean and variance of each feature."""
        self._run(
            "normalise", *_data(x), len(mean), order, *_data(weight), *_data(bias), eps,
            *_data(mean), *_data(variance), *_data(y),
        )  # fmt: skip

    def normalise_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        order: int,
        weight: Tensor | None,
        eps: float,
        statistics: tuple[Tensor, Tensor],
        of_x: Tensor | None,
        of_weight: Tensor,
        of_bias: Tensor,
    ) -> None:
        """Its gradients, with the mean and variance that it gave."""
        mean, variance = map(_data, statistics)
        self._run(
            "normalise_gradient", *_data(grad), *_data(x), len(of_bias), order, *_data(weight), eps,
            *mean, *variance, *_data(of_x), *_data(of_weight), *_data(of_bias),
        )  # fmt: skip

    def layer_norm(
        self,
        x: Tensor,
        features: int,
        order: int,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        kept: tuple[Tensor | None, Tensor | None],
        y: Tensor,
    ) -> None:
        """Layer norm of dense rows of stacked features; also gives mean and scale of each row and orientation."""
        means, scales = map(_data, kept)
        self._run(
            "layer_norm", *_data(x), features, order, *_data(weight), *_data(bias), eps, *means, *scales, *_data(y)
        )

    def layer_norm_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        order: int,
        weight: Tensor | None,
        kept: tuple[Tensor, Tensor],
        of_x: Tensor | None,
        of_weight: Tensor,
        of_bias: Tensor,
    ) -> None:
        """Its gradients, with the means and scales that it gave."""
        means, scales = map(_data, kept)
        self._run(
            "layer_norm_gradient", *_data(grad), *_data(x), len(of_bias), order, *_data(weight),
            *means, *scales, *_data(of_x), *_data(of_weight), *_data(of_bias),
        )  # fmt: skip

    def beside(self, x: Tensor, y: Tensor, features: int, order: int, places: Tensor | None, back: bool) -> None:
        """Tokens `(N, T, C*G)` as `(N, G, T, C)`, each orientation's at its `places` `(G, T)`; or back."""
        tokens = x.shape[2] if back else x.shape[1]
        self._run("beside", tokens, features, order, *_data(places), back, *_data(x), *_data(y))

    def move(self, numbers: Numbers, features_last: bool, x: Tensor, y: Tensor) -> None:
        self._run("move", *_list(numbers), features_last, *_data(x), *_data(y))

    def checksum(self, x: Tensor) -> int:
        """A number that changes with the values."""
        return int(self._functions.quarterturn_checksum(*_data(x)))


@lru_cache(maxsize=1)
def library() -> Library | None:
    """The kernel, or None where there is none to run."""
    path = kernels().path
    return None if path is None else Library(path)


@lru_cache(maxsize=1)
def volume_library() -> VolumeLibrary | None:
    """The library for volumes beside the kernel, or None where it is missing or was compiled from other sources."""
    code, path, _ = kernels()
    if path is None or not fits(code, Path(path).parent, "volumes"):
        return None
    return VolumeLibrary(str(file_of(code, Path(path).parent, "volumes")))


def _data(x: Tensor | None) -> tuple[int | None, int]:
    return (None, 0) if x is None else (x.data_ptr(), x.numel())


def _list(numbers: Numbers) -> tuple[Numbers, int]:
    return numbers, len(numbers)


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

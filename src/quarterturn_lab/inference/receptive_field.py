"""How far a network looks, found by running it: what its outputs depend on, and whether tiles give the same outputs.

Both are tried on strips, in float64, with sides that leave the same remainders as those of the image. NaN in one half
of a strip spreads to each output that depends on it. Then a strip is run whole and in part, and both must agree.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quarterturn_lab.errors import DataError
from quarterturn_lab.inference.resizing import Placed, Recorded, Resize
from quarterturn_lab.inference.tiles import Sizes, Span, Tile, View

PERIODS = {2: 64, 3: 16}  # pixels of images, voxels of volumes; total strides that divide them are found
STEPS = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (4, 8, 16, 32)  # of strips, in periods
TOLERANCE = 1e-9  # in float64, of the largest output
CONTEXT = 2  # periods around a tile that is seen alone
MOVES = "a layer whose answers depend on the place in the image"


def view_of(net: nn.Module, channels: int, sizes: Sizes) -> View:
    """How a network sees images of these sizes: its tiles are exact, or `alone` says why not."""
    trial = _Trial(net, channels, sizes)
    with torch.no_grad():
        outputs, stride, growth, drift = trial.sizes_of_maps()
        view = View(_in_place(net, growth), sizes, outputs, trial.period, CONTEXT * trial.period, stride)
        axes = range(len(sizes))
        try:
            reach = drift + max(trial.reach(axis, stride) for axis in axes)
        except _WholeImage as layer:
            return replace(view, alone=str(layer))
        wholes = [trial.whole(axis, reach) for axis in axes]
        for step in STEPS:
            if step > trial.period:
                break
            if step % stride == 0 and all(trial.agrees(*whole, step, stride, reach, growth) for whole in wholes):
                return replace(view, step=step, reach=reach)
    return replace(view, alone=MOVES)


def _in_place(net: nn.Module, growth: list[Resize]) -> Callable[[NDArray[Any], Tile, Sizes], NDArray[Any]]:
    """The network as a function of a tile's pixels, its place, and the sizes of the image."""
    device = next((p.device for p in net.parameters()), torch.device("cpu"))

    def run(pixels: NDArray[Any], tile: Tile, sizes: Sizes) -> NDArray[Any]:
        start = tuple(span.start for span in tile)
        more = tuple(size - (span.stop - span.start) for size, span in zip(sizes, tile, strict=True))
        with torch.no_grad(), Placed(growth, PERIODS[len(sizes)], start, more):
            return net(torch.from_numpy(pixels).to(device)).cpu().numpy()

    return run


class _WholeImage(Exception):
    """Outputs depend on the whole image, because of this layer."""


class _Trial:
    """A network in float64, on noise with the remainders of an image's sides."""

    def __init__(self, net: nn.Module, channels: int, sizes: Sizes) -> None:
        self.net = copy.deepcopy(net).cpu().double().eval()
        self.channels, self.sizes, self.period = channels, sizes, PERIODS[len(sizes)]

    def noise(self, *counts: int) -> Tensor:
        """So many periods along each axis; without one, at least half a period."""
        period = self.period
        sizes = [
            size % period + period * (count or size % period < period // 2)
            for size, count in zip(self.sizes, counts, strict=True)
        ]
        shape = (1, self.channels, *sizes)
        return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def strip(self, axis: int, length: int) -> Tensor:
        return self.noise(*(length if axis == other else 0 for other in range(len(self.sizes))))

    # --- sizes

    def sizes_of_maps(self) -> tuple[Sizes, int, list[Resize], int]:
        """The outputs of the image, the inputs for each, and what changes where maps are resized.

        That is by how much these maps grow with a period, and how many pixels further outputs may look elsewhere.
        """
        small, large = (self.noise(*[count] * len(self.sizes)) for count in (1, 2))
        (few, calls), (many, later) = self._sizes(small), self._sizes(large)
        gain, *others = (more - less for more, less in zip(many, few, strict=True))
        if any(gain != other for other in others) or gain < 1 or self.period % gain or len(calls) != len(later):
            raise DataError(f"the network gives {few} outputs for {tuple(small.shape[2:])} pixels: not a map of them")
        growth = [
            Resize(_less(more.before, less.before), _less(more.after, less.after))
            for less, more in zip(calls, later, strict=True)
        ]
        drift = sum(_drift(call, by, self.period) for call, by in zip(calls, growth, strict=True))
        outputs = tuple(
            count + gain * ((size - n) // self.period)
            for count, size, n in zip(few, self.sizes, small.shape[2:], strict=True)
        )
        return outputs, self.period // gain, growth, drift

    def _sizes(self, x: Tensor) -> tuple[Sizes, list[Resize]]:
        """The sizes of the outputs, and those of maps that are resized."""
        try:
            with Recorded() as recorded:
                outputs = tuple(self.net(x).shape[2:])
        except Exception as error:  # torch and other libraries have their own classes
            size, why = " x ".join(map(str, reversed(self.sizes))), str(error).splitlines()[0]
            raise DataError(
                f"the network does not take images of {size} pixels ({why}): crop or extend them, to a multiple of 32, "
                "say"
            ) from None
        return outputs, recorded.calls

    # --- what outputs depend on

    def reach(self, axis: int, stride: int) -> int:
        """The pixels before or after its place that an output depends on."""
        suspects: list[str] = []
        for periods in LENGTHS:
            with _watched(self.net) as found:
                ends = [self._end(axis, periods, stride, mirrored) for mirrored in (False, True)]
            if None not in ends:
                return max(0, *(end for end in ends if end is not None))
            suspects += found[:1]
            if len(suspects) == 3:
                break
        raise _WholeImage(suspects[-1] if suspects else MOVES)

    def _end(self, axis: int, periods: int, stride: int, mirrored: bool) -> int | None:
        """How far the unknown half of a strip reaches into the other half; None if it fills it."""
        x = self.strip(axis, periods)
        half = periods // 2 * self.period
        x.narrow(2 + axis, x.shape[2 + axis] - half if mirrored else 0, half).fill_(torch.nan)
        found = self.net(x).isnan().movedim(2 + axis, 0)
        unknown = found.flatten(1).any(dim=1)
        places = (unknown.flip(0) if mirrored else unknown).nonzero()
        lost = int(places.max()) + 1 if len(places) else 0
        return lost * stride - half if lost < len(unknown) else None

    # --- whether tiles agree

    def whole(self, axis: int, reach: int) -> tuple[int, Tensor, Tensor]:
        """A strip with room for a part of it, and its outputs."""
        x = self.strip(axis, 6 + -(-2 * reach // self.period))
        return axis, x, self.net(x)

    def agrees(
        self, axis: int, x: Tensor, expected: Tensor, step: int, stride: int, reach: int, growth: list[Resize]
    ) -> bool:
        """Whether three parts of a strip give its outputs; their corners are at no multiple of twice the step."""
        sizes, counts = (tuple(each.shape[2:]) for each in (x, expected))
        n, count, period = sizes[axis], counts[axis], self.period
        before, after = (period * periods + (step if step < period else 0) for periods in (1, 2))
        after = after if step < period else period
        first, last = -(-(before + reach) // stride), count - -(-(after + reach) // stride)
        across = [Span(0, size, 0, outputs) for size, outputs in zip(sizes, counts, strict=True)]
        for along in (Span(before, n - after, first, last), Span(0, n - after, 0, last), Span(before, n, first, count)):
            tile: Tile = (*across[:axis], along, *across[axis + 1 :])
            view = View(_in_place(self.net, growth), sizes, counts, step, reach, stride)
            part = x[0].narrow(1 + axis, along.start, along.stop - along.start)
            try:
                found = torch.from_numpy(view.exact(part.numpy(), tile))
            except Exception:  # a part may have sides that the network does not take
                return False
            wanted = expected[0].narrow(1 + axis, along.first, along.last - along.first)
            if found.shape != wanted.shape or (found - wanted).abs().max() > TOLERANCE * expected.abs().max():
                return False
        return True


def _drift(call: Resize, growth: Resize, period: int) -> int:
    """A position of the smaller map in pixels, if samples do not lie alike everywhere between positions; else 0."""
    axes = zip(call.before, call.after, growth.before, growth.after, strict=True)
    if all(before * more == after * fewer for before, after, fewer, more in axes):
        return 0
    return period // max(1, min(growth.before))


def _less(sizes: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(sizes, others, strict=True))


@contextmanager
def _watched(net: nn.Module) -> Iterator[list[str]]:
    """Names the layers, inner ones first, that know a good part of their input and nothing of their output."""
    found: list[str] = []

    def hook(name: str) -> Callable[..., None]:
        def look(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            maps = [x for x in inputs if isinstance(x, Tensor) and x.dim() > 2 and x.is_floating_point()]
            answer = output[0] if isinstance(output, tuple) else output
            if maps and isinstance(answer, Tensor) and answer.isnan().all() and maps[0].isnan().double().mean() < 0.75:
                found.append(f"{name} ({type(module).__name__})")

        return look

    hooks = [module.register_forward_hook(hook(name)) for name, module in net.named_modules() if name]
    try:
        yield found
    finally:
        for handle in hooks:
            handle.remove()

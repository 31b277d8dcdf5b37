"""Up-sampling a part of a map as it would be in the whole map.

To resize 1875 positions to 3749 is not quite to double them: each sample lies at its own place between two positions.
So a tile must know where it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Sizes = tuple[int, ...]
MODES = ("nearest", "bilinear", "trilinear")


@dataclass(frozen=True)
class Resize:
    """The sizes before and after one call of `interpolate` with a given output size."""

    before: Sizes
    after: Sizes


class Recorded(TorchFunctionMode):
    """Within it, `interpolate` works as ever, and its sizes are recorded in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Resize] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if _is_resize(func, kwargs):
            self.calls.append(Resize(tuple(args[0].shape[2:]), tuple(found.shape[2:])))
        return found


class Placed(TorchFunctionMode):
    """Within it, each call of `interpolate` is a part of one in the whole image.

    `growth` says by how many positions the maps of each call grow with `step` pixels of the image, the tile begins at
    `start`, and the image has `more` pixels than it.
    """

    def __init__(self, growth: Sequence[Resize], step: int, start: Sizes, more: Sizes) -> None:
        super().__init__()
        self.growth, self.step, self.start, self.more = iter(growth), step, start, more

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if not _is_resize(func, kwargs):
            return func(*args, **(kwargs or {}))
        growth = next(self.growth, None)
        if growth is None:
            raise RuntimeError("maps are resized more often in a part of the image than in the whole")
        x, mode, corners = args[0], kwargs["mode"], bool(kwargs.get("align_corners"))
        size = kwargs["size"]
        after = tuple(size) if isinstance(size, Sequence) else (int(size),) * (x.dim() - 2)
        axes = [
            _Axis(
                here, there, by * more // self.step, to * more // self.step, by * at // self.step, to * at // self.step
            )
            for here, there, by, to, more, at in zip(
                x.shape[2:], after, growth.before, growth.after, self.more, self.start, strict=True
            )
        ]
        if mode not in MODES or (not corners and all(axis.is_alike for axis in axes)):
            return func(*args, **kwargs)
        for i, axis in enumerate(axes):
            x = axis.resampled(x, 2 + i, mode, corners)
        return x


@dataclass(frozen=True)
class _Axis:
    """An axis of the maps of a tile before and after, what the whole maps have more, and where the tile begins."""

    before: int
    after: int
    more_before: int
    more_after: int
    start_before: int
    start_after: int

    @property
    def is_alike(self) -> bool:
        """Whether the tile's samples lie where those of the whole map do."""
        whole_before, whole_after = self.before + self.more_before, self.after + self.more_after
        same_scale = self.before * whole_after == whole_before * self.after
        return same_scale and self.start_after * whole_before == self.start_before * whole_after

    def resampled(self, x: Tensor, dim: int, mode: str, corners: bool) -> Tensor:
        before, after = self.before + self.more_before, self.after + self.more_after
        places = torch.arange(self.start_after, self.start_after + self.after, device=x.device)
        if mode == "nearest":
            return x.index_select(dim, self._here(places * before // after))
        if corners:
            source = places.double() * ((before - 1) / max(after - 1, 1))
        else:
            source = ((places.double() + 0.5) * (before / after) - 0.5).clamp(min=0)
        low = source.floor().long().clamp(max=before - 1)
        share = (source - low).to(x.dtype).reshape([-1 if i == dim else 1 for i in range(x.dim())])
        high = (low + 1).clamp(max=before - 1)
        return x.index_select(dim, self._here(low)) * (1 - share) + x.index_select(dim, self._here(high)) * share

    def _here(self, places: Tensor) -> Tensor:
        """Places of the whole map in the tile; those outside matter to no output that is kept."""
        return (places - self.start_before).clamp(0, self.before - 1)


def _is_resize(func: Callable[..., Any], kwargs: Any) -> bool:
    return func is F.interpolate and (kwargs or {}).get("size") is not None

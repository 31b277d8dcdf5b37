"""How many features each part of a network gets: old channels as pieces that are cut, joined and made equal.

An axis of old channels is a list of segments. A segment is a piece of channels, each of which may stand for several in
a row (`times`), as after a channel shuffle. Splitting an axis cuts pieces, adding two tensors makes theirs equal, and
in the end every piece is given its number of features by itself: whatever was cut or added fits.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from quarterturn.graph.refusal import Refusal

Keep = Literal["width", "parameters"]
STEPS = 2000  # in which two axes must become equal


@dataclass(eq=False)
class Piece:
    """Old channels that stay together. `features` fixes how many features of a pathway become of them.

    `shared` pieces hold the same value in every orientation, in the old network: its input, and its outputs. In `order`
    channels stand so that neighbours are orientations of one feature; without one they do so as they are.
    """

    channels: int
    features: int | None = None
    shared: bool = False
    parts: "list[Segment]" = field(default_factory=list)  # what it was cut into, or made equal to
    order: list[int] | None = None


@dataclass(frozen=True)
class Segment:
    """A piece, each channel of which stands for `times` neighbouring ones."""

    piece: Piece
    times: int = 1

    @property
    def channels(self) -> int:
        return self.piece.channels * self.times


class Features:
    """The feature axis of a tensor."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(segments)
        self.units = 1  # equal parts that the heads of attention have, such as queries and keys: all can be shared out

    @property
    def segments(self) -> list[Segment]:
        """The segments as they are by now."""
        return _whole(self._segments)

    @property
    def channels(self) -> int:
        """How many channels the old network has here."""
        return sum(segment.channels for segment in self._segments)

    def cut(self, at: int) -> None:
        """Make a boundary before channel `at`."""
        segments = self.segments
        for i, segment in enumerate(segments):
            if at < segment.channels:
                if at % segment.piece.channels == 0 and segment.times > 1:  # shuffled: parts as long as the piece
                    self._segments = [*segments[:i], *[Segment(segment.piece)] * segment.times, *segments[i + 1 :]]
                    return
                if at % segment.times:
                    raise Refusal("features that were shuffled are split in the middle")
                if at:
                    first = at // segment.times
                    piece = segment.piece
                    if piece.features not in (None, piece.channels):
                        raise Refusal("it splits features whose number is fixed by an input or an output")
                    fixed = piece.features is not None
                    piece.parts = [
                        Segment(Piece(count, count if fixed else None, piece.shared))
                        for count in (first, piece.channels - first)
                    ]
                return
            at -= segment.channels

    def part(self, start: int, stop: int) -> "Features":
        """The channels from `start` to `stop`."""
        self.cut(start)
        self.cut(stop)
        found, position = [], 0
        for segment in self.segments:
            if start <= position < stop:
                found.append(segment)
            position += segment.channels
        return Features(found)

    def split(self, count: int) -> "list[Features]":
        """As many equal parts, which will have equally many features."""
        step = self.channels // count
        parts = [self.part(i * step, (i + 1) * step) for i in range(count)]
        for other in parts[1:]:
            make_equal(parts[0], other)
        return parts

    def fixed(self, features: int, shared: bool = False) -> None:
        """Give it so many features, whatever the network's width."""
        for segment in self.segments:  # in proportion to their channels
            piece = segment.piece
            share, rest = divmod(piece.channels * features, self.channels)
            if rest:
                raise Refusal(f"{self.channels} channels of several origins cannot become {features} features")
            if piece.features not in (None, share):
                raise Refusal("its number of features is fixed by an input and by an output")
            piece.features, piece.shared = share, shared or piece.shared


def channels(count: int, features: int | None = None, shared: bool = False) -> Features:
    """A new axis of so many old channels."""
    return Features([Segment(Piece(count, features, shared))])


def joined(axes: Sequence[Features]) -> Features:
    """Several axes after one another, as `torch.cat` leaves them."""
    return Features([segment for axis in axes for segment in axis.segments])


def repeated(axis: Features, times: int) -> Features:
    """An axis, each channel of which stands for so many neighbouring ones."""
    return Features([Segment(segment.piece, segment.times * times) for segment in axis.segments])


def make_equal(one: Features, other: Features) -> None:
    """Both axes will have equally many features, in equal pieces.

    Every step cuts a piece or makes two of them one, so it ends; what takes more than `STEPS` of them is refused.
    """
    if one.channels != other.channels:
        raise Refusal(f"it brings {one.channels} and {other.channels} channels together")
    for _ in range(STEPS):
        left, right = one.segments, other.segments
        if _count(left) == _count(right):
            return
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
        a, b = left[same], right[same]
        start = sum(s.channels for s in left[:same])
        if a.channels != b.channels:
            (one if a.channels > b.channels else other).cut(start + min(a.channels, b.channels))
        elif a.times == b.times:
            _become(a.piece, [Segment(b.piece)])
        elif b.times % a.times == 0:
            _become(a.piece, [Segment(b.piece, b.times // a.times)])
        elif a.times % b.times == 0:
            _become(b.piece, [Segment(a.piece, a.times // b.times)])
        else:
            raise Refusal("features that were shuffled in different ways are added")
    raise Refusal("it brings features together that were cut in too many ways")


@dataclass(frozen=True)
class Widths:
    """How many features become of old channels: as many maps as before, or as many parameters, or about so."""

    order: int
    keep: Keep

    def of(self, axis: Features) -> int:
        """Features of a pathway."""
        return sum(self._piece(segment.piece) * segment.times for segment in axis.segments)

    def is_exact(self, axis: Features) -> bool:
        """Whether nothing was rounded."""
        wanted = [s.piece.channels * self._scale for s in axis.segments if s.piece.features is None]
        return all(value % self.order == 0 for value in wanted) if self.keep == "width" else True

    def sources(self, axis: Features) -> list[int | None]:
        """For each channel of the stacked layout, feature by feature and orientation the fastest, the old channel."""
        found: list[int | None] = []
        position = 0
        for segment in axis.segments:
            features = self._piece(segment.piece) * segment.times
            if segment.piece.shared:
                found += [position + i for i in range(features) for _ in range(self.order)]
            else:  # feature i * times + j stands for the channels of which it is the j-th of `times` neighbours
                for i, j in itertools.product(range(features // segment.times), range(segment.times)):
                    places = [i * self.order + g for g in range(self.order)]
                    order = segment.piece.order or range(segment.piece.channels)
                    old = [order[place] if place < len(order) else None for place in places]
                    found += [None if each is None else position + each * segment.times + j for each in old]
            position += segment.channels
        return found

    def places(self, axis: Features) -> list[int]:
        """For each old channel the channel of the stacked layout that it became; of several, the first."""
        first: dict[int | None, int] = {}
        for place, source in enumerate(self.sources(axis)):
            first.setdefault(source, place)
        return [first[channel] for channel in range(axis.channels)]

    @property
    def _scale(self) -> float:
        return 1.0 if self.keep == "width" else math.sqrt(self.order)

    def _piece(self, piece: Piece) -> int:
        if piece.features is not None:
            return piece.features
        return max(1, math.ceil(piece.channels * self._scale / self.order - 1e-9))


def _whole(segments: Sequence[Segment]) -> list[Segment]:
    found: list[Segment] = []
    for segment in segments:
        if segment.piece.parts:
            found += [Segment(inner.piece, inner.times * segment.times) for inner in _whole(segment.piece.parts)]
        else:
            found.append(segment)
    return found


def _count(segments: Sequence[Segment]) -> Counter[int]:
    """How often each piece is there: axes of the same pieces have the same number of features."""
    counts: Counter[int] = Counter()
    for segment in segments:
        counts[id(segment.piece)] += segment.times
    return counts


def _become(piece: Piece, parts: list[Segment]) -> None:
    target = parts[0].piece
    if piece.features is not None:
        wanted = piece.features // parts[0].times
        if wanted * parts[0].times != piece.features or target.features not in (None, wanted):
            raise Refusal("features are added whose numbers are fixed by inputs and outputs")
        target.features, target.shared = wanted, piece.shared or target.shared
    piece.parts = parts

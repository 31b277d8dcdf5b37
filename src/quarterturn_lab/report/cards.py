"""What the page of a fit is made of: cards with a title, a sentence, and a figure, bars, a table or pictures.

Nothing here is HTML: the template draws each kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

LONGEST = 30  # characters of a name


@dataclass(frozen=True)
class Bar:
    """A named share with its interval, and the same for the network beside it."""

    name: str
    share: float
    low: float
    high: float
    note: str
    other: float | None = None


@dataclass(frozen=True)
class Thumb:
    """A picture and the lines below it."""

    address: str
    above: str
    below: str
    right: bool | None = None  # colours the last line


@dataclass(frozen=True)
class Table:
    """Rows of text. `shades` in [0, 1] colour the cells of a matrix."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    shades: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True)
class Card:
    """One card of the page."""

    title: str
    text: str
    kind: Literal["figure", "bars", "thumbs", "table"]
    content: Any
    wide: bool = False


def short(name: str, longest: int = LONGEST) -> str:
    """The name, cut in the middle if it is long.

    >>> short("copepod_calanoid_large_side_antennatucked", 20)
    'copepod_c…ennatucked'
    """
    return name if len(name) <= longest else f"{name[: longest // 2 - 1]}…{name[len(name) - longest + longest // 2 :]}"

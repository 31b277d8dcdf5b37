"""Which submodules run as they are, in every pathway: those that the user named, and those that cannot be followed."""

import re
from collections.abc import Sequence

from torch import nn

from quarterturn.errors import ConversionError, unknown
from quarterturn.graph.refusal import RefusedParts

ROUNDS = 100  # in which it must be found what cannot be followed
ASKED = "as you asked"


class PlainSearch:
    """The plain parts so far, by their paths, and why, and what is followed in each orientation's own frame."""

    def __init__(self, model: nn.Module, asked: str | Sequence[str], automatic: bool) -> None:
        names = [asked] if isinstance(asked, str) else list(asked)
        self.modules = dict(model.named_modules(remove_duplicate=False))
        for name in names:
            if name not in self.modules or not name:
                raise unknown("layer in plain", name, [path for path in self.modules if path])
        self.asked, self.automatic = names, automatic
        self._start(may_frame=True)

    def _start(self, may_frame: bool) -> None:
        self.rounds, self.may_frame = 0, may_frame
        self.parts = dict.fromkeys(self.asked, ASKED)
        self.framed: set[str] = set()  # those whose code is followed in each orientation's own frame
        self.refused: dict[str, str] = {}  # why, also of parts that an outer one has taken in since

    def is_plain(self, module: nn.Module) -> bool:
        return any(module is self.modules[path] for path in self.parts)

    def add(self, error: RefusedParts) -> None:
        """Go on without what was refused; raises the error where that would be the whole network.

        The code of a module is first followed in each orientation's own frame. What is still refused becomes a plain
        part. If all of the network would be one, it is read again without such frames: they may be of no use outside.
        """
        self.rounds += 1
        new = {path for path in error.parts if path in self.modules} - self.framed
        if error.may_be_framed and self.may_frame and new and self.rounds <= ROUNDS:
            self.refused |= {path: error.parts[path] for path in new}
            self.framed |= {path for path in self.modules if any(self._are_alike(path, other) for other in new)}
            return
        try:
            self._make_plain(error)
        except RefusedParts:
            if not self.framed:
                raise
            self._start(may_frame=False)

    def _are_alike(self, one: str, other: str) -> bool:
        """Whether these are the same module, or the same part of blocks that are repeated."""
        same = re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)
        return one == other or (same and type(self.modules[one]) is type(self.modules[other]))

    def _make_plain(self, error: RefusedParts) -> None:
        """Make plain parts of what was refused, from the innermost module outwards."""
        if not self.automatic or self.rounds > ROUNDS:
            raise error
        for path, why in error.parts.items():
            outer = path
            while outer not in self.modules:  # a layer that the old network does not have
                outer = outer.rpartition(".")[0]
            while outer in self.parts or (outer and _has_no_forward(self.modules[outer])):
                outer = error.callers.get(outer, outer.rpartition(".")[0])
            if not outer or type(self.modules[outer]).__module__.startswith("quarterturn."):
                raise error
            self.parts = {p: w for p, w in self.parts.items() if not p.startswith(f"{outer}.")}
            self.parts[outer] = self.refused.setdefault(outer, self.refused.get(path, why))

    def check_used(self, called: Sequence[str]) -> None:
        """Raise where the network does not call what the user named."""
        for name in self.asked:
            inside = any(f"{name}.".startswith(f"{path}.") for path in self.parts if path != name)
            if name not in called and not inside:
                raise ConversionError(
                    f"plain={name!r} is not called by the network's forward: name a submodule that is"
                )


def _has_no_forward(module: nn.Module) -> bool:
    """A list of modules, say, is never called itself."""
    return getattr(type(module), "forward", None) is nn.Module.forward

"""Why a part of a network cannot be rewritten, and which part that is."""

from collections.abc import Mapping

from quarterturn.errors import ConversionError


class Refusal(Exception):
    """Raised by a rule, with the reason. All of them are collected, and raised as one `ConversionError`."""


class RefusedParts(ConversionError):
    """A network of which some parts cannot be read or rewritten.

    `parts` has the innermost submodules to blame, by their paths, and why; the path of the network itself is "".
    `callers` says in the code of which submodule each one is called. `may_be_framed` are those whose code was read.
    """

    def __init__(
        self, message: str, parts: Mapping[str, str], callers: Mapping[str, str], may_be_framed: bool = False
    ) -> None:
        super().__init__(message)
        self.parts, self.callers, self.may_be_framed = dict(parts), dict(callers), may_be_framed

"""One family of errors. A message says what came, what was needed and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class QuarterturnError(ValueError):
    """A mistake in the use of quarterturn; the message holds the fix."""


class GroupError(QuarterturnError):
    """Generators that make no group, or something that is no `Group`."""


class ShapeError(QuarterturnError):
    """A tensor whose shape does not fit the group or the layer."""


class OptionError(QuarterturnError):
    """An option with a value that is not one of its choices, or that does not go with the others."""


class KernelError(QuarterturnError):
    """A call that the compiled kernel refused, though all checks before it passed: a fault of quarterturn itself."""


class ConversionError(QuarterturnError):
    """A network that cannot be converted; the message lists all that stands in the way."""


class NotEquivariantError(QuarterturnError):
    """A network that is not equivariant; the message names the first layer that breaks it."""


def unknown(what: str, name: object, valid: Iterable[str]) -> OptionError:
    """The error for a name that is not among the valid ones; offers the nearest."""
    choices = list(valid)
    lower = {choice.lower(): choice for choice in choices}
    near = [lower[match] for match in get_close_matches(str(name).lower(), lower, n=3)]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose from {', '.join(map(repr, choices))}"
    return OptionError(f"unknown {what} {name!r}: {hint}")

"""The errors that quarterturn raises. Each message says what came, what was needed and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class QuarterturnError(ValueError):
    """Base class of all errors: quarterturn was used wrongly, and the message says how to fix it."""


class GroupError(QuarterturnError):
    """Elements that do not form a group, or an argument that is not a `Group`."""


class ShapeError(QuarterturnError):
    """A tensor whose shape does not fit the group or the layer."""


class OptionError(QuarterturnError):
    """An option with an invalid value, or a combination of options that do not work together."""


class KernelError(QuarterturnError):
    """A call that the compiled kernel refused, though all checks before it passed: a fault of quarterturn itself."""


class ConversionError(QuarterturnError):
    """A network that cannot be converted; the message lists every obstacle."""


class NotEquivariantError(QuarterturnError):
    """A network that is not equivariant; the message names the first layer that breaks equivariance."""


def unknown(what: str, name: object, valid: Iterable[str]) -> OptionError:
    """The error for a name that is not valid; its message suggests the closest valid ones."""
    choices = list(valid)
    lower = {choice.lower(): choice for choice in choices}
    near = [lower[match] for match in get_close_matches(str(name).lower(), lower, n=3)]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose from {', '.join(map(repr, choices))}"
    return OptionError(f"unknown {what} {name!r}: {hint}")

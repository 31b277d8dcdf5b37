"""The errors that quarterturn raises. Each message says what came, what was needed and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class QuarterturnError(ValueError):
    """Base class of all errors: quarterturn was used wrongly, and the message says how to fix it.

    >>> import quarterturn as qt
    >>> try:
    ...     qt.named("C5")
    ... except qt.QuarterturnError as error:
    ...     print(type(error).__name__)
    OptionError
    """


class GroupError(QuarterturnError):
    """Elements that do not form a group, or an argument that is not a `Group`.

    >>> import torch, quarterturn as qt
    >>> qt.slice(torch.zeros(1, 1, 4, 4), "C4")
    Traceback (most recent call last):
    quarterturn.errors.GroupError: ...
    """


class ShapeError(QuarterturnError):
    """A tensor whose shape does not fit the group or the layer.

    >>> import torch, quarterturn as qt
    >>> qt.slice(torch.zeros(1, 1, 4, 6), qt.C4)  # not square
    Traceback (most recent call last):
    quarterturn.errors.ShapeError: ...
    """


class OptionError(QuarterturnError):
    """An option with an invalid value, or a combination of options that do not work together.

    >>> import quarterturn as qt
    >>> qt.Pool(qt.C4, "median")
    Traceback (most recent call last):
    quarterturn.errors.OptionError: ...
    """


class KernelError(QuarterturnError):
    """A call that the compiled kernel refused, though all checks before it passed: a fault of quarterturn itself.

    Please report it. Until it is mended, `via="conv"` does without the kernel:

    >>> import quarterturn as qt
    >>> layer = qt.RollConv(qt.C4, 8, 8, 3, rotate="filters", via="conv")
    """


class ConversionError(QuarterturnError):
    """A network that cannot be converted; the message lists every obstacle.

    >>> import torch, quarterturn as qt
    >>> class Sorted(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x if x.sum() > 0 else -x
    >>> qt.convert(Sorted(), qt.C4)
    Traceback (most recent call last):
    quarterturn.errors.ConversionError: ...
    """


class NotEquivariantError(QuarterturnError):
    """A network that is not equivariant; the message names the first layer that breaks equivariance.

    >>> import torch, quarterturn as qt
    >>> qt.assert_equivariant(torch.nn.Conv2d(1, 1, 3), qt.C4, torch.randn(1, 1, 8, 8))
    Traceback (most recent call last):
    quarterturn.errors.NotEquivariantError: ...
    """


def unknown(what: str, name: object, valid: Iterable[str]) -> OptionError:
    """The error for a name that is not valid; its message suggests the closest valid ones."""
    choices = list(valid)
    lower = {choice.lower(): choice for choice in choices}
    near = [lower[match] for match in get_close_matches(str(name).lower(), lower, n=3)]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose from {', '.join(map(repr, choices))}"
    return OptionError(f"unknown {what} {name!r}: {hint}")

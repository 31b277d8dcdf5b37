"""The settings of a run as command-line options, generated from the settings with their help texts."""

from dataclasses import asdict, make_dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from quarterturn_lab.settings.options import FIT_HEADINGS, HEADINGS


class _Given:
    """Options of which those that are not given are None."""

    def given(self) -> dict[str, Any]:
        """The options that the user gave."""
        return {name: value for name, value in asdict(self).items() if value is not None}  # type: ignore[call-overload]


def _fields(headings: dict[str, dict[str, tuple[Any, str]]]) -> Any:
    return make_dataclass(
        "_Fields",
        [
            (name, Annotated[kind | None, Parameter(help=text, group=Group(heading, sort_key=number))], None)
            for number, (heading, options) in enumerate(headings.items())
            for name, (kind, text) in options.items()
        ],
        bases=(_Given,),
        frozen=True,
    )


@Parameter(name="*")
class Options(_fields(HEADINGS)):  # type: ignore[misc]  # the fields are known only at run time
    """Options that override the settings of an experiment."""


@Parameter(name="*")
class FitOptions(_fields(FIT_HEADINGS)):  # type: ignore[misc]
    """Options that override what `fit` plans."""

"""The settings of a run as command-line options, generated from the settings with their help texts."""

from dataclasses import asdict, dataclass, make_dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from quarterturn_lab.runs.trust import Trust
from quarterturn_lab.settings.options import FIT_HEADINGS, HEADINGS, IMAGES


def _fields(headings: dict[str, dict[str, tuple[Any, str]]]) -> Any:
    """A data class with a field for each option below these headings; one that is not given is None."""
    return make_dataclass(
        "_Fields",
        [
            (name, Annotated[kind | None, Parameter(help=text, group=Group(heading, sort_key=number))], None)
            for number, (heading, options) in enumerate(headings.items())
            for name, (kind, text) in options.items()
        ],
        frozen=True,
    )


class _Given:
    def given(self) -> dict[str, Any]:
        """The options that the user gave."""
        return {name: value for name, value in asdict(self).items() if value is not None}  # type: ignore[call-overload]


@Parameter(name="*")
class Options(_fields(HEADINGS), _Given):  # type: ignore[misc]  # the fields are known only at run time
    """Options that override the settings of an experiment."""


@Parameter(name="*")
class ImageOptions(_fields({"Reading images": IMAGES}), _Given):  # type: ignore[misc]
    """Options that say how images are read."""


@Parameter(name="*")
class FitOptions(_fields(FIT_HEADINGS), _Given):  # type: ignore[misc]
    """Options that override what `fit` plans."""


@Parameter(name="*")
@dataclass(frozen=True)
class TrustOptions(Trust):
    """Options that say which code of a run may be called."""

    net: Annotated[
        str | None, Parameter(help="The function that makes the run's network, if it is code of your own.")
    ] = None
    trust: Annotated[bool, Parameter(help="Call whatever function the run names.", negative="")] = False

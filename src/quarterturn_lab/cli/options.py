"""The settings of a run as command-line options, generated from the settings with their help texts."""

from dataclasses import asdict, make_dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from quarterturn_lab.settings.options import HEADINGS

# An option that is not given is None.
_Fields: Any = make_dataclass(
    "_Fields",
    [
        (name, Annotated[kind | None, Parameter(help=text, group=Group(heading, sort_key=number))], None)
        for number, (heading, options) in enumerate(HEADINGS.items())
        for name, (kind, text) in options.items()
    ],
    frozen=True,
)


@Parameter(name="*")
class Options(_Fields):  # type: ignore[misc]  # the fields are known only at run time
    """Options that override the settings of an experiment."""

    def given(self) -> dict[str, Any]:
        """The options that the user gave."""
        return {name: value for name, value in asdict(self).items() if value is not None}

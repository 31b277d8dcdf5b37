"""The settings of a run as options of the command line: made from the settings themselves, help and all."""

from dataclasses import asdict, make_dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from quarterturn_lab.settings.options import HEADINGS

# Each is None until it is given.
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
class Options(_Fields):  # type: ignore[misc]  # its fields are known when it runs
    """Settings that replace those of the experiment."""

    def given(self) -> dict[str, Any]:
        """Those that are not left to the experiment."""
        return {name: value for name, value in asdict(self).items() if value is not None}

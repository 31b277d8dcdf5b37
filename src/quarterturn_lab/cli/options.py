"""The settings of a run as command-line options, generated from the settings with their help texts."""

from dataclasses import asdict, dataclass, make_dataclass
from typing import Annotated, Any, Literal

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


SWEEP = Group("Many runs", sort_key=-1)


@Parameter(name="*")
@dataclass(frozen=True)
class SweepOptions:
    """Options of commands that train many networks."""

    jobs: Annotated[
        int | None,
        Parameter(help="Number of runs at the same time. Default: the number of cores; all on a cluster.", group=SWEEP),
    ] = None
    executor: Annotated[
        Literal["local", "slurm"],
        Parameter(help="Train on this machine, or as jobs of Slurm (needs the extra slurm).", group=SWEEP),
    ] = "local"
    retries: Annotated[int, Parameter(help="How often a failed run is tried again.", group=SWEEP)] = 1
    slurm: Annotated[
        tuple[str, ...],
        Parameter(
            help="Options of sbatch, such as --slurm partition=gpu gpus-per-node=1 time=240 (minutes).",
            consume_multiple=True,
            group=SWEEP,
        ),
    ] = ()

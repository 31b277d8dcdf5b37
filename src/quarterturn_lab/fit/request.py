"""What the user asks of `fit`, from the command line and from a file of settings, and where its run goes."""

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from quarterturn.groups import named
from quarterturn_lab.errors import ConfigError, unknown
from quarterturn_lab.files import write_atomically
from quarterturn_lab.runs.naming import label
from quarterturn_lab.settings.config import FREE, Config, digest_of_weights
from quarterturn_lab.settings.networks import Net
from quarterturn_lab.settings.options import FIT_HEADINGS, STAGES

MINUTES = 10.0
OWN = ("data", "symmetry", "minutes", "compare", "seed")  # settings of `fit` that are no settings of a run
LENGTH = ("epochs", "earlier_plans", "eval_points")  # what follows from the minutes; all but the first in files alone
SETTINGS = {name: option for options in FIT_HEADINGS.values() for name, option in options.items()}


@dataclass(frozen=True)
class Request:
    """A folder, how long to train, and settings of the run that the user wants otherwise."""

    folder: Path
    symmetry: str = "auto"
    minutes: float | None = None
    compare: bool = False
    seed: int = 0
    search: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def epochs(self) -> int | None:
        return self.options.get("epochs")

    @property
    def seconds(self) -> float | None:
        """The time for everything; None if the number of epochs is given instead."""
        return None if self.epochs is not None else 60 * (self.minutes or MINUTES)

    def directory(self, root: Path) -> Path:
        """The directory of its run. It depends on the request, not on what is found, so that the same one resumes."""
        return self._directory(root, f"{self.symmetry}-search" if self.search else self.symmetry)

    def ordinary_directory(self, root: Path) -> Path:
        """The directory of the ordinary network beside it."""
        return self._directory(root, f"{self.symmetry}-ordinary")

    def _directory(self, root: Path, name: str) -> Path:
        given = {key: value for key, value in self.options.items() if key not in (*FREE, *LENGTH)}
        if self.options.get("weights"):
            given["weights_sha256"] = digest_of_weights(self.options["weights"])
        return root / "fit" / self.folder.resolve().name / label(name, given) / f"seed{self.seed}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder.resolve())}


def checked_request(request: Request) -> Request:
    """The request, or an error that says what to give instead."""
    if request.minutes is not None and request.epochs is not None:
        raise ConfigError("--minutes and --epochs both say how long to train: give one of the two")
    if request.minutes is not None and not (math.isfinite(request.minutes) and request.minutes > 0):
        raise ConfigError(f"--minutes {request.minutes:g}: give a time above zero, such as --minutes 10")
    if request.epochs is not None and request.epochs < 1:
        raise ConfigError(f"--epochs {request.epochs}: give the number of passes over the images, 1 or more")
    if request.symmetry not in ("auto", "none"):
        return replace(request, symmetry=named(request.symmetry).name)  # images or volumes: looking tells
    return request


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file: names as those of the options, with _ or -."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        found = tomlkit.parse(path.read_text()).unwrap()
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror or error}") from None
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not TOML ({error}): write lines such as epochs = 40") from None
    settings = {name.replace("-", "_"): value for name, value in found.items()}
    for name in settings:
        if name not in (*OWN, *LENGTH, *SETTINGS):
            raise unknown(f"setting in {path}", name, (*OWN, *LENGTH, *SETTINGS))
    return settings


def write_file(path: Path, config: Config, symmetry: str) -> None:
    """Write the settings of a run as a TOML file that repeats it: `quarterturn fit --config FILE`."""
    import tomlkit

    values = config.model_dump(mode="json", by_alias=False, exclude={"net"})
    values |= {**asdict(config.net), **values.pop("augment"), **sizes_of(config.net)}
    mine = {name: values[name] for name in SETTINGS if values.get(name) is not None}
    mine |= {name: values[name] for name in LENGTH if values[name] != []}
    text = tomlkit.dumps({"data": config.data, "symmetry": symmetry, "seed": config.seed, **mine})
    write_atomically(path, f"# Repeats this run: quarterturn fit --config {path.name}\n{text}")


def sizes_of(net: Net) -> dict[str, Any]:
    """The options that give a network its stages, as a user would write them."""
    counts = {len(stage) for stage in net.stages}
    sizes: dict[str, Any] = dict.fromkeys(STAGES)
    if net.residual and len(counts) == 1:
        return sizes | {
            "width": net.stages[0][0],
            "blocks": counts.pop(),
            "hidden": net.hidden[0] if net.hidden else None,
        }
    return sizes | {"stages": "-".join(str(len(stage)) for stage in net.stages)}

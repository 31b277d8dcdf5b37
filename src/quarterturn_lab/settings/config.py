"""One run as data: everything that decides its result, checked, and written beside it."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.settings.networks import Net

Precision = Literal["fp32", "bf16", "fp16"]

# What may differ between two sittings of one run: it says where and how to run, not what comes out.
FREE = frozenset({"data", "device", "checkpoint_seconds", "tensorboard", "score_turns"})


# Modules of networks that records and run directories name as they were called when they were made.
MOVED = {f"quarterturn_lab.{name}": "quarterturn_lab.models.mnist" for name in ("sevenlayers", "digits")}


class Augment(BaseModel):
    """Ranges of the random warps of training images; zero or one switches a part off."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    turn: Annotated[  # degrees: uniform in [0, turn); files call it rotate
        float, Field(ge=0, le=360, validation_alias=AliasChoices("turn", "rotate"), serialization_alias="rotate")
    ] = 360.0
    shift: Annotated[float, Field(ge=0, le=0.5)] = 0.0  # of the side, both axes, uniform
    zoom: Annotated[float, Field(ge=1)] = 1.0  # log-uniform in [1/zoom, zoom]
    shear: Annotated[float, Field(ge=0, lt=80)] = 0.0  # degrees, uniform in [-shear, shear]
    stretch: Annotated[float, Field(ge=1)] = 1.0  # log-uniform; one axis by it, the other by its inverse
    flip: bool = True  # off where mirror images are of different classes
    colour: Annotated[float, Field(ge=0)] = 0.0  # brightness along the colours' first principal component, sd
    border: Literal["zeros", "reflection"] = "zeros"  # what lies outside the image


class Config(BaseModel):
    """The settings of one run. A batch is divided by the number of pathways unless `divide_batch` is off."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: str
    row: str
    seed: int = Field(0, ge=0)
    net: Net
    factory: Annotated[str | None, BeforeValidator(lambda name: _moved(name))] = (
        None  # package.module:function of a network of one's own
    )
    rotate: Literal["maps", "filters"] = "maps"

    loader: str
    data: str | None = None  # the folder
    longest: int | None = Field(None, ge=1)  # the longest side of an image is scaled to this; None: to the whole side
    invert: bool = False
    train_size: int | None = Field(None, ge=2)  # a draw of the training part, by classes, another one for each seed
    floats: bool = False  # keep the files' own values and channels, instead of bytes
    tiles: int = Field(1, ge=1)  # how many tiles of each training image an epoch sees, where there are masks
    skip_bad: bool = False
    max_pixels: int = Field(64_000_000, ge=1)  # larger images are refused

    epochs: int = Field(40, ge=1)
    batch: int = Field(128, ge=1)
    divide_batch: bool = True
    lr: float = Field(1e-3, gt=0)
    drops: tuple[float, ...] = (0.83, 0.95)  # tenfold, at these parts of the run
    weight_decay: float = Field(0.0, ge=0)  # on weights, not on biases
    clip: float | None = Field(None, gt=0)  # largest norm of the gradient
    output_scale: float = Field(0.1, gt=0)  # of the output layer's initial weights
    augment: Augment = Augment()
    precision: Precision = "fp32"
    compile: bool = False
    threads: int = Field(1, ge=1)

    eval_points: int = Field(10, ge=1)  # how often validation, or else test, is scored on the way: for the curves
    eval_train: int = Field(4000, ge=1)  # how many training images the final training loss is measured on
    score_turns: bool = True  # in the end, score the mean answer to four turns of each image as well

    device: str = "auto"
    checkpoint_seconds: float = Field(20.0, ge=0)
    tensorboard: bool = False

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        if any(not 0 < drop <= 1 for drop in self.drops):
            raise ValueError(f"drops are parts of the run, between 0 and 1, got {self.drops}")
        if self.divide_batch and self.batch < self.net.pathways:
            raise ValueError(f"a batch of {self.batch} cannot be divided by {self.net.pathways} pathways")
        if self.floats and self.invert:
            raise ValueError("invert makes white the background of pictures; floats have their own")
        if self.augment.colour and (self.net.channels != 3 or self.floats):
            raise ValueError(f"colour needs red, green and blue, not {self.net.channels} channels or floats")
        return self

    @property
    def batch_images(self) -> int:
        """Images in a batch, before they are sliced."""
        return self.batch // self.net.pathways if self.divide_batch else self.batch

    def identity(self) -> dict[str, Any]:
        """What decides the result."""
        return self.model_dump(mode="json", exclude=set(FREE))


def _moved(factory: str | None) -> str | None:
    """A network's own name, where its run was recorded before its module moved."""
    module, colon, function = (factory or "").partition(":")
    return f"{MOVED[module]}{colon}{function}" if module in MOVED else factory


def checked(values: dict[str, Any]) -> Config:
    """A config from values; a mistake raises with the name of the field."""
    try:
        return Config(**values)
    except ValidationError as error:
        raise ConfigError(explained(error)) from None


def explained(error: ValidationError) -> str:
    """pydantic's findings on one line each."""
    lines = []
    for found in error.errors():
        place = ".".join(map(str, found["loc"])) or "config"
        lines.append(f"{place}: {found['msg']}, got {found['input']!r}" if found["loc"] else str(found["msg"]))
    return "these settings do not fit: " + "; ".join(lines)


def read(text: str) -> Config:
    """A config from the JSON of a run directory."""
    try:
        return Config.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(explained(error)) from None


def difference(old: Config, new: Config) -> list[str]:
    """The settings in which two configs would give different results, as "name: old -> new"."""
    return list(_differences(old.identity(), new.identity(), ""))


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str) -> list[str]:
    lines = []
    for name in new:
        a, b = old.get(name), new[name]
        if isinstance(a, dict) and isinstance(b, dict):
            lines += _differences(a, b, f"{prefix}{name}.")
        elif a != b:
            lines.append(f"{prefix}{name}: {a!r} -> {b!r}")
    return lines

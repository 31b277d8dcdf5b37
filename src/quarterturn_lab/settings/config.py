"""One run as data: everything that decides its result, checked, and written beside it."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.settings.networks import Net

Precision = Literal["fp32", "bf16", "fp16"]

# What may differ between two sittings of one run: it says where and how to run, not what comes out.
FREE = frozenset({"data", "device", "checkpoint_seconds", "tensorboard", "score_turns"})
MAX_PIXELS = 64_000_000

# Modules of networks that records and run directories name as they were called when they were made.
MOVED = {f"quarterturn_lab.{name}": "quarterturn_lab.models.mnist" for name in ("sevenlayers", "digits")}


class Augment(BaseModel):
    """Ranges of the random warps of training images; zero or one switches a part off."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    turn: Annotated[  # files call it rotate
        float,
        Field(ge=0, le=360, validation_alias=AliasChoices("turn", "rotate"), serialization_alias="rotate"),
        Field(description="Turn training images by up to this many degrees."),
    ] = 360.0
    shift: Annotated[float, Field(ge=0, le=0.5, description="Shift them by up to this part of their side.")] = 0.0
    zoom: Annotated[float, Field(ge=1, description="Zoom them by up to this factor, in or out.")] = 1.0
    shear: Annotated[float, Field(ge=0, lt=80, description="Shear them by up to this many degrees.")] = 0.0
    stretch: Annotated[
        float, Field(ge=1, description="Stretch one axis by up to this factor, and shrink the other by the same.")
    ] = 1.0
    flip: Annotated[bool, Field(description="Flip half of them. Not where mirror images are of different classes.")] = (
        True
    )
    colour: Annotated[
        float,
        Field(
            ge=0, description="Brighter or darker, along the colours' first principal component: this is the deviation."
        ),
    ] = 0.0
    border: Annotated[
        Literal["zeros", "reflection"], Field(description="What lies outside an image that is warped.")
    ] = "zeros"


class ImageSettings(BaseModel):
    """How image files become arrays: settings of a run, which its loader gets as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    longest: Annotated[
        int | None,
        Field(ge=1, description="Scale the longest side of an image to this many pixels; by default to the side."),
    ] = None
    invert: Annotated[bool, Field(description="Make white the background.")] = False
    floats: Annotated[
        bool, Field(description="Keep the files' own values and channels: FITS, float and many-channel TIFF.")
    ] = False
    skip_bad: Annotated[bool, Field(description="Leave out images that cannot be read, and count them.")] = False
    max_pixels: Annotated[int, Field(ge=1, description="Refuse images with more pixels than this.")] = MAX_PIXELS


class Config(ImageSettings):
    """The settings of one run. Those with a description are options of the command line too, see `options.py`."""

    experiment: str
    row: str
    seed: int = Field(0, ge=0)
    net: Net
    factory: Annotated[str | None, BeforeValidator(lambda name: _moved(name))] = (
        None  # package.module:function of a network of one's own
    )
    rotate: Annotated[
        Literal["maps", "filters"],
        Field(description="Turn the maps or the filters: the same network, other memory and speed."),
    ] = "maps"

    loader: str
    data: Annotated[str | None, Field(description="The folder of the images; the synthetic set needs none.")] = None
    train_size: Annotated[
        int | None,
        Field(ge=2, description="Train on this many images, drawn by class, other ones for each seed."),
    ] = None
    tiles: Annotated[
        int, Field(ge=1, description="How many tiles of each image an epoch sees, where there are masks.")
    ] = 1

    epochs: Annotated[int, Field(ge=1, description="How often each training image is seen.")] = 40
    batch: Annotated[int, Field(ge=1, description="Images in a batch.")] = 128
    divide_batch: Annotated[
        bool, Field(description="Divide the batch by the number of pathways, as the paper did.")
    ] = True
    lr: Annotated[float, Field(gt=0, description="Adam's learning rate.")] = 1e-3
    drops: Annotated[
        tuple[float, ...], Field(description="Parts of the run after which the learning rate is tenfold lower.")
    ] = (0.83, 0.95)
    weight_decay: Annotated[float, Field(ge=0, description="Weight decay, on weights and not on biases.")] = 0.0
    clip: Annotated[float | None, Field(gt=0, description="Largest norm of the gradient.")] = None
    output_scale: Annotated[float, Field(gt=0, description="Scale of the output layer's initial weights.")] = 0.1
    augment: Augment = Augment()
    precision: Annotated[Precision, Field(description="bf16 and fp16 train faster where the machine has them.")] = (
        "fp32"
    )
    compile: Annotated[bool, Field(description="Use torch.compile: slow to start, faster later.")] = False
    threads: Annotated[int, Field(ge=1, description="Threads of one run; the same number gives the same digits.")] = 1

    eval_points: int = Field(10, ge=1)  # how often validation, or else test, is scored on the way: for the curves
    eval_train: int = Field(4000, ge=1)  # how many training images the final training loss is measured on
    score_turns: bool = True  # in the end, score the mean answer to four turns of each image as well

    device: Annotated[str, Field(description="auto, cpu, cuda, cuda:1, ...")] = "auto"
    checkpoint_seconds: Annotated[float, Field(ge=0, description="Save a checkpoint this often.")] = 20.0
    tensorboard: Annotated[bool, Field(description="Write TensorBoard records too.")] = False

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

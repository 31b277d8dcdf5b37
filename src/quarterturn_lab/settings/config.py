"""The settings of one run, validated, as they are written to its directory."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.files import sha256
from quarterturn_lab.settings.networks import Net, group_for, size_fault

Precision = Literal["fp32", "bf16", "fp16"]
Task = Literal["auto", "classes", "tags", "numbers", "answers", "pixels", "regions", "instances"]

# Settings that may change when a run is resumed: they do not affect its result.
FREE = frozenset({"data", "device", "devices", "checkpoint_seconds", "tensorboard", "track", "score_turns", "weights"})
MAX_PIXELS = 64_000_000

# Old module names of networks, as in older records and run directories.
MOVED = {f"quarterturn_lab.{name}": "quarterturn_lab.models.mnist" for name in ("sevenlayers", "digits")}


class Augment(BaseModel):
    """Ranges of the random augmentation of training images; 0 (or 1 for factors) switches a part off."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True, allow_inf_nan=False)

    turn: Annotated[  # "rotate" in files
        float,
        Field(ge=0, le=360, validation_alias=AliasChoices("turn", "rotate"), serialization_alias="rotate"),
        Field(description="Rotate by a random angle up to this many degrees."),
    ] = 360.0
    shift: Annotated[float, Field(ge=0, le=0.5, description="Shift by up to this fraction of the side.")] = 0.0
    zoom: Annotated[float, Field(ge=1, description="Zoom in or out by up to this factor.")] = 1.0
    shear: Annotated[float, Field(ge=0, lt=80, description="Shear by up to this many degrees.")] = 0.0
    stretch: Annotated[
        float, Field(ge=1, description="Stretch one axis by up to this factor and shrink the other.")
    ] = 1.0
    flip: Annotated[
        bool, Field(description="Flip half of the images. Turn off if mirror images belong to different classes.")
    ] = True
    colour: Annotated[
        float,
        Field(ge=0, description="Vary brightness along the main colour axis of galaxies; the standard deviation."),
    ] = 0.0
    border: Annotated[
        Literal["zeros", "reflection"], Field(description="Fill in from outside the image: zeros, or its reflection.")
    ] = "zeros"
    interpolation: Annotated[
        Literal["bilinear", "bicubic"],
        Field(description="bicubic keeps training images about as sharp as test images; bilinear blurs them."),
    ] = "bilinear"
    moves: Annotated[
        str | None,
        Field(description="Turn or mirror each training volume by a random element of this group: octa-full, say."),
    ] = None
    intensity: Annotated[
        float | None,
        Field(gt=0, description="Vary brightness and contrast of training volumes; the standard deviation, 0.1 say."),
    ] = None


class ImageSettings(BaseModel):
    """How image files are read: settings that a run passes to its loader."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    longest: Annotated[
        int | None,
        Field(ge=1, description="Scale the longest side of each image to this many pixels. Default: --side."),
    ] = None
    invert: Annotated[bool, Field(description="Invert the images, for a white background.")] = False
    floats: Annotated[
        bool, Field(description="Keep the values and channels of the files: for FITS, and float or many-channel TIFF.")
    ] = False
    skip_bad: Annotated[bool, Field(description="Skip images that cannot be read, and count them.")] = False
    spacing: Annotated[
        tuple[float, ...], Field(description="Size of a voxel along each axis in mm, for volumes that do not say it.")
    ] = ()
    max_pixels: Annotated[int, Field(ge=1, description="Refuse images with more pixels than this.")] = MAX_PIXELS
    labels: Annotated[
        str | None,
        Field(description="Table of labels (CSV), or `folders` to learn the names of the folders. Default: as found."),
    ] = None
    columns: Annotated[
        tuple[str, ...], Field(description="Columns of the table to learn. Default: all that can be learned.")
    ] = ()
    task: Annotated[
        Task,
        Field(description="What to learn, if the files leave it open, such as numbers instead of classes."),
    ] = "auto"
    groups_by: Annotated[
        str | None,
        Field(
            description="Keep images of one specimen in one part: a column of the table, or a regular expression "
            "whose match in the name says which specimen."
        ),
    ] = None
    test_part: Annotated[
        float | None,
        Field(gt=0, lt=1, description="Fraction of the images for the test. Default: 0.15, a tenth in `train`."),
    ] = None


class Config(ImageSettings):
    """The settings of one run. Those with a description are command-line options, see `options.py`."""

    experiment: str
    row: str
    seed: int = Field(0, ge=0, lt=2**63)
    net: Net
    factory: Annotated[str | None, BeforeValidator(lambda name: _moved(name))] = (
        None  # package.module:function of the user's own network
    )
    backbone: Annotated[
        str | None,
        Field(description="timm:NAME, torchvision:NAME, smp:NAME/ENCODER (masks) or package.module:function (yours)."),
    ] = None
    how: Annotated[
        Literal["convert", "wrap", "plain"],
        Field(description="How --backbone gets its group: convert shares filters, wrap averages and keeps weights."),
    ] = "convert"
    weights: Annotated[
        str | None, Field(description="File of pretrained weights for --backbone: .safetensors, or .pth with tensors.")
    ] = None
    weights_sha256: Annotated[str | None, Field(default_factory=lambda given: digest_of_weights(given.get("weights")))]
    rotate: Annotated[
        Literal["maps", "filters"],
        Field(description="Rotate feature maps or filters: same network, different memory and speed."),
    ] = "maps"

    loader: str
    data: Annotated[str | None, Field(description="Folder of the images. Not needed for synthetic.")] = None
    train_size: Annotated[
        int | None,
        Field(ge=2, description="Train on a random subset of this many images, drawn anew for each seed."),
    ] = None
    validation: Annotated[
        float,
        Field(ge=0, lt=1, description="Hold out this fraction of the training images for validation."),
    ] = 0.0
    tiles: Annotated[int, Field(ge=1, description="Tiles from each image in an epoch, for data with masks.")] = 1

    epochs: Annotated[int, Field(ge=1, description="Number of passes over the training images.")] = 40
    batch: Annotated[int, Field(ge=1, description="Batch size.")] = 128
    divide_batch: Annotated[
        bool, Field(description="Divide the batch size by the number of pathways, as in the paper.")
    ] = True
    accumulate: Annotated[
        int, Field(ge=1, description="Split each batch into this many parts and add their gradients: less memory.")
    ] = 1
    balanced: Annotated[
        bool, Field(description="Draw every class equally often in an epoch, however many images it has.")
    ] = False
    class_weights: Annotated[
        bool, Field(description="Weigh each class in the loss by the inverse of its number of training images.")
    ] = False
    optimizer: Annotated[
        Literal["adam", "adamw", "sgd"],
        Field(description="adam adds weight decay to the gradient, adamw to the step; sgd has Nesterov momentum."),
    ] = "adam"
    momentum: Annotated[float, Field(gt=0, lt=1, description="Momentum of sgd.")] = 0.9
    lr: Annotated[float, Field(gt=0, description="Learning rate, at its highest.")] = 1e-3
    schedule: Annotated[
        Literal["drops", "cosine"],
        Field(description="Divide the learning rate by ten at each of --drops, or lower it to zero along a cosine."),
    ] = "drops"
    drops: Annotated[
        tuple[float, ...], Field(description="When to divide the learning rate by ten, as fractions of the run.")
    ] = (0.83, 0.95)
    warmup: Annotated[
        float,
        Field(ge=0, description="Raise the learning rate over the first steps: a fraction of the run, or steps."),
    ] = 0.0
    weight_decay: Annotated[
        float, Field(ge=0, description="Weight decay of the weights; biases and norms have none.")
    ] = 0.0
    clip: Annotated[float | None, Field(gt=0, description="Clip the gradient to this norm.")] = None
    label_smoothing: Annotated[
        float, Field(ge=0, lt=1, description="Share of the label that is spread over all classes, such as 0.1.")
    ] = 0.0
    ema: Annotated[
        float,
        Field(ge=0, lt=1, description="Score and save a running average of the weights, with this decay: 0.99, say."),
    ] = 0.0
    keep: Annotated[
        Literal["last", "best"],
        Field(description="Save the weights of the last step, or those with the best validation score on the way."),
    ] = "last"
    patience: Annotated[
        int | None,
        Field(ge=1, description="Stop early: after this many validation scores in a row without a better one."),
    ] = None
    # Each plan before the last: (its number of epochs, the epoch at whose end the next took its place). `schedule.py`.
    earlier_plans: tuple[tuple[int, int], ...] = ()
    output_scale: Annotated[float, Field(gt=0, description="Scale of the output layer's initial weights.")] = 0.1
    augment: Augment = Augment()
    precision: Annotated[Precision, Field(description="bf16 and fp16 are faster on hardware that supports them.")] = (
        "fp32"
    )
    compile: Annotated[bool, Field(description="Use torch.compile: slower to start, then faster.")] = False
    threads: Annotated[
        int, Field(ge=1, description="Threads for each run. Results are identical only for the same number.")
    ] = 1

    eval_points: int = Field(10, ge=0)  # how often validation (or test) is scored during training, for the curves
    eval_train: int = Field(4000, ge=1)  # number of training images for the final training score
    score_turns: bool = True  # also score predictions averaged over four rotations at the end

    device: Annotated[str, Field(description="auto, cpu, cuda, cuda:1, ...")] = "auto"
    devices: Annotated[
        int,
        Field(ge=1, description="Processes, or GPUs, of this machine that share each batch. The result is the same."),
    ] = 1
    checkpoint_seconds: Annotated[float, Field(ge=0, description="Seconds between checkpoints.")] = 20.0
    tensorboard: Annotated[bool, Field(description="Also write TensorBoard logs.")] = False
    track: Annotated[
        str | None, Field(description="Also send losses and scores to a tracker: package.module:function.")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _of_older_files(cls, values: Any) -> Any:
        if isinstance(values, dict) and "restarts" in values:
            values = {**values, "earlier_plans": tuple((epoch, epoch) for epoch in values["restarts"])}
            del values["restarts"]
        return values

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        fault = self.net.fault() or size_fault(self.net.channels, self.net.side, self.longest, axes=self.net.axes)
        if fault:
            raise ValueError(fault)
        if any(not 0 < drop <= 1 for drop in self.drops):
            raise ValueError(f"drops are fractions of the run, between 0 and 1, got {self.drops}")
        if self.warmup > 1 and self.warmup != int(self.warmup):
            raise ValueError(f"warmup is a fraction of the run, or a whole number of steps, got {self.warmup}")
        ends = [0, *(end for _, end in self.earlier_plans), self.epochs]
        if ends != sorted(set(ends)) or any(planned < end for planned, end in self.earlier_plans):
            raise ValueError(
                f"earlier plans are (epochs, epoch at its end), with rising ends below {self.epochs}, got "
                f"{self.earlier_plans}"
            )
        if self.patience is not None and self.keep != "best":
            raise ValueError("patience needs the best weights: give --keep best, or leave --patience out")
        if self.balanced and self.class_weights:
            raise ValueError("balanced and class_weights both even out the classes: give one of the two")
        if self.divide_batch and self.batch < self.net.pathways:
            raise ValueError(
                f"a batch of {self.batch} cannot be divided by {self.net.pathways} pathways: make it larger"
            )
        if self.accumulate > self.batch_images:
            raise ValueError(f"a batch of {self.batch_images} images has no {self.accumulate} parts: accumulate fewer")
        if self.devices > self.batch_images:
            raise ValueError(
                f"{self.devices} devices cannot share a batch of {self.batch_images} images: give fewer, or a "
                "larger --batch"
            )
        if self.floats and self.invert:
            raise ValueError("invert is for 8-bit images and cannot be combined with floats: give one of the two")
        if self.backbone is None and (self.how != "convert" or self.weights):
            raise ValueError("how and weights go with a backbone: name it, such as --backbone timm:resnet18")
        if self.backbone is not None and self.factory is not None:
            raise ValueError(f"a run has one network, got {self.backbone} and {self.factory}: leave --net out")
        if self.backbone is not None and (self.how == "plain") != (self.net.group is None):
            raise ValueError(
                f"how={self.how!r} with the group {self.net.group}: convert and wrap need a group, plain has none"
            )
        if fault := _volume_fault(self.net, self.augment):
            raise ValueError(fault)
        if self.augment.colour and (self.net.channels != 3 or self.floats):
            raise ValueError(
                f"colour needs red, green and blue, not {self.net.channels} channels or floats: set colour to 0"
            )
        return self

    @property
    def batch_images(self) -> int:
        """Images in a batch, before slicing into pathways."""
        return self.batch // self.net.pathways if self.divide_batch else self.batch

    def identity(self) -> dict[str, Any]:
        """The settings that affect the result."""
        return self.model_dump(mode="json", exclude=set(FREE))


def _volume_fault(net: Net, warps: Augment) -> str | None:
    """What is wrong with the augmentation for images, or for volumes."""
    if net.axes == 2:
        return "moves and intensity are for volumes: leave them out" if warps.moves or warps.intensity else None
    if warps.flip or warps.shear or warps.stretch != 1 or warps.interpolation != "bilinear":
        return "volumes are not flipped, sheared, stretched or interpolated bicubically: give --moves octa-full, say"
    if warps.turn > 45:
        return f"volumes are turned by up to 45 degrees either way, not {warps.turn:g}: --moves adds quarter turns"
    group_for(warps.moves or "octa", 3)
    return None


def digest_of_weights(file: str | None) -> str | None:
    """The SHA-256 of a file of weights: a run knows them by it, wherever they are."""
    if file is None:
        return None
    try:
        if Path(file).exists() and not Path(file).is_file():
            raise OSError("it is not a file")
        return sha256(Path(file))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"--weights {file} cannot be read ({why}): give a .safetensors or .pth file") from None


def _moved(factory: Any) -> Any:
    """The current name of a network whose module has moved; what is no text is left to the check of types."""
    if not isinstance(factory, str):
        return factory
    module, colon, function = factory.partition(":")
    return f"{MOVED[module]}{colon}{function}" if module in MOVED else factory


def checked(values: dict[str, Any]) -> Config:
    """A config from values; invalid ones raise an error that names the field."""
    try:
        return Config(**values)
    except ValidationError as error:
        raise ConfigError(explained(error)) from None


def explained(error: ValidationError) -> str:
    """pydantic's errors as one sentence."""
    lines = []
    for found in error.errors():
        if found["type"] == "default_factory_not_called":  # because of another error, which is in the list
            continue
        place = ".".join(map(str, found["loc"])) or "config"
        lines.append(
            f"{place}: {found['msg']}, got {found['input']!r}"
            if found["loc"]
            else str(found["msg"]).removeprefix("Value error, ")
        )
    return "invalid settings: " + "; ".join(lines)


def read(text: str) -> Config:
    """A config from the config.json of a run directory."""
    try:
        return Config.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(explained(error)) from None


def difference(old: Config, new: Config) -> list[str]:
    """The differing settings that affect the result, as "name: old -> new"."""
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

"""The settings of a run as options of the command line."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Settings that replace those of the experiment.

    Parameters
    ----------
    data
        The folder of the images; the synthetic set needs none.
    group
        The group of a row with pathways, such as C4, D4, C2 or mirror.
    rotate
        Turn the maps or the filters: the same network, other memory and speed.
    epochs
        How often each training image is seen.
    batch
        Images in a batch.
    divide_batch
        Divide the batch by the number of pathways, as the paper did.
    lr
        Adam's learning rate.
    drops
        Parts of the run after which the learning rate is tenfold lower.
    dropout
        Before each dense layer.
    output_scale
        Scale of the output layer's initial weights.
    weight_decay
        On weights, not on biases.
    clip
        Largest norm of the gradient.
    side
        Side of the network's input, in pixels.
    channels
        1 for grey, 3 for colour; any number with --floats.
    longest
        The longest side of an image is scaled to this many pixels.
    invert
        Make white the background.
    floats
        Keep the files' own values and channels: FITS, float and many-channel TIFF.
    train_size
        Train on a draw of this many images, of each class its share.
    tiles
        How many tiles of each image an epoch sees, where there are masks.
    stages
        Convolutions before each spatial pool, such as 2-2-4-2.
    pool_at
        Pool the pathways before or after the output layer.
    relu_after
        A ReLU after the pathways are pooled.
    output
        Nonlinearity of the output layer.
    turn
        Training images are turned by up to this many degrees.
    shift
        ... shifted by up to this part of their side.
    zoom
        ... zoomed by up to this factor.
    shear
        ... sheared by up to this many degrees.
    stretch
        ... stretched by up to this factor.
    flip
        ... flipped, half of them.
    colour
        ... made brighter or darker along the colours' first principal component, by this standard deviation.
    border
        What lies outside an image that is warped.
    precision
        bf16 and fp16 train faster where the machine has them.
    compile
        Use torch.compile: slow to start, faster later.
    threads
        Threads of one run; the same number gives the same digits.
    device
        auto, cpu, cuda, cuda:1, ...
    skip_bad
        Leave out images that cannot be read, and count them.
    max_pixels
        Refuse images with more pixels than this.
    checkpoint_seconds
        Save a checkpoint this often.
    tensorboard
        Write TensorBoard records too.
    """

    data: str | None = None
    group: str | None = None
    rotate: Literal["maps", "filters"] | None = None
    epochs: int | None = None
    batch: int | None = None
    divide_batch: bool | None = None
    lr: float | None = None
    drops: tuple[float, ...] | None = None
    dropout: float | None = None
    output_scale: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    side: int | None = None
    channels: int | None = None
    longest: int | None = None
    invert: bool | None = None
    floats: bool | None = None
    train_size: int | None = None
    tiles: int | None = None
    stages: str | None = None
    pool_at: Literal["before-output", "after-output"] | None = None
    relu_after: bool | None = None
    output: Literal["linear", "relu", "sigmoid", "questions"] | None = None
    turn: float | None = None
    shift: float | None = None
    zoom: float | None = None
    shear: float | None = None
    stretch: float | None = None
    flip: bool | None = None
    colour: float | None = None
    border: Literal["zeros", "reflection"] | None = None
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    compile: bool | None = None
    threads: int | None = None
    device: str | None = None
    skip_bad: bool | None = None
    max_pixels: int | None = None
    checkpoint_seconds: float | None = None
    tensorboard: bool | None = None

    def given(self) -> dict[str, Any]:
        """Those that are not left to the experiment."""
        return {name: value for name, value in asdict(self).items() if value is not None}

"""The networks as data: the paper's three baselines, a U-Net, and each row as a small edit of a baseline.

`models/build.py` makes a module from a `Net`. What the paper leaves open is a field; its default is justified in
docs/decisions/0020-where-the-paper-is-silent.md.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from quarterturn_lab.errors import ConfigError, unknown

if TYPE_CHECKING:
    from quarterturn.groups import Group

LARGEST_INPUT = 256_000_000  # values: one gigabyte as floats
Stages = tuple[tuple[int, ...], ...]
AXES = {2: "C4", 3: "octa"}  # of images and of volumes, with a group that acts on them


@dataclass(frozen=True)
class Net:
    """A convolutional network: stages of convolutions, hidden layers, an output layer, and how it treats orientations.

    The first group of fields describes the baseline. The second is what table rows change.
    """

    channels: Annotated[int, Field(description="Image channels: 1 for grey, 3 for colour, any number with --floats.")]
    side: Annotated[int, Field(description="Side of the network's input, in pixels.")]
    stages: Stages  # widths of the convolutions; if `pooled`, each stage ends with a max pool of stride 2
    hidden: tuple[int, ...]  # widths of the dense layers, or of 1x1 convolutions if `head` is "conv" or `residual`
    outputs: int
    kernel: int = 3
    same: bool = True  # padding of the convolutions: 'same' or 'valid'
    pooled: bool = True
    norm: Annotated[bool, Field(description="Batch norm after each convolution.")] = False
    unet: bool = False  # a second pass up the stages, with skip connections
    residual: bool = False  # models/residual.py: each width is a block
    convnext: bool = False  # ... or models/convnext.py, with blocks of another kind
    stem_stride: Annotated[
        int, Field(description="Stride of the first convolution of a residual row: 2 for images of 64 pixels, say.")
    ] = 1
    head: Literal["dense", "conv"] = "dense"
    dropout: Annotated[float, Field(description="Dropout rate before each dense layer.")] = 0.5
    output: Annotated[
        Literal["linear", "relu", "sigmoid", "questions"], Field(description="Nonlinearity of the output layer.")
    ] = "linear"
    answers: tuple[str, ...] = ()  # the columns for output "questions"; empty means all 37
    axes: int = 2  # of its inputs: images, or volumes with cubes of `side` voxels as inputs

    group: Annotated[str | None, Field(description="Symmetry group of an equivariant row: C4, D4, C2, mirror, ...")] = (
        None  # None: a plain network
    )
    method: Literal["pool", "stack", "oriented-max", "gradual-pool", "symmetric"] = "pool"
    pool: Annotated[
        Literal["mean", "rms", "max"], Field(description="How an equivariant row pools over its pathways.")
    ] = "mean"
    invariants: Annotated[
        bool,
        Field(description="Several invariants of a feature's orientations at the head of a residual row or U-Net."),
    ] = False
    pool_at: Annotated[
        Literal["before-output", "after-output"],
        Field(description="Pool the pathways before or after the output layer."),
    ] = "before-output"
    relu: bool = True  # on the last hidden layer, before the pathways are pooled
    relu_after: Annotated[bool, Field(description="Add a ReLU after the pathways are pooled.")] = False
    roll: Literal["none", "dense", "all"] = "none"
    roll_from: Annotated[
        int, Field(description="First stage of a residual row whose orientations see each other.", ge=1)
    ] = 1
    divide: int = 1  # widths of all layers but the last two are divided by this
    widen: int = 1  # ... or multiplied by this
    divide_dense: int = 1  # the width of the first dense layer is also divided by this

    @property
    def pathways(self) -> int:
        """Number of copies of each image that the convolutions see."""
        from quarterturn.groups import named

        return named(self.group).order if self.group and self.method != "symmetric" else 1

    def fault(self) -> str | None:
        """What is wrong with the numbers of the network, and what to do, in words."""
        if min(self.channels, self.side, self.stem_stride) < 1:
            return f"channels={self.channels}, side={self.side}, stem_stride={self.stem_stride}: give 1 or more"
        if min((self.kernel, *self.hidden, *(width for stage in self.stages for width in stage))) < 1:
            return f"kernel={self.kernel}, stages={self.stages}, hidden={self.hidden}: give widths of 1 or more"
        if self.axes not in AXES:
            return f"axes={self.axes}: images have two, volumes three"
        if fault := size_fault(self.channels, self.side, axes=self.axes):
            return fault
        if not 0 <= self.dropout < 1:
            return f"dropout={self.dropout}: give a rate of at least 0 and below 1"
        try:
            group_for(self.group or AXES[self.axes], self.axes)
        except ConfigError as error:
            return str(error)
        return None

    @property
    def margin(self) -> int:
        """Number of pixels at each edge of the input without an output."""
        return 0 if self.same else (self.kernel - 1) // 2 * sum(map(len, self.stages))


def size_fault(channels: int, *sides: int | None, axes: int = 2) -> str | None:
    """What is wrong with the size of a network's input, before anything of that size is made."""
    largest = max(side for side in sides if side is not None)
    if largest**axes * channels <= LARGEST_INPUT:
        return None
    sizes = f"{channels} channels of {' x '.join([str(largest)] * axes)} {'pixels' if axes == 2 else 'voxels'}"
    return f"{sizes} are more than {LARGEST_INPUT:,} values: give a smaller side"


def group_for(name: str, axes: int = 2) -> "Group":
    """The group of that name, if it acts on images (two axes) or volumes (three)."""
    from quarterturn.groups import named

    group = named(name)
    if group.dim != axes:
        what = "an image has two: use C4 or D4" if axes == 2 else "a volume has three: use octa, mirror-1 or D4-3"
        raise ConfigError(f"{group.name} acts on {group.dim} axes, and {what}, say")
    return group


PLANKTON = Net(channels=1, side=95, stages=((32, 32), (64, 64), (128,) * 3, (128,) * 3), hidden=(512, 512), outputs=121)
GALAXIES = Net(
    channels=3,
    side=64,
    stages=((32, 32), (64, 64), (128,) * 3, (256,) * 3),
    hidden=(2048, 2048),
    outputs=37,
    output="sigmoid",
)
BUILDINGS = Net(
    channels=3,
    side=80,
    stages=((32,) * 5 + (64,) * 5,),
    hidden=(256,),
    outputs=2,
    kernel=5,
    same=False,
    pooled=False,
    head="conv",
    dropout=0.0,
)
# A small U-Net: the paper has none.
NUCLEI = Net(
    channels=3,
    side=128,
    stages=((16, 16), (32, 32), (64, 64)),
    hidden=(32,),
    outputs=2,
    unet=True,
    head="conv",
    dropout=0.0,
)

# A small U-Net for volumes. Its widths are multiples of 24, the number of turns of a cube.
VOLUMES = replace(NUCLEI, channels=1, side=32, stages=((24, 24), (48, 48), (96,)), hidden=(24,), norm=True, axes=3)

CYCLIC: dict[str, Any] = {"group": "C4", "relu": False}

# Every row is its baseline with these fields changed.
ROWS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "baseline-half": {"divide": 2},
    "baseline-linear": {"relu": False},
    "baseline-half-linear": {"divide": 2, "relu": False},
    "baseline-wide": {"widen": 2},
    "baseline-wide-linear": {"widen": 2, "relu": False},
    "pool-mean": CYCLIC,
    "pool-rms": {**CYCLIC, "pool": "rms"},
    "pool-max": {**CYCLIC, "pool": "max"},
    "mean-relu": {**CYCLIC, "relu": True},
    "rms-relu": {**CYCLIC, "relu": True, "pool": "rms"},
    "max-relu": {**CYCLIC, "relu": True, "pool": "max"},
    "roll-all-quarter": {**CYCLIC, "roll": "all", "divide": 4},
    "roll-all-half": {**CYCLIC, "roll": "all", "divide": 2},
    "roll-dense-half": {**CYCLIC, "roll": "dense", "divide_dense": 2},
    "stack": {"group": "C4", "method": "stack"},
    "flip-rotate-pool": {"group": "D4", "method": "oriented-max"},
    "gradual-pool": {**CYCLIC, "method": "gradual-pool"},
    "symmetric-filters": {"group": "D4", "method": "symmetric"},
}
# The dihedral variant of a row adds flips, with the same widths. "eighth" keeps the number of maps with D4, as
# "quarter" does with C4.
ROWS |= {f"{name}-dihedral": {**row, "group": "D4"} for name, row in ROWS.items() if row.get("group") == "C4"}
ROWS["roll-all-eighth-dihedral"] = {**ROWS["roll-all-quarter-dihedral"], "divide": 8}

# Ordinary networks of two kinds of blocks, and rolled ones with as many maps: a quarter, or an eighth, of the filters.
RESIDUAL: dict[str, Any] = {"residual": True, "norm": True, "hidden": (), "dropout": 0.0} | {
    "stages": ((32, 32), (64, 64), (128, 128))
}
ROWS["residual-plain"] = RESIDUAL
ROWS["convnext-plain"] = {**RESIDUAL, "convnext": True}
ROWS["residual-c4"] = {**RESIDUAL, "group": "C4", "roll": "all", "divide": 4}
ROWS["residual-d4"] = {**RESIDUAL, "group": "D4", "roll": "all", "divide": 8}

# Rolled networks for volumes, with as many maps as the ordinary one, and invariants at the head.
VOLUME_GROUPS = {"mirror-1": 2, "mirrors-1-2-3": 8, "D4-1": 8, "D4-2": 8, "D4-3": 8, "octa": 24}
VOLUME_ROWS: dict[str, dict[str, Any]] = {
    f"roll-{name}": {**CYCLIC, "group": name, "roll": "all", "divide": order, "invariants": True}
    for name, order in VOLUME_GROUPS.items()
}
VOLUME_ROWS["roll-octa-wide"] = {**VOLUME_ROWS["roll-octa"], "widen": 2}  # one filter for 24 orientations is little


def row_of(name: str) -> dict[str, Any]:
    """What a row changes of its baseline."""
    found = {**ROWS, **VOLUME_ROWS}
    if name not in found:
        raise unknown("row", name, found)
    return found[name]


def edited(baseline: Net, row: str, **changes: Any) -> Net:
    """The network of a row: the baseline, the row's edit, then the given changes.

    >>> edited(PLANKTON, "roll-all-quarter").roll
    'all'
    """
    net = replace(baseline, **{**row_of(row), **changes})
    if net.group is not None:
        group_for(net.group, net.axes)
    if net.roll == "dense" and net.head != "dense":
        raise ConfigError(f"{row}: this network has no dense layer to roll: use roll-all-half or roll-all-quarter")
    if net.residual and (net.head != "dense" or net.unet):
        raise ConfigError(f"{row} labels whole images, and this experiment labels pixels: use baseline, say")
    if net.residual and not net.norm:
        raise ConfigError(f"{row} has norms always: leave --no-norm out, or use baseline, say")
    takes_invariants = net.group is not None and (net.residual or (net.head == "conv" and net.roll == "all"))
    if net.invariants and not (takes_invariants and net.pool == "mean"):
        raise ConfigError(
            f"{row}: --invariants is for rolled residual rows, and rolled rows that label pixels, without --pool: use "
            "residual-c4 or roll-all-quarter, say"
        )
    if "roll_from" in changes and not (net.residual and net.group):
        raise ConfigError(f"{row} is not a rolled residual row: leave --roll-from out, or use residual-c4, say")
    if "stem_stride" in changes and not net.residual:
        raise ConfigError(f"{row} has no stem with a stride: leave --stem-stride out, or use residual-plain, say")
    _check_widths(net, row)
    return net


def _check_widths(net: Net, row: str) -> None:
    widths = [width for stage in net.stages for width in stage] + list(net.hidden[:-1])
    if any(width % net.divide for width in widths):
        raise ConfigError(f"{row} divides the widths {widths} by {net.divide}: make them multiples of it")


def restaged(net: Net, layers: str) -> Net:
    """The same convolutions with other pooling positions: "2-2-4-2" is the number of convolutions before each pool.

    >>> [len(stage) for stage in restaged(PLANKTON, "2-2-4-2").stages]
    [2, 2, 4, 2]
    """
    widths = [width for stage in net.stages for width in stage]
    try:
        counts = [int(count) for count in layers.split("-")]
    except ValueError:
        counts = []
    if sum(counts) != len(widths) or any(count < 1 for count in counts):
        raise ConfigError(
            f'stages {layers!r}: give the number of convolutions before each pool, such as "2-2-3-3", '
            f"{len(widths)} in all"
        )
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return replace(net, stages=tuple(tuple(widths[a : a + n]) for a, n in zip(starts, counts, strict=True)))


def resized(net: Net, width: int | None, blocks: int | None, hidden: int | None = None) -> Net:
    """A residual network with another first width, which doubles from stage to stage, other numbers of blocks, and a
    hidden layer before the last.

    >>> resized(edited(PLANKTON, "residual-c4"), 16, 1).stages
    ((16,), (32,), (64,))
    """
    if width is None and blocks is None and hidden is None:
        return net
    if hidden is not None and net.convnext:
        raise ConfigError("convnext-plain has no hidden layer: leave --hidden out, or use residual-plain, say")
    if not net.residual:
        raise ConfigError("--width, --blocks and --hidden are for residual rows: use residual-plain, say")
    if hidden is not None and hidden < 1:
        raise ConfigError(f"--hidden {hidden}: a layer needs features: give 128, say, or leave it out")
    net = net if hidden is None else replace(net, hidden=(hidden,))
    first, count = width or net.stages[0][0], blocks or len(net.stages[0])
    if min(first, count) < 1 or first % net.divide:
        raise ConfigError(
            f"--width {first} --blocks {count}: a block is needed, and a width that {net.divide} divides: the number "
            "of maps, in all orientations"
        )
    return replace(net, stages=tuple((first * 2**i,) * count for i in range(len(net.stages))))

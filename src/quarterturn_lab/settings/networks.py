"""The networks as data: the paper's three baselines and a U-Net, and every row of the tables as one small edit of them.

A `Net` is a plain record; `build.py` makes modules of it. Where the paper is silent there is a field, and its default
is justified in docs/decisions/0020-where-the-paper-is-silent.md.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from quarterturn_lab.errors import ConfigError, unknown

Stages = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Net:
    """A convolutional network: stages of convolutions, hidden layers, an output layer, and how it treats orientations.

    The first group of fields is the baseline. The second is what the rows of the tables change.
    """

    channels: Annotated[int, Field(description="1 for grey, 3 for colour; any number with --floats.")]
    side: Annotated[int, Field(description="Side of the network's input, in pixels.")]
    stages: Stages  # widths of the convolutions; where `pooled`, a max pool of stride 2 ends each stage
    hidden: tuple[int, ...]  # widths of the dense layers, or of the 1x1 convolutions where `head` is "conv"
    outputs: int
    kernel: int = 3
    same: bool = True  # 'same' convolutions; else 'valid'
    pooled: bool = True
    unet: bool = False  # the stages are climbed again, each with what it had on the way down beside it
    head: Literal["dense", "conv"] = "dense"
    dropout: Annotated[float, Field(description="Dropout before each dense layer.")] = 0.5
    output: Annotated[
        Literal["linear", "relu", "sigmoid", "questions"], Field(description="Nonlinearity of the output layer.")
    ] = "linear"
    answers: tuple[str, ...] = ()  # the columns that "questions" speaks of; none: all 37

    group: Annotated[
        str | None, Field(description="The group of a row with pathways, such as C4, D4, C2 or mirror.")
    ] = None  # None: a plain network
    method: Literal["pool", "stack", "oriented-max", "gradual-pool", "symmetric"] = "pool"
    pool: Literal["mean", "rms", "max"] = "mean"  # over pathways
    pool_at: Annotated[
        Literal["before-output", "after-output"],
        Field(description="Pool the pathways before or after the output layer."),
    ] = "before-output"
    relu: bool = True  # on the last hidden layer, before the pathways are pooled
    relu_after: Annotated[bool, Field(description="A ReLU after the pathways are pooled.")] = False
    roll: Literal["none", "dense", "all"] = "none"
    divide: int = 1  # widths of all layers but the last two are divided by this
    widen: int = 1  # ... or multiplied by this
    divide_dense: int = 1  # that of the first dense layer, by this as well

    @property
    def pathways(self) -> int:
        """How many copies of each image the convolutions see."""
        from quarterturn.groups import named

        return named(self.group).order if self.group and self.method != "symmetric" else 1

    @property
    def margin(self) -> int:
        """How many pixels at each edge of the input have no output."""
        return 0 if self.same else (self.kernel - 1) // 2 * sum(map(len, self.stages))


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
# The dihedral twin of a row has turns and flips, and the same widths; "eighth" keeps the number of maps, as a quarter
# does with turns alone.
ROWS |= {f"{name}-dihedral": {**row, "group": "D4"} for name, row in ROWS.items() if row.get("group") == "C4"}
ROWS["roll-all-eighth-dihedral"] = {**ROWS["roll-all-quarter-dihedral"], "divide": 8}


def edited(baseline: Net, row: str, **changes: Any) -> Net:
    """The network of a row: the baseline, the row's edit, then the given changes.

    >>> edited(PLANKTON, "roll-all-quarter").roll
    'all'
    """
    if row not in ROWS:
        raise unknown("row", row, ROWS)
    net = replace(baseline, **{**ROWS[row], **changes})
    if net.roll == "dense" and net.head != "dense":
        raise ConfigError(f"{row}: this network has no dense layer to roll; take roll-all-half or roll-all-quarter")
    _check_widths(net, row)
    return net


def _check_widths(net: Net, row: str) -> None:
    widths = [width for stage in net.stages for width in stage] + list(net.hidden[:-1])
    if any(width % net.divide for width in widths):
        raise ConfigError(f"{row} divides the widths {widths} by {net.divide}: make them multiples of it")


def restaged(net: Net, layers: str) -> Net:
    """The same convolutions with the spatial pools elsewhere: "2-2-4-2" says how many stand before each pool.

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
            f'stages {layers!r}: write the number of convolutions before each pool, such as "2-2-3-3", '
            f"{len(widths)} in all"
        )
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return replace(net, stages=tuple(tuple(widths[a : a + n]) for a, n in zip(starts, counts, strict=True)))

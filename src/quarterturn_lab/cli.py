"""The command `quarterturn`. Heavy imports are inside the commands, so that --help is quick."""

import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter


def _version() -> str:
    from importlib.metadata import version

    return version("quarterturn")


app = App(
    name="quarterturn",
    help="Networks that are exactly equivariant to turns and flips: train, compare, check and report.",
    version=_version,
    suppress_keyboard_interrupt=False,
)
data_app = App(name="data", help="Look at a data folder.")
app.command(data_app)


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
        1 for grey, 3 for colour.
    longest
        The longest side of an image is scaled to this many pixels.
    invert
        Make white the background.
    train_size
        Train on a stratified draw of this many images.
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
    train_size: int | None = None
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
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    compile: bool | None = None
    threads: int | None = None
    device: str | None = None
    skip_bad: bool | None = None
    max_pixels: int | None = None
    checkpoint_seconds: float | None = None
    tensorboard: bool | None = None


DEFAULTS = Options()
RUNS = Path("runs")


@app.command
def train(
    name: str,
    *,
    seed: int = 0,
    net: str | None = None,
    runs_dir: Path = RUNS,
    options: Options = DEFAULTS,
) -> None:
    """Train one network; the same command again resumes it, or shows its summary.

    Example: quarterturn train plankton/roll-all-quarter --data DIR --seed 3 --group D4 --rotate filters

    Parameters
    ----------
    name
        EXPERIMENT/ROW, such as synthetic/pool-mean or plankton/roll-all-quarter.
    seed
        Decides initial weights, order, warps and dropout.
    net
        A network of one's own: package.module:function, called with channels, side and outputs.
    runs_dir
        Where run directories go.
    """
    from quarterturn_lab.commands import train_one

    train_one(name, seed, net, runs_dir, _given(options))


@app.command
def table(
    experiment: str,
    *,
    runs: int = 10,
    rows: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    jobs: int | None = None,
    runs_dir: Path = RUNS,
    options: Options = DEFAULTS,
) -> None:
    """Run all rows of an experiment with several seeds, and print the table beside the paper's figures.

    Finished runs are reused and interrupted ones resumed.

    Example: quarterturn table plankton-small --data DIR --runs 3 --jobs 2

    Parameters
    ----------
    experiment
        Such as synthetic, plankton or plankton-small.
    runs
        Seeds for each row: 0, 1, 2, ...
    rows
        Only these rows, such as --rows baseline pool-mean.
    jobs
        Runs at a time, each in a process with one thread; as many as there are cores.
    runs_dir
        Where run directories, the table and the report go.
    """
    from quarterturn_lab.commands import run_table

    run_table(experiment, runs, rows, jobs, runs_dir, _given(options))


@app.command
def evaluate(run: Path, *, turns: int = 4, data: str | None = None) -> None:
    """Scores of a finished run, with and without averaging over turns; confusion and recall of each class.

    Example: quarterturn evaluate runs/synthetic/baseline/seed0 --turns 8

    Parameters
    ----------
    run
        The run directory.
    turns
        Average the answers to this many turns of each test image.
    data
        The folder of the images, where it has moved.
    """
    from quarterturn_lab.commands import evaluate_run

    evaluate_run(run, turns, data)


@app.command
def check(run: Path, *, group: str | None = None, data: str | None = None) -> None:
    """The equivariance of a trained network, layer by layer, in float64; ends with code 1 where it is not invariant.

    Example: quarterturn check runs/synthetic/roll-all-quarter/seed0

    Parameters
    ----------
    run
        The run directory.
    group
        Check against this group; by default the network's own, or C4 for a plain one.
    data
        The folder of the images, where it has moved.
    """
    from quarterturn_lab.commands import check_run

    sys.exit(0 if check_run(run, group, data) else 1)


@app.command
def report(directory: Path = RUNS, *, output: Path | None = None, data: str | None = None) -> None:
    """Tables, curves, sensitivity to rotation, examples and filters: one HTML page, and Markdown and CSV beside it.

    Example: quarterturn report runs

    Parameters
    ----------
    directory
        Finished runs below it are reported.
    output
        Where to write; by default into the directory.
    data
        The folder of the images, where it has moved.
    """
    from quarterturn_lab.report import report as write

    print(write(directory, output, data))


@app.command
def demo(*, runs_dir: Path = Path("runs/demo"), jobs: int | None = None) -> None:
    """Train three networks on the embedded set, print the table and write the report: minutes on two cores.

    Example: quarterturn demo

    Parameters
    ----------
    runs_dir
        Where run directories and the report go.
    jobs
        Runs at a time; as many as there are cores.
    """
    from quarterturn_lab.commands import run_demo

    run_demo(runs_dir, jobs)


@app.command
def doctor() -> None:
    """What is installed and what this machine can do.

    Example: quarterturn doctor
    """
    from quarterturn_lab.doctor import doctor as look

    sys.exit(0 if look() else 1)


@data_app.command
def info(folder: Path) -> None:
    """What a data folder holds: classes, images, sizes.

    Example: quarterturn data info ../data/plankton

    Parameters
    ----------
    folder
        A folder of class folders, plankton's, or MNIST's.
    """
    from quarterturn_lab.inspect import info as look

    look(folder)


@data_app.command
def verify(folder: Path, *, max_pixels: int = 64_000_000) -> None:
    """Decode every image and name those that cannot be used; ends with code 1 where there are any.

    Example: quarterturn data verify ../data/plankton

    Parameters
    ----------
    folder
        A folder of class folders, plankton's, or MNIST's.
    max_pixels
        Larger images count as bad.
    """
    from quarterturn_lab.inspect import verify as look

    sys.exit(0 if look(folder, max_pixels) else 1)


def _given(options: Options) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if value is not None}


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is one message and code 2."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a sweep ends its runs first
    try:
        app(arguments)
    except KeyboardInterrupt:
        print("quarterturn: interrupted; the same command resumes", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        from quarterturn.errors import QuarterturnError  # here, because it imports torch

        if not isinstance(error, QuarterturnError):
            raise
        print(f"quarterturn: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

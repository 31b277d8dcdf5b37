"""The command `quarterturn`. Heavy imports are inside the commands, so that --help is quick."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from quarterturn_lab.cli.options import Options
from quarterturn_lab.errors import LabError
from quarterturn_lab.settings.config import MAX_PIXELS


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


DEFAULTS = Options()
RUNS = Path("runs")


@app.command
def train(
    name: str, *, seed: int = 0, net: str | None = None, runs_dir: Path = RUNS, options: Options = DEFAULTS
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
    from quarterturn_lab.cli.train import train_one

    train_one(name, seed, net, runs_dir, options.given())


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
    from quarterturn_lab.cli.table import run_table

    run_table(experiment, runs, rows, jobs, runs_dir, options.given())


@app.command
def study(
    name: str,
    *,
    data: str | None = None,
    seeds: int | None = None,
    rows: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    jobs: int | None = None,
    runs_dir: Path = RUNS,
    output: Path = Path("docs/results"),
    train: bool = True,
) -> None:
    """Make the runs of a study that have no record yet, and its page, picture and records; it can be stopped any time.

    Example: quarterturn study small-set --data DIR --jobs 2

    Parameters
    ----------
    name
        small-set, all-images, equal-cost, few-labels, rotated-mnist or mnist-search.
    data
        The folder of the images.
    seeds
        Only the first so many seeds of each row.
    rows
        Only these rows of the study, such as --rows baseline pool-mean.
    jobs
        Runs at a time, each in a process with one thread; as many as there are cores.
    runs_dir
        Where run directories go.
    output
        Where page and records go. Runs that have a record there are not made again.
    train
        With --no-train the page is made from what there is.
    """
    from quarterturn_lab.cli.study import run_study

    run_study(name, data, seeds, rows, jobs, runs_dir, output, train)


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
    from quarterturn_lab.cli.evaluate import evaluate_run

    evaluate_run(run, turns, data)


@app.command
def check(run: Path, *, group: str | None = None, whole: bool = False, data: str | None = None) -> None:
    """The equivariance of a trained network, layer by layer, in float64; ends with code 1 where it is not invariant.

    Example: quarterturn check runs/synthetic/roll-all-quarter/seed0

    Parameters
    ----------
    run
        The run directory.
    group
        Check against this group; by default the network's own, or C4 for a plain one.
    whole
        Turn all whole test images too, where the network labels each pixel.
    data
        The folder of the images, where it has moved.
    """
    from quarterturn_lab.cli.check import check_run

    sys.exit(0 if check_run(run, group, data, whole) else 1)


@app.command
def predict(
    *paths: str,
    out: Path,
    onnx: Path | None = None,
    batch: int = 64,
    convert: bool = False,
    grey: bool = False,
    device: str = "auto",
) -> None:
    """What a trained network says of images: a table of probabilities, or a mask for each image.

    Networks that label each pixel take images of any size. All is written at the end, or nothing.

    Example: quarterturn predict runs/galaxies/pool-mean/seed0 DIR/images_test_rev1 --out answers.csv

    Parameters
    ----------
    paths
        The run directory, then images: files, folders, or quoted patterns. With --onnx images alone.
    out
        The table to write; for masks a folder, or a picture for one image.
    onnx
        Use this file of `quarterturn export` instead of a run: through onnxruntime, without torch.
    batch
        Images at a time.
    convert
        Take grey images for colour ones and the other way round, though the training had none such.
    grey
        Masks as probabilities, from 0 to 255, instead of 0 and 255.
    device
        auto, cpu, cuda, cuda:1, ...
    """
    from quarterturn_lab.cli.predict import predict_files

    predict_files(paths, out, onnx, batch, convert, grey, device)


@app.command
def submit(
    run: Path,
    *,
    sample: Path,
    images: Path | None = None,
    out: Path | None = None,
    batch: int = 64,
    device: str = "auto",
) -> None:
    """Kaggle's submission file for plankton or galaxies: the sample's columns and rows, the network's answers.

    Example: quarterturn submit runs/galaxies/pool-mean/seed0 --sample all_zeros_benchmark.csv

    Parameters
    ----------
    run
        The run directory.
    sample
        The sample submission of the challenge.
    images
        The images to predict; by default test/ (plankton) or images_test_rev1/ (galaxies) beside the training images.
    out
        The file to write; by default submission.csv in the run directory.
    batch
        Images at a time.
    device
        auto, cpu, cuda, cuda:1, ...
    """
    from quarterturn_lab.cli.predict import submit_run

    submit_run(run, sample, images, out, batch, device)


@app.command
def export(run: Path, *, onnx: Path) -> None:
    """A trained network as an ONNX file of ordinary layers, compared with the network before it is kept.

    Example: quarterturn export runs/galaxies/pool-mean/seed0 --onnx galaxies.onnx

    Parameters
    ----------
    run
        The run directory.
    onnx
        The file to write; `quarterturn predict --onnx` takes it.
    """
    from quarterturn_lab.cli.predict import export_file

    export_file(run, onnx)


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
    from quarterturn_lab.report.html import report as write

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
    from quarterturn_lab.cli.table import run_demo

    run_demo(runs_dir, jobs)


@app.command
def doctor() -> None:
    """What is installed and what this machine can do.

    Example: quarterturn doctor
    """
    from quarterturn_lab.cli.doctor import doctor as look

    sys.exit(0 if look() else 1)


@data_app.command
def info(folder: Path) -> None:
    """What a data folder holds: classes or answers, images, sizes.

    Example: quarterturn data info ../data/plankton

    Parameters
    ----------
    folder
        Class folders, plankton's, MNIST's, galaxies', aerial images' or nuclei's.
    """
    from quarterturn_lab.cli.data import info as look

    look(folder)


@data_app.command
def verify(folder: Path, *, max_pixels: int = MAX_PIXELS) -> None:
    """Decode every image and name those that cannot be used; ends with code 1 where there are any.

    Example: quarterturn data verify ../data/plankton

    Parameters
    ----------
    folder
        Class folders, plankton's, MNIST's, galaxies', aerial images' or nuclei's.
    max_pixels
        Larger images count as bad.
    """
    from quarterturn_lab.cli.data import verify as look

    sys.exit(0 if look(folder, max_pixels) else 1)


def _is_ours(error: Exception) -> bool:
    if isinstance(error, LabError):
        return True
    from quarterturn.errors import QuarterturnError  # here, because it imports torch

    return isinstance(error, QuarterturnError)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is one message and code 2."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a sweep ends its runs first
    try:
        app(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("quarterturn: interrupted; the same command resumes", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # as `| head` does; what Python would still write at its end goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if not _is_ours(error):
            raise
        print(f"quarterturn: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

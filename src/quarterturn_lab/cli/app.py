"""The command `quarterturn` and its options. Heavy imports are inside the commands, to keep --help fast."""

import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from cyclopts import App, Parameter

from quarterturn_lab import stopping
from quarterturn_lab.cli.options import FitOptions, ImageOptions, Options, SweepOptions, TrustOptions
from quarterturn_lab.errors import ConfigError, LabError, Lost, of_system
from quarterturn_lab.ranks import NeedsProcesses, launch, tell_torchrun


def _version() -> str:
    from importlib.metadata import version

    return version("quarterturn")


app = App(
    name="quarterturn",
    help="Train, compare and check neural networks that are exactly equivariant to rotations and flips.",
    version=_version,
    suppress_keyboard_interrupt=False,
)
data_app = App(name="data", help="Inspect a data folder.")
app.command(data_app)


DEFAULTS = Options()
FIT_DEFAULTS = FitOptions()
READING = ImageOptions()
CAUTIOUS = TrustOptions()
ALONE = SweepOptions()
RUNS = Path("runs")


@app.command
def fit(
    folder: Path | None = None,
    *,
    minutes: float | None = None,
    symmetry: str | None = None,
    compare: bool | None = None,
    resume: bool = False,
    config: Path | None = None,
    trust: Annotated[bool, Parameter(negative="")] = False,
    seed: int | None = None,
    runs_dir: Path = RUNS,
    search: int | None = None,
    search_minutes: float | None = None,
    where: SweepOptions = ALONE,
    options: FitOptions = FIT_DEFAULTS,
) -> None:
    """Train a network on your own images: looks, plans, chooses the symmetry, trains, checks, tests and reports.

    Run the same command again to resume it, or to see its scores.

    Example: quarterturn fit DIR --minutes 10

    Parameters
    ----------
    folder
        The images: a folder for each class, with or without train/val/test above; a table of labels; or masks.
    minutes
        Time for everything, the choice of the symmetry included. Default: 10, if --epochs is not given.
    symmetry
        auto, none, C4 (mirror images differ), D4 (mirror images are alike), C2, mirror. Default: auto.
    compare
        Also train an ordinary network for as long, which doubles the time.
    resume
        Go on with the latest run on this folder, with its own settings; more --minutes or --epochs make it longer.
    config
        Settings from a TOML file, such as the run.toml of another run. Options on the command line win.
    trust
        With --config and --resume: call functions that the file or the run names (--backbone, --track).
    seed
        Random seed of initial weights, image order and augmentation. Default: 0.
    runs_dir
        Folder for the run directories.
    search
        First try so many other learning rates, widths, groups and heads in short runs, and train the best (needs the
        extra search). This takes its own time, beside --minutes.
    search_minutes
        Search for so long. Trials that have begun are finished.
    """
    from quarterturn_lab.cli.fit import fit_folder
    from quarterturn_lab.fit.search import Search
    from quarterturn_lab.training.sweep import Where

    given = {"minutes": minutes, "symmetry": symmetry, "compare": compare, "seed": seed, **options.given()}
    asked = {name: value for name, value in given.items() if value is not None}
    wanted = None
    if search is not None or search_minutes is not None:
        wanted = Search(search, search_minutes, replace(Where(**asdict(where)), jobs=where.jobs or 1))
    elif where != ALONE:
        raise ConfigError("--jobs, --executor, --retries and --slurm are for the runs of --search: give it, or none")
    fit_folder(folder, asked, resume, config, runs_dir, trust, wanted)


@app.command
def train(
    name: str, *, seed: int = 0, net: str | None = None, runs_dir: Path = RUNS, options: Options = DEFAULTS
) -> None:
    """Train one network. Run the same command again to resume it, or to see its scores.

    Example: quarterturn train plankton/roll-all-quarter --data DIR --seed 3 --group D4 --rotate filters

    Parameters
    ----------
    name
        EXPERIMENT/ROW, such as synthetic/pool-mean or plankton/roll-all-quarter.
    seed
        Random seed of initial weights, image order, augmentation and dropout.
    net
        Your own network: package.module:function, a function of channels, side and outputs.
    runs_dir
        Folder for the run directories.
    """
    from quarterturn_lab.cli.train import train_one

    train_one(name, seed, net, runs_dir, options.given())


@app.command
def table(
    experiment: str,
    *,
    runs: int = 10,
    rows: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    runs_dir: Path = RUNS,
    where: SweepOptions = ALONE,
    options: Options = DEFAULTS,
) -> None:
    """Train all rows of an experiment with several seeds, and compare them with the paper's results.

    Finished runs are reused, interrupted runs are resumed.

    Example: quarterturn table plankton-small --data DIR --runs 3 --jobs 2

    Parameters
    ----------
    experiment
        Name of the experiment, such as synthetic, plankton or plankton-small.
    runs
        Number of runs for each row, with seeds 0, 1, 2, ...
    rows
        Train only these rows, such as --rows baseline pool-mean.
    runs_dir
        Folder for the run directories, the table and the report.
    """
    from quarterturn_lab.cli.table import run_table
    from quarterturn_lab.training.sweep import Where

    run_table(experiment, runs, rows, Where(**asdict(where)), runs_dir, options.given())


@app.command
def study(
    name: str,
    *,
    data: str | None = None,
    seeds: int | None = None,
    rows: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    runs_dir: Path = RUNS,
    output: Path = Path("docs/results"),
    train: bool = True,
    where: SweepOptions = ALONE,
) -> None:
    """Train the missing runs of a study, then write its page, picture and records.

    The command can be stopped at any time. Run it again to continue.

    Example: quarterturn study small-set --data DIR --jobs 2

    Parameters
    ----------
    name
        Name of the study, such as small-set, recipe-plankton-2000 or transformers; docs/results lists all.
    data
        Folder of the images.
    seeds
        Train only the first N seeds of each row.
    rows
        Train only these rows, such as --rows baseline pool-mean.
    runs_dir
        Folder for the run directories.
    output
        Folder for the page and the records. Runs with a record there are not repeated.
    train
        Use --no-train to write the page from the runs that exist.
    """
    from quarterturn_lab.cli.study import run_study
    from quarterturn_lab.training.sweep import Where

    run_study(name, data, seeds, rows, Where(**asdict(where)), runs_dir, output, train)


@app.command
def evaluate(
    run: Path, *, turns: int = 4, data: str | None = None, output: Path | None = None, trust: TrustOptions = CAUTIOUS
) -> None:
    """Score a finished run on its test images: overall, averaged over rotations, and class by class.

    Example: quarterturn evaluate runs/synthetic/baseline/seed0 --turns 8

    Parameters
    ----------
    run
        The run directory.
    turns
        Number of rotations of each test image to average predictions over.
    data
        Folder of the images, if it has moved.
    output
        Folder to write evaluation.json to. Default: the run directory.
    """
    from quarterturn_lab.cli.evaluate import evaluate_run

    evaluate_run(run, turns, data, output, trust)


@app.command
def check(
    run: Path,
    *,
    group: str | None = None,
    whole: bool = False,
    data: str | None = None,
    trust: TrustOptions = CAUTIOUS,
) -> None:
    """Check the equivariance of a trained network, layer by layer, in float64.

    The exit code is 1 if the network is not equivariant.

    Example: quarterturn check runs/synthetic/roll-all-quarter/seed0

    Parameters
    ----------
    run
        The run directory.
    group
        Symmetry group to check. Default: the network's own, or C4 for an ordinary network.
    whole
        Also check whole test images, for networks that label each pixel.
    data
        Folder of the images, if it has moved.
    """
    from quarterturn_lab.cli.check import check_run

    sys.exit(0 if check_run(run, group, data, whole, trust) else 1)


@app.command
def predict(
    *paths: str,
    out: Path,
    onnx: Path | None = None,
    batch: int = 64,
    convert: bool = False,
    grey: bool = False,
    skip_bad: bool = False,
    window: int | None = None,
    stride: int | None = None,
    level: int = 0,
    tile: int = 512,
    max_pixels: int | None = None,
    device: str = "auto",
    trust: TrustOptions = CAUTIOUS,
) -> None:
    """Predict images with a trained network: a table of probabilities, or a mask for each image.

    Whole images are scaled as in training. With --window, the network looks at squares of a large image instead, and
    the table has a row for each. Networks that label each pixel take images of any size, in tiles. If an image fails,
    nothing is written, unless --skip-bad is given. After an error or a kill, the same command continues.

    Example: quarterturn predict runs/galaxies/pool-mean/seed0 DIR/images_test_rev1 --out predictions.csv

    Parameters
    ----------
    paths
        The run directory, then images: files, folders or quoted patterns. With --onnx, only images.
    out
        The CSV file to write. For masks: a folder, or an image file for a single image. A .tif file is written in
        tiles and keeps the georeference; .ome.tif is OME-TIFF.
    onnx
        Use this file from `quarterturn export` instead of a run. Runs in onnxruntime, without torch.
    batch
        Images in a batch.
    convert
        Convert grey images to colour, or colour to grey, if the network was trained on the other kind.
    grey
        Write masks as probabilities, scaled to 0..255, instead of only 0 and 255.
    skip_bad
        Leave out images that cannot be read, name them, and exit with code 1.
    window
        Side of the squares to look at, in pixels of the image: about the size of the training images.
    stride
        Pixels from one square to the next. Default: --window, so that they touch.
    level
        Level of a pyramid (TIFF or slide); 0 has all pixels.
    tile
        Side of the tiles in which masks of large images are computed. Smaller ones take less memory.
    max_pixels
        Refuse images with more pixels than this if they cannot be read in parts. Default: as in training.
    device
        auto, cpu, cuda, cuda:1, ...
    """
    from quarterturn_lab.cli.predict import predict_files
    from quarterturn_lab.inference.tables import Options as Prediction

    options = Prediction(batch, convert, grey, skip_bad, window, stride, level, tile, max_pixels)
    sys.exit(0 if predict_files(paths, out, onnx, options, device, trust) else 1)


@app.command
def submit(
    run: Path,
    *,
    sample: Path,
    images: Path | None = None,
    out: Path | None = None,
    batch: int = 64,
    device: str = "auto",
    trust: TrustOptions = CAUTIOUS,
) -> None:
    """Write a Kaggle submission for plankton or galaxies, in the format of the sample submission.

    Example: quarterturn submit runs/galaxies/pool-mean/seed0 --sample all_zeros_benchmark.csv

    Parameters
    ----------
    run
        The run directory.
    sample
        The sample submission file of the challenge.
    images
        Folder of the images to predict. Default: test/ (plankton) or images_test_rev1/ (galaxies) in the data folder.
    out
        The file to write. Default: submission.csv in the run directory.
    batch
        Images in a batch.
    device
        auto, cpu, cuda, cuda:1, ...
    """
    from quarterturn_lab.cli.predict import submit_run

    submit_run(run, sample, images, out, batch, device, trust)


@app.command
def export(
    run: Path,
    *,
    to: Literal["onnx", "torchscript", "bioimageio", "wsinfer", "hub"] | None = None,
    out: Path | None = None,
    onnx: Path | None = None,
    spacing: float | None = None,
    license: str | None = None,
    author: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    trust: TrustOptions = CAUTIOUS,
) -> None:
    """Write a trained network for another program. It is loaded again, compared, and checked before it is kept.

    Example: quarterturn export runs/galaxies/pool-mean/seed0 --to onnx --out galaxies.onnx

    Parameters
    ----------
    run
        The run directory.
    to
        onnx, torchscript, bioimageio (a package of bioimage.io), wsinfer (a folder for WSInfer and QuPath) or hub (a
        folder for from_pretrained and timm).
    out
        The file to write, or the folder for wsinfer and hub.
    onnx
        Short for --to onnx --out FILE. Use the file with `quarterturn predict --onnx`.
    spacing
        For wsinfer: micrometres per pixel of the network's input.
    license
        For bioimageio and hub: the licence of your network, such as CC-BY-4.0 or MIT.
    author
        For bioimageio: your name. May be given several times.
    """
    from quarterturn_lab.cli.export import export_run

    export_run(run, onnx, to, out, spacing, license, author, trust)


@app.command
def report(
    directory: Path = RUNS,
    *,
    compare: Path | None = None,
    output: Path | None = None,
    data: str | None = None,
    trust: TrustOptions = CAUTIOUS,
) -> None:
    """Write an HTML report of finished runs: table, curves, rotation sensitivity, examples and filters.

    The table is also written as Markdown and CSV. The directory of a single run gets a page about its test images.

    Example: quarterturn report runs

    Parameters
    ----------
    directory
        Folder with finished runs, at any depth; or the directory of one run.
    compare
        Run directory of another network, to show beside a single run.
    output
        Folder to write to. Default: the same directory.
    data
        Folder of the images, if it has moved.
    """
    from quarterturn_lab.cli.report import report_of

    report_of(directory, compare, output, data, trust)


@app.command
def demo(*, runs_dir: Path = Path("runs/demo"), jobs: int | None = None) -> None:
    """Train three networks on built-in images, then print a table and write a report. Takes a few minutes.

    Example: quarterturn demo

    Parameters
    ----------
    runs_dir
        Folder for the run directories and the report.
    jobs
        Number of runs at the same time. Default: the number of cores.
    """
    from quarterturn_lab.cli.table import run_demo

    run_demo(runs_dir, jobs)


@app.command
def play(source: Path | None = None, *, port: int = 7860, trust: TrustOptions = CAUTIOUS) -> None:
    """Open a page on this machine: turn a picture, and see what an ordinary and an equivariant network say.

    The first start trains the two networks on drawn organisms, in about a minute. Needs the extra play.

    Example: quarterturn play

    Parameters
    ----------
    source
        The run directory of your own network, or an ONNX file from `quarterturn export`, to play with instead.
    port
        Port of the page; 0 takes any that is free. Only this machine can open it.
    """
    from quarterturn_lab.cli.play import play as serve

    serve(source, port, trust)


@app.command
def doctor() -> None:
    """Check the installation: packages, processor, GPU, compiled kernel.

    Example: quarterturn doctor
    """
    from quarterturn_lab.cli.doctor import doctor as look

    sys.exit(0 if look() else 1)


@data_app.command
def info(folder: Path, *, options: ImageOptions = READING) -> None:
    """Describe a folder of images: what there is to learn, sizes, values, the split, and files that cannot be used.

    Example: quarterturn data info ../data/plankton

    Parameters
    ----------
    folder
        Images in one folder for each class, with a table of labels, or with masks.
    """
    from quarterturn_lab.cli.data import info as look

    look(folder, options.given())


@data_app.command
def verify(folder: Path, *, options: ImageOptions = READING) -> None:
    """Decode every image and list those that cannot be used. The exit code is 1 if there are any.

    Example: quarterturn data verify ../data/plankton

    Parameters
    ----------
    folder
        Images in one folder for each class, with a table of labels, or with masks.
    """
    from quarterturn_lab.cli.data import verify as look

    sys.exit(0 if look(folder, options.given()) else 1)


def _is_ours(error: Exception) -> bool:
    if isinstance(error, LabError):
        return True
    from quarterturn.errors import QuarterturnError  # here, because it imports torch

    return isinstance(error, QuarterturnError)


def main(arguments: list[str] | None = None) -> None:
    """Run a command. A user's mistake prints one message and exits with code 2."""
    try:
        with stopping.at_once():
            try:
                app(arguments)
                sys.stdout.flush()
            except NeedsProcesses as wanted:
                sys.exit(launch(wanted.count, main, sys.argv[1:] if arguments is None else arguments))
    except (stopping.Stopped, KeyboardInterrupt) as error:
        stop = error if isinstance(error, stopping.Stopped) else stopping.Stopped(signal.SIGINT)
        with suppress(OSError):  # the terminal may be gone
            print(f"quarterturn: {stop}", file=sys.stderr)
        sys.exit(stop.code)
    except BrokenPipeError:  # as with `| head`; discard what Python still flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except MemoryError as error:
        _end(f"not enough memory ({error}): lower --side, --batch or --max-pixels")
    except Exception as error:
        found = of_system(error) if isinstance(error, OSError) else error
        if found is None or not _is_ours(found):
            tell_torchrun(traceback.format_exc())
            raise
        _end(str(found), is_cause=not isinstance(found, Lost))


def _end(message: str, is_cause: bool = True) -> NoReturn:
    """Say what is wrong, and end with code 2."""
    print(f"quarterturn: {message}", file=sys.stderr)
    if is_cause:
        tell_torchrun(f"quarterturn: {message}")
    sys.exit(2)

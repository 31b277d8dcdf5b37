"""The commands after training: predict, submit, export. They print; nothing below them does."""

from pathlib import Path

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.inference.predict import Tell, find, onnx_runner, predict
from quarterturn_lab.inference.whole_images import Run
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs.model_card import Facts


def predict_files(
    paths: tuple[str, ...], out: Path, onnx: Path | None, batch: int, convert: bool, grey: bool, device: str
) -> None:
    """Predict images with a run's network, whose directory is the first path, or with an ONNX file."""
    if onnx is None:
        run, facts = _network(Path(paths[0]), device) if paths else _nothing()
        paths = paths[1:]
    else:
        run, facts = onnx_runner(onnx)
    files = find(paths)
    with Bars() as bars:
        predict(run, facts, files, out, batch, convert, grey, _telling(bars, "predicting"))
    print(f"{len(files):,} image{'s' if len(files) > 1 else ''} -> {out}")


def submit_run(directory: Path, sample: Path, folder: Path | None, out: Path | None, batch: int, device: str) -> None:
    """Write a submission file for the images of a challenge."""
    from quarterturn_lab.inference.kaggle import FOLDERS, submit
    from quarterturn_lab.runs import run_directory

    config = run_directory.config_of(directory)
    if folder is None:
        if config.loader not in FOLDERS or config.data is None:
            raise ConfigError("name the folder of the images to predict: --images DIR")
        folder = Path(config.data) / FOLDERS[config.loader]
    run, facts = _network(directory, device)
    out = out or directory / "submission.csv"
    with Bars() as bars:
        submit(run, facts, sample, folder, out, batch, _telling(bars, "predicting"))
    print(f"submission: {out}")


def export_file(directory: Path, file: Path) -> None:
    """Write an ONNX file of a run's network."""
    from quarterturn_lab.inference.onnx import export_run

    print(f"{file}: takes {export_run(directory, file)}; compared with the network in onnxruntime")


def _network(directory: Path, device: str) -> tuple[Run, Facts]:
    from quarterturn_lab.inference.network import for_whole_images, runner
    from quarterturn_lab.runs import run_directory
    from quarterturn_lab.training import loop

    config, facts = run_directory.config_of(directory), run_directory.known(directory)
    net = run_directory.trained(directory, config, facts.classes)
    where = loop.pick_device(device)
    return runner((for_whole_images(config, net) if facts.is_dense else net).to(where), where), facts


def _nothing() -> tuple[Run, Facts]:
    raise ConfigError("name a run directory and images, or give --onnx FILE and images")


def _telling(bars: Bars, name: str) -> Tell:
    return lambda done, total: bars.update(name, done, total, None, 1)

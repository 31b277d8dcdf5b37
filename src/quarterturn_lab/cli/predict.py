"""The commands `predict` and `submit`. Only these print; the functions they call do not."""

import sys
from pathlib import Path

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.inference.predict import find, onnx_network, predict
from quarterturn_lab.inference.tables import Options, Progress
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs.trust import Trust


def predict_files(
    paths: tuple[str, ...], out: Path, onnx: Path | None, options: Options, device: str, trust: Trust
) -> bool:
    """Predict images with an ONNX file, or else with the run at the first path; False if some were skipped."""
    if onnx is None and paths and paths[0].lower().endswith(".onnx"):
        raise ConfigError(f"{paths[0]} is an ONNX file, no run directory: give it as --onnx {paths[0]}")
    if onnx is None and not paths:
        raise ConfigError("name a run directory and images, or give --onnx FILE and images")
    if onnx is None:
        from quarterturn_lab.inference.network import trained_network

        network, card = trained_network(Path(paths[0]), device, trust)
    else:
        network, card = onnx_network(onnx)
    files = find(paths[1:] if onnx is None else paths)
    with Bars() as bars:
        skipped = predict(network, card, files, out, options, _show(bars, "predicting"), bars.say)
    for why in skipped:
        print(f"skipped: {why}", file=sys.stderr)
    left = f", {len(skipped):,} skipped" if skipped else ""
    done, what = len(files) - len(skipped), "image" if card.settings.axes == 2 else "volume"
    print(f"{done:,} {what}{'s' if done != 1 else ''}{left} -> {out}")
    return not skipped


def submit_run(
    directory: Path, sample: Path, folder: Path | None, out: Path | None, batch: int, device: str, trust: Trust
) -> None:
    """Write a submission file for a challenge."""
    from quarterturn_lab.inference.kaggle import FOLDERS, submit
    from quarterturn_lab.inference.network import trained_network
    from quarterturn_lab.runs import run_directory

    config = run_directory.config_of(directory)
    if folder is None:
        if config.loader not in FOLDERS or config.data is None:
            raise ConfigError(
                "this run has no default folder of test images: name the images to predict with --images DIR"
            )
        folder = Path(config.data) / FOLDERS[config.loader]
    network, card = trained_network(directory, device, trust)
    out = out or directory / "submission.csv"
    with Bars() as bars:
        submit(network.run, card, sample, folder, out, batch, _show(bars, "predicting"))
    print(f"submission: {out}")


def _show(bars: Bars, name: str) -> Progress:
    return lambda done, total, unit="images": bars.update(name, done, total, None, 1, unit)

"""The command `fit`: from a folder of images to a trained network."""

from pathlib import Path
from typing import Any

from quarterturn_lab import ranks
from quarterturn_lab.data.watch import watching
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.fit.fitting import Fit, latest
from quarterturn_lab.fit.request import LENGTH, Request, checked_request, read_file
from quarterturn_lab.fit.search import Search
from quarterturn_lab.progress import Bars
from quarterturn_lab.report.fit_report import Written, write_fit_report
from quarterturn_lab.runs.trained import card_of
from quarterturn_lab.runs.trust import Trust, check_settings


def fit_folder(
    folder: Path | None,
    given: dict[str, Any],
    resume: bool,
    file: Path | None,
    root: Path,
    trust: bool = False,
    search: Search | None = None,
) -> None:
    """Fit a network and print what was found, chosen, trained and scored."""
    kept = read_file(file) if file else {}
    if "epochs" in given or "minutes" in given:
        kept = {name: value for name, value in kept.items() if name not in (*LENGTH, "minutes")}
    settings = {**kept, **given}
    if file and not trust:
        check_settings(settings, file, given)
    where = settings.pop("data", None)
    folder = folder or (Path(where) if where else None)
    if folder is None:
        raise ConfigError("name the folder of your images: quarterturn fit DIR")
    own = {name: settings.pop(name) for name in ("symmetry", "minutes", "compare", "seed") if name in settings}
    request = checked_request(Request(folder, options=settings, search=search is not None, **own))
    if resume:
        request = latest(request, root)
        if not trust:
            check_settings(request.options, request.directory(root), settings)
    with ranks.leading(settings.get("devices", 1)) as leads:
        if leads:
            if search and ranks.team():
                raise ConfigError("--search trains one network after the other or --jobs at once, in one process each")
            _fit(request, root, search.checked() if search else None)


def _fit(request: Request, root: Path, search: Search | None) -> None:
    with Bars() as bars:
        fitted = Fit(request, root, bars, search).run()
        with watching(bars.files):
            written = write_fit_report(
                fitted.directory, fitted.ordinary, fitted.record.get("choice"), trust=Trust(trust=True)
            )
    _finish(fitted.directory, written)


def _finish(run: Path, written: Written) -> None:
    """Print what the check and the test images said, and what to do next."""
    if written.change is not None:
        print(
            f"check: over all orientations the output changes by at most {written.change:.0e} of its size, in float64"
        )
    print(f"\n{written.headline}\n")
    if written.warning:
        print(f"note: {written.warning}\n")
    card = card_of(run)
    out = "masks" if card.is_dense else "predictions.csv"
    given, others = "IMAGES", ", bioimageio, wsinfer"
    if card.settings.axes == 3:
        given, out, others = "scan.nii.gz", "mask.nii.gz", ""
    print(f"the page:  {written.path}")
    print(f"the run, and run.toml to repeat it: {run}")
    print(f"use it:    quarterturn predict {run} {given} --out {out}")
    print(f"share it:  quarterturn export {run} --onnx model.onnx, or --to torchscript{others} or hub")

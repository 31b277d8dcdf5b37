"""The command `fit`: from a folder of images to a trained network."""

from pathlib import Path
from typing import Any

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.fit.fitting import Fit, Fitted, latest
from quarterturn_lab.fit.request import Request, checked_request, read_file
from quarterturn_lab.progress import Bars
from quarterturn_lab.report.fit_report import fit_page
from quarterturn_lab.runs.trained import card_of


def fit_folder(folder: Path | None, given: dict[str, Any], resume: bool, file: Path | None, root: Path) -> None:
    """Fit a network and print what was found, chosen, trained and scored."""
    settings = {**(read_file(file) if file else {}), **given}
    where = settings.pop("data", None)
    folder = folder or (Path(where) if where else None)
    if folder is None:
        raise ConfigError("name the folder of your images: quarterturn fit DIR")
    own = {name: settings.pop(name) for name in ("symmetry", "minutes", "compare", "seed") if name in settings}
    request = checked_request(Request(folder, options=settings, **own))
    if resume:
        request = latest(request, root)
    with Bars() as bars:
        fitted = Fit(request, root, bars).run()
    _finish(fitted)


def _finish(fitted: Fitted) -> None:
    """Write the page, then print the result and what to do next."""
    run = fitted.directory
    print("checking and testing, for the report", flush=True)
    page = fit_page(run, fitted.ordinary, fitted.record["choice"])
    if page.exact is not None:
        print(f"check: over all orientations the output changes by at most {page.exact:.0e} of its size, in float64")
    out = "masks" if card_of(run).is_dense else "predictions.csv"
    print(f"\n{page.sentence}\n")
    print(f"report:    {page.path}")
    print(f"repeat it: quarterturn fit --config {run / 'run.toml'}")
    print(f"use it:    quarterturn predict {run} IMAGES --out {out}")
    print(f"share it:  quarterturn export {run} --onnx model.onnx")

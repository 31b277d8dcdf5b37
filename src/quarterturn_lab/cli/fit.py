"""The command `fit`: from a folder of images to a trained network."""

from pathlib import Path
from typing import Any

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.fit.fitting import Fit, Fitted, equivariance, latest
from quarterturn_lab.fit.headline import headline
from quarterturn_lab.fit.request import Request, checked_request, read_file
from quarterturn_lab.progress import Bars


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
    """Check, then print the result and what to do next."""
    run = fitted.directory
    error = equivariance(run)
    if error is not None:
        print(f"check: the output changes by at most {error:.0e} over all orientations, in double precision")
    print(headline(run, fitted.ordinary))
    print(f"\nrun: {run}")
    print("next:")
    print(f"  quarterturn predict {run} IMAGES --out predictions.csv")
    print(f"  quarterturn export {run} --onnx model.onnx")

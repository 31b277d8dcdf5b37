"""The command `export`: a trained network for another program."""

from pathlib import Path

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.inference.export import export
from quarterturn_lab.inference.source import About
from quarterturn_lab.runs.trust import Trust


def export_run(
    directory: Path,
    onnx: Path | None,
    target: str | None,
    out: Path | None,
    spacing: float | None,
    license: str | None,
    authors: tuple[str, ...],
    trust: Trust,
) -> None:
    """Write the network of a run in the form of another program."""
    if onnx is not None and (target or out):
        raise ConfigError("give --onnx FILE, or --to and --out, not both")
    if onnx is None and (target is None or out is None):
        raise ConfigError("say what to write, and where: --to onnx --out network.onnx, say")
    place, kind = (onnx, "onnx") if onnx is not None else (out, target)
    assert place is not None
    assert kind is not None
    print(f"{place}: {export(directory, kind, place, About(license, authors, spacing), trust)}")

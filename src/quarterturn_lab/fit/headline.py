"""The result of a fit in one sentence."""

from pathlib import Path

from quarterturn_lab.runs.run_directory import summary


def headline(run: Path, ordinary: Path | None) -> str:
    """The test score of the run, and that of the ordinary network beside it."""
    found = summary(run)
    text = f"{found['test']} on {found['test_images']:,} test images"
    return text + (f"; ordinary: {summary(ordinary)['test']}" if ordinary else "")

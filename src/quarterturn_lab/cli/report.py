"""The command `report`: a page about many runs, or about one."""

from pathlib import Path

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.report.fit_report import write_fit_report
from quarterturn_lab.report.html import report
from quarterturn_lab.runs.trust import Trust


def report_of(
    directory: Path, compare: Path | None, output: Path | None, data_folder: str | None, trust: Trust
) -> None:
    """Write the page and print where it is."""
    if (directory / "summary.json").exists():
        print(write_fit_report(directory, compare, None, data_folder, output, trust).path)
    elif compare is not None:
        raise ConfigError(f"--compare goes with the directory of one finished run, and {directory} is none")
    else:
        print(report(directory, output, data_folder, trust))

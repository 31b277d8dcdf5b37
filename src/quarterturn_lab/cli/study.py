"""The command `study`: train the missing runs of a study, save their records and write its page."""

from pathlib import Path

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.files import write_atomically
from quarterturn_lab.progress import Bars
from quarterturn_lab.studies import records
from quarterturn_lab.studies.catalogue import STUDIES, study_of
from quarterturn_lab.studies.definition import Study
from quarterturn_lab.studies.page import as_csv, index, page, progress
from quarterturn_lab.studies.plot import picture
from quarterturn_lab.studies.summary import finding
from quarterturn_lab.training.sweep import Where, sweep


def run_study(
    name: str,
    data: str | None,
    seeds: int | None,
    rows: tuple[str, ...],
    where: Where,
    root: Path,
    output: Path,
    train: bool,
) -> None:
    """Train runs without a record, then write records and page, even if runs failed or were stopped."""
    study = study_of(name)
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: at least one seed is needed")
    chosen = study.runs(seeds, rows)
    have = records.collect(study, root, output / "records")
    waiting = [(entry, seed) for entry, seed in chosen if not have.finished(entry, seed)]
    try:
        if train and waiting:
            print(f"{len(waiting)} of {len(chosen)} runs to train", flush=True)
            todo = [(e.config(seed, data), records.directory_of(e, seed, root)) for e, seed in waiting]
            with Bars(interval=60.0) as bars:
                sweep(todo, where, bars)
    finally:
        for path in write(name, study, root, output):
            print(path)


def write(name: str, study: Study, root: Path, output: Path) -> list[Path]:
    """Write records and page to a folder; returns the paths of the page, its table and its picture."""
    found = records.collect(study, root, output / "records")
    if not found.runs:
        output.mkdir(parents=True, exist_ok=True)
        write_atomically(output / "README.md", contents(output))
        return []
    records.save(output / "records", found)
    made: dict[str, str | bytes] = {
        "md": page(name, study, found),
        "csv": as_csv(study, found),
        "png": picture(study, found),
    }
    for suffix, content in made.items():
        write_atomically(output / f"{name}.{suffix}", content)
    write_atomically(output / "README.md", contents(output))
    print(finding(study, found))
    print(progress(study, found))
    return [output / f"{name}.{suffix}" for suffix in made]


def contents(output: Path) -> str:
    """The index of all studies, from the records and pages in a folder."""
    return index(all_of(output / "records"), {path.stem for path in output.glob("*.md")})


def all_of(folder: Path) -> dict[str, tuple[Study, records.Records]]:
    """Every study with its records."""
    return {
        name: (study, records.load(folder, [entry.experiment for entry in study.entries]))
        for name, study in STUDIES.items()
    }

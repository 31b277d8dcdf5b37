"""What a study is: its runs, the decision that its page opens with, and the comparisons that are made.

A run is identified by its experiment, its label and its seed, in all studies alike: two studies can share runs. A
"side" is a label, with `TURNED` behind it where the predictions for four turns of each image are averaged.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from quarterturn_lab.errors import unknown
from quarterturn_lab.settings.config import Config, checked
from quarterturn_lab.settings.experiments import EXPERIMENTS, faster_rotation, settings_of
from quarterturn_lab.settings.networks import edited, row_of
from quarterturn_lab.studies.measures import Measured

TURNED = "@4"
# Options that labels name, with their unit.
NAMED = {"epochs": "epochs", "train_size": "images", "turn": "degrees", "zoom": "zoom", "shear": "shear"} | {
    "dropout": "dropout",
    "width": "wide",
    "blocks": "blocks",
    "lr": "rate",
    "batch": "batch",
    "pool": "",
    "invariants": "invariants",
    "hidden": "hidden",
    "roll_from": "from",
    "side": "pixels",
    "moves": "moves",
}
USUAL = {"blocks": 1}  # where an experiment says nothing
MARKS = {"plankton-31": "-all"}  # what labels of an experiment have behind the row


@dataclass(frozen=True)
class Entry:
    """Some seeds of one network with one training."""

    experiment: str
    row: str
    seeds: int
    options: dict[str, Any] = field(default_factory=dict)
    budget: int | None = None  # CPU seconds that its epochs were made for, on the machine of the study

    @property
    def label(self) -> str:
        """The row, with the settings that differ from the experiment's: baseline-160epochs."""
        name = self.options.get("factory", self.row).rpartition(":")[2] + MARKS.get(self.experiment, "")
        if "backbone" in self.options:
            name = f"{self.options['backbone'].rpartition(':')[2]}-{row_of(self.row).get('group', 'plain').lower()}"
        for option, unit in NAMED.items():
            value = self.options.get(option)
            if option == "side" and "factory" in self.options:  # such networks come in one size
                continue
            if value not in (None, EXPERIMENTS[self.experiment].settings.get(option, USUAL.get(option))):
                name += f"-{'' if value is True else value}{unit}"
        return name

    @property
    def is_plain(self) -> bool:
        """Whether it has no pathways: a baseline or a control."""
        if "factory" in self.options:
            return bool(self.options["factory"].endswith("plain"))
        return row_of(self.row).get("group") is None

    def config(self, seed: int, data: str | None = None) -> Config:
        """All settings of a run; it rotates maps or filters, whichever is faster for the same network."""
        faster = faster_rotation(edited(EXPERIMENTS[self.experiment].baseline, self.row))
        options = {"rotate": faster, **self.options}
        factory = options.pop("factory", None)
        settings = settings_of(self.experiment, self.row, data=data, **options)
        return checked({**settings, "seed": seed, "factory": factory})


@dataclass(frozen=True)
class Question:
    """One side against another, paired by seed."""

    one: str
    other: str
    why: str
    later: bool = False  # added after other runs of the study had been seen


@dataclass(frozen=True)
class Takeaway:
    """Sentences for the top of a page: `who` against `others` and the ordinary network that validation prefers."""

    who: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A row of the decision table that was named before testing: for data without a validation part."""

    what: str
    equivariant: str
    ordinary: str | None = None


@dataclass(frozen=True)
class Study:
    """A page. Its texts may name a side in braces, `{pool-mean}`: the page shows the network's display name.

    The rows of its decision table are `budgets` in CPU seconds, numbers of training images, or `cases`.
    """

    title: str
    decision: str  # what a practitioner has to decide, in one line
    about: str
    entries: tuple[Entry, ...]
    takeaways: tuple[Takeaway, ...]
    questions: tuple[Question, ...]
    limits: tuple[str, ...]
    measure: Measured = "cross_entropy"
    judged: Literal["test", "validation"] = "test"  # the images that rows are scored on
    series: tuple[tuple[str, ...], ...] = ()  # lines of the picture, as sides; none: a row for each side that matters
    along: Literal["cpu_seconds", "train_images"] = "cpu_seconds"
    budgets: tuple[int, ...] = ()
    cases: tuple[Case, ...] = ()
    further: str = ""  # what else can be run, on a bigger machine
    published: dict[str, str] = field(default_factory=dict)  # label -> the error in percent that others published
    reasons: tuple[str, ...] = ()  # why the paper's order does not hold, as far as other rows tell

    def runs(self, seeds: int | None = None, labels: Iterable[str] = ()) -> list[tuple[Entry, int]]:
        """Entries with seeds, the first seed of all entries first; fewer seeds or only some labels on request."""
        chosen = tuple(labels)
        for label in chosen:
            if label not in self.labels:
                raise unknown("row of this study", label, self.labels)
        entries = [entry for entry in self.entries if not chosen or entry.label in chosen]
        most = max(entry.seeds for entry in entries)
        return [
            (entry, seed)
            for seed in range(most if seeds is None else min(seeds, most))
            for entry in entries
            if seed < entry.seeds
        ]

    @cached_property
    def labels(self) -> dict[str, Entry]:
        return {entry.label: entry for entry in self.entries}


def entries(experiment: str, seeds: int, rows: Iterable[str], **options: Any) -> tuple[Entry, ...]:
    return tuple(Entry(experiment, row, seeds, options) for row in rows)

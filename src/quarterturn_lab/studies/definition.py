"""What a study is: its runs, the comparisons that are made, the sentences at the top of its page.

A run is named by its experiment, its label and its seed, the same in all studies: what two of them need is run once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from quarterturn_lab.errors import unknown
from quarterturn_lab.settings.config import Config, checked
from quarterturn_lab.settings.experiments import EXPERIMENTS, settings_of
from quarterturn_lab.settings.networks import ROWS

TURNED = "@4"  # after a label: the answers to four turns of each test image averaged
# Options that labels name, with their unit.
NAMED = {"epochs": "epochs", "train_size": "images", "turn": "degrees", "zoom": "zoom", "shear": "shear"} | {
    "dropout": "dropout"
}
MARKS = {"plankton-31": "-all"}  # what labels of an experiment have behind the row


@dataclass(frozen=True)
class Entry:
    """Some seeds of one network with one training."""

    experiment: str
    row: str
    seeds: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The row, with what differs from the experiment's own settings: baseline-160epochs."""
        name = self.options.get("factory", self.row).rpartition(":")[2] + MARKS.get(self.experiment, "")
        for option, unit in NAMED.items():
            if self.options.get(option) not in (None, EXPERIMENTS[self.experiment].settings.get(option)):
                name += f"-{self.options[option]}{unit}"
        return name

    @property
    def is_plain(self) -> bool:
        """Whether it has no pathways: a baseline or a control."""
        if "factory" in self.options:
            return bool(self.options["factory"].endswith("plain"))
        return ROWS[self.row].get("group") is None

    def config(self, seed: int, data: str | None = None) -> Config:
        """All settings of a run, turning maps or filters: the same network, in whichever way takes less time here."""
        options = dict(self.options)
        factory = options.pop("factory", None)
        edit = ROWS[self.row]
        if edit.get("roll") == "all" or edit.get("method") == "oriented-max":
            options["rotate"] = "filters"
        settings = settings_of(self.experiment, self.row, data=data, **options)
        return checked({**settings, "seed": seed, "factory": factory})


@dataclass(frozen=True)
class Question:
    """One side against another, paired by seed. A side is a label, with `TURNED` behind it where turns are averaged."""

    one: str
    other: str
    why: str
    later: bool = False  # asked when other runs of the study had been seen


@dataclass(frozen=True)
class Takeaway:
    """A sentence for the top of a page: what `who`, in words `what`, gains against each of `others`.

    It is also set against the plain network that validation data prefers, and its cost against `cost_of`.
    """

    who: str
    what: str
    others: tuple[str, ...]
    cost_of: str


@dataclass(frozen=True)
class Study:
    """A page. `series` are the lines of its picture, by name; none: a line of dots for each entry."""

    title: str
    about: str
    entries: tuple[Entry, ...]
    takeaways: tuple[Takeaway, ...]
    questions: tuple[Question, ...]
    limits: tuple[str, ...]
    measure: Literal["cross_entropy", "error"] = "cross_entropy"
    judged: Literal["test", "validation"] = "test"  # what the images that rows are judged on are called
    series: dict[str, tuple[str, ...]] = field(default_factory=dict)
    along: Literal["cpu_seconds", "train_images"] = "cpu_seconds"
    budgets: tuple[int, ...] = ()  # CPU seconds of training for which the best network is asked
    further: str = ""  # what else is to be run, elsewhere
    published: dict[str, str] = field(default_factory=dict)  # label -> the error in percent that others printed for it
    reasons: tuple[str, ...] = ()  # why an order of the paper does not show, as far as other rows tell

    def runs(self, seeds: int | None = None, labels: Iterable[str] = ()) -> list[tuple[Entry, int]]:
        """Entries with seeds, the first seed of all of them first; fewer seeds or only some labels, where asked."""
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

    @property
    def labels(self) -> dict[str, Entry]:
        return {entry.label: entry for entry in self.entries}


def entries(experiment: str, seeds: int, rows: Iterable[str], **options: Any) -> tuple[Entry, ...]:
    return tuple(Entry(experiment, row, seeds, options) for row in rows)

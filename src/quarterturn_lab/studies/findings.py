"""What the records of a study say: figures of each side, paired differences, the control that validation prefers."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from quarterturn_lab.evaluation.statistics import mean_sd, paired_interval, paired_t_test, sign_flip_test
from quarterturn_lab.studies.definition import TURNED, Entry, Question, Study
from quarterturn_lab.studies.measures import MEASURES, other
from quarterturn_lab.studies.names import names, split
from quarterturn_lab.studies.records import Record, Records

Verdict = Literal["better", "worse", "open", "one seed", "not run"]
ENOUGH = 3  # seeds: a network with fewer is not preferred to one that has them
PAST = 1.1  # times the lowest validation cross-entropy: trained past its best probabilities


def values(study: Study, records: Records, side: str, part: str = "test") -> dict[int, float]:
    """The study's measure for each seed that has been run and scored so: lower is better.

    A study that is judged on validation images has nothing to do with test images: where a record has both, the former
    stand for the latter.
    """
    label, turned = split(side)
    measure, found = MEASURES[study.measure], {}
    for seed, record in records.of(study.labels[label]).items():
        scored = judged_part(study, record, part) + ("_4_turns" if turned else "")
        if scored in record:
            found[seed] = measure.of(record[scored])
    return found


def judged_part(study: Study, record: Record, part: str) -> str:
    """The part of a record's scores to read."""
    return "valid" if study.judged == "validation" and part == "test" and "valid" in record else part


def figure(study: Study, records: Records, side: str, part: str = "test") -> str:
    """The mean over seeds, rounded: "1.946" or "2.33 %"; a dash where nothing has been run."""
    found = list(values(study, records, side, part).values())
    measure = MEASURES[study.measure]
    return f"{mean_sd(found)[0]:.{measure.digits}f}{' %' if measure.error else ''}" if found else "-"


def average(study: Study, records: Records, side: str, what: Literal["cpu_seconds", "train_images"]) -> float:
    """The mean over seeds of an item of the records, for a side that has been run."""
    entry = study.labels[split(side)[0]]
    found = timed(study, records, entry) if what == "cpu_seconds" else list(records.of(entry).values())
    return mean_sd([record[what] for record in found])[0]


def timed(study: Study, records: Records, entry: Entry) -> list[Record]:
    """The runs of an entry whose CPU seconds compare: those of the processor that made most runs of the study.

    An entry without any of these has those that there are. Scores are kept of all: the number of epochs is
    fixed beforehand, and processors differ in rounding alone.
    """
    made = Counter(processor(run) for each in study.entries for run in records.of(each).values())
    found = list(records.of(entry).values())
    return [run for run in found if processor(run) == made.most_common(1)[0][0]] or found


def processor(record: Record) -> str:
    return str(record["environment"]["processor"])


# --- paired differences -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gap:
    """One side minus the other, over the seeds that both have."""

    question: Question
    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean_sd(self.differences)[0]

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        return paired_interval(self.differences) if self.differences else None

    @property
    def p_values(self) -> tuple[float | None, float | None]:
        """p-values of a paired t-test and an exact sign-flip test."""
        if len(self.differences) < 2:
            return None, None
        return paired_t_test(self.differences), sign_flip_test(self.differences)

    @property
    def verdict(self) -> Verdict:
        """Better or worse where the 95 % interval leaves out zero; lower is better."""
        if not self.differences:
            return "not run"
        if self.interval is None:
            return "one seed"
        low, high = self.interval
        return "better" if high < 0 else "worse" if low > 0 else "open"


def other_measure(study: Study) -> Study:
    """The same study, judged by the error instead of the cross-entropy, say, or the other way round."""
    return replace(study, measure=other(study.measure))


def gap(study: Study, records: Records, question: Question) -> Gap:
    one, other = (values(study, records, side) for side in (question.one, question.other))
    return Gap(question, tuple(one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())))


def strongest_plain(study: Study, records: Records, who: str) -> str | None:
    """The ordinary network, with or without turns averaged, that has the best validation score over the seeds of `who`.

    Candidates are made for the same budget, are trained on as many images and share three seeds with `who`, or as many
    as any of them does. Scores are over the seeds that all candidates share.
    """
    asking = study.labels[split(who)[0]]
    own = records.of(asking)
    found: dict[str, dict[int, float]] = {}
    for entry in study.entries:
        candidates = records.of(entry) if entry.is_plain and entry.budget == asking.budget else {}
        shared = {s for s in own.keys() & candidates.keys() if "valid_4_turns" in candidates[s]}
        if shared and all(candidates[s]["train_images"] == own[s]["train_images"] for s in shared):
            for side in (entry.label, f"{entry.label}{TURNED}"):
                scores = values(study, records, side, "valid")
                found[side] = {seed: scores[seed] for seed in shared}
    enough = min(ENOUGH, max((len(scores) for scores in found.values()), default=0))
    ranked = {side: scores for side, scores in found.items() if len(scores) >= enough}
    if not ranked:
        return None
    seeds = set.intersection(*(set(scores) for scores in ranked.values()))
    return min(ranked, key=lambda side: mean_sd([ranked[side][seed] for seed in sorted(seeds)])[0])


def cpu_ratio(study: Study, records: Records, one: str, other: str) -> float | None:
    """CPU seconds of training, one against another, over the seeds that one processor has made of both."""
    first, second = (records.of(study.labels[split(side)[0]]) for side in (one, other))
    shared = {s for s in first.keys() & second.keys() if processor(first[s]) == processor(second[s])}
    if not shared:
        return None
    return sum(first[s]["cpu_seconds"] for s in shared) / sum(second[s]["cpu_seconds"] for s in shared)


# --- what is missing, and what was trained too long ------------------------------------------------------------------


def state(records: Records, entry: Entry) -> str:
    """The number of finished runs.

    >>> from quarterturn_lab.studies.definition import Entry
    >>> state(Records({}, {}, {}), Entry("plankton-small", "baseline", 5))
    '0 of 5'
    """
    failed = sum("failed" in records.runs.get((entry.experiment, entry.label, s), {}) for s in range(entry.seeds))
    return f"{len(records.of(entry))} of {entry.seeds}" + (f", {failed} failed" if failed else "")


def absent(study: Study, records: Records) -> list[str]:
    """A line for each entry of which runs are missing or failed."""
    lines, named = [], names(study)
    for entry in study.entries:
        parts = []
        for seed in range(entry.seeds):
            record = records.runs.get((entry.experiment, entry.label, seed))
            if record is not None and "failed" in record:
                parts.append(f"seed {seed} failed: {record['failed']}")
        missing = [s for s in range(entry.seeds) if (entry.experiment, entry.label, s) not in records.runs]
        if missing:
            parts.append(f"seed{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} not run")
        if parts:
            lines.append(f"{named[entry.label]}: {'; '.join(parts)}")
    return lines


def past_best(study: Study, records: Records) -> dict[str, tuple[float, float]]:
    """Entries whose validation cross-entropy ends well above the lowest on the way: both, as means over seeds."""
    found: dict[str, tuple[float, float]] = {}
    for entry in study.entries:
        keys = [(entry.experiment, entry.label, seed) for seed in records.of(entry)]
        curves = [
            [p["valid_cross_entropy"] for p in records.curves.get(k, []) if "valid_cross_entropy" in p] for k in keys
        ]
        ends = [(min(curve), curve[-1]) for curve in curves if curve]
        if ends:
            lowest, last = (mean_sd(list(numbers))[0] for numbers in zip(*ends, strict=True))
            if last > PAST * lowest:
                found[entry.label] = lowest, last
    return found

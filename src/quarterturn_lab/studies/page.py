"""The page of a study, in Markdown, from its records alone: nothing on it is written by hand."""

import csv
import io
from dataclasses import replace

from quarterturn_lab.evaluation.statistics import mean_sd
from quarterturn_lab.report.table import plus_minus
from quarterturn_lab.studies.budgets import ranking, unevenness
from quarterturn_lab.studies.definition import Entry, Study
from quarterturn_lab.studies.findings import OTHER, UNITS, Gap, absent, asked, gap, past_best, sentence, shown, state
from quarterturn_lab.studies.paper import beside, claims, printed
from quarterturn_lab.studies.records import Record, Records

COLUMNS = (
    "row",
    "runs",
    "parameters",
    "multiply-adds",
    "train c.-e.",
    "test c.-e.",
    "test error %",
    "4 turns averaged: c.-e.",
    "error %",
    "CPU s",
    "paper: test c.-e.",
)
NOTE = (
    "c.-e. is cross-entropy, lower is better; ± is the sample standard deviation over seeds, a figure without it "
    "is one run. Multiply-adds are of one image on its way through the network, in millions, counted with maps turned "
    "and without the Fourier kernel. CPU seconds are of training alone. 4 turns averaged: the mean answer to the image "
    "turned by 0, 90, 180 and 270 degrees, not retrained; a network that is invariant to turns gains nothing."
)
PAIRED = (
    "The first minus the second, seed by seed; below zero the first is better. The comparisons were chosen {when}, and "
    "the intervals are not corrected for their number. p is by Student's t and, exactly, by flipping signs: "
    "with three seeds that cannot be below 0.25, with five not below 0.0625."
)
BUDGET = (
    "Of each line, the training that validation images prefer among those that take no longer, and of these the three "
    "best, by validation; the test images have no say. Averaging turns costs nothing in training, and four passes when "
    "the network is used."
)
INDEX = (
    "Each page is made by its command from the [records](records) of runs, and says itself which runs it rests on. The "
    "command makes those that have no record yet; it can be stopped at any time and goes on when it is given again. "
    "Runs that two studies share are made once. How the studies are defined: "
    "[decisions/0028](../decisions/0028-studies.md)."
)
CROWDED = 1.3  # times the CPU seconds that a run takes when it is not alone
NOTHING = "-"
PAPER = "The paper's figures are for its full data and its full network."


def page(name: str, study: Study, records: Records) -> str:
    """The whole page."""
    parts = [
        f"# {study.title}",
        *(sentence(study, records, takeaway) for takeaway in study.takeaways),
        f"![{study.title}: {study.judged} {UNITS[study.measure][0]} of each network]({name}.png)",
        f"{study.about} {progress(study, records)}",
        *(budgets(study, records) if study.budgets else ()),
        "## Figures",
        table(study, records),
        NOTE + (f" {PAPER}" if any(printed(entry) for entry in study.entries) else ""),
        "## Paired comparisons",
        comparisons(study, records),
        PAIRED.format(when=when(study)),
    ]
    found = claims(study, compared(study, records))
    if found:
        parts += ["## What of the paper shows here", found, *study.reasons]
    lines = absent(study, records)
    if lines:
        parts += ["## Not run, or failed", "\n".join(f"- {line}" for line in lines)]
    parts += ["## Settings", settings(study, records)]
    parts += ["## How to reproduce it", reproduce(name, study)]
    limits = [
        *study.limits,
        *trained_past(study, records),
        *crowded(study, records),
        *(["Rows that are missing say nothing."] if lines else []),
    ]
    parts += ["## What it does not show", "\n".join(f"- {limit}" for limit in limits)]
    return "\n\n".join(parts) + "\n"


def budgets(study: Study, records: Records) -> tuple[str, ...]:
    verdict, rows = ranking(study, records)
    uneven = (
        f"An epoch of one network took up to {unevenness(study, records):.1f} times as long in one run as in another."
    )
    return "## The best network for a budget", f"{verdict} {BUDGET} {uneven}", markdown(rows)


def finished(study: Study, records: Records) -> list[Record]:
    return [record for entry in study.entries for record in records.of(entry).values()]


def made(study: Study, records: Records) -> tuple[int, float]:
    """Finished runs, and their CPU seconds."""
    found = finished(study, records)
    return len(found), sum(record["cpu_seconds"] for record in found)


def progress(study: Study, records: Records) -> str:
    done, seconds = made(study, records)
    return f"{done} of {len(study.runs())} runs have been made, in {seconds / 3600:.1f} CPU hours."


def index(found: dict[str, tuple[Study, Records]], pages: set[str]) -> str:
    """The list of all studies, with what there is of each; `pages` are the names of the pages that there are."""
    rows: list[tuple[str, ...]] = [("study", "what", "runs made", "CPU hours", "command")]
    for name, (study, records) in found.items():
        done, seconds = made(study, records)
        title = f"[{study.title}]({name}.md)" if name in pages else study.title
        command = f"`quarterturn study {name} --data DIR --jobs 2`"
        rows.append((title, study.about, f"{done} of {len(study.runs())}", f"{seconds / 3600:.1f}", command))
    short = [
        f"**[{study.title}]({name}.md).** {' '.join(sentence(study, records, t) for t in study.takeaways)}"
        for name, (study, records) in found.items()
        if name in pages
    ]
    costs = ["What these networks cost, side by side: [costs.md](costs.md)."] if "costs" in pages else []
    return "\n\n".join(["# Results on real data", *short, *costs, "## How they are made", INDEX, markdown(rows)]) + "\n"


# --- tables -----------------------------------------------------------------------------------------------------------


def table(study: Study, records: Records) -> str:
    """A line for each entry, whether it has been run or not; columns in which nothing stands are left out."""
    rows = [cells(study, records, entry) for entry in study.entries]
    used = [i for i in range(len(COLUMNS)) if i < 2 or any(row[i] not in ("", NOTHING) for row in rows)]
    header = tuple(name.replace("test", study.judged) for name in COLUMNS)
    if study.published:
        header = (*header[:-1], f"published: {study.judged} error %")
    return markdown([tuple(row[i] for i in used) for row in (header, *rows)])


def cells(study: Study, records: Records, entry: Entry) -> tuple[str, ...]:
    found = list(records.of(entry).values())
    paper = printed(entry)
    last = plus_minus(paper.test, 4) if paper else study.published.get(entry.label, "")
    if not found:
        return (entry.label, state(records, entry), *(NOTHING,) * (len(COLUMNS) - 3), last)

    def figures(part: str, key: str, digits: int) -> str:
        if not all(part in record for record in found):
            return NOTHING
        numbers = [record[part][key] for record in found]
        return plus_minus(mean_sd([100 * (1 - n) for n in numbers] if key == "accuracy" else numbers), digits)

    return (
        entry.label,
        state(records, entry),
        f"{found[0]['parameters']:,}",
        f"{found[0]['multiply_adds'] / 1e6:.1f}",
        figures("train", "cross_entropy", 3),
        figures("test", "cross_entropy", 3),
        figures("test", "accuracy", 1 if study.measure == "cross_entropy" else 2),
        figures("test_4_turns", "cross_entropy", 3),
        figures("test_4_turns", "accuracy", 1 if study.measure == "cross_entropy" else 2),
        plus_minus(mean_sd([record["cpu_seconds"] for record in found]), 0),
        last,
    )


def compared(study: Study, records: Records) -> list[Gap]:
    return [gap(study, records, question) for question in asked(study, records)]


def comparisons(study: Study, records: Records) -> str:
    """A line for each question; the last but one column, the paper's, only where it has something to say."""
    other = replace(study, measure=OTHER[study.measure])
    beyond = (
        f"{study.judged} {UNITS[other.measure][0]}{',' if UNITS[other.measure][1] else ''}{UNITS[other.measure][1]}"
    )
    measured = ("first", "second", "pairs", "difference", "95 % interval", "p (t)", "p (signs)", "the first is")
    rows: list[tuple[str, ...]] = [(*measured, f"{beyond} (95 % interval)", "the paper", "why")]
    for found in compared(study, records):
        rows.append(
            (*_compared(study, found), _briefly(other, gap(other, records, found.question)), *_about(study, found))
        )
    used = [i for i in range(len(rows[0])) if rows[0][i] != "the paper" or any(row[i] for row in rows[1:])]
    return markdown([tuple(row[i] for i in used) for row in rows])


def when(study: Study) -> str:
    """When the comparisons of a study were chosen."""
    if study.judged == "validation":
        return "as the search went on"
    return "before the runs" + (", but for those asked later" if any(q.later for q in study.questions) else "")


def _compared(study: Study, found: Gap) -> tuple[str, ...]:
    digits = UNITS[study.measure][2]
    return (
        shown(found.question.one),
        shown(found.question.other),
        str(len(found.differences)),
        f"{found.mean:+.{digits}f}" if found.differences else NOTHING,
        _interval(study, found) or NOTHING,
        *(NOTHING if p is None else f"{p:.2g}" for p in found.p_values),
        {"open": "not told apart"}.get(found.verdict, found.verdict),
    )


def _interval(study: Study, found: Gap) -> str:
    digits = UNITS[study.measure][2]
    return f"{found.interval[0]:+.{digits}f} to {found.interval[1]:+.{digits}f}" if found.interval else ""


def _briefly(study: Study, found: Gap) -> str:
    if not found.differences:
        return NOTHING
    interval = _interval(study, found)
    return f"{found.mean:+.{UNITS[study.measure][2]}f}" + (f" ({interval})" if interval else "")


def _about(study: Study, found: Gap) -> tuple[str, str]:
    return beside(study, found.question), ("asked later: " if found.question.later else "") + found.question.why


def markdown(rows: list[tuple[str, ...]]) -> str:
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_csv(study: Study, records: Records) -> str:
    """Every run with all its digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    parts = ("train", "valid", "valid_4_turns", "test", "test_4_turns")
    names = [f"{part}_{key}" for part in parts for key in ("cross_entropy", "accuracy")]
    writer.writerow(["label", "seed", "parameters", "multiply_adds", "train_images", "cpu_seconds", *names])
    for entry in study.entries:
        for seed, record in records.of(entry).items():
            scores = [record.get(part, {}).get(key) for part in parts for key in ("cross_entropy", "accuracy")]
            numbers = [record[name] for name in ("parameters", "multiply_adds", "train_images", "cpu_seconds")]
            writer.writerow([entry.label, seed, *numbers, *scores])
    return buffer.getvalue()


# --- the end of a page ------------------------------------------------------------------------------------------------


def settings(study: Study, records: Records) -> str:
    """What the rows have in common, from the study; what they ran on, from the records."""
    lines = []
    for experiment in dict.fromkeys(entry.experiment for entry in study.entries):
        used = [entry for entry in study.entries if entry.experiment == experiment]
        config = Entry(experiment, used[0].row, 1).config(0)
        own = any("factory" in entry.options for entry in used)  # such a network has its dropout and its start itself
        dropout = "as the network has it" if own else f"{config.net.dropout:g}"
        output = "a tenth of that" if own else f"{config.output_scale:g} of Xavier"
        warps = ", ".join(f"{name} {value}" for name, value in config.augment.model_dump().items())
        drops = " and ".join(f"{drop:.0%}" for drop in config.drops)
        lines.append(
            f"- `{experiment}`, where the row does not say otherwise: {config.epochs} epochs, {config.batch_images} "
            f"images in a batch, Adam {config.lr:g}, tenfold lower at {drops} of the run, weight decay "
            f"{config.weight_decay:g}, dropout {dropout}, {config.precision}, {config.threads} thread. Warps of "
            f"training images: {warps}. Filters start as He has it, over all their inputs, rolled ones included; the "
            f"output layer at {output}. Alike for all rows."
        )
    every = finished(study, records)
    lines += ran_on(study, records)
    for train, test, data in sorted({(r["train_images"], r["test_images"], r["data"]) for r in every}):
        lines.append(
            f"- {train:,} training images, {test:,} {study.judged} images; the data have the fingerprint {data}."
        )
    return "\n".join(lines)


def ran_on(study: Study, records: Records) -> list[str]:
    """The machines; where there are several, which runs each of them made."""
    made_by: dict[str, dict[str, list[int]]] = {}
    for entry in study.entries:
        for seed, record in records.of(entry).items():
            e = record["environment"]
            words = f"{e['platform']}, Python {e['python']}, torch {e['torch']}, {e['processor']}, {e['cores']} cores"
            made_by.setdefault(words, {}).setdefault(entry.label, []).append(seed)
    if len(made_by) < 2:
        return [f"- Ran on {words}." for words in made_by]
    most = max(made_by, key=lambda words: sum(map(len, made_by[words].values())))
    lines = [f"- Ran on {most}, where nothing else is said."]
    for words in made_by.keys() - {most}:
        rows = [
            f"`{label}` (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})"
            for label, seeds in made_by[words].items()
        ]
        lines.append(f"- On {words}: {', '.join(rows)}. CPU seconds of two machines are not comparable.")
    return sorted(lines, reverse=True)


def trained_past(study: Study, records: Records) -> list[str]:
    """A warning where networks became surer than they are right."""
    rows = [f"`{label}` {low:.2f} and {last:.2f}" for label, (low, last) in past_best(study, records).items()]
    if not rows:
        return []
    return [
        "Some networks were trained past their best cross-entropy: they are surer than they are right, and a shorter "
        f"training would give better probabilities. Validation cross-entropy, lowest and last: {', '.join(rows)}."
    ]


def crowded(study: Study, records: Records) -> list[str]:
    """A warning where runs took much longer than their CPU seconds."""
    found = finished(study, records)
    cpu, wall = (sum(record[f"{kind}_seconds"] for record in found) for kind in ("cpu", "wall"))
    if not found or wall < CROWDED * cpu:
        return []
    return [
        f"Other processes used the same machine (training took {wall / cpu:.1f} times its CPU seconds), and they slow "
        "each other's memory: compare CPU seconds roughly."
    ]


def reproduce(name: str, study: Study) -> str:
    needs = "MNIST's idx files" if any("mnist" in entry.experiment for entry in study.entries) else "train/"
    return (
        f"```sh\nquarterturn study {name} --data DIR --jobs 2 --output FOLDER\n```\n\n"
        f"`DIR` is the folder that holds {needs}. Runs that were interrupted go on, and those that have a record in "
        f"`FOLDER` are not run again: an empty folder starts from nothing. Each digit is in [{name}.csv]({name}.csv), "
        "settings, summaries and curves in [records](records)." + (f"\n\n{study.further}" if study.further else "")
    )

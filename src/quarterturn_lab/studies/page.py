"""The page of a study, in Markdown, from its records alone: nothing on it is written by hand."""

from quarterturn_lab.evaluation.statistics import mean_sd
from quarterturn_lab.files import csv_text
from quarterturn_lab.report.table import plus_minus
from quarterturn_lab.settings.in_words import training_in_words
from quarterturn_lab.studies import decisions
from quarterturn_lab.studies.definition import Entry, Study
from quarterturn_lab.studies.findings import Gap, absent, gap, judged_part, other_measure, past_best, state, timed
from quarterturn_lab.studies.measures import MEASURES, together
from quarterturn_lab.studies.names import glossary, name, names, told
from quarterturn_lab.studies.paper import beside, claims, paper_digits, printed
from quarterturn_lab.studies.records import Record, Records
from quarterturn_lab.studies.summary import asked, finding, summary

SIZES = ("network", "label", "runs", "parameters", "multiply-adds")
ALWAYS = 3  # columns that stand even where nothing has been run
LOWER = {
    "cross_entropy": "c.-e.: cross-entropy. Lower is better, as for the error.",
    "rmse": "RMSE: over all images and answers. Lower is better.",
    "dice": "Dice error, precision error: 100 % minus Dice, or the average precision of instances. Lower is better.",
    "overlap": "Dice error: 100 % minus Dice, the mean over classes but the background. Turned: each test volume by "
    "one of the other turns of the cube. Lower is better.",
    "auc": "AUC error, break-even error: 100 % minus AUC, or relaxed break-even. Lower is better.",
}
NOTE = """\
- {lower}
- ±: sample standard deviation over seeds. A figure without it is one run.
- Multiply-adds: millions for one image, counted with maps turned and without the Fourier kernel.
- CPU s: CPU seconds of training, without scoring.
- 4 turns averaged: at test time. An invariant network gains nothing from it.\
"""
PAPER = "- The paper's figures are for its own images and its larger network."
PAIRED = """\
- difference: the first minus the second, seed by seed. Below zero the first is better.
- The first is "better" or "worse" where the 95 % interval leaves out zero.
- p (t) is Student's; p (signs) flips signs exactly. The latter is at least 0.25 with three seeds, 0.0625 with five.
- Comparisons were chosen {when}. Intervals are not corrected for their number.\
"""
BUDGET = "For each budget: the three networks with the lowest validation {measure} among those that finish in time."
INDEX = """\
Each page is made by its command from the [records](records) of runs. The command makes the runs that have no record
yet. It can be stopped at any time and goes on when it is given again. Studies share runs. How studies are defined:
[decisions/0028](../decisions/0028-studies.md).\
"""
CROWDED = 1.3  # times its CPU seconds: such a run was not alone on the machine
UNEVEN = 1.05  # times the cheapest epoch of a network: the machine was not steady
NOTHING = "-"
FIXED: dict[str, tuple[object, ...]] = {
    "shear": (0.0,),
    "stretch": (1.0,),
    "flip": (False,),
    "colour": (0.0,),
}  # volumes


def page(page_name: str, study: Study, records: Records) -> str:
    """The whole page: decision, picture and summary first, then all the rest."""
    measure = MEASURES[study.measure].name
    parts = [
        f"# {study.title}",
        study.decision,
        markdown(decisions.table(study, records)),
        f"![{study.title}: {study.judged} {measure} of the networks that matter]({page_name}.png)",
        summary(study, records),
        "## What was run",
        f"{study.about} {progress(study, records)}",
        "Words in the names of networks:",
        bullets(glossary(_names(study))),
    ]
    if study.budgets:
        parts += ["## The best networks for each budget", *budgets(study, records)]
    gaps = asked(study, records)
    notes = NOTE.format(lower=LOWER[together(study.measure)[0]]) + (
        f"\n{PAPER}" if any(printed(study, entry) for entry in study.entries) else ""
    )
    parts += ["## All figures", table(study, records), notes + constant(study, records)]
    parts += ["## Paired comparisons", comparisons(study, records, gaps), PAIRED.format(when=when(study))]
    found = claims(study, gaps)
    if found:
        parts += ["## The paper's order beside ours", found, *(told(study, reason) for reason in study.reasons)]
    missing = absent(study, records)
    if missing:
        parts += ["## Not run, or failed", bullets(missing)]
    parts += ["## Settings and machines", settings(study, records)]
    parts += ["## How to reproduce it", reproduce(page_name, study)]
    limits = [told(study, limit) for limit in study.limits]
    limits += [*trained_past(study, records), *crowded(study, records)]
    limits += ["Rows that are missing say nothing."] if missing else []
    parts += ["## What it does not show", bullets(limits)]
    return "\n\n".join(parts) + "\n"


def _names(study: Study) -> list[str]:
    return [name(study, side) for line in decisions.lines(study) for side in line]


def bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def budgets(study: Study, records: Records) -> tuple[str, str]:
    text = [BUDGET.format(measure=MEASURES[study.measure].name)]
    text += ["Test images play no part in the choice."] if study.judged == "test" else []
    uneven = decisions.unevenness(study, records)
    if uneven > UNEVEN:
        text.append(f"An epoch of one network took up to {uneven:.1f} times as long in one run as in another.")
    return " ".join(text), markdown(decisions.ranking(study, records))


def finished(study: Study, records: Records) -> list[Record]:
    return [record for entry in study.entries for record in records.of(entry).values()]


def made(study: Study, records: Records) -> tuple[int, float]:
    """Finished runs, and their CPU seconds."""
    found = finished(study, records)
    return len(found), sum(record["cpu_seconds"] for record in found)


def progress(study: Study, records: Records) -> str:
    done, seconds = made(study, records)
    return f"{done} of {len(study.runs())} runs are done, in {seconds / 3600:.1f} CPU hours."


def index(found: dict[str, tuple[Study, Records]], pages: set[str]) -> str:
    """The list of all studies, with a finding of each; `pages` are the names of the pages that there are."""
    short: list[tuple[str, ...]] = [("study", "finding")]
    rows: list[tuple[str, ...]] = [("study", "runs made", "CPU hours", "command")]
    for page_name, (study, records) in found.items():
        done, seconds = made(study, records)
        title = f"[{study.title}]({page_name}.md)" if page_name in pages else study.title
        command = f"`quarterturn study {page_name} --data DIR --jobs 2`"
        short.append((title, finding(study, records)))
        rows.append((title, f"{done} of {len(study.runs())}", f"{seconds / 3600:.1f}", command))
    costs = ["What a training step of these networks costs: [costs.md](costs.md)."] if "costs" in pages else []
    return (
        "\n\n".join(["# Results on real data", markdown(short), *costs, "## How they are made", INDEX, markdown(rows)])
        + "\n"
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def table(study: Study, records: Records) -> str:
    """A row for each entry, whether it has been run or not; empty columns are left out."""
    named = names(study)
    rows = [(named[entry.label], f"`{entry.label}`", *cells(study, records, entry)) for entry in study.entries]
    header = columns(study)
    used = [i for i in range(len(header)) if i < ALWAYS or any(row[i] not in ("", NOTHING) for row in rows)]
    return markdown([tuple(row[i] for i in used) for row in (header, *rows)])


def columns(study: Study) -> tuple[str, ...]:
    first, *others = (MEASURES[measure].short for measure in together(study.measure))
    scored = [f"{study.judged} {short}" for short in (first, *others)]
    last = f"published: {study.judged} error %" if study.published else f"paper: {study.judged} {first}"
    return (*SIZES, f"train {first}", *scored, f"4 turns averaged: {first}", *others, "CPU s", last)


def cells(study: Study, records: Records, entry: Entry) -> tuple[str, ...]:
    found = list(records.of(entry).values())
    paper = printed(study, entry)
    last = plus_minus(paper.test, paper_digits(study)) if paper else study.published.get(entry.label, "")
    if not found:
        return (state(records, entry), *(NOTHING,) * (len(columns(study)) - ALWAYS - 1), last)
    measures = together(study.measure)

    def figures(part: str, name: str) -> str:
        if not all(part in record for record in found):
            return NOTHING
        measure = MEASURES[name]
        part = part.replace("test", judged_part(study, found[0], "test"))
        digits = 1 if name == "error" and study.measure == "cross_entropy" else measure.digits
        return plus_minus(mean_sd([measure.of(record[part]) for record in found]), digits)

    return (
        state(records, entry),
        f"{found[0]['parameters']:,}",
        f"{found[0]['multiply_adds'] / 1e6:.1f}",
        figures("train", measures[0]),
        *(figures("test", measure) for measure in measures),
        *(figures("test_4_turns", measure) for measure in measures),
        plus_minus(mean_sd([record["cpu_seconds"] for record in timed(study, records, entry)]), 0),
        last,
    )


def constant(study: Study, records: Records) -> str:
    """What the best constant answer scores, where runs have said it."""
    key = MEASURES[study.measure].key
    found = {record["test_constant"][key] for record in finished(study, records) if "test_constant" in record}
    return "".join(f"\n- Answering with the mean of the training labels scores {value:.4f}." for value in sorted(found))


def comparisons(study: Study, records: Records, gaps: list[Gap]) -> str:
    """A row for each comparison, by both measures; the paper's column only where it has something to say."""
    other = other_measure(study)
    measure, unit = MEASURES[other.measure].name, MEASURES[other.measure].unit
    measured = ("first", "second", "pairs", "difference", "95 % interval", "p (t)", "p (signs)", "the first is")
    second = f"{study.judged} {measure}{',' if unit else ''}{unit} (95 % interval)"
    rows: list[tuple[str, ...]] = [(*measured, second, "the paper", "why")]
    for found in gaps:
        rows.append(
            (*_compared(study, found), _briefly(other, gap(other, records, found.question)), *_about(study, found))
        )
    said = {"the paper": any(row[-2] for row in rows[1:]), second: other.measure != study.measure}
    used = [i for i in range(len(rows[0])) if said.get(rows[0][i], True)]
    return markdown([tuple(row[i] for i in used) for row in rows])


def when(study: Study) -> str:
    """When the comparisons of a study were chosen."""
    return "as the search went on" if study.judged == "validation" else "before the runs, except where noted"


def _compared(study: Study, found: Gap) -> tuple[str, ...]:
    digits = MEASURES[study.measure].digits
    return (
        name(study, found.question.one),
        name(study, found.question.other),
        str(len(found.differences)),
        f"{found.mean:+.{digits}f}" if found.differences else NOTHING,
        _interval(study, found) or NOTHING,
        *(NOTHING if p is None else f"{p:.2g}" for p in found.p_values),
        decisions.WORDS[found.verdict],
    )


def _interval(study: Study, found: Gap) -> str:
    digits = MEASURES[study.measure].digits
    return f"{found.interval[0]:+.{digits}f} to {found.interval[1]:+.{digits}f}" if found.interval else ""


def _briefly(study: Study, found: Gap) -> str:
    if not found.differences:
        return NOTHING
    interval = _interval(study, found)
    return f"{found.mean:+.{MEASURES[study.measure].digits}f}" + (f" ({interval})" if interval else "")


def _about(study: Study, found: Gap) -> tuple[str, str]:
    return beside(study, found.question), ("added later: " if found.question.later else "") + found.question.why


def markdown(rows: list[tuple[str, ...]]) -> str:
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_csv(study: Study, records: Records) -> str:
    """Every finished run in full precision."""
    parts = ("train", "valid", "valid_4_turns", "test", "test_4_turns")
    keys = [MEASURES[measure].key for measure in together(study.measure)]
    scored = [f"{part}_{key}" for part in parts for key in keys]
    named = names(study)
    rows: list[list[object]] = [
        ["label", "network", "seed", "parameters", "multiply_adds", "train_images", "cpu_seconds", *scored]
    ]
    for entry in study.entries:
        for seed, record in records.of(entry).items():
            scores = [record.get(part, {}).get(key) for part in parts for key in keys]
            numbers = [record[key] for key in ("parameters", "multiply_adds", "train_images", "cpu_seconds")]
            rows.append([entry.label, named[entry.label], seed, *numbers, *scores])
    return csv_text(rows)


# --- the end of a page ------------------------------------------------------------------------------------------------


def settings(study: Study, records: Records) -> str:
    """What the rows have in common, from the study; what they ran on, from the records."""
    lines = []
    for experiment in dict.fromkeys(entry.experiment for entry in study.entries):
        used = [entry for entry in study.entries if entry.experiment == experiment]
        config = Entry(experiment, used[0].row, 1).config(0)
        own = any("factory" in entry.options for entry in used)  # such a network has its own dropout and start
        warps = ", ".join(
            f"{warp} {value}"
            for warp, value in config.augment.model_dump().items()
            if value not in ("bilinear", None) and (config.net.axes == 2 or value not in FIXED.get(warp, ()))
        )
        length = "as many epochs as fit the budget" if used[0].budget else f"{config.epochs} epochs"
        dropout = "set by the network" if own else f"{config.net.dropout:g}"
        output = "He x 0.1" if own else f"Xavier x {config.output_scale:g}"
        lines += [
            f"- `{experiment}`, unless the name says otherwise:",
            f"  - {length}, {config.batch_images} images in a batch, {config.precision}, {config.threads} thread.",
            f"  - {training_in_words(config)}; weight decay {config.weight_decay:g}; dropout {dropout}.",
            f"  - He initialisation (fan-in counts rolled inputs); output layer {output}.",
            f"  - Augmentation: {warps}.",
        ]
    lines += ran_on(study, records)
    parts: dict[tuple[int, str], set[int]] = {}
    for record in finished(study, records):
        scored = record["test_images"] if judged_part(study, record, "test") == "test" else 0
        parts.setdefault((scored, record["data"]), set()).add(record["train_images"])
    for (test, data), train in sorted(parts.items()):
        sizes = ", ".join(f"{size:,}" for size in sorted(train))
        judged = f"{study.judged.capitalize()} images: {test:,}. " if test else ""
        lines.append(f"- Training images: {sizes}. {judged}Data fingerprint: {data}.")
    return "\n".join(lines)


def ran_on(study: Study, records: Records) -> list[str]:
    """The machines and, if there are several, the runs of each."""
    made_by: dict[str, dict[str, list[int]]] = {}
    for entry in study.entries:
        for seed, record in records.of(entry).items():
            e = record["environment"]
            words = f"{e['processor']}, {e['cores']} cores, {e['platform']}, Python {e['python']}, torch {e['torch']}"
            made_by.setdefault(words, {}).setdefault(entry.label, []).append(seed)
    if len(made_by) < 2:
        return [f"- Machine: {words}." for words in made_by]
    most = max(made_by, key=lambda words: sum(map(len, made_by[words].values())))
    lines = [f"- Machine, unless listed below: {most}."]
    for words in sorted(made_by.keys() - {most}):
        rows = []
        for label, seeds in made_by[words].items():
            every = len(seeds) == study.labels[label].seeds
            rows.append(f"`{label}`" + ("" if every else f" (seeds {', '.join(map(str, seeds))})"))
        lines.append(f"- {words}: {', '.join(rows)}")
    return [
        *lines,
        "- CPU seconds of two machines are not comparable: the means are of the first, where it has runs of a network.",
    ]


def trained_past(study: Study, records: Records) -> list[str]:
    """A warning if networks were trained past their best validation cross-entropy."""
    found, named = past_best(study, records), names(study)
    if not found:
        return []
    rows = [f"\n  - {named[label]}: {low:.2f}, {last:.2f}" for label, (low, last) in found.items()]
    return [
        "Some networks were trained past their best cross-entropy: stopping earlier would give better probabilities. "
        f"Their lowest and last validation cross-entropy:{''.join(rows)}"
    ]


def crowded(study: Study, records: Records) -> list[str]:
    """A warning if runs took much longer than their CPU seconds."""
    found = finished(study, records)
    cpu, wall = (sum(record[f"{kind}_seconds"] for record in found) for kind in ("cpu", "wall"))
    if not found or wall < CROWDED * cpu:
        return []
    return [
        f"Other processes ran on the same machine: training took {wall / cpu:.1f} times its CPU seconds. Compare CPU "
        "seconds roughly."
    ]


def reproduce(page_name: str, study: Study) -> str:
    names = {entry.experiment for entry in study.entries}
    needs = "MNIST's idx files" if any("mnist" in name for name in names) else "train/"
    needs = "images/ and labels/" if "hippocampus" in names else needs
    return (
        f"```sh\nquarterturn study {page_name} --data DIR --jobs 2 --output FOLDER\n```\n\n"
        f"`DIR` is the folder that holds {needs}. `--rows LABEL` makes the runs of one network. Interrupted runs go "
        "on. Runs that have a record in `FOLDER` are not made again; an empty folder starts from nothing. All digits "
        f"are in [{page_name}.csv]({page_name}.csv); settings, summaries and curves are in [records](records)."
        + (f"\n\n{study.further}" if study.further else "")
    )

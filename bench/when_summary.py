"""The table and the picture of docs/when-to-use.md, from the records of the studies."""

from pathlib import Path

from harness import markdown
from matplotlib import pyplot as plt

from quarterturn_lab.report.svg import COLOURS, STYLE
from quarterturn_lab.studies import records
from quarterturn_lab.studies.catalogue import STUDIES
from quarterturn_lab.studies.decisions import WORDS, Decision, decisions, scores
from quarterturn_lab.studies.definition import Study
from quarterturn_lab.studies.findings import Gap, gap, values
from quarterturn_lab.studies.recipe import RECIPES

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SHOWN = (*RECIPES, "transformers", "equal-cost", "small-set", "galaxies", "roads", "nuclei", "hippocampus")
Row = tuple[str, Study, records.Records, Decision, Gap]


def found() -> list[Row]:
    """Every budget of the shown studies at which both kinds of networks have been run."""
    rows: list[Row] = []
    for page in SHOWN:
        study = STUDIES[page]
        kept = records.load(RESULTS / "records", [entry.experiment for entry in study.entries])
        for decision in decisions(study, kept):
            if decision.question and (both := gap(study, kept, decision.question)).differences:
                rows.append((page, study, kept, decision, both))
    return rows


def table() -> str:
    """The test scores of the best network of each kind; which networks these are is on the page of the study."""
    rows = [["study", "CPU s", "best equivariant network", "best ordinary network", "the first is"]]
    for page, study, kept, decision, both in found():
        cells = [scores(study, kept, side) for side in (decision.equivariant, decision.ordinary) if side]
        rows.append([f"[{_short(study)}](results/{page}.md)", decision.case, *cells, WORDS[both.verdict]])
    return markdown(rows)


def _short(study: Study) -> str:
    """The images and the kind of network: all of these studies are about minutes of training."""
    return study.title.removesuffix(" and minutes of training")


def picture(path: Path) -> None:
    """How much lower, in per cent, the test score of the best equivariant network is; the bar is the 95 % interval."""
    rows = found()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.5, 0.9 + 0.32 * len(rows)))
        for place, (_, study, kept, decision, both) in enumerate(rows):
            ordinary = values(study, kept, decision.ordinary or "")
            scale = 100 / (sum(ordinary.values()) / len(ordinary))
            colour = {"better": COLOURS[1], "worse": COLOURS[0]}.get(both.verdict, "#98a2b3")
            if both.interval:
                axes.plot(
                    [scale * end for end in both.interval],
                    [place] * 2,
                    color=colour,
                    linewidth=3,
                    alpha=0.5,
                    solid_capstyle="butt",
                )
            axes.scatter([scale * both.mean], [place], s=30, color=colour, zorder=3)
        labels = [f"{_short(study)}, {decision.case} s" for _, study, _, decision, _ in rows]
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(yticks=range(len(rows)), yticklabels=labels, ylim=(len(rows) - 0.5, -0.5))
        axes.set_xlabel("equivariant against ordinary with turns averaged: test score, % (left is better)")
        figure.savefig(path, dpi=110, metadata={"Software": None}, bbox_inches="tight")
        plt.close(figure)


if __name__ == "__main__":
    picture(RESULTS.parent / "when-to-use.png")

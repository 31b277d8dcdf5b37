"""Volumes: what symmetries of the cube add to a small 3-D U-Net, on real scans that lie alike and on drawn cells that
do not.
"""

from typing import Any

from quarterturn_lab.studies.definition import Entry, Question, Study, Takeaway

# CPU milliseconds of training for one patch of 24 voxels, augmentation included, AMD Zen 5, a busy machine.
MILLISECONDS = {"baseline": 70, "roll-mirror-1": 79, "roll-mirrors-1-2-3": 58, "roll-D4-2": 57, "roll-octa": 61} | {
    "roll-octa-wide": 129
}
SCANS = 146  # training volumes, a patch of each in an epoch
TURNS: dict[str, Any] = {"moves": "octa-full"}  # random quarter turns and flips of training volumes
BUDGETS = (60, 150)
LIMITS = (
    "All runs share one test set. ± and intervals cover other seeds, not other test volumes.",
    "CPU seconds are of one processor, with other processes beside. Epochs were fixed beforehand from the time of a "
    "step.",
)


def _scan(row: str, seconds: int, seeds: int = 3, **options: Any) -> Entry:
    epochs = round(1000 * seconds / MILLISECONDS[row] / SCANS)
    return Entry("hippocampus", row, seeds, {**options, "epochs": epochs}, seconds)


def _hippocampus() -> Study:
    upright = {seconds: _scan("baseline", seconds) for seconds in BUDGETS}
    turned = {seconds: _scan("baseline", seconds, **TURNS) for seconds in BUDGETS}
    rows = {60: tuple(MILLISECONDS)[1:-1], 150: ("roll-mirror-1", "roll-octa-wide")}
    rolled = {(row, seconds): _scan(row, seconds) for seconds in BUDGETS for row in rows[seconds]}
    entries = [*upright.values(), *turned.values(), *rolled.values()]
    return Study(
        "Hippocampus in MR volumes",
        "About 150 small MR volumes that all lie alike, and one or two and a half minutes of training: which symmetry?",
        "The crops of the Medical Segmentation Decathlon, 1 mm, about 35 x 50 x 36 voxels, two parts of the "
        "hippocampus to label. A small U-Net with batch norm has 24 to 96 maps in all orientations together, and twice "
        "as many at double width. It is trained on patches of 24 voxels and scored on whole volumes, as they are and "
        "each turned by one of the 23 other turns of the cube.",
        tuple(entries),
        (
            Takeaway(rolled["roll-mirror-1", 150].label, (upright[150].label, turned[150].label)),
            Takeaway(rolled["roll-octa-wide", 150].label, (turned[150].label,)),
        ),
        tuple(
            Question(entry.label, other[seconds].label, f"{seconds} CPU seconds each")
            for (_, seconds), entry in rolled.items()
            for other in (upright, turned)
        ),
        (
            *LIMITS,
            "The crops are aligned with the body, so that a mirror is the only symmetry that anatomy suggests, and the "
            "turns of the cube are a stress test.",
        ),
        measure="overlap",
        budgets=BUDGETS,
    )


HIPPOCAMPUS = _hippocampus()

# --- cells in any orientation -----------------------------------------------------------------------------------------

SIZES = (50, 200, 800)  # training volumes
CELL_MILLISECONDS = {"baseline": 25.0, "roll-octa-wide": 52.0, "roll-octa": 25.0}  # for a patch of 16 voxels
CELL_SECONDS = 60


def _cells(row: str, images: int) -> Entry:
    options: dict[str, Any] = {"train_size": images, **({"moves": "octa"} if row == "baseline" else {})}
    options["epochs"] = round(1000 * CELL_SECONDS / CELL_MILLISECONDS[row] / images)
    return Entry("volumes-embedded", row, 1 if row == "roll-octa" else 3, options, CELL_SECONDS)


def _embedded() -> Study:
    every = {(row, images): _cells(row, images) for images in SIZES for row in ("baseline", "roll-octa-wide")}
    every["roll-octa", 200] = _cells("roll-octa", 200)  # as many maps as the ordinary network: two filters are few
    ordinary, rolled = (
        {images: every[row, images].label for images in SIZES} for row in ("baseline", "roll-octa-wide")
    )
    return Study(
        "Drawn cells in volumes, few labels",
        "50 to 800 labelled volumes whose contents lie in any direction: an ordinary U-Net, or the turns of the cube?",
        "Cells of layers or rods, drawn from a seed, each at an angle of its own, in 20 x 20 x 20 voxels with noise. "
        "To learn: which voxels belong to which kind. The ordinary network is trained on volumes in random turns. Each "
        "network has the same CPU seconds, whatever the number of volumes.",
        tuple(every.values()),
        tuple(Takeaway(rolled[images], (ordinary[images],)) for images in SIZES),
        tuple(Question(rolled[n], ordinary[n], f"{n} volumes, {CELL_SECONDS} CPU seconds each") for n in SIZES),
        LIMITS,
        measure="overlap",
        series=(tuple(ordinary.values()), tuple(rolled.values())),
        along="train_images",
    )


VOLUMES_EMBEDDED = _embedded()

"""Volumes: what symmetries of the cube add to a small 3-D U-Net, on real scans that lie alike and on drawn cells that
do not.
"""

from typing import Any

from quarterturn_lab.studies.definition import Entry, Question, Study, Takeaway

# CPU milliseconds of training for one patch of 24 voxels, augmentation included: bench/recipe.py, rounded. AMD Zen 5.
MILLISECONDS = {
    "baseline": 57,
    "roll-mirror-1": 59,
    "roll-mirrors-1-2-3": 44,
    "roll-D4-2": 44,
    "roll-octa": 40,
    "roll-octa-wide": 87,
}
SCANS = 146  # training volumes, a patch of each in an epoch
TURNS: dict[str, Any] = {"moves": "octa-full"}  # random quarter turns and flips of training volumes
SECONDS = 150
LIMITS = (
    "All runs share one test set. ± and intervals cover other seeds, not other test volumes.",
    "CPU seconds are of one processor, AMD Zen 5 with AVX-512, with other processes beside. Epochs were fixed "
    "beforehand from the time of a step (`bench/recipe.py`).",
)


def _scan(row: str, **options: Any) -> Entry:
    epochs = round(1000 * SECONDS / MILLISECONDS[row] / SCANS)
    return Entry("hippocampus", row, 3, {**options, "epochs": epochs}, SECONDS)


def _hippocampus() -> Study:
    upright, turned = _scan("baseline"), _scan("baseline", **TURNS)
    rolled = {row: _scan(row) for row in MILLISECONDS if row != "baseline"}
    return Study(
        "Hippocampus in MR volumes",
        "About 150 small MR volumes that all lie alike, and two and a half minutes of training: which symmetry?",
        "The crops of the Medical Segmentation Decathlon, 1 mm, about 35 x 50 x 36 voxels, two parts of the "
        "hippocampus to label. A small U-Net with batch norm has 24 to 96 maps in all orientations together, and twice "
        "as many at double width. It is trained on patches of 24 voxels and scored on whole volumes, as they are and "
        "each turned by one of the 23 other turns of the cube.",
        (upright, turned, *rolled.values()),
        (
            Takeaway(rolled["roll-mirror-1"].label, (upright.label, turned.label)),
            Takeaway(rolled["roll-octa-wide"].label, (turned.label,)),
        ),
        tuple(
            Question(entry.label, other.label, f"{SECONDS} CPU seconds each")
            for entry in rolled.values()
            for other in (upright, turned)
        ),
        (
            *LIMITS,
            "The crops are aligned with the body, so that a mirror is the only symmetry that anatomy suggests, and the "
            "turns of the cube are a stress test.",
        ),
        measure="overlap",
        budgets=(SECONDS,),
    )


HIPPOCAMPUS = _hippocampus()

# --- cells in any orientation -----------------------------------------------------------------------------------------

SIZES = (5, 100)  # training volumes
CELL_MILLISECONDS = {"baseline": 24, "roll-octa-wide": 36}  # for a patch of 16 voxels
CELL_SECONDS = 60


def _cells(row: str, images: int) -> Entry:
    options: dict[str, Any] = {"train_size": images, **({"moves": "octa"} if row == "baseline" else {})}
    options["epochs"] = round(1000 * CELL_SECONDS / CELL_MILLISECONDS[row] / images)
    return Entry("volumes-embedded", row, 3, options, CELL_SECONDS)


def _embedded() -> Study:
    every = {(row, images): _cells(row, images) for images in SIZES for row in CELL_MILLISECONDS}
    ordinary, rolled = ({images: every[row, images].label for images in SIZES} for row in CELL_MILLISECONDS)
    return Study(
        "Drawn cells in volumes, masks",
        "Five or a hundred labelled volumes whose contents lie in any direction: an ordinary U-Net, or the 24 turns?",
        "Cells of layers or rods, drawn from a seed, each at an angle of its own, in 20 x 20 x 20 voxels with noise. "
        "To learn: which voxels belong to which kind. The ordinary network is trained on volumes in random turns. Each "
        "network has the same CPU seconds, whatever the number of volumes.",
        tuple(every.values()),
        tuple(Takeaway(rolled[images], (ordinary[images],)) for images in SIZES),
        tuple(Question(rolled[n], ordinary[n], f"{n} volumes, {CELL_SECONDS} CPU seconds each") for n in SIZES),
        (
            *LIMITS,
            "Every voxel has a label, so that five volumes have forty thousand. With one label for each volume it is "
            "another matter: see [volumes](../volumes.md).",
            "The rolled network has twice as many maps: with as many as the ordinary one, the 24 orientations would "
            "share two filters in the first layer.",
        ),
        measure="overlap",
        series=(tuple(ordinary.values()), tuple(rolled.values())),
        along="train_images",
    )


VOLUMES_EMBEDDED = _embedded()

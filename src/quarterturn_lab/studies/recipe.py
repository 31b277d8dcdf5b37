"""The recipe studies: modern residual networks, ordinary and rolled, at equal CPU seconds of training.

A search tries settings with one seed each, as many for ordinary networks as for each rolled kind, and is judged on
validation images alone. The networks that it prefers are then trained with three seeds, and compared on test images.
"""

from typing import Any

from quarterturn_lab.studies.definition import Entry, Study

# CPU milliseconds of training for one grey image on AMD Zen 5: row, and maps of the first stage. From a quiet machine;
# the record of bench/recipe.py, from a busy one, has 3 to 18 % more, for all networks alike.
MILLISECONDS: dict[str, dict[int, float]] = {
    "residual-plain": {16: 0.42, 24: 0.74, 32: 1.00, 48: 1.88, 64: 3.00},
    "residual-c4": {16: 0.53, 24: 0.86, 32: 1.00, 48: 1.77, 64: 2.42},
    "residual-d4": {16: 0.54, 24: 0.86, 32: 0.98, 48: 1.53, 64: 1.92},
}
COLOUR = 0.10  # so much more for three channels whose brightness changes
IMAGES = {"500": 571, "2000": 2014, "all": 19_377}
SIZES = {f"recipe-plankton-{name}": count for name, count in IMAGES.items()} | {"recipe-galaxies": 3200}


def epochs(experiment: str, row: str, width: int, seconds: float) -> int:
    """How many epochs take about this many CPU seconds."""
    cost = MILLISECONDS[row][width] + (COLOUR if experiment == "recipe-galaxies" else 0.0)
    return max(1, round(1000 * seconds / cost / SIZES[experiment]))


def trained(experiment: str, row: str, width: int, seconds: int, seeds: int = 1, **options: Any) -> Entry:
    """A network with as many epochs as fit into a budget. Rolled ones are not turned at test time: they are exact."""
    own: dict[str, Any] = {"width": width, "blocks": 1, "epochs": epochs(experiment, row, width, seconds), **options}
    if row != "residual-plain":
        own["score_turns"] = False
    return Entry(experiment, row, seeds, own, seconds)


# --- plankton, 2,000 images: the search -------------------------------------------------------------------------------

PLANKTON = "recipe-plankton-2000"
WIDE = {"hidden": 128}
LIMITS = (
    "Images are 48 x 48 pixels and budgets are a minute or a few: tiny ones, where every network is still learning.",
    "CPU seconds are of one processor, AMD Zen 5 with AVX-512. Epochs were fixed beforehand from the time of a step "
    "(`bench/recipe.py`), so that runs can be repeated to the bit; the seconds in the table are what they took.",
)
SEARCH_LIMITS = (
    "One run of each: differences of 0.05 may be chance. The search chooses; it does not rank.",
    *LIMITS,
)


def _tried(row: str, width: int = 32, **options: Any) -> Entry:
    return trained(PLANKTON, row, width, 60, **options)


PLANKTON_SEARCH = Study(
    "Plankton, the search for a recipe",
    "About 2,000 labelled images and a minute of training: which settings are worth a test?",
    "About 2,000 training images of 121 classes, 48 x 48 pixels; 1,211 others to choose on. All networks are trained "
    "for about 60 CPU seconds.",
    (
        *(_tried("residual-plain", lr=rate) for rate in (2e-3, 4e-3, 8e-3)),
        _tried("residual-plain", 48),
        _tried("residual-plain", **WIDE),
        *(_tried(row, **head) for row in ("residual-c4", "residual-d4") for head in ({}, {"invariants": True}, WIDE)),
        *(_tried(row, 48, **WIDE) for row in ("residual-c4", "residual-d4")),
        _tried("residual-d4", 64, **WIDE),
        *(_tried("residual-d4", lr=rate, **WIDE) for rate in (2e-3, 8e-3)),
    ),
    (),
    (),
    SEARCH_LIMITS,
    judged="validation",
    budgets=(60,),
)

"""The recipe studies: modern residual networks, ordinary and rolled, at equal CPU seconds of training.

A search tries settings with one seed each, as many for ordinary networks as for each rolled kind, and is judged on
validation images alone. The networks that it prefers are then trained with three seeds, and compared on test images.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from quarterturn_lab.studies.definition import TURNED, Entry, Question, Study, Takeaway

# CPU milliseconds of training for one grey image on AMD Zen 5: row, and maps of the first stage. From a quiet machine;
# the record of bench/recipe.py, from a busy one, has 3 to 18 % more, for all networks alike. That of 12 maps is an
# estimate, and too low: their runs took 94 CPU seconds where others of the search took 75.
MILLISECONDS: dict[str, dict[int, float]] = {
    "residual-plain": {12: 0.32, 16: 0.42, 24: 0.74, 32: 1.00, 48: 1.88, 64: 3.00},
    "convnext-plain": {24: 0.95, 32: 1.32, 48: 2.26, 64: 3.6},
    "residual-c4": {16: 0.53, 24: 0.86, 32: 1.00, 48: 1.77, 64: 2.42},
    "residual-d4": {16: 0.54, 24: 0.86, 32: 0.98, 48: 1.53, 64: 1.92},
}
COLOUR = 0.10  # so much more for three channels whose brightness changes
SMALL_BATCH = {"residual-plain": 1.11, "residual-c4": 1.065}  # times as long in batches of 16
IMAGES = {"500": 571, "2000": 2014, "all": 19_377}
SIZES = {f"recipe-plankton-{name}": count for name, count in IMAGES.items()} | {"recipe-galaxies": 3200}


def epochs(experiment: str, row: str, width: int, seconds: float, batch: int = 32) -> int:
    """How many epochs take about this many CPU seconds."""
    cost = MILLISECONDS[row][width] + (COLOUR if experiment == "recipe-galaxies" else 0.0)
    cost *= SMALL_BATCH[row] if batch == 16 else 1.0
    return max(1, round(1000 * seconds / cost / SIZES[experiment]))


def trained(experiment: str, row: str, width: int, seconds: int, seeds: int = 1, **options: Any) -> Entry:
    """A network with as many epochs as fit into a budget. Rolled ones are not turned at test time: they are exact."""
    count = epochs(experiment, row, width, seconds, options.get("batch", 32))
    own: dict[str, Any] = {"width": width, "blocks": 1, "epochs": count, **options}
    if not row.endswith("plain"):
        own["score_turns"] = False
    return Entry(experiment, row, seeds, own, seconds)


# --- searches ---------------------------------------------------------------------------------------------------------

HEAD = {"invariants": True}  # what the search found first: rolled networks want it
UNTIL = "quarterturn_lab.models.variants:residual_c4_until_3"
LIMITS = (
    "Images are 48 x 48 pixels, and networks have one block a stage.",
    "CPU seconds are of one processor, AMD Zen 5 with AVX-512. Epochs were fixed beforehand from the time of a step "
    "(`bench/recipe.py`), so that runs can be repeated to the bit. The seconds in the table are what they took, beside "
    "other processes.",
)


Heads = tuple[dict[str, Any], ...]
MEAN: dict[str, Any] = {}


def search(
    experiment: str,
    about: str,
    heads: Heads,
    shapes: tuple[Entry, ...] = (),
    later: tuple[Entry, ...] = (),
    narrow: tuple[int, ...] = (16, 24),
    **changes: Any,
) -> Study:
    """Learning rates and widths of each kind of network, as many trials for each, and other heads of the rolled ones.

    `shapes` are more trials of the rolled network, which are compared with it. `narrow` are maps of ordinary networks
    that one run preferred, and `later` trials that these suggested.
    """

    def tried(row: str, width: int = 32, **options: Any) -> Entry:
        return trained(experiment, row, width, 60, **options)

    kinds: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
        "residual-plain": ((12, 16, 24, 48), {}),  # 24 maps were better than 32, so 16 and 12 were tried too
        "convnext-plain": ((24, 48), {}),
        "residual-c4": ((24, 48), HEAD),
        "residual-d4": ((48, 64), HEAD),  # of as many maps it is cheaper
    }
    every = [
        entry
        for row, (widths, head) in kinds.items()
        for entry in (
            *(tried(row, lr=rate, **head) for rate in (2e-3, 4e-3, 8e-3)),
            *(tried(row, width, **head) for width in widths),
        )
    ]
    every += [tried(row, **head) for row in ("residual-c4", "residual-d4") for head in heads]
    every += [tried("residual-plain", **head) for head in heads if "hidden" in head]
    largest = [tried(row, lr=8e-3, **head).label for row, head in (("residual-plain", {}), ("residual-c4", HEAD))]
    *narrower, plain = (tried("residual-plain", width).label for width in (*narrow, 32))
    c4, d4 = (tried(row, **HEAD).label for row in ("residual-c4", "residual-d4"))
    # Five seeds where three left it open what the head does, and three of what one run preferred.
    seeds = dict.fromkeys((plain, c4, tried("residual-c4").label), 5) | dict.fromkeys((*narrower, *largest), 3)
    every = [replace(entry, seeds=seeds.get(entry.label, entry.seeds)) for entry in every]
    questions = [
        Question(rolled, tried(row, **head).label, "what the head does")
        for rolled, row in ((c4, "residual-c4"), (d4, "residual-d4"))
        for head in heads
    ]
    questions += [
        Question(largest[0], plain, "which learning rate"),
        Question(largest[1], c4, "which learning rate"),
        *(Question(f"{label}{TURNED}", f"{plain}{TURNED}", "which width") for label in narrower),
        Question(largest[1], f"{largest[0]}{TURNED}", "both with the larger learning rate"),
    ]
    questions += [
        Question(f"{entry.label}{'' if entry.options.get('invariants') else TURNED}", c4, "where it rolls, which sides")
        for entry in shapes
    ]
    return Study(
        entries=(*every, *shapes, *later),
        takeaways=(Takeaway(c4, (tried("residual-c4").label,)),),
        questions=tuple(questions),
        limits=(
            "One run of most: differences of 0.05 may be chance. The search chooses; it does not rank.",
            *LIMITS,
        ),
        about=f"{about} All networks are trained for about 60 CPU seconds.",
        judged="validation",
        budgets=(60,),
        **changes,
    )


PLANKTON_SEARCH = search(
    "recipe-plankton-2000",
    "About 2,000 training images of 121 classes, 48 x 48 pixels; 1,211 others to choose on.",
    (MEAN, {"pool": "max"}, {"hidden": 128}),
    (
        trained(
            "recipe-plankton-2000", "residual-c4", 32, 60, 3, roll_from=2, epochs=24, **HEAD
        ),  # 1.26 times the time
        *(trained("recipe-plankton-2000", "residual-c4", 32, 60, 3, side=side, **HEAD) for side in (47, 49)),
        Entry("recipe-plankton-2000", "residual-plain", 3, {"factory": UNTIL, "epochs": 28}, 60),  # 1.09 times
    ),
    tuple(
        trained("recipe-plankton-2000", row, maps, 60, **({} if row == "residual-plain" else HEAD), **options)
        for row, maps, options in (
            ("residual-plain", 12, {"lr": 8e-3}),
            ("residual-plain", 12, {"lr": 1.6e-2}),
            ("residual-plain", 16, {"lr": 8e-3}),
            ("residual-plain", 16, {"lr": 1.6e-2}),
            ("residual-plain", 16, {"batch": 16}),
            ("residual-plain", 16, {"lr": 8e-3, "batch": 16}),
            ("residual-plain", 16, {"lr": 1.6e-2, "batch": 16}),
            ("residual-plain", 16, {"lr": 3.2e-2}),
            ("residual-plain", 24, {"lr": 1.6e-2}),
            ("residual-c4", 16, {"lr": 1.6e-2}),
            ("residual-c4", 24, {"lr": 8e-3}),
            ("residual-c4", 24, {"lr": 8e-3, "batch": 16}),
            ("residual-c4", 32, {"batch": 16}),
            ("residual-c4", 32, {"lr": 8e-3, "batch": 16}),
            ("residual-c4", 32, {"lr": 1.6e-2}),
            ("residual-c4", 32, {"lr": 1.6e-2, "batch": 16}),
            ("residual-c4", 24, {"lr": 1.6e-2, "batch": 16}),
            ("residual-c4", 32, {"lr": 3.2e-2}),
            ("residual-c4", 32, {"lr": 3.2e-2, "batch": 16}),
        )
    ),
    title="Plankton, the search for a recipe",
    decision="About 2,000 labelled images and a minute of training: which settings are worth a test?",
)
GALAXIES_SEARCH = search(
    "recipe-galaxies",
    "3,200 training images of galaxies with 17 shares of votes, 48 x 48 pixels; 400 others to choose on.",
    (MEAN,),
    title="Galaxies, the search for a recipe",
    decision="3,200 galaxies and a minute of training: which settings are worth a test?",
    measure="rmse",
)

# --- what the searches prefer, tested ---------------------------------------------------------------------------------


class Trial(NamedTuple):
    """A network and how it is trained."""

    row: str
    maps: int
    rate: float = 4e-3
    batch: int = 32


PLAIN, C4, D4, CONVNEXT = (Trial(row, 32) for row in ("residual-plain", "residual-c4", "residual-d4", "convnext-plain"))
WIDE, WIDE_C4 = Trial("residual-plain", 64), Trial("residual-c4", 64)
# More epochs in as many seconds, and larger learning rates, which the search was late to prefer: the last two.
NARROW, NARROWER, FAST = Trial("residual-plain", 24), Trial("residual-plain", 16), Trial("residual-c4", 32, 8e-3)
SLIM, SLIM_C4 = Trial("residual-plain", 16, 1.6e-2, 16), Trial("residual-c4", 16, 1.6e-2)
LATER = (NARROW, NARROWER, FAST, SLIM, SLIM_C4)

# CPU seconds -> networks and their seeds. One seed of each where there is time for little, three of those that
# validation prefers, five where three left an interval open. ConvNeXt-like networks are far behind: one run says so.
PLANS: dict[str, dict[int, dict[Trial, int]]] = {
    "recipe-plankton-500": {
        60: {PLAIN: 3, SLIM: 3, CONVNEXT: 1, C4: 3, SLIM_C4: 3, D4: 3},
        300: {PLAIN: 3, C4: 3},
    },
    "recipe-plankton-2000": {
        60: {PLAIN: 5, NARROW: 5, NARROWER: 3, SLIM: 5, CONVNEXT: 1, C4: 5, FAST: 5, SLIM_C4: 5, D4: 3},
        300: {PLAIN: 3, NARROW: 1, NARROWER: 1, SLIM: 1, WIDE: 3, C4: 3, SLIM_C4: 1, WIDE_C4: 3},
    },
    "recipe-plankton-all": {
        60: {PLAIN: 3, NARROWER: 3, SLIM: 3, CONVNEXT: 1, C4: 3, FAST: 3, SLIM_C4: 3, D4: 1},
        300: {PLAIN: 3, NARROW: 1, NARROWER: 1, WIDE: 1, C4: 3, WIDE_C4: 1},
    },
    "recipe-galaxies": {
        60: {PLAIN: 5, NARROW: 3, NARROWER: 5, SLIM: 3, CONVNEXT: 1, C4: 5, FAST: 5, SLIM_C4: 5, D4: 3},
        300: {PLAIN: 3, NARROW: 1, NARROWER: 1, WIDE: 1, C4: 3, FAST: 1, WIDE_C4: 1},
    },
}


def recipe(experiment: str, about: str, **changes: Any) -> Study:
    """Networks of each kind for one minute and for five."""
    plan = PLANS[experiment]
    every = {
        (trial, seconds): _tested(experiment, trial, seconds, seeds)
        for seconds, trials in plan.items()
        for trial, seeds in trials.items()
    }
    rolled = {key: entry for key, entry in every.items() if not entry.is_plain and entry.seeds > 1}
    ordinary = {key: entry for key, entry in every.items() if entry.is_plain and entry.seeds > 1}
    questions = [
        Question(
            entry.label,
            f"{other.label}{TURNED}",
            f"{seconds} CPU seconds each",
            later=trial in LATER or opponent in LATER,
        )
        for (trial, seconds), entry in rolled.items()
        for (opponent, as_long), other in ordinary.items()
        if seconds == as_long
    ]
    if (D4, 60) in rolled:
        questions.append(Question(every[D4, 60].label, every[C4, 60].label, "which group", later=True))
    five = 5 in plan[60].values()
    return Study(
        entries=tuple(every.values()),
        takeaways=tuple(Takeaway(every[trial, 60].label) for trial in (SLIM_C4, C4, D4) if (trial, 60) in rolled),
        questions=tuple(questions),
        limits=(
            "All runs share one test set. ± and intervals cover other seeds, not other test images.",
            "Narrower networks, larger learning rates and smaller batches were tested after the others, "
            "when the search had found them.",
            *(["Seeds four and five were added because three had left an interval open."] * five),
            *LIMITS,
        ),
        about=f"{about} Settings come from a [search](recipe-search-plankton.md) on validation images.",
        budgets=tuple(plan),
        **changes,
    )


def _tested(experiment: str, trial: Trial, seconds: int, seeds: int) -> Entry:
    options: dict[str, Any] = {} if trial.row.endswith("plain") else {**HEAD}
    options |= {"lr": trial.rate} | ({"batch": trial.batch} if trial.batch != 32 else {})
    return trained(experiment, trial.row, trial.maps, seconds, seeds, **options)


RECIPES = {
    f"recipe-plankton-{name}": recipe(
        f"recipe-plankton-{name}",
        f"{IMAGES[name]:,} training images of 121 classes, 48 x 48 pixels, modern residual networks.",
        title=f"Plankton, {about} and minutes of training",
        decision=f"{about[0].upper()}{about[1:]} of 121 classes, and minutes of training: which network?",
    )
    for name, about in (("2000", "about 2,000 images"), ("500", "about 500 images"), ("all", "19,377 images"))
} | {
    "recipe-galaxies": recipe(
        "recipe-galaxies",
        "3,200 training images of galaxies with 17 shares of votes, 48 x 48 pixels, modern residual networks.",
        title="Galaxies and minutes of training",
        decision="3,200 galaxies, and a minute or five of training: which network?",
        measure="rmse",
    )
}

# --- a network of others ----------------------------------------------------------------------------------------------

# CPU milliseconds for one image, of timm's resnet10t and of what `convert` makes of it.
TWIN = {"residual-plain": 2.95, "residual-c4": 2.07}
TWIN_SECONDS = 120


def _twin(row: str, **options: Any) -> Entry:
    own: dict[str, Any] = {"backbone": "timm:resnet10t", **options}
    own |= {"how": "plain"} if row == "residual-plain" else {"score_turns": False}
    count = round(1000 * TWIN_SECONDS / TWIN[row] / IMAGES["2000"])
    return Entry("recipe-plankton-2000", row, 3, {**own, "epochs": count}, TWIN_SECONDS)


def _twins() -> Study:
    ordinary, mean, rolled = _twin("residual-plain"), _twin("residual-c4"), _twin("residual-c4", **HEAD)
    slower = (_twin("residual-plain", lr=2e-3), _twin("residual-c4", lr=2e-3, **HEAD))
    return Study(
        "Plankton, a network of timm and its twin",
        "About 2,000 images of 121 classes, and two minutes of training: timm's resnet10t, or its converted twin?",
        "2,014 training images, 48 x 48 pixels. `quarterturn.convert` keeps the number of maps. The settings were "
        "searched for with other networks.",
        (ordinary, mean, rolled, *slower),
        (Takeaway(rolled.label, (f"{ordinary.label}{TURNED}", mean.label)),),
        (
            Question(rolled.label, f"{ordinary.label}{TURNED}", f"{TWIN_SECONDS} CPU seconds each"),
            Question(slower[1].label, f"{slower[0].label}{TURNED}", "half the learning rate"),
            Question(mean.label, f"{ordinary.label}{TURNED}", f"{TWIN_SECONDS} CPU seconds each"),
            Question(rolled.label, mean.label, "what the head does"),
        ),
        (
            "All runs share one test set. ± and intervals cover other seeds, not other test images.",
            "The network was made for larger images: its last maps have 2 x 2 positions.",
            LIMITS[1],
        ),
        budgets=(TWIN_SECONDS,),
        further="It needs timm: `pip install timm`.",
    )


RECIPES["recipe-timm"] = _twins()

# --- nuclei -----------------------------------------------------------------------------------------------------------

# CPU milliseconds for one tile of 64 x 64 pixels: U-Nets of 16 and 32 maps, ordinary and rolled.
TILES = {"baseline": 5.3, "baseline-wide": 15.1, "roll-all-quarter": 6.5, "roll-all-half": 13.9}
SCENES = 429  # training images, a tile of each in an epoch
COMPARED = ("baseline", "roll-all-quarter")  # with three seeds; all else is a trial of one run
# Learning rates for CPU seconds. For a minute validation preferred the lower one, for both; five have the first tried.
RATES = {60: 2e-3, 300: 4e-3}
UNETS = {(row, seconds, rate): 3 if row in COMPARED else 1 for seconds, rate in RATES.items() for row in TILES} | {
    (row, 60, 4e-3): 1 for row in TILES
}


def _unet(row: str, seconds: int, rate: float, seeds: int) -> Entry:
    options: dict[str, Any] = {"epochs": round(1000 * seconds / TILES[row] / SCENES), "lr": rate}
    if not row.startswith("baseline"):
        options |= {"score_turns": False, **HEAD}
    return Entry("recipe-nuclei", row, seeds, options, seconds)


def _nuclei() -> Study:
    every = {key: _unet(*key, seeds) for key, seeds in UNETS.items()}
    ordinary, rolled = (
        {seconds: every[row, seconds, rate].label for seconds, rate in RATES.items()} for row in COMPARED
    )
    return Study(
        "Nuclei and minutes of training",
        "About 430 microscopy images with masks, and a minute or five of training: an ordinary U-Net, or a rolled one?",
        "A small U-Net with batch norm, trained on tiles of 64 x 64 pixels, scored on whole images. A tenth of the "
        "images is for testing, a tenth of the others to choose on. Two learning rates and two widths of each kind "
        "were tried for a minute.",
        tuple(every.values()),
        (Takeaway(rolled[300], (f"{ordinary[300]}{TURNED}",)),),
        tuple(
            Question(rolled[seconds], f"{ordinary[seconds]}{TURNED}", f"{seconds} CPU seconds each")
            for seconds in (60, 300)
        ),
        (
            "All runs share one test set. ± and intervals cover other seeds, not other test images.",
            LIMITS[1],
        ),
        measure="dice",
        budgets=(60, 300),
    )


RECIPES["recipe-nuclei"] = _nuclei()

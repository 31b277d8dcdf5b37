"""Small vision transformers on plankton and embedded shapes: what equivariance adds, and which kind of attention."""

from typing import Any

from quarterturn_lab.settings.experiments import FIT, SHARP
from quarterturn_lab.studies.definition import TURNED, Entry, Question, Study, Takeaway

NETWORKS = "quarterturn_lab.models.vit:"
# CPU milliseconds of training for one image of 32 pixels, AMD Zen 5, a busy machine.
MILLISECONDS = {"vit_plain": 2.51, "vit_c4": 2.18, "vit_c4_coupled": 1.95, "vit_d4": 3.07, "vit_d4_coupled": 2.07}
IMAGES = {"recipe-plankton-2000": 2014, "synthetic": 1800}
SECONDS = 180
RATES = (5e-4, 1e-3, 2e-3, 4e-3)
RATE = 2e-3


# The embedded set is trained as plankton is.
SETTINGS: dict[str, dict[str, Any]] = {
    "recipe-plankton-2000": {"longest": 30},
    "synthetic": {**FIT, **SHARP, "validation": 0.1},
}


def _entry(
    name: str,
    seconds: int = SECONDS,
    seeds: int = 3,
    rate: float = RATE,
    experiment: str = "recipe-plankton-2000",
) -> Entry:
    options: dict[str, Any] = {"factory": NETWORKS + name, "side": 32, **SETTINGS[experiment], "lr": rate}
    options["epochs"] = round(1000 * seconds / MILLISECONDS[name] / IMAGES[experiment])
    if name != "vit_plain":
        options["score_turns"] = False
    return Entry(experiment, "residual-plain", seeds, options, seconds)


def _search() -> tuple[Entry, ...]:
    """Learning rates, a minute and one seed each."""
    return tuple(_entry(name, 60, 1, rate) for name in ("vit_plain", "vit_c4") for rate in RATES)


def _compared(title: str, decision: str, about: str, seconds: int, experiment: str, trials: tuple[Entry, ...]) -> Study:
    final = {name: _entry(name, seconds, experiment=experiment) for name in MILLISECONDS}
    ordinary = f"{final['vit_plain'].label}{TURNED}"
    return Study(
        title,
        decision,
        about,
        (*final.values(), *trials),
        tuple(Takeaway(final[name].label, (ordinary,)) for name in ("vit_c4", "vit_c4_coupled")),
        (
            *(
                Question(entry.label, ordinary, f"{seconds} CPU seconds each")
                for name, entry in final.items()
                if name != "vit_plain"
            ),
            Question(final["vit_c4_coupled"].label, final["vit_c4"].label, "which kind of attention"),
            Question(final["vit_d4_coupled"].label, final["vit_d4"].label, "which kind of attention"),
        ),
        (
            "All runs share one test set. ± and intervals cover other seeds, not other test images.",
            "Small transformers are weak on small sets: convolutional networks are better here in less time.",
            "CPU seconds are of one processor, AMD Zen 5 with AVX-512, with other processes beside. Epochs were fixed "
            "beforehand from the time of a step: the C4 networks took less than they might.",
        ),
        budgets=(60, seconds) if trials else (seconds,),
    )


SIZES = "32 x 32 pixels, patches of 4, four blocks of 96 features in all orientations together."
TRANSFORMERS = _compared(
    "Plankton, small transformers",
    "About 2,000 images of 121 classes, three minutes of training, and it has to be a transformer: which one?",
    f"2,014 training images, {SIZES} Learning rates come from trials of a minute, which are listed too.",
    SECONDS,
    "recipe-plankton-2000",
    _search(),
)
EMBEDDED = _compared(
    "Embedded shapes, small transformers",
    "1,800 drawn shapes of ten classes, a minute of training, and it has to be a transformer: which one?",
    f"The set that `quarterturn demo` draws: 1,800 training images, 200 to choose on, 1,000 to test on, {SIZES} "
    "Settings are those of plankton.",
    60,
    "synthetic",
    (),
)

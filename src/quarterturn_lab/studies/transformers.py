"""Small vision transformers on plankton: what equivariance adds, and which kind of attention."""

from typing import Any

from quarterturn_lab.studies.definition import TURNED, Entry, Question, Study, Takeaway

NETWORKS = "quarterturn_lab.models.vit:"
# CPU milliseconds of training for one image of 32 pixels, AMD Zen 5, a busy machine.
MILLISECONDS = {"vit_plain": 2.51, "vit_c4": 2.18, "vit_c4_coupled": 1.95, "vit_d4": 3.07, "vit_d4_coupled": 2.07}
IMAGES, SECONDS = 2014, 180
RATES = (5e-4, 1e-3, 2e-3, 4e-3)
RATE = 2e-3


def _entry(name: str, seconds: int = SECONDS, seeds: int = 3, rate: float = RATE) -> Entry:
    options: dict[str, Any] = {"factory": NETWORKS + name, "side": 32, "longest": 30, "lr": rate}
    options["epochs"] = round(1000 * seconds / MILLISECONDS[name] / IMAGES)
    if name != "vit_plain":
        options["score_turns"] = False
    return Entry("recipe-plankton-2000", "residual-plain", seeds, options, seconds)


def _search() -> tuple[Entry, ...]:
    """Learning rates, a minute and one seed each."""
    return tuple(_entry(name, 60, 1, rate) for name in ("vit_plain", "vit_c4") for rate in RATES)


FINAL = {name: _entry(name) for name in MILLISECONDS}
ORDINARY = f"{FINAL['vit_plain'].label}{TURNED}"

TRANSFORMERS = Study(
    "Plankton, small transformers",
    "About 2,000 images of 121 classes, three minutes of training, and it has to be a transformer: which one?",
    "2,014 training images, 32 x 32 pixels, patches of 4, four blocks of 96 features in all orientations together. "
    "Learning rates come from trials of a minute, which are listed too.",
    (*FINAL.values(), *_search()),
    (Takeaway(FINAL["vit_c4"].label, (ORDINARY, FINAL["vit_c4_coupled"].label)),),
    (
        *(
            Question(entry.label, ORDINARY, f"{SECONDS} CPU seconds each")
            for name, entry in FINAL.items()
            if name != "vit_plain"
        ),
        Question(FINAL["vit_c4_coupled"].label, FINAL["vit_c4"].label, "which kind of attention"),
        Question(FINAL["vit_d4_coupled"].label, FINAL["vit_d4"].label, "which kind of attention"),
    ),
    (
        "All runs share one test set. ± and intervals cover other seeds, not other test images.",
        "Small transformers are weak on small sets: convolutional networks are better here in less time.",
        "CPU seconds are of one processor, AMD Zen 5 with AVX-512, with other processes beside.",
    ),
    budgets=(60, SECONDS),
)

"""The paper's other two tables on a small scale, galaxies and aerial images; and nuclei, which the paper has not."""

from quarterturn_lab.studies.definition import TURNED, Entry, Question, Study, Takeaway, entries
from quarterturn_lab.studies.plankton import LONGER, MAIN, WIDER, plankton_questions, plankton_takeaways

SHARED = "All runs share one test set. ± and intervals cover other seeds, not other test images."

GALAXIES = Study(
    "Galaxies, the paper's rows",
    "3,200 galaxies with shares of votes: which of the paper's networks, for a given training time?",
    "3,200 training images, 400 to choose on and 400 to test on, 33 x 33 pixels, 17 shares of votes for each. The "
    "paper has 55,421 images of 64 x 64 pixels, 37 shares, and a larger network.",
    (
        *entries("galaxies-small", 3, MAIN),
        *entries("galaxies-small", 3, LONGER, epochs=80),
        *entries("galaxies-small", 3, WIDER),
        *entries("galaxies-small", 3, ("roll-all-quarter",), epochs=40),
        *entries("galaxies-small", 3, ("roll-all-quarter",), epochs=80),
    ),
    plankton_takeaways(),
    (
        *plankton_questions("-80epochs"),
        *(
            Question(f"roll-all-quarter-{epochs}epochs", f"baseline-80epochs{TURNED}", why, later=True)
            for epochs, why in ((40, "half the presentations"), (80, "as many presentations"))
        ),
        Question("roll-all-quarter-80epochs", "roll-all-quarter", "four times the presentations", later=True),
    ),
    (SHARED, "Images and networks are small: compare orders with the paper's, not figures."),
    measure="rmse",
    budgets=(60, 200),
)

AERIAL = ("baseline", "baseline-linear", "baseline-half", "pool-mean", "roll-all-quarter", "roll-all-half")
ROADS = Study(
    "Roads, the paper's rows",
    "Seven aerial images with roads marked: which of the paper's networks, for a given training time?",
    "Seven training images of the Massachusetts roads set, one to choose on, two to test on, scored whole. The paper "
    "has buildings, the sister set, and four times as many filters.",
    (
        *entries("roads-small", 3, AERIAL),
        *entries("roads-small", 3, LONGER, epochs=80),
        *entries("roads-small", 3, ("roll-all-quarter",), epochs=50),
        *entries("roads-small", 3, ("roll-all-half",), epochs=30),
    ),
    (Takeaway("pool-mean", ("baseline-linear",)), Takeaway("roll-all-half")),
    (
        Question("pool-mean", "baseline", "the paper's claim"),
        Question("pool-mean", "baseline-linear", "the same without the ReLU that pooling removes"),
        Question("pool-mean", f"baseline-linear{TURNED}", "averaging turns needs no training"),
        Question("pool-mean", f"baseline-80epochs{TURNED}", "a baseline trained four times as long instead"),
        Question("roll-all-half", "baseline", "the paper's best row"),
        Question("roll-all-half", f"baseline-80epochs{TURNED}", "a baseline trained four times as long instead"),
        Question("roll-all-half", "pool-mean", "the paper's best row against its second"),
        Question("roll-all-quarter", "baseline-half", "the paper's claim of fewer parameters"),
        *(
            Question(label, f"baseline-80epochs{TURNED}", "about the same CPU seconds", later=True)
            for label in ("roll-all-quarter-50epochs", "roll-all-half-30epochs")
        ),
    ),
    (SHARED, "Ten images in all: other towns may give another order."),
    measure="auc",
    budgets=(60, 200),
)

# As many maps and presentations in each; settings and ordinary runs are those of the recipe study.
NUCLEI_OPTIONS = {"epochs": 26, "lr": 2e-3}
UNET = Entry("recipe-nuclei", "baseline", 3, NUCLEI_OPTIONS)
ROLLED = tuple(
    Entry("recipe-nuclei", row, 3, {**NUCLEI_OPTIONS, "invariants": True, "score_turns": False})
    for row in ("roll-all-quarter", "roll-all-eighth-dihedral")
)
NUCLEI = Study(
    "Nuclei at equal widths",
    "About 430 microscopy images with masks: an ordinary U-Net, or one of C4 or D4?",
    "A small U-Net with batch norm, as many maps and epochs in each, trained on tiles of 64 x 64 pixels and scored on "
    "whole images. A tenth of the images is for testing, a tenth of the others to choose on.",
    (UNET, *ROLLED),
    tuple(Takeaway(entry.label, (f"{UNET.label}{TURNED}",)) for entry in ROLLED),
    tuple(
        Question(entry.label, other, why)
        for entry in ROLLED
        for other, why in (
            (UNET.label, "as many maps"),
            (f"{UNET.label}{TURNED}", "averaging turns needs no training"),
        )
    ),
    (SHARED,),
    measure="dice",
    budgets=(100,),
)

"""All studies, by the name of their page."""

from quarterturn_lab.errors import unknown
from quarterturn_lab.studies.definition import Study
from quarterturn_lab.studies.learning import LEARNING
from quarterturn_lab.studies.mnist import MNIST_SEARCH, ROTATED_MNIST
from quarterturn_lab.studies.other_tables import GALAXIES, NUCLEI, ROADS
from quarterturn_lab.studies.plankton import ALL_IMAGES, EQUAL_COST, FEW_LABELS, SMALL_SET
from quarterturn_lab.studies.recipe import GALAXIES_SEARCH, PLANKTON_SEARCH, RECIPES
from quarterturn_lab.studies.transformers import EMBEDDED, TRANSFORMERS
from quarterturn_lab.studies.volumes import HIPPOCAMPUS, VOLUMES_EMBEDDED

STUDIES: dict[str, Study] = {
    "small-set": SMALL_SET,
    "all-images": ALL_IMAGES,
    "equal-cost": EQUAL_COST,
    "few-labels": FEW_LABELS,
    "rotated-mnist": ROTATED_MNIST,
    "mnist-search": MNIST_SEARCH,
    "galaxies": GALAXIES,
    "roads": ROADS,
    "nuclei": NUCLEI,
    **RECIPES,
    "transformers": TRANSFORMERS,
    "transformers-embedded": EMBEDDED,
    "hippocampus": HIPPOCAMPUS,
    "volumes-embedded": VOLUMES_EMBEDDED,
    "learning": LEARNING,
    "recipe-search-plankton": PLANKTON_SEARCH,
    "recipe-search-galaxies": GALAXIES_SEARCH,
}


def study_of(name: str) -> Study:
    """The study of that name; an unknown name raises an error with the nearest ones."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return STUDIES[name]

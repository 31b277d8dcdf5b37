"""The recipe studies: modern residual networks, ordinary and rolled, at equal CPU seconds of training."""

# CPU milliseconds of training for one image on AMD Zen 5 (bench/recipe.py): row and width of the first stage.
MILLISECONDS: dict[str, dict[int, float]] = {
    "residual-plain": {16: 0.42, 24: 0.74, 32: 1.00, 48: 1.88, 64: 3.00},
    "residual-c4": {16: 0.53, 24: 0.86, 32: 1.00, 48: 1.77, 64: 2.42},
    "residual-d4": {16: 0.54, 24: 0.86, 32: 0.98, 48: 1.53, 64: 1.92},
}
COLOUR = 0.10  # three channels and the change of their brightness cost so much more
IMAGES = {"recipe-plankton-500": 571, "recipe-plankton-2000": 2014, "recipe-plankton-all": 19377, "recipe-galaxies": 3200}


def epochs(experiment: str, row: str, width: int, seconds: float) -> int:
    """How many epochs take this many CPU seconds, to the nearest."""
    cost = MILLISECONDS[row][width] + (COLOUR if experiment == "recipe-galaxies" else 0.0)
    return max(1, round(1000 * seconds / cost / IMAGES[experiment]))

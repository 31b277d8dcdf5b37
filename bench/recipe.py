"""CPU milliseconds of training for one image or patch, for the networks of studies that fix their epochs beforehand.

python bench/recipe.py --data DIR [--experiment recipe-plankton-2000]

Warps, steps and averages count. Networks take turns, a few steps each, so that a busy machine is busy for all alike.
The studies (src/quarterturn_lab/studies/recipe.py and volumes.py) divide their budgets by these figures, rounded.
"""

import statistics
import time
from typing import Any

import torch
from harness import Rows, parser_for, start_again_with_a_warm_allocator, write

from quarterturn_lab.runs.loading import load
from quarterturn_lab.runs.network import net_for
from quarterturn_lab.settings.experiments import config_for
from quarterturn_lab.studies import recipe, volumes
from quarterturn_lab.training import loop

STEPS, ROUNDS = 4, 7  # the first round warms up
VOLUMES = {"hippocampus": volumes.MILLISECONDS, "volumes-embedded": volumes.CELL_MILLISECONDS}


def networks_of(experiment: str) -> list[tuple[str, dict[str, Any]]]:
    """Rows of the experiment, and maps and blocks where a study chooses them."""
    if experiment in VOLUMES:
        return [(row, {}) for row in VOLUMES[experiment]]
    return [(row, {"width": maps, "blocks": 1}) for row, widths in recipe.MILLISECONDS.items() for maps in widths]


def measure(experiment: str, folder: str | None) -> Rows:
    networks = networks_of(experiment)
    configs = [config_for(experiment, row, data=folder, epochs=1000, **options) for row, options in networks]
    data = load(configs[0])
    runs = []
    for config in configs:
        state = loop.new_state(config, net_for(config, data.classes), torch.device("cpu"))
        runs.append((config, loop.train(config, data, state)))
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for (config, steps), found in zip(runs, seconds, strict=True):
            start = time.process_time()
            for _ in range(STEPS):
                next(steps)
            found.append((time.process_time() - start) / STEPS / config.batch_images)
    return [
        {
            "experiment": experiment,
            "row": row,
            "maps": options.get("width", ""),
            "ms": f"{1000 * statistics.median(found[1:]):.2f}",
        }
        for (row, options), found in zip(networks, seconds, strict=True)
    ]


def main() -> None:
    start_again_with_a_warm_allocator()
    parser = parser_for(__doc__)
    parser.add_argument("--data", help="the folder of the images")
    parser.add_argument("--experiment", default="recipe-plankton-2000")
    options = parser.parse_args()
    torch.set_num_threads(1)
    write(options.experiment, measure(options.experiment, options.data))


if __name__ == "__main__":
    main()

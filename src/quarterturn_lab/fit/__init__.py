"""From a folder to a trained network: the plan, the symmetry, the run."""

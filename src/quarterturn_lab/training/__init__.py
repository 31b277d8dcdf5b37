"""Training: batches, the loop, checkpoints, single runs and sweeps."""

"""Training: batches, the loop, one run, many runs."""

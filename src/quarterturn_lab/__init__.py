"""The lab: the paper's networks and experiments, training, evaluation and reports, as a command line."""

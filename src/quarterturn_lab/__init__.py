"""The experiments: the paper's networks, data, training, tables and reports."""

"""Run directories: written by training, read by evaluation, inference and reports."""

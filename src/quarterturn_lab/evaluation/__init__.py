"""Scores, and the statistics of several seeds."""

"""Predictions on data sets, their scores, and statistics over seeds."""

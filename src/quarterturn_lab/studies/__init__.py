"""The studies of docs/results: which runs they need, their records, and their pages."""

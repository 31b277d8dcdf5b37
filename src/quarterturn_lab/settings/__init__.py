"""Settings as data: networks, runs, experiments."""

"""What is asked for, as data: networks, runs, experiments."""

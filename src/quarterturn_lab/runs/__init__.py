"""Run directories: the only thing that training and what comes after it share."""

"""The loop of a sweep: what is missing, executors, workers that die, progress."""

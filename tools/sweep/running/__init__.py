"""Runs a sweep: what is missing, executors, workers that die, progress."""

"""Computes results from cells: calls of the emulator in batches, sums and metrics."""

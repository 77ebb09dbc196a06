"""Cells to results: calls of the emulator in batches, sums and metrics."""

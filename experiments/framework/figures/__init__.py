"""Figures of studies: series of conditions with their intervals, and times to divergence."""

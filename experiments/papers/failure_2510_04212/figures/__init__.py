"""The pictures of runs that diverged, and of what preceded it."""

"""`roundscope train`: a run in its folder, what it logs and monitors, and its output."""

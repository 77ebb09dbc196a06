"""`roundscope train`: a run in its folder, what it logs and watches, and what it says."""

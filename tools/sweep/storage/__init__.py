"""The results file of a sweep: written, read as a frame, exported."""

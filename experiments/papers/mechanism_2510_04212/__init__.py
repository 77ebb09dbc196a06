"""arXiv 2510.04212: what its mechanism rests on, in trainings that fail and that do not."""

"""Studies with the student and the teacher of arXiv 2506.20752 (`experiments.train.student`)."""

"""The claims of arXiv 2506.20752, tested in the student and teacher that the paper studies."""

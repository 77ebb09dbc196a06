"""Studies of papers: a folder for each, with its word and its arXiv number where it has one."""

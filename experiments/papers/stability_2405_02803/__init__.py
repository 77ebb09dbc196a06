"""`roundscope reproduce golden`: the claims of arXiv 2405.02803, each measured, with a verdict."""

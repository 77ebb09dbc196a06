"""`roundscope reproduce su`: the claims of arXiv 2506.20752, each with a verdict.

They are tested in the student and teacher that the paper studies.
"""

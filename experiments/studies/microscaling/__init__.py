"""`roundscope reproduce su`: the claims of arXiv 2506.20752 in the student and teacher that it
studies, each with a verdict.
"""

"""Studies with the student and teacher of arXiv 2506.20752; the training itself is
`experiments.train.student`.
"""

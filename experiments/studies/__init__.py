"""Studies: a question, its conditions, claims and figures.

One folder a question; none imports another.

What studies share is in `framework`.
"""

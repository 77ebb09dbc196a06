"""Studies: a question each, with its conditions, claims and figures.

Every question has a folder of its own, and no study imports another. What studies share is in
`framework`.
"""

"""Fig. 7 and 8: trainings in pairs, and how far their weights drift apart.

A table of golden.sqlite keeps the distances.
"""

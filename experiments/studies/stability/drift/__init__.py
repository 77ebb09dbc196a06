"""Fig. 7 and 8: trainings in pairs, how far their weights drift apart, and the table of
golden.sqlite that keeps it.
"""

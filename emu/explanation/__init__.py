"""One rounding or one addition taken apart in exact integers and fractions, for people.

It shares no code with the rule that it explains. How it is drawn is in `experiments.look`.
"""

"""The student and teacher of arXiv 2506.20752.

The student is a residual MLP trained with block-scaled formats at named places.
"""

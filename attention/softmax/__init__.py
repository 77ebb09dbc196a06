"""The softmax of a tile, in which kernels differ: its maximum, its exponents, its row sum and its
logarithm; each step is a named event.

Not here: the tile step that calls them (attention.algorithm), and the fields of a plan that choose
(attention.plans.choices).
"""

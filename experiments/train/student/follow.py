"""Decides when a run of the student has diverged.

Its loss is a mean square, so what counts is the factor by which it grows.
"""

import math
from functools import partial

from roundscope.experiments.train import divergence

RULE = (
    "A run has diverged at the first step where its loss is not finite, where the median of its"
    " last 100 losses that are no spikes is more than twice the lowest such median so far, or where"
    " a spike begins that lasts 100 steps, or 20 and to the run's end. A spike: three losses in a"
    " row whose logarithm is above the median by 8 times the spread."
)
DOUBLING = divergence.Rule(rise=math.log(2.0), logarithm=True, lasting=20)
Follow = partial(divergence.Follow, rule=DOUBLING)

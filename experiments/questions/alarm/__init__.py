"""Does the drift of attention's row sums warn of a divergence, and at which threshold?"""

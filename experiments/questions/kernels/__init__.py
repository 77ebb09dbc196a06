"""Which real kernels are biased, on named inputs?"""

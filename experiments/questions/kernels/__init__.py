"""Which real kernels are biased: errors, gains and row sums of dS of every kernel that runs here,
on named inputs.

Not here: how a kernel is called (kernels.adapters), and which arithmetic it has (kernels.identify).
"""

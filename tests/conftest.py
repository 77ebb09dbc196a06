"""Every test runs under strict dtype promotion: an accidental mix of types in JAX code is an
error.
"""

import os

os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"  # read by jax when it is first imported

"""Every test runs under strict dtype promotion: an accidental mix of types in JAX code is an
error.

`make test` has PyTorch, transformers and flax. Where they are not installed (`make test-matrix`),
the tests of models in these libraries are not collected.
"""

import os
from importlib.util import find_spec

os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"  # read by jax when it is first imported

OF_LIBRARIES = {
    "torch": [
        "attention/torch",
        "attention/models/test_layer_drift.py",
        "emu/test_torch.py",
        "test_bring_your_model.py",
    ],
    "flax": ["attention/flax", "test_bring_your_model.py"],
}
collect_ignore = [
    path for name, paths in OF_LIBRARIES.items() if find_spec(name) is None for path in paths
]

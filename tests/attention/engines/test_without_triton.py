"""A jax without the Triton backend of Pallas, which jax says that it will remove."""

import subprocess
import sys

CODE = """
import sys
sys.modules["jax.experimental.pallas.triton"] = None  # as if there were none
import numpy as np
from roundscope import attend

x = np.ones((1, 4, 1, 8), np.float32)
print(attend(x, x, x, plan="fa2-bf16", engine="xla").shape)
try:
    attend(x, x, x, plan="fa2-bf16", engine="pallas")
except ValueError as error:
    print(error)
"""


def test_only_the_fused_kernels_need_triton():
    """An import that breaks the other engines too, or a traceback in place of what to do."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shape, message = done.stdout.splitlines()
    assert shape == "(1, 4, 1, 8)"
    assert message.startswith("engine='pallas': jax ") and "use engine='xla'" in message

"""Where a call ran, as far as that is said: which of the plans that tie come first, and the kernel
of PyTorch that has no plan.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from roundscope.attention.plans.twins import TWIN_OF, TWINS
from roundscope.operations.identification.device import kind_of

NO_PLAN = (
    "PyTorch's own CPU flash kernel (SDPA) has no plan here: under"
    " sdpa_kernel(SDPBackend.MATH) the same call has one, sdpa-math"
)
SDPA = "scaled_dot_product_attention"


class Machine(NamedTuple):
    """Where a call ran.

    Attributes:
        library: "torch" or "jax"; "" where nothing is said.
        kind: "cpu" or "gpu"; "" where nothing is said.
        implementation: What computed it, such as "eager" or "sdpa flash"; "" where nothing is said.
    """

    library: str = ""
    kind: str = ""
    implementation: str = ""

    @property
    def note(self) -> str:
        """Return a sentence for a call of a kernel that no plan gives; "" for other calls."""
        is_fused = self.implementation in ("sdpa", "sdpa flash")
        return NO_PLAN if is_fused and (self.library, self.kind) == ("torch", "cpu") else ""

    def rank(self, name: str) -> int:
        """Return 0 for a plan of a library that runs there, 1 for one of none, 2 for another's.

        Where nothing is said of the device, all are 0.
        """
        if not self.kind:
            return 0
        twin = TWINS.get(name.removesuffix("-fp16"))
        if twin is None:
            return 1
        is_here = twin.runs_on_cpu if self.kind == "cpu" else True
        return 0 if is_here and twin.library == (self.library or twin.library) else 2


def of_file(said: Callable[[str], str | None]) -> Machine:
    """Return where the call in a file ran; said: returns the metadata of a name, or None."""
    library = next((name for name in ("torch", "jax") if said(name)), "")
    return Machine(library, kind_of(said("device")), said("implementation") or "")


def of_function(function: Any, library: str) -> Machine:
    """Return where a function of a library runs on this machine.

    It is PyTorch's fused attention if its code names that.
    """
    if library != "torch":
        return Machine()
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Machine(library, _here(), "sdpa" if SDPA in getattr(code, "co_names", ()) else "")


def of_kernel(name: str) -> Machine:
    """Return where a kernel that `identify` calls by name runs on this machine."""
    twin = TWINS.get(TWIN_OF.get(name, ""))
    if twin is None or twin.library != "torch":
        return Machine()
    return Machine("torch", _here(), name.replace("-", " "))


def _here() -> str:
    """Return the kind of device on which kernels of PyTorch are called here."""
    torch: Any = sys.modules.get("torch")
    return "gpu" if torch is not None and torch.cuda.is_available() else "cpu"

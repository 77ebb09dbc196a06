"""Operations of a transformer step beside attention: each a file with its sites, its plan, its
equations and its published plans.

    from roundscope.operations import run
    run("rms_norm", "fp32", {"x": x, "weight": w}, settings={"eps": 1e-6}).outputs["out"]
"""

from roundscope.operations.catalogue import OPERATIONS
from roundscope.operations.identification.identified import Identified
from roundscope.operations.identification.identify import identify
from roundscope.operations.operation import Call, Operation
from roundscope.operations.run import Run, run

__all__ = ["OPERATIONS", "Call", "Identified", "Operation", "Run", "identify", "run"]

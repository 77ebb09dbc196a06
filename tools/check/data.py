"""The contents of check.json."""

import hashlib
import sys
from typing import Any

from roundscope.attention.testing.comparison import Comparison
from roundscope.tools.check.asked import Asked
from roundscope.tools.check.report import Report
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.machine import device, has_gpu, versions
from roundscope.tools.results.provenance import command_line

LIBRARIES = ("jax", "jaxlib", "torch", "triton", "transformers")
SCHEMA = "roundscope-check-1"


def request(asked: Asked) -> str:
    """Return a digest of what was asked, which tells whose folder a report is in."""
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]


def document(report: Report) -> dict[str, Any]:
    """Return the contents of check.json as data."""
    asked: dict[str, Any] = plain(report.asked)
    data: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "request": request(report.asked),
            "command": command_line(),
            "versions": used(),
            "device": where(),
            "name": report.name,
            "about": report.about,
            "asked": asked,
            "passed": report.is_fine,
            "sentence": report.sentence,
            "notes": report.notes,
            "cases": report.cases,
            "compared": None if report.compared is None else _compared(report.compared),
            "seconds": round(report.seconds, 1),
        }
    )
    return data


def used() -> dict[str, str]:
    """Return the versions of Python and of the packages that took part, by name."""
    loaded = {n: str(sys.modules[n].__version__) for n in LIBRARIES if n in sys.modules}
    return versions("numpy") | loaded


def where() -> str:
    """Return the name of the GPU on which PyTorch or JAX ran, or else of the processor."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return device("xla" if "jax" in sys.modules and has_gpu() else "numpy")


def _compared(c: Comparison) -> dict[str, Any]:
    return {
        "plan": c.plan,
        "false_alarm": c.false_alarm,
        "heads": c.heads,
        "looks": c.looks,
        "equal_bits": c.equal,
        "undecided": c.undecided,
        "findings": c.findings,
        "gross": c.gross,
    }

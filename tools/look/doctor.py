"""The command `doctor`: versions, devices, caches and settings, traps, a self-check."""

import os
import platform
import sys
from typing import Any

from roundscope.tools.errors import one_line
from roundscope.tools.report.model import Part, Table, Text
from roundscope.tools.report.terminal import plain, print_json, show
from roundscope.tools.results.machine import installed

PACKAGES = ("numpy", "numba", "ml_dtypes", "jax", "jaxlib", "safetensors")
MODELS = ("torch", "transformers", "triton", "flax")  # whose kernels and models are looked at


def run(as_json: bool = False) -> bool:
    """Print the report. Return whether both executors agree with ml_dtypes in every number."""
    report = examine()
    if as_json:
        print_json(report)
    else:
        show(parts_of(report))
    return bool(report["passed"])


def examine() -> dict[str, Any]:
    """Return the whole report as plain data."""
    print("probing (some seconds: XLA compiles) ...", file=sys.stderr)
    from roundscope.tools.look import probes, self_check, surroundings

    around = [*surroundings.findings()]
    traps = [_probe(p) for p in probes.PROBES]
    checks = [self_check.check(name) for name in self_check.JUDGES]
    passed = all(c.passed for c in checks)
    return {
        "versions": versions() | _found(MODELS),
        "devices": devices(),
        "surroundings": around,
        "traps": traps,
        "self_check": checks,
        "passed": passed,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide bits."""
    return installed(("roundscope",), missing="source tree") | installed(PACKAGES)


def _found(names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    return {name: v for name, v in installed(names, "").items() if v}


def devices() -> list[str]:
    """Return the processor and JAX's devices in words; JAX computes on the first of its devices."""
    import jax

    host = f"host: {platform.machine()}, {os.cpu_count()} cores"
    try:
        found = jax.devices()
    except (RuntimeError, AssertionError):  # a platform that is not here, which has its own row
        return [host]
    return [host, *(f"jax {d.platform}:{d.id}: {d.device_kind}" for d in found)]


def _probe(probe: Any) -> dict[str, Any]:
    """Return what a probe measured; a probe that cannot run here says why, and claims nothing."""
    try:
        finding: dict[str, Any] = plain(probe())
        return finding
    except Exception as error:  # a probe meets what nobody foresaw: that is a finding, not a crash
        how = "repair what it says, and run doctor again"
        name, seen = probe.__name__.replace("_", " "), f"could not probe: {one_line(error)}"
        return {"name": name, "seen": seen, "present": None, "immune": None, "how": how}


def parts_of(report: dict[str, Any]) -> list[Part]:
    """Return what the terminal shows: versions, devices, three tables, and the answer."""
    found, traps, checks = report["surroundings"], report["traps"], report["self_check"]
    words = {True: "yes", False: "no", None: "?"}
    around = Table(
        ("looked at", "seen here", "right", "what to do"),
        [(f.name, f.seen, words[f.right], f.do or "nothing") for f in found],
        [not f.right for f in found],
    )
    bites = Table(
        ("trap", "seen here", "bites", "immune", "how"),
        [(t["name"], t["seen"], words[t["present"]], words[t["immune"]], t["how"]) for t in traps],
        [not t["immune"] for t in traps],
    )
    wrong = Table(
        ("format", "numbers", "wrong by Numba", "wrong by XLA"),
        [
            (c.format, *("not run" if n is None else str(n) for n in counts))
            for c in checks
            for counts in [(c.numbers, c.numba_wrong, c.xla_wrong)]
        ],
        [not c.passed for c in checks],
    )
    open_to, unknown = (
        ", ".join(t["name"] for t in traps if t["immune"] is state) for state in (False, None)
    )
    if open_to:
        told = Text(f"Not immune: {open_to}. Do not trust results here; please report this.", "bad")
    elif unknown:
        told = Text(f"Not known: {unknown}. The last column says what to do.", "bad")
    else:
        told = Text("Traps are what compilers do to arithmetic. Immune to all: nothing to do.")
    if report["passed"]:
        answer = Text("both executors agree with ml_dtypes", "good")
    elif all(c.passed or (c.xla_wrong is None and not c.numba_wrong) for c in checks):
        answer = Text(
            "XLA does not run here: see JAX's platform. NumPy's executor agrees with ml_dtypes",
            "bad",
        )
    else:
        answer = Text("SELF-CHECK FAILED: do not trust results of this machine", "bad")
    versions = "  ".join(f"{name} {version}" for name, version in report["versions"].items())
    gap = Text("")
    above = [Text(versions), *map(Text, report["devices"]), gap]
    return [*above, around, gap, bites, told, gap, wrong, gap, answer]

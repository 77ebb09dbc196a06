"""The command `doctor`: versions, devices, caches and settings, traps, a self-check."""

import os
import platform
import sys
from importlib import metadata
from typing import Any

from roundscope.tools.errors import one_line
from roundscope.tools.report.terminal import console, print_json

PACKAGES = ("roundscope", "numpy", "numba", "ml_dtypes", "jax", "jaxlib", "safetensors")


def run(as_json: bool = False) -> bool:
    """Print the report. Return whether both executors agree with ml_dtypes in every number."""
    report = examine()
    if as_json:
        print_json(report)
    else:
        _print(report)
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
        "versions": versions(),
        "devices": devices(),
        "surroundings": around,
        "traps": traps,
        "self_check": checks,
        "passed": passed,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide bits."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "source tree" if name == "roundscope" else "not installed"
    return found


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
    from roundscope.tools.report.terminal import plain

    try:
        finding: dict[str, Any] = plain(probe())
        return finding
    except Exception as error:  # a probe meets what nobody foresaw: that is a finding, not a crash
        how = "repair what it says, and run doctor again"
        name, seen = probe.__name__.replace("_", " "), f"could not probe: {one_line(error)}"
        return {"name": name, "seen": seen, "present": None, "immune": None, "how": how}


def _print(report: dict[str, Any]) -> None:
    from rich.text import Text

    out = console()
    out.print(Text("  ".join(f"{k} {v}" for k, v in report["versions"].items())))
    for device in report["devices"]:
        out.print(Text(device))
    out.print(_surroundings(report["surroundings"]))
    out.print(_traps(report["traps"]))
    out.print(_checks(report["self_check"]))
    if report["passed"]:
        out.print(Text("both executors agree with ml_dtypes", style="bold green"))
    elif all(c.passed or (c.xla_wrong is None and not c.numba_wrong) for c in report["self_check"]):
        words = "XLA does not run here: see JAX's platform. NumPy's executor agrees with ml_dtypes"
        out.print(Text(words, style="bold red"))
    else:
        out.print(Text("SELF-CHECK FAILED: do not trust results of this machine", style="bold red"))


def _table(*columns: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name)
    return table


def _surroundings(found: list[Any]) -> Any:
    from rich.text import Text

    table = _table("looked at", "seen here", "right", "what to do")
    for f in found:
        style = None if f.right else "bold red"
        row = (f.name, f.seen, "yes" if f.right else "no", f.do or "nothing")
        table.add_row(*(Text(x, overflow="fold") for x in row), style=style)
    return table


def _traps(traps: list[dict[str, Any]]) -> Any:
    table = _table("trap", "seen here", "bites", "immune", "how")
    words = {True: "yes", False: "no", None: "?"}
    for t in traps:
        style = None if t["immune"] else "bold red"
        table.add_row(
            t["name"], t["seen"], words[t["present"]], words[t["immune"]], t["how"], style=style
        )
    return table


def _checks(checks: list[Any]) -> Any:
    table = _table("format", "numbers", "wrong by Numba", "wrong by XLA")
    for c in checks:
        numbers = (
            "not run" if n is None else str(n) for n in (c.numbers, c.numba_wrong, c.xla_wrong)
        )
        table.add_row(c.format, *numbers, style=None if c.passed else "bold red")
    return table

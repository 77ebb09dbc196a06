"""The machine and the versions that a benchmark ran on, which its ratios depend on."""

import platform
from importlib import metadata
from typing import Any

RIVALS = ("gfloat", "pychop", "torch", "qtorch", "torchao", "mmasim")


def machine(threads: int | None) -> dict[str, Any]:
    """Return the machine and the versions as plain data.

    threads   how many threads ours used; None where its library chooses
    """
    from roundscope.tools.results.machine import device
    from roundscope.tools.sweep.running.executors import cores

    return {
        "platform": platform.platform(),
        "processor": device("numpy").removeprefix("cpu "),
        "cores": cores(),
        "threads": threads,
        "gpu": _gpu(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of `roundscope doctor` and of every rival that is installed.

    Nothing is imported, since importing some of the rivals takes seconds.
    """
    from roundscope.tools.look import doctor

    known = doctor.versions()
    for name in RIVALS:
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return known


def show(facts: dict[str, Any]) -> None:
    """Print the machine as one sentence, to stand under a table."""
    from roundscope.tools.report.terminal import console

    threads = "" if facts["threads"] is None else f", {facts['threads']} threads"
    gpu = f"; {facts['gpu']}" if facts["gpu"] else ""
    packages = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    computer = f"{facts['processor']}, {facts['cores']} cores{threads}{gpu}"
    text = f"{computer}; {facts['platform']}; {packages}"
    console().print(text, style="dim", markup=False)


def _gpu() -> str | None:
    """Return the name of JAX's first GPU, on which the benchmarks run; None without one."""
    import jax

    try:
        return str(jax.devices("gpu")[0].device_kind)
    except RuntimeError:
        return None

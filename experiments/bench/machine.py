"""What a benchmark ran on: a ratio is only as good as the machine and the versions that stand
beside it.
"""

import platform
from importlib import metadata
from typing import Any

RIVALS = ("gfloat", "pychop", "torch", "qtorch", "torchao", "mmasim")


def machine(threads: int | None) -> dict[str, Any]:
    """Machine and versions as plain data, `versions` of rivals only where installed; threads: of
    ours, None where its library chooses.
    """
    from roundscope.experiments.results.machine import device
    from roundscope.experiments.sweep.running.executors import cores

    return {
        "platform": platform.platform(),
        "processor": device("numpy").removeprefix("cpu "),
        "cores": cores(),
        "threads": threads,
        "gpu": _gpu(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Those of `roundscope doctor`, and of every rival that is installed; nothing is imported,
    which costs seconds with some.
    """
    from roundscope.experiments.look import doctor

    found = doctor.versions()
    for name in RIVALS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def show(found: dict[str, Any]) -> None:
    """The machine as one sentence, to stand under a table."""
    from roundscope.experiments.report.terminal import console

    threads = "" if found["threads"] is None else f", {found['threads']} threads"
    gpu = f"; {found['gpu']}" if found["gpu"] else ""
    told = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    text = (
        f"{found['processor']}, {found['cores']} cores{threads}{gpu}; {found['platform']}; {told}"
    )
    console().print(text, style="dim", markup=False)


def _gpu() -> str | None:
    """The first GPU that JAX has, on which the benchmarks run."""
    import jax

    try:
        return str(jax.devices("gpu")[0].device_kind)
    except RuntimeError:
        return None

"""The threads of the NumPy executor, and the folder where machine code is kept.

Kernels and programs share both. Programs do not need Numba, which takes a quarter of a second to
start, so nothing here imports it.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from roundscope.emu.backends.kept import cache_folder

_PIECE = 1 << 16  # below this many numbers a second thread costs more than it saves


def thread_count() -> int:
    """Return how many threads Numba uses in this thread, or would use if it were started.

    Numba is not asked before: its `get_num_threads` starts its threads, and OpenMP then gives this
    thread's PyTorch as many, which wait for each other busily.
    """
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    if getattr(parallel, "_is_initialized", False):  # someone has set the number
        return int(parallel.get_num_threads())  # type: ignore[union-attr]
    if (named := os.environ.get("NUMBA_NUM_THREADS", "")).isdigit():
        return max(1, int(named))
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def pool() -> ThreadPoolExecutor:
    """Return the pool of threads, one for each core of this process; it is made on first use."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="roundscope")


if hasattr(os, "register_at_fork"):  # a child has no threads but its own
    os.register_at_fork(after_in_child=pool.cache_clear)


def over_threads(job: Callable[[int, int], Any], size: int, work: int | None = None) -> list[Any]:
    """Run job(first, end) over equal pieces of range(size), one per thread.

    Returns the results in order. `work` is the number of all numbers that the jobs compute, if that
    is not `size`; it decides how many threads are used.
    """
    pieces = min(size, (size if work is None else work) // _PIECE)
    workers = min(thread_count(), pieces) if pieces > 1 else 1
    cuts = list(pairwise(size * w // workers for w in range(workers + 1)))
    return [job(*cuts[0])] if workers == 1 else list(pool().map(lambda cut: job(*cut), cuts))


@cache
def _sources() -> bytes:
    """Return the text of all source files of `emu`."""
    return b"".join(file.read_bytes() for file in sorted(Path(__file__).parents[1].rglob("*.py")))


@cache
def _digest(version: str) -> str:
    return hashlib.sha256(_sources() + version.encode()).hexdigest()[:16]


def kept_folder(compiler: str, version: str) -> Path | None:
    """Return the folder that keeps what a compiler made of exactly these sources.

    Its name contains a digest of all source files of `emu` and of the compiler's version, since a
    kernel changes with every function that it calls. None if nothing can be kept.
    """
    return cache_folder(f"{compiler}-{_digest(version)}")

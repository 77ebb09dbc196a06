"""records.npz: the sums of rows and the events that --record asked for, a layer at a time."""

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from roundscope.attention import Trace
from roundscope.emu.whole_files import whole_file
from roundscope.tools.trace.options import Request

Keep = Callable[[str, Trace], None]


@contextmanager
def records(path: Path, asked: Request) -> Iterator[Keep]:
    """Yield a function that writes what was asked for of one layer: its name in files, its trace.

    The entries are <layer>.<SITE>.rows, .before and .after. The file is there when all layers are
    written; there is none if nothing was asked for.
    """
    if not asked.rows and not asked.record.events:
        yield lambda layer, trace: None
        return
    deflated = zipfile.ZIP_DEFLATED
    with whole_file(path) as unfinished, zipfile.ZipFile(unfinished, "w", deflated) as archive:

        def keep(layer: str, trace: Trace) -> None:
            for name, array in _arrays(trace, asked).items():
                with archive.open(f"{layer}.{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)

        yield keep


def _arrays(trace: Trace, asked: Request) -> dict[str, np.ndarray]:
    """Return the arrays of a trace that were asked for, by their names after the layer's."""
    found = {f"{site}.rows": rows for site, rows in trace.rows.items()} if asked.rows else {}
    for site, (before, after) in trace.events.items():
        found |= {f"{site}.before": before, f"{site}.after": after}
    return found

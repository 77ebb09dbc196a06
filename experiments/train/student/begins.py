"""Arms that share a beginning: it runs once and its state is kept.

Every arm continues from the same bits.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from roundscope.emu.whole_files import read_whole, write_whole
from roundscope.experiments.train.student.arms import Arm, key
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.run import Begin, Progress, advance, fresh


def prefix(arm: Arm, first: int) -> Arm:
    """Return the arm as it is before step `first`."""
    return replace(
        arm,
        name="beginning",
        changes=tuple((step, text) for step, text in arm.changes if step < first),
    )


def begin(
    config: Config, arms: Sequence[Arm], first: int, folder: Path, progress: Progress
) -> Begin:
    """Return the states of arms at step `first`, from the folder or computed and kept there.

    The arms are of one group, with one executable.
    """
    wanted = list(dict.fromkeys(prefix(arm, first) for arm in arms))
    path = folder / f"begin-{_name(config, wanted, first)}.safetensors"
    blank = fresh(config, wanted)
    if path.exists():
        found = _read(path, blank, first)
    else:
        bare = replace(config, measure_every=0)
        found = advance(bare, wanted, blank, first, progress)[0]
        _write(path, found)
    return found.take([wanted.index(prefix(arm, first)) for arm in arms])


def _name(config: Config, arms: Sequence[Arm], first: int) -> str:
    return f"{first}-{key(config, arms[0])[:12]}-{'-'.join(str(a.seed) for a in arms)}"


def _write(path: Path, b: Begin) -> None:
    from safetensors.numpy import save

    leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(b.state))}
    write_whole(path, save(leaves | {"losses": b.losses, "norms": b.norms}))


def _read(path: Path, blank: Begin, first: int) -> Begin:
    from safetensors.numpy import load

    found = load(read_whole(path))
    leaves, tree = jax.tree.flatten(blank.state)
    state = jax.tree.unflatten(tree, [found[str(i)] for i in range(len(leaves))])
    return Begin(first, state, found["losses"], found["norms"])

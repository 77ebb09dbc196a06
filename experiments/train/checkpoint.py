"""Checkpoints of a run, of which the last K are kept.

RUN/checkpoints/<step>.safetensors holds the state of all arms, <step>.json describes it. Both are
written under other names, forced to the disk and renamed, the JSON last: a checkpoint exists when
its JSON does, so that an end at any moment leaves each checkpoint whole or absent. The JSON holds
the size and SHA-256 of the tensors.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.emu.plain_data import COUNT, misfit, parsed
from roundscope.emu.whole_files import read_whole, write_whole
from roundscope.experiments.train.config import NEWER, WORD
from roundscope.tools.errors import StorageError, UsageError, bad, one_line

FORMAT = "roundscope checkpoint 1"
FOLDER = "checkpoints"
_NUMBER = (float, bool, None, "inf", "-inf")  # of a watch
SHAPE = {  # of the JSON; that of "config" is the business of `settings`
    "step": COUNT,
    "bytes": COUNT,
    "sha256": str,
    "config": dict,
    "arms": [{"name": str, "changes": [str], "lr": float, "seed": range(WORD // 2)}],
    "at": [[(int, str)]],
    "data": dict,
    "watch": [{str: [(*_NUMBER, [[_NUMBER]])]}],  # that of drift: by arm, layer and head
}


def save(
    folder: Path, step: int, state: Any, meta: Mapping[str, Any], *, keep: int | None = None
) -> Path:
    """Write the state at `step`, and delete older checkpoints but the last `keep` and pinned ones.

    With keep = None none is deleted. meta: plain data; `SHAPE` says what `load` needs of it. Where
    it says why the checkpoint is "pinned", it is kept from the first moment on; one that is saved
    again stays pinned.
    Returns the JSON's path. Raises StorageError, with all earlier checkpoints in place, if the disk
    is full.
    """
    from safetensors.numpy import save as serialise

    place = folder / FOLDER
    try:
        place.mkdir(parents=True, exist_ok=True)
        content = serialise(_flat(state))
        about = {
            "format": FORMAT,
            "step": step,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            **meta,
        }
        with suppress(UsageError):  # nothing is there, or nothing whole
            about |= {k: v for k, v in _meta(place / _name(step)).items() if k == "pinned"}
        # an old JSON would describe other tensors for a moment
        (place / _name(step)).unlink(missing_ok=True)
        write_whole((place / _name(step)).with_suffix(".safetensors"), content)
        write_whole(place / _name(step), _json(about))
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # so that the names are on the disk too
        finally:
            os.close(descriptor)
        _trim(place, keep)
    except OSError as error:
        what = f"step {step} cannot be written ({error.strerror})"
        raise StorageError(f"{place}: {what}; earlier checkpoints are intact") from None
    return place / _name(step)


def load(folder: Path, step: int | None = None) -> tuple[Any, dict[str, Any]]:
    """Return (State of NumPy arrays, meta) of the checkpoint of `step`, by default of the last one.

    Every bit is that which was saved. Raises UsageError, in one line, for a file that is missing,
    damaged or foreign, or whose sizes are not those of its config.
    """
    known = steps(folder)
    if not known:
        repair = "has no checkpoint; make a run with  roundscope train --out DIR"
        raise bad("DIR", str(folder), repair)
    step = known[-1] if step is None else step
    if step not in known:
        raise bad("--from", step, f"{folder} has checkpoints of steps {' '.join(map(str, known))}")
    path = folder / FOLDER / _name(step)
    meta = _meta(path)
    return _restored(path, _checked(path, meta), meta), meta


def about(folder: Path) -> dict[str, Any] | None:
    """Return the meta data of the last checkpoint without reading its tensors; None without one."""
    known = steps(folder)
    return _meta(folder / FOLDER / _name(known[-1])) if known else None


def steps(folder: Path) -> list[int]:
    """Return the steps of which a folder has checkpoints, in ascending order."""
    return sorted(int(p.stem) for p in (folder / FOLDER).glob("*.json") if p.stem.isdecimal())


def pin(folder: Path, step: int, reason: str, most: int) -> None:
    """Keep a checkpoint, if it exists and fewer than `most` are pinned, from being deleted."""
    place = folder / FOLDER
    pinned = [s for s in steps(folder) if "pinned" in _meta(place / _name(s))]
    if (place / _name(step)).exists() and step not in pinned and len(pinned) < most:
        write_whole(place / _name(step), _json(_meta(place / _name(step)) | {"pinned": reason}))


def _name(step: int) -> str:
    return f"{step:08d}.json"


def _json(about: Mapping[str, Any]) -> bytes:
    return (json.dumps(about) + "\n").encode()


def _flat(state: Any) -> dict[str, np.ndarray]:
    import jax

    return {
        jax.tree_util.keystr(path): np.ascontiguousarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _trim(place: Path, keep: int | None) -> None:
    known = sorted(p for p in place.glob("*.json") if p.stem.isdecimal())
    for path in [] if keep is None else [p for p in known if "pinned" not in _meta(p)][:-keep]:
        path.unlink()  # the JSON first: without it there is no checkpoint
    for path in place.glob("*.safetensors"):  # also what an interrupted run left
        if not path.with_suffix(".json").exists():
            path.unlink(missing_ok=True)


def _meta(path: Path) -> dict[str, Any]:
    try:
        meta = parsed(read_whole(path))
    except (ValueError, OSError) as error:
        raise _damaged(path, one_line(error)) from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise UsageError(
            f"{path}: is no checkpoint of this version ({FORMAT}); choose another with --from STEP"
        )
    if amiss := misfit(meta, SHAPE):
        raise _damaged(path, amiss)
    if meta["step"] != int(path.stem):
        raise _damaged(path, f"step is {meta['step']}, its name says {int(path.stem)}")
    return meta


def _checked(path: Path, meta: dict[str, Any]) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as parse

    tensors = path.with_suffix(".safetensors")
    try:
        content = read_whole(tensors)
    except OSError as error:
        raise _damaged(tensors, error.strerror) from None
    if len(content) != (size := meta.get("bytes")):
        raise _damaged(tensors, f"{len(content)} bytes, not the {size} that were written")
    if hashlib.sha256(content).hexdigest() != meta.get("sha256"):
        differs = "as many bytes as were written, but not the same: its SHA-256 differs"
        raise _damaged(tensors, differs)
    try:
        return parse(content)
    except (SafetensorError, ValueError) as error:
        raise _damaged(tensors, one_line(error)) from None


def _restored(path: Path, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> Any:
    """Return the arrays as the State that the checkpoint's own config has."""
    import jax

    from roundscope.experiments.train.gpt.interventions import changes_of
    from roundscope.experiments.train.gpt.step import shape_of
    from roundscope.experiments.train.settings import settings_of
    from roundscope.experiments.train.spikes import watches_of

    try:
        found, arms = settings_of(meta), len(meta["arms"])
        config, texts = found.config, [text for arm in found.arms for text in arm.changes]
        for text in (*texts, *(text for _, text in found.at)):
            changes_of(text)
        own: Any
        for own, kept in zip(watches_of(config, arms), meta["watch"], strict=False):
            own.restore(kept, range(arms))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _damaged(path, one_line(error)) from None
    lost = [f.name for f in fields(config) if f.name not in (*meta["config"], *NEWER)]
    if lost or not arms:
        raise _damaged(path, f"its config lacks {', '.join(lost)}" if lost else "it has no arm")
    leaves, tree = jax.tree_util.tree_flatten_with_path(shape_of(config))
    wanted = {jax.tree_util.keystr(p): ((arms, *leaf.shape), str(leaf.dtype)) for p, leaf in leaves}
    stored = {name: (x.shape, str(x.dtype)) for name, x in arrays.items()}
    if wanted != stored:
        name = next(n for n in (*wanted, *stored) if wanted.get(n) != stored.get(n))
        what = f"{name} is {stored.get(name)}, its config asks for {wanted.get(name)}"
        raise UsageError(f"{path}: {what}; it was made by another version")
    return jax.tree_util.tree_unflatten(tree, [arrays[name] for name in wanted])


def _damaged(path: Path, why: object) -> UsageError:
    folder, cause = path.parents[1], " ".join(str(why).split())
    repair = "and there is no earlier one; train again"
    if earlier := [step for step in steps(folder) if step < int(path.stem)]:
        options = f"--resume {folder} --from {earlier[-1]} --out NEW"
        numbers = " ".join(map(str, earlier))
        repair = f"go on from an earlier one (there are steps {numbers}) with  {options}"
    return UsageError(f"{path}: the checkpoint is damaged ({cause}); {repair}")

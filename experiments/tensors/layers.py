"""Attention's tensors from a file: q, k, v and optionally do, per layer, as (B, T, N, H).

What a file says of a layer's call is read too: mask, causality, scale, window, softcap and sinks,
as in the files that `attention.models.capture_file` writes.
"""

import fnmatch
import math
import re
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from roundscope.emu.formats.format import unknown
from roundscope.experiments.errors import UsageError, bad
from roundscope.experiments.tensors.files import TensorFile, open_tensors

LAYOUTS = ("BNTH", "BTNH")
ROLES = ("q", "k", "v", "do")
OTHERS = ("mask", "sinks", "out", "lse", "dq", "dk", "dv")  # read elsewhere, or results
TRUTH = {"true": True, "1": True, "false": False, "0": False}
SHOWN = 8  # how many names a message lists
REPAIR = "repair the tensors"  # what a reader can do about NaN; a verb may add an option of its own
BARE = "attention"  # the layer's name in a file that says q, not <layer>.q


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's tensors: float32, C-contiguous.

    q (B,T,N,H)   k (B,S,G,H)   v (B,S,G,Hv)   do (B,T,N,Hv) or None;   N is a multiple of G
    nan_count     how many numbers of all of them, and of sinks, are NaN or infinite
    scale         the factor of the scores from the file's metadata; None if it has none
    is_causal     whether a query t sees the keys s <= t only; None if the metadata has none
    mask          (B or 1, N or 1, T, S) of bool, True where a query sees a key; None for none
    window        how many keys a query sees, its own included; None for all
    softcap       the bound of the scores; None for none
    sinks         (N,): a logit of each query head; None for none
    notes         what a reader of the results should know of the file: tensors of this layer that
                  are not read, metadata that the caller overruled
    """

    name: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray | None = None
    nan_count: int = 0
    scale: float | None = None
    notes: tuple[str, ...] = ()
    is_causal: bool | None = None
    mask: np.ndarray | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: np.ndarray | None = None


def sample_path() -> Path:
    """Return the path of the real tensors that Roundscope ships (experiments/data/README.md)."""
    data = resources.files("roundscope.experiments") / "data"
    return Path(str(data / "minilm_attention.safetensors"))


def read_layers(
    path: str | Path,
    layout: str | None = None,
    layer: str | None = None,
    *,
    allow_nan: bool = False,
) -> list[Layer]:
    """Return the layers of a safetensors or npz file, in natural order of their names.

    path       tensors named q, k, v, do, or <layer>.q and so on; others are ignored, and those of a
               layer are named in its `notes`
    layout     BNTH or BTNH; taken from the file's metadata (npz: an entry `layout`) if left out
    layer      the only layer to read, or several: names and patterns such as layers.* by commas, or
               the number of a layer; all of them if left out
    allow_nan  whether to accept NaN and infinities, which `nan_count` then counts

    Raises UsageError: one line that names the argument, its value and the repair.
    """
    with open_tensors(Path(path)) as file:
        prefixes = _prefixes(file, str(path))
        names = {p or BARE: p for p in prefixes}
        order = _layout(layout, file)
        overruled = _overruled(order, file)
        return [
            replace(
                _layer(file, name, names[name], order, allow_nan),
                notes=overruled + _said(file, names[name]) + _unread(file, names[name]),
            )
            for name in _chosen(layer, list(names))
        ]


def _chosen(layer: str | None, names: list[str]) -> list[str]:
    """Return the names of the layers that a text means, in the order of the file.

    Raises UsageError if a part of the text means none.
    """
    if layer is None or layer in names:
        return names if layer is None else [layer]
    meant: set[str] = set()
    for part in layer.split(","):
        own = {n for n in names if fnmatch.fnmatchcase(n, part) or n == f"layers.{int_of(part)}"}
        if not own:
            raise UsageError(unknown("layer", part, names))
        meant |= own
    return [n for n in names if n in meant]


def int_of(text: str) -> int | None:
    """Return the whole number that a text is, or None."""
    return int(text) if text.isdecimal() else None


def _overruled(layout: str, file: TensorFile) -> tuple[str, ...]:
    said = file.metadata.get("layout", layout)
    if said.upper() == layout:
        return ()
    return (f"read as {layout} as asked, although the file says {said}",)


def _said(file: TensorFile, prefix: str) -> tuple[str, ...]:
    """Return what the file says of where a layer comes from and how it was captured, in words."""
    origin = [text for n in ("name", "implementation") if (text := file.said(prefix, n))]
    notes = file.said(prefix, "notes")
    dropout = file.said(prefix, "dropout")
    words = (
        ", ".join(origin),
        notes or "",
        f"the model dropped weights with probability {dropout}; none are dropped here"
        if dropout
        else "",
    )
    return tuple(text for text in words if text)


def _unread(file: TensorFile, prefix: str) -> tuple[str, ...]:
    """Return a note that names the tensors of a layer that have no role here, if there are any."""
    parts = [(name.rpartition("."), name) for name in file.names]
    known = (*ROLES, *OTHERS)
    names = sorted(name for (own, _, role), name in parts if own == prefix and role not in known)
    return (f"not used: {_listed(names)}",) if names else ()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _layout(given: str | None, file: TensorFile) -> str:
    layout = given if given is not None else file.metadata.get("layout")
    if layout is None:
        raise bad(
            "layout",
            None,
            "the file's metadata (of npz: an entry 'layout') has none; give --layout BNTH (batch,"
            " heads, tokens, features) or --layout BTNH",
        )
    if layout.upper() not in LAYOUTS:
        raise bad("layout", layout, "use BNTH (heads, tokens) or BTNH (tokens, heads)")
    return layout.upper()


def _number(file: TensorFile, prefix: str, name: str, example: str) -> float | None:
    """Return a number of a layer's metadata. Raises UsageError unless it is finite."""
    text = file.said(prefix, name)
    try:
        number = None if text is None else float(text)
    except ValueError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise bad(f"metadata {name}", text, f"write a finite number, such as {example}")
    return number


def _window(file: TensorFile, prefix: str) -> int | None:
    window = _number(file, prefix, "window", "128")
    if window is not None and (window < 1 or window != int(window)):
        raise bad("metadata window", window, "write how many keys a query sees, such as 128")
    return None if window is None else int(window)


def _softcap(file: TensorFile, prefix: str) -> float | None:
    softcap = _number(file, prefix, "softcap", "50")
    if softcap is not None and softcap <= 0.0:
        raise bad("metadata softcap", softcap, "write a number above 0, such as 50")
    return softcap


def _is_causal(file: TensorFile, prefix: str) -> bool | None:
    text = file.said(prefix, "is_causal")
    if text is not None and text.lower() not in TRUTH:
        raise bad("metadata is_causal", text, "write true or false, or give --causal or --full")
    return None if text is None else TRUTH[text.lower()]


def _prefixes(file: TensorFile, path: str) -> list[str]:
    """Return the layers' prefixes ('' for bare names), each of which has q, k and v."""
    layers: dict[str, set[str]] = {}
    for name in file.names:
        prefix, _, role = name.rpartition(".")
        if role in ROLES:
            layers.setdefault(prefix, set()).add(role)
    has = _listed(sorted(file.names))
    for prefix, roles in layers.items() or [("", set())]:
        if missing := [r for r in ("q", "k", "v") if r not in roles]:
            what = ", ".join(f"{prefix}.{r}" if prefix else r for r in missing)
            raise bad(
                "FILE",
                path,
                f"no {what}; it has {has or 'no tensors'}; name tensors q, k, v or <layer>.q, ...",
            )
    return sorted(
        layers, key=lambda p: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", p)]
    )


def _layer(file: TensorFile, name: str, prefix: str, layout: str, allow_nan: bool) -> Layer:
    arrays = {}
    for role in ROLES:
        full = f"{prefix}.{role}" if prefix else role
        if full in file.names:
            arrays[role] = _btnh(full, file[full], layout)
    _check_shapes(name, arrays, layout)
    sinks = _sinks(file, prefix, arrays["q"].shape[2])
    counts = {role: int(a.size - np.isfinite(a).sum()) for role, a in arrays.items()}
    if sinks is not None:  # a sink of -inf is none
        counts["sinks"] = int(sinks.size - (np.isfinite(sinks) | np.isneginf(sinks)).sum())
    if any(counts.values()) and not allow_nan:
        where = ", ".join(f"{n} in {r}" for r, n in counts.items() if n)
        raise bad("layer", name, f"NaN or infinity: {where}; {REPAIR}")
    q, k, v, do = arrays["q"], arrays["k"], arrays["v"], arrays.get("do")
    return Layer(
        name=name,
        q=q,
        k=k,
        v=v,
        do=do,
        nan_count=sum(counts.values()),
        scale=_number(file, prefix, "scale", "0.125"),
        is_causal=_is_causal(file, prefix),
        mask=_mask(file, prefix, (q.shape[0], q.shape[2], q.shape[1], k.shape[1])),
        window=_window(file, prefix),
        softcap=_softcap(file, prefix),
        sinks=sinks,
    )


def _mask(file: TensorFile, prefix: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a layer's mask with four axes. Raises UsageError if it is none for (B, N, T, S)."""
    name = f"{prefix}.mask" if prefix else "mask"
    if name not in file.names:
        return None
    mask = file.bools(name)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    try:
        fits = np.broadcast_shapes(mask.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        repair = f"must broadcast to (batch, heads, queries, keys) = {shape}"
        raise bad(f"tensor {name}", mask.shape, repair)
    return np.ascontiguousarray(np.broadcast_to(mask, (*mask.shape[:2], *shape[2:])))


def _sinks(file: TensorFile, prefix: str, heads: int) -> np.ndarray | None:
    """Return a layer's sinks. Raises UsageError unless there is one for each query head."""
    name = f"{prefix}.sinks" if prefix else "sinks"
    if name not in file.names:
        return None
    sinks = file[name]
    if sinks.shape != (heads,):
        repair = f"must be {(heads,)}, a logit for each query head"
        raise bad(f"tensor {name}", sinks.shape, repair)
    return sinks


def _btnh(name: str, array: np.ndarray, layout: str) -> np.ndarray:
    if array.ndim != 4 or 0 in array.shape:
        raise bad(f"tensor {name}", array.shape, f"needs four axes, none of them empty: {layout}")
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)) if layout == "BNTH" else array


def _check_shapes(name: str, arrays: dict[str, np.ndarray], layout: str) -> None:
    """Check that the shapes fit each other; messages show them in the file's own layout."""
    axes = (0, 2, 1, 3) if layout == "BNTH" else (0, 1, 2, 3)
    shown = {role: tuple(a.shape[i] for i in axes) for role, a in arrays.items()}
    (b, t, n, h), (kb, s, g, kh), (vb, vs, vg, hv) = (arrays[r].shape for r in ("q", "k", "v"))
    if (kb, s, g) != (vb, vs, vg):
        raise bad(
            f"layer {name!r}: k, v",
            (shown["k"], shown["v"]),
            f"batch, keys and heads differ (layout {layout})",
        )
    if (b, h) != (kb, kh):
        raise bad(
            f"layer {name!r}: q, k",
            (shown["q"], shown["k"]),
            f"batch or head dim differ (layout {layout})",
        )
    if n % g:
        raise bad(
            f"layer {name!r}: query heads",
            n,
            f"no multiple of the {g} key heads (layout {layout}); wrong layout?",
        )
    if "do" in arrays and arrays["do"].shape != (b, t, n, hv):
        wanted = tuple((b, t, n, hv)[i] for i in axes)
        raise bad(
            f"layer {name!r}: do",
            shown["do"],
            f"must have the output's shape {wanted} (layout {layout})",
        )

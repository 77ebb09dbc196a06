"""Attention's tensors from a file: q, k, v and optionally do, per layer, as (B, T, N, H)."""

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
BARE = "attention"  # the layer's name in a file that says q, not <layer>.q


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's tensors: float32, C-contiguous.

    q (B,T,N,H)   k (B,S,G,H)   v (B,S,G,Hv)   do (B,T,N,Hv) or None;   N is a multiple of G
    nan_count     how many numbers of all of them are NaN or infinite
    scale         the factor of the scores from the file's metadata; None if it has none
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
    layer      the only layer to read; all of them if left out
    allow_nan  whether to accept NaN and infinities, which `nan_count` then counts

    Raises UsageError: one line that names the argument, its value and the repair.
    """
    with open_tensors(Path(path)) as file:
        prefixes = _prefixes(file, str(path))
        names = {p or BARE: p for p in prefixes}
        if layer is not None and layer not in names:
            raise UsageError(unknown("layer", layer, names))
        chosen = [layer] if layer is not None else list(names)
        order, scale = _layout(layout, file), _scale(file)
        overruled = _overruled(order, file)
        return [
            replace(
                _layer(file, name, names[name], order, scale, allow_nan),
                notes=overruled + _unread(file, names[name]),
            )
            for name in chosen
        ]


def _overruled(layout: str, file: TensorFile) -> tuple[str, ...]:
    said = file.metadata.get("layout", layout)
    if said.upper() == layout:
        return ()
    return (f"read as {layout} as asked, although the file says {said}",)


def _unread(file: TensorFile, prefix: str) -> tuple[str, ...]:
    """Return a note that names the tensors of a layer that have no role here, if there are any."""
    parts = [(name.rpartition("."), name) for name in file.names]
    names = sorted(name for (own, _, role), name in parts if own == prefix and role not in ROLES)
    if not names:
        return ()
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (f"not used: {', '.join(names[:8])}{more}",)


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


def _scale(file: TensorFile) -> float | None:
    text = file.metadata.get("scale")
    try:
        scale = None if text is None else float(text)
    except ValueError:
        scale = math.nan
    if scale is not None and not math.isfinite(scale):
        raise bad("metadata scale", text, "write a finite number, such as 0.125")
    return scale


def _prefixes(file: TensorFile, path: str) -> list[str]:
    """Return the layers' prefixes ('' for bare names), each of which has q, k and v."""
    layers: dict[str, set[str]] = {}
    for name in file.names:
        prefix, _, role = name.rpartition(".")
        if role in ROLES:
            layers.setdefault(prefix, set()).add(role)
    more = f" and {len(file.names) - 8} more" if len(file.names) > 8 else ""
    has = ", ".join(sorted(file.names)[:8]) + more
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


def _layer(
    file: TensorFile, name: str, prefix: str, layout: str, scale: float | None, allow_nan: bool
) -> Layer:
    arrays = {}
    for role in ROLES:
        full = f"{prefix}.{role}" if prefix else role
        if full in file.names:
            arrays[role] = _btnh(full, file[full], layout)
    _check_shapes(name, arrays, layout)
    counts = {role: int(a.size - np.isfinite(a).sum()) for role, a in arrays.items()}
    if any(counts.values()) and not allow_nan:
        where = ", ".join(f"{n} in {r}" for r, n in counts.items() if n)
        raise bad(
            "layer", name, f"NaN or infinity: {where}; repair the tensors or allow NaN to go on"
        )
    q, k, v, do = arrays["q"], arrays["k"], arrays["v"], arrays.get("do")
    return Layer(name=name, q=q, k=k, v=v, do=do, nan_count=sum(counts.values()), scale=scale)


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

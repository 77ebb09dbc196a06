"""Scales of q, k and v in a file, as low-precision serving stores them: read, or refused.

A tensor that is stored with a scale is that scale times the stored numbers, as a kernel takes it.
The scale is a number of the metadata or a tensor, rounded to binary32; the products are exact in
binary64 and rounded once to binary32.
"""

import re
from collections.abc import Iterator

import numpy as np

from roundscope.tools.errors import bad
from roundscope.tools.tensors.files import SHORT, TensorFile, float32
from roundscope.tools.tensors.overrides import number_given

# of q, k or v, or of k and v: k_scale, k_descale, k_cache_scale, scale_k, kv_scale ...
NAME = re.compile(
    r"(?P<own>q|k|v|kv)(_cache)?_(de|dequant_)?scales?|(de)?scales?_(?P<of>q|k|v|kv)(_cache)?"
)
OTHER = re.compile(r".*(scale|zero_?point).*")  # what multiplies or shifts numbers in another way
SHAPES = (
    "a number, (heads,), (batch, heads), the axes of the tensor without features, or four axes, of"
    " which each is 1, whole, or divides the tensor's into blocks"
)


def is_read(name: str) -> bool:
    """Return whether a name without its layer is that of a scale that is read."""
    return name == "scale" or NAME.fullmatch(name) is not None


def check_names(file: TensorFile, prefix: str) -> None:
    """Raise UsageError for scales and zero points of a layer or of its file that are not read."""
    for kind, names in (("tensor", file.names), ("metadata", file.metadata)):
        for name in names:
            own, _, last = name.rpartition(".")
            if own in ("", prefix) and OTHER.fullmatch(last) and not is_read(last):
                repair = (
                    "a scale that is not read; write what q, k or v are to be multiplied by as"
                    " q_scale, k_scale or v_scale, what the scores are as scale, or leave it out"
                )
                raise bad(kind, name, repair)


def scaled(
    file: TensorFile, prefix: str, role: str, layout: str, *, has_scales: bool = True
) -> tuple[np.ndarray, str, str | None]:
    """Return a tensor in binary32 times its scale, its own type, and what to say of it.

    has_scales: whether it is multiplied by its scale; integers are taken as they are, if not.

    Raises UsageError for numbers or a scale that cannot be read, and for two scales.
    """
    name = f"{prefix}.{role}" if prefix else role
    array = file.array(name)
    scales = list(_scales(file, prefix, role))
    if not has_scales:
        has = f"although the file has {scales[0][0]}" if scales else ""
        note = f"{name} as it is stored, as asked, {has}" if has else None
        return _as_stored(name, array), str(array.dtype), note
    if len(scales) > 1:
        both = " and ".join(sorted(n for n, _ in scales))
        raise bad(f"tensor {name}", both, "two scales of one tensor; leave one of them")
    if array.dtype in SHORT and not scales and role in ("q", "k", "v"):
        repair = (
            f"integers without a scale; add {role}_scale, which multiplies them, or save floats"
        )
        raise bad(f"tensor {name}", str(array.dtype), repair)
    kind, wide = str(array.dtype), _as_stored(name, array) if scales else float32(name, array)
    if not scales:
        changed = int((wide.astype(array.dtype) != array).sum()) if kind == "float64" else 0
        note = f"{changed} of {array.size} numbers of {name}, float64, are rounded to float32"
        return wide, kind, note if changed else None
    [(said, scale)] = scales
    if not np.isfinite(scale).all() or not scale.all():
        raise bad("scale", said, "has a number that is not finite, or 0")
    factor = _broadcast(said, scale, wide.shape, layout)
    products = wide.astype(np.float64) * factor
    with np.errstate(over="ignore"):
        found = products.astype(np.float32)
    changed = int((found != products).sum() - np.isnan(products).sum())
    how = f"{scale.item():.6g}" if scale.size == 1 else f"of shape {scale.shape}"
    note = f"{name} is its {kind} numbers times {said} {how}"
    return found, kind, f"{note}, {changed} products rounded to float32" if changed else note


def _as_stored(name: str, array: np.ndarray) -> np.ndarray:
    """Return the numbers of a tensor in binary32, short integers too."""
    return array.astype(np.float32) if array.dtype in SHORT else float32(name, array)


def _scales(file: TensorFile, prefix: str, role: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and the arrays of the scales of a tensor, float32; its layer's come first."""
    own = {n.rpartition(".")[2]: n for n in (*file.names, *file.metadata) if _is_of(n, "", role)}
    own |= {n.rpartition(".")[2]: n for n in file.metadata if _is_of(n, prefix, role)}
    own |= {n.rpartition(".")[2]: n for n in file.names if _is_of(n, prefix, role)}
    for name in own.values():
        if name in file.names:
            yield name, file[name]
        else:
            number = number_given(f"metadata {name}", file.metadata[name], "such as 0.25")
            yield name, np.array(number, np.float32)


def _is_of(name: str, prefix: str, role: str) -> bool:
    own, _, last = name.rpartition(".")
    match = NAME.fullmatch(last)
    return own == prefix and match is not None and role in (match["own"] or match["of"])


def _broadcast(name: str, scale: np.ndarray, shape: tuple[int, ...], layout: str) -> np.ndarray:
    """Return a scale in binary64 that broadcasts to a tensor of this shape, in its layout."""
    heads = 1 if layout == "BNTH" else 2
    wide = scale.astype(np.float64)
    if scale.size == 1 or len(shape) != 4:  # which the caller refuses
        return wide.reshape(-1)[:1]
    if scale.ndim < 3:
        wide = wide.reshape((1,) * (2 - scale.ndim) + scale.shape)
        wide = np.expand_dims(wide, (3 - heads, 3))
    elif scale.ndim == 3:
        wide = wide[..., None]
    is_able = wide.ndim == 4 and all(
        n and m % n == 0 for n, m in zip(wide.shape, shape, strict=True)
    )
    if not is_able:
        raise bad(f"scale {name}", scale.shape, f"fits no tensor {shape}, {layout}: give {SHAPES}")
    for axis, (n, m) in enumerate(zip(wide.shape, shape, strict=True)):
        if 1 < n < m:
            wide = np.repeat(wide, m // n, axis)
    return wide

"""Attention's tensors from a file: q, k, v and optionally do, per layer, as (B, T, N, H).

What a file says of a layer's call is read too: mask, causality and how it is aligned, scale,
window, softcap, sinks and bias, as in the files that `attention.models.capture_file` writes, and
the scales with which q, k and v are stored (`tensors.files`). A caller may overrule it
(`tensors.overrides`). Each sequence of packed tensors is a layer of its own
(`attention.inputs.packed`).
"""

import fnmatch
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.attention.inputs.alignment import ALIGNMENTS, Alignment, note_on
from roundscope.attention.inputs.float_masks import parted
from roundscope.attention.inputs.packed import lengths_given
from roundscope.attention.models.capture_file import ENDED, FORMAT
from roundscope.emu.errors import unknown
from roundscope.tools.errors import UsageError, bad, printable, shown
from roundscope.tools.tensors.files import (
    TEXTS,
    TensorFile,
    check_scales,
    is_scale,
    open_tensors,
    scaled,
    scales_of_call,
)
from roundscope.tools.tensors.overrides import (
    AS_THE_FILE,
    Overrides,
    keys_given,
    number_given,
)

LAYOUTS = ("BNTH", "BTNH")
ROLES = ("q", "k", "v", "do")
OTHERS = ("mask", "bias", "sinks", "out", "lse", "dq", "dk", "dv")  # read elsewhere, or results
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k")  # of packed sequences, as FlashAttention names them
SPELLED = {name.replace("seqlens", "seq_lens"): name for name in LENGTHS}  # as transformers does
TRUTH = {"true": True, "1": True, "false": False, "0": False}
DIGITS = 18  # of a number of a layer, at most
SHOWN = 8  # how many names a message lists
REPAIR = "repair the tensors"  # what a reader can do about NaN; a verb may add an option of its own
CPU_KERNEL = "sdpa flash"  # PyTorch's flash kernel for CPUs has the name of the GPU's
BARE = "attention"  # the layer's name in a file that says q, not <layer>.q


class NotFiniteError(UsageError):
    """There are NaN or infinities in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's tensors: float32, C-contiguous.

    q (B,T,N,H)   k (B,S,G,H)   v (B,S,G,Hv)   do (B,T,N,Hv) or None;   N is a multiple of G
    nan_count     how many numbers of all of them, of sinks and of bias, are NaN or infinite
    scale         the factor of the scores from the file's metadata; None if it has none
    is_causal     whether a query t sees the keys s <= t only; None if nothing says so
    alignment     whether t and s are counted from the first or from the last, if that is said
    mask          (B or 1, N or 1, T, S) of bool, True where a query sees a key; None for none
    window        how many keys a query sees, its own included; None for all
    softcap       the bound of the scores; None for none
    bias          (B or 1, N or 1, T, S), added to the scaled scores; None for none
    sinks         (N,): a logit of each query head; None for none
    types         the types of q, k and v in the file, by their names in NumPy
    notes         what a reader of the results should know of the file: what is not read of it, what
                  the caller overruled, scales, and what nothing says
    scales        the scales of the call by name, as `roundscope.attend` has them: descale_q,
                  descale_k and descale_v, (B, G), which q, k and v here contain, and scale_s and
                  scale_o, numbers; None for none, or if one is of blocks or channels
    prefix        what stands before the point in the names of its tensors; "" for bare names
    tokens        which queries and keys of packed tensors it has; None if they are not packed
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
    bias: np.ndarray | None = None
    alignment: Alignment | None = None
    types: tuple[str, ...] = ()
    scales: dict[str, np.ndarray] | None = None
    prefix: str = ""
    tokens: tuple[slice, slice] | None = None


def sample_path() -> Path:
    """Return the path of the real tensors that Roundscope ships (experiments/data/README.md)."""
    data = resources.files("roundscope.experiments") / "data"
    return Path(str(data / "minilm_attention.safetensors"))


def path_given(argument: str, path: Path | None, sample: bool) -> Path:
    """Return the file of tensors that was named, or else that of --sample. Raises UsageError."""
    if (path is None) == (not sample):
        problem = "and --sample are both given: choose one" if sample else ""
        raise UsageError(f"{argument} {problem or 'is missing: give one, or --sample'}")
    return sample_path() if path is None else path


def read_layers(
    path: str | Path,
    layout: str | None = None,
    layer: str | None = None,
    *,
    allow_nan: bool = False,
    overrides: Overrides = AS_THE_FILE,
) -> list[Layer]:
    """Return the layers of a file, as `each_layer` yields them."""
    return list(each_layer(path, layout, layer, allow_nan=allow_nan, overrides=overrides))


def each_layer(
    path: str | Path,
    layout: str | None = None,
    layer: str | None = None,
    *,
    allow_nan: bool = False,
    overrides: Overrides = AS_THE_FILE,
) -> Iterator[Layer]:
    """Yield the layers of a safetensors or npz file, in natural order of their names.

    Each is read when it is asked for, so that a large file needs the memory of one layer.

    path       tensors named q, k, v, do, or <layer>.q and so on; others are ignored, and those of a
               layer are named in its `notes`
    layout     BNTH or BTNH; taken from the file's metadata (npz: an entry `layout`) if left out
    layer      the only layer to read, or several: names and patterns such as layers.* by commas, or
               the number of a layer; all of them if left out. Sequence 2 of packed tensors is
               <layer>.seq2, and the name of the layer means all its sequences
    allow_nan  whether to accept NaN and infinities, which `nan_count` then counts
    overrides  what holds in place of what the file says

    Raises UsageError: one line that names the argument, its value and the repair.
    """
    with open_tensors(Path(path)) as file:
        prefixes = _prefixes(file, str(path))
        calls = _calls(file, prefixes)
        order = layout_of(layout, file)
        said, notes = file.metadata.get("layout", order), []
        if said.upper() != order:
            notes.append(f"read as {order} as asked, although the file says {said}")
        whole: Layer | None = None
        for name in _chosen(layer, calls):
            prefix, tokens = calls[name]
            if whole is None or whole.prefix != prefix:
                whole = _layer(file, _shown(prefix), prefix, order, allow_nan, overrides)
            read = whole if tokens is None else _sequence(whole, name, tokens)
            call: dict[str, Any] = {"is_causal": bool(read.is_causal), "window": read.window}
            aligned = note_on(read.alignment, read.q.shape[1], read.k.shape[1], **call)
            said_of_it = (
                *notes,
                *_said(file, prefix),
                *read.notes,
                *([aligned] if aligned else []),
            )
            unread = _unread(file, prefix, prefixes)
            yield replace(read, notes=tuple(map(printable, said_of_it + unread)))


def without_numbers(layer: Layer) -> Layer:
    """Return a layer whose arrays keep shape and type, but hold zeros that need no memory."""
    empty: dict[str, Any] = {
        name: np.broadcast_to(np.zeros((), a.dtype), a.shape)
        for name in (*ROLES, "mask", "bias", "sinks")
        if (a := getattr(layer, name)) is not None
    }
    return replace(layer, **empty)


def check_unbiased(layer: Layer, repair: str) -> Layer:
    """Return a layer. Raises UsageError for one whose scores have a bias; repair: what to do."""
    if layer.bias is None:
        return layer
    why = "its scores have a bias, which only `roundscope trace` takes"
    raise bad("layer", layer.name, f"{why}; {repair}")


def layer_names(path: str | Path, layer: str | None = None) -> list[str]:
    """Return the names of a file's layers that a text means (all for None); no tensor is read."""
    with open_tensors(Path(path)) as file:
        return _chosen(layer, _calls(file, _prefixes(file, str(path))))


Calls = dict[str, tuple[str, tuple[slice, slice] | None]]  # by name: the prefix and the tokens


def _calls(file: TensorFile, prefixes: list[str]) -> Calls:
    """Return the calls of a file by name: a layer, or a sequence of a layer with packed tensors.

    Sequences without queries or without keys are none.
    """
    found: Calls = {}
    for prefix in prefixes:
        packing = _packing(file, prefix)
        if packing is None:
            found[_shown(prefix)] = prefix, None
            continue
        for n, (queries, keys) in enumerate(packing):
            if queries.start < queries.stop and keys.start < keys.stop:
                found[f"{_shown(prefix)}.seq{n}"] = prefix, (queries, keys)
    if not found:
        raise bad("tensor cu_seqlens_q", None, "no sequence has both queries and keys; give one")
    return found


def _packing(file: TensorFile, prefix: str) -> list[tuple[slice, slice]] | None:
    """Return the queries and the keys of each sequence, or None where tensors are not packed.

    Lengths without the name of a layer are those of every layer. Raises UsageError for lengths of
    no sequences; `_layer` checks them with the tokens of q and k.
    """
    names = {}
    for own in ("", prefix):
        for last in (*SPELLED, *LENGTHS):
            if (name := f"{own}.{last}" if own else last) in file.names:
                names[SPELLED.get(last, last)] = name
    if not names:
        return None
    if "cu_seqlens_q" not in names:
        raise bad("tensor", names["cu_seqlens_k"], "needs cu_seqlens_q, of the queries, too")
    read = {kind: file.array(name) for kind, name in names.items()}
    for kind, array in read.items():
        try:
            lengths_given(kind, array, kind[-1], int(array.max(initial=0)))
        except (TypeError, ValueError):
            repair = (
                "must be whole numbers that begin with 0, never fall, and end with the tokens of"
                f" {kind[-1]}"
            )
            raise bad(f"tensor {names[kind]}", array.tolist(), repair) from None
    queries, keys = read["cu_seqlens_q"].tolist(), read.get("cu_seqlens_k", read["cu_seqlens_q"])
    if len(queries) != len(keys):
        repair = f"must be {len(queries)} numbers, as cu_seqlens_q has"
        raise bad(f"tensor {names['cu_seqlens_k']}", len(keys), repair)
    ends = (itertools.pairwise(queries), itertools.pairwise(keys.tolist()))
    return [(slice(*q), slice(*k)) for q, k in zip(*ends, strict=True)]


def _sequence(whole: Layer, name: str, tokens: tuple[slice, slice]) -> Layer:
    """Return the layer of one sequence of packed tensors."""
    queries, keys = tokens
    parts = {"q": queries, "k": keys, "v": keys} | ({} if whole.do is None else {"do": queries})
    arrays = {n: np.ascontiguousarray(getattr(whole, n)[:, own]) for n, own in parts.items()}
    lost = sum(not_finite(arrays, whole.sinks, whole.bias).values())
    where = f"queries {queries.start} to {queries.stop - 1}, keys {keys.start} to {keys.stop - 1}"
    notes = (*whole.notes, f"a sequence of packed tensors: {where}")
    made: dict[str, Any] = {**arrays, "name": name, "nan_count": lost, "notes": notes}
    return replace(whole, **made, tokens=tokens)


def _chosen(layer: str | None, calls: Calls) -> list[str]:
    """Return the calls that a text means, in the file's order. Raises UsageError for none."""
    names = list(calls)
    if layer is None or layer in names:
        return names if layer is None else [layer]
    meant: set[str] = set()
    for part in layer.split(","):
        own = {
            name
            for name, (prefix, _) in calls.items()
            for n in (name, _shown(prefix))
            if fnmatch.fnmatchcase(n, part) or n == f"layers.{int_of(part)}"
        }
        if not own:
            raise UsageError(unknown("layer", part, names))
        meant |= own
    return [n for n in names if n in meant]


def _shown(prefix: str) -> str:
    """Return the name of the layer whose tensors have this prefix."""
    return printable(prefix) or BARE


def int_of(text: str) -> int | None:
    """Return the whole number that a text is, or None."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS else None


def _said(file: TensorFile, prefix: str) -> tuple[str, ...]:
    """Return what the file says of where a layer comes from and how it was captured, in words."""
    origin = [text for n in ("name", "implementation") if (text := file.said(prefix, n))]
    is_cpu = "torch" in file.metadata and "cuda" not in file.metadata
    if is_cpu and file.said(prefix, "implementation") == CPU_KERNEL:
        device = file.metadata.get("device", "its type is not said")
        origin[-1] += (
            f" captured on a CPU ({device}): another kernel than on a GPU, with other bits"
        )
    notes = file.said(prefix, "notes")
    remark = file.metadata.get("remark", "")
    dropout = file.said(prefix, "dropout")
    words = (
        ", ".join(origin),
        f"the file says: {told}" if (told := file.said(prefix, "description")) else "",
        notes or "",
        f"the capture was {remark}, so layers, calls and gradients may be missing"
        if remark.startswith(ENDED)
        else "",
        f"the model dropped weights with probability {dropout}; none are dropped here"
        if dropout
        else "",
    )
    return tuple(text for text in words if text)


def _unread(file: TensorFile, prefix: str, prefixes: list[str]) -> tuple[str, ...]:
    """Return notes that name the tensors and the metadata of a layer that have no meaning here.

    Metadata that stand for the whole file are those of each layer. A capture's own are not named.
    """
    parts = [(name.rpartition("."), name) for name in file.names]
    known = (*ROLES, *OTHERS, *LENGTHS, *SPELLED)
    names = sorted(
        name
        for (own, _, role), name in parts
        if own == prefix and role not in known and not is_scale(role)
    )
    notes = (f"not used: {_listed(names)}",) if names else ()
    if file.metadata.get("format") == FORMAT:
        return notes
    others = tuple(p for p in prefixes if p != prefix)
    keys = sorted(
        key
        for key in file.metadata
        if key != "format"
        and key.rpartition(".")[0] not in others
        and key.rpartition(".")[2] not in TEXTS
        and not is_scale(key.rpartition(".")[2])
    )
    return (*notes, f"metadata that are not read: {_listed(keys)}") if keys else notes


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def layout_of(given: str | None, file: TensorFile) -> str:
    """Return the order of axes, as given or as the file says. Raises UsageError for none."""
    layout = given if given is not None else file.metadata.get("layout")
    if layout is None:
        raise UsageError(
            "give --layout BNTH (batch, heads, tokens, features) or --layout BTNH (batch, tokens,"
            " heads, features): the file's metadata (of npz: an entry 'layout') has none"
        )
    if layout.upper() not in LAYOUTS:
        raise bad("layout", layout, "use BNTH (heads, tokens) or BTNH (tokens, heads)")
    return layout.upper()


def _number(file: TensorFile, prefix: str, name: str, example: str) -> float | None:
    """Return a number of a layer's metadata. Raises UsageError unless binary32 holds it."""
    text = file.said(prefix, name)
    return None if text is None else number_given(f"metadata {name}", text, f"such as {example}")


def _call(file: TensorFile, prefix: str) -> dict[str, Any]:
    """Return what metadata say of a call, by fields of `Layer`. Raises UsageError for no call's."""
    scale = _number(file, prefix, "scale", "0.125")
    if scale == 0.0:
        raise bad("metadata scale", "0", "write a finite number other than 0, such as 0.125")
    window = keys_given("metadata window", _number(file, prefix, "window", "128"))
    if window == 0:
        raise bad("metadata window", window, "write how many keys a query sees, such as 128")
    softcap = _number(file, prefix, "softcap", "50")
    if softcap is not None and softcap <= 0.0:
        raise bad("metadata softcap", softcap, "write a number above 0, such as 50")
    causal, alignment = file.said(prefix, "is_causal"), file.said(prefix, "alignment")
    if causal is not None and causal.lower() not in TRUTH:
        raise bad("metadata is_causal", causal, "write true or false, or give --causal or --full")
    if alignment not in (None, *ALIGNMENTS):
        raise bad("metadata alignment", alignment, f"write {' or '.join(ALIGNMENTS)}")
    return {
        "is_causal": None if causal is None else TRUTH[causal.lower()],
        "alignment": alignment,
        "scale": scale,
        "window": window,
        "softcap": softcap,
    }


def _settled(file: TensorFile, prefix: str, layer: Layer, overrides: Overrides) -> Layer:
    """Return a layer with what its file says of its call, and what the caller says instead."""
    said = _call(file, prefix)
    given = {name: getattr(overrides, name) for name in said}
    # 0 stands for none, but a call that is not causal is one
    asked = {n: x if x or x is False else None for n, x in given.items() if x is not None}
    notes = [
        f"{name} {_word(x)} as asked, although the file says {name} {_word(said[name])}"
        for name, x in asked.items()
        if said[name] not in (None, x)
    ]
    for name in ("mask", "bias", "sinks"):
        is_read = getattr(overrides, f"has_{name}")
        if not is_read and (f"{prefix}.{name}" if prefix else name) in file.names:
            notes.append(f"no {name} as asked, although the file has {name}")
    return replace(layer, **said | asked, notes=(*layer.notes, *notes))


def _word(value: Any) -> str:
    """Return a value as a file or a command line says it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


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
            other = f"it has {has or 'no tensors'}; name tensors q, k, v or <layer>.q, ..."
            raise bad("FILE", path, f"no {what}; {other}")
    return sorted(layers, key=natural)


def natural(text: str) -> list[tuple[int, str]]:
    """Return what names are sorted by: their text, with numbers in it by their size."""
    parts = re.split(r"([0-9]+)", text)  # text and digits in turn
    digits = [part.lstrip("0") if n % 2 else part for n, part in enumerate(parts)]
    return [(len(part) if n % 2 else 0, part) for n, part in enumerate(digits)]


def _layer(
    file: TensorFile,
    name: str,
    prefix: str,
    layout: str,
    allow_nan: bool,
    overrides: Overrides,
) -> Layer:
    if overrides.has_scales:
        check_scales(file, prefix)
    packing = _packing(file, prefix)
    arrays, types, notes, scales = {}, {}, [], {}
    for role in ROLES:
        full = f"{prefix}.{role}" if prefix else role
        if full in file.names:
            array, types[role], note, scale = scaled(
                file, prefix, role, layout, has_scales=overrides.has_scales
            )
            if scale is not None:
                scales[role] = scale
            if array.ndim == 3 and packing is not None:
                array = array[None]
            if array.ndim != 4 or 0 in array.shape:
                repair = f"needs four axes, none of them empty: {layout}"
                raise bad(f"tensor {full}", array.shape, repair)
            if layout == "BNTH":
                array = np.ascontiguousarray(array.transpose(0, 2, 1, 3))
            arrays[role] = array
            notes += [note] if note else []
    _check_shapes(name, arrays, layout)
    if packing is not None:
        _check_packing(file, prefix, arrays, packing)
    sinks = _sinks(file, prefix, arrays["q"].shape[2]) if overrides.has_sinks else None
    q, k, v, do = arrays["q"], arrays["k"], arrays["v"], arrays.get("do")
    shape = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    mask, bias = _mask_and_bias(file, prefix, shape, overrides)
    counts = not_finite(arrays, sinks, bias)
    if any(counts.values()) and not allow_nan:
        where = ", ".join(f"{n} in {r}" for r, n in counts.items() if n)
        raise NotFiniteError(f"layer {shown(name)}: NaN or infinity: {where}; {REPAIR}")
    of_call = scales_of_call(file, prefix) if overrides.has_scales else {}
    notes += [_of_call(n, float(x)) for n, x in of_call.items()]
    layer = Layer(
        name=name,
        q=q,
        k=k,
        v=v,
        do=do,
        nan_count=sum(counts.values()),
        mask=mask,
        bias=bias,
        sinks=sinks,
        types=tuple(types[role] for role in ("q", "k", "v")),
        notes=tuple(notes),
        scales=_scales(scales, of_call, k.shape[0], k.shape[2]),
        prefix=prefix,
    )
    return _settled(file, prefix, layer, overrides)


def _of_call(name: str, number: float) -> str:
    """Return what to say of a scale of P or of the output."""
    if name == "scale_o":
        return (
            f"scale_o {number:g} multiplies the kernel's output, and nothing here but in identify"
        )
    return f"scale_s {number:g} of P is offset={math.frexp(number)[1] - 1} of a plan"


def _scales(
    given: dict[str, np.ndarray], of_call: dict[str, np.ndarray], batch: int, heads: int
) -> dict[str, np.ndarray] | None:
    """Return the scales of a call by name, those of tensors as (B, G), or None.

    There are none where one has other axes than batch and key heads, or is not positive.

    given: by role; of_call: scale_s and scale_o
    """
    found = dict(of_call)
    if "scale_o" in found:
        found["scale_o"] = np.broadcast_to(found["scale_o"], (batch, heads))
    for role, scale in given.items():
        scale = scale.reshape(()) if scale.size == 1 else scale
        if role == "do":
            continue
        if scale.ndim > 2 or scale.shape[-1:] not in ((), (heads,)) or not (scale > 0.0).all():
            return None
        found[f"descale_{role}"] = np.broadcast_to(scale, (batch, heads))
    return found or None


def not_finite(
    arrays: dict[str, np.ndarray], sinks: np.ndarray | None, bias: np.ndarray | None = None
) -> dict[str, int]:
    """Return how many numbers of each array, of sinks and of bias, are NaN or infinite."""
    arrays = arrays if bias is None else arrays | {"bias": bias}
    counts = {role: int(a.size - np.isfinite(a).sum()) for role, a in arrays.items()}
    if sinks is not None:  # a sink of -inf is none
        counts["sinks"] = int(sinks.size - (np.isfinite(sinks) | np.isneginf(sinks)).sum())
    return counts


def _check_packing(
    file: TensorFile,
    prefix: str,
    arrays: dict[str, np.ndarray],
    packing: list[tuple[slice, slice]],
) -> None:
    """Raise UsageError unless the sequences are those of a batch of one, with all its tokens."""
    where = f"{prefix}." if prefix else ""
    if arrays["q"].shape[0] != 1:
        repair = (
            "packed sequences are one batch entry; give (tokens, heads, features) or a batch of 1"
        )
        raise bad(f"tensor {where}q", arrays["q"].shape, repair)
    for n, role in enumerate(("q", "k")):
        last, tokens = packing[-1][n].stop, arrays[role].shape[1]
        if last != tokens:
            repair = f"must be the {tokens} tokens of {where}{role}"
            raise bad(f"the last number of {LENGTHS[n]}", last, repair)
    for name in ("mask", "bias"):
        if f"{where}{name}" in file.names:
            repair = f"packed sequences have no {name}; leave out the {name} or cu_seqlens"
            raise bad("tensor", f"{where}{name}", repair)


def _mask_and_bias(
    file: TensorFile, prefix: str, shape: tuple[int, ...], overrides: Overrides
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return a layer's mask and its bias with four axes, None for none.

    A mask of floats is a bias too, and a bias hides keys by the lowest numbers of its type, as
    `attention.inputs.float_masks` parts them. Raises UsageError for what is none for (B, N, T, S).
    """
    mask: np.ndarray | None = None
    bias: np.ndarray | None = None
    for name, is_read in (("mask", overrides.has_mask), ("bias", overrides.has_bias)):
        full = f"{prefix}.{name}" if prefix else name
        if full not in file.names or not is_read:
            continue
        array = file.array(full)
        is_added = "float" in str(array.dtype)
        if not is_added and name == "bias":
            raise bad(f"tensor {full}", str(array.dtype), "give floats, added to the scores")
        array = _of_scores(full, array if is_added else file.bools(full), shape)
        if is_added and bias is not None:
            raise bad("tensor", full, "the mask is a bias already; leave one of the two out")
        sees, own = parted(array) if is_added else (array, None)
        mask = sees if mask is None else mask & sees
        bias = own if own is None else np.ascontiguousarray(own, np.float32)
    if mask is not None and bias is not None and mask.all():
        mask = None
    return mask, bias


def _of_scores(name: str, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array with four axes. Raises UsageError unless it broadcasts to (B, N, T, S)."""
    given = x.shape
    x = x.reshape((1,) * (4 - x.ndim) + given)
    try:
        fits = np.broadcast_shapes(x.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        repair = f"must broadcast to (batch, heads, queries, keys) = {shape}"
        raise bad(f"tensor {name}", given, repair)
    return np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:2], *shape[2:])))


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


def _check_shapes(name: str, arrays: dict[str, np.ndarray], layout: str) -> None:
    """Check that the shapes fit each other; messages show them in the file's own layout."""
    axes = (0, 2, 1, 3) if layout == "BNTH" else (0, 1, 2, 3)
    shown = {role: tuple(a.shape[i] for i in axes) for role, a in arrays.items()}
    (b, t, n, h), (kb, s, g, kh), (vb, vs, vg, hv) = (arrays[r].shape for r in ("q", "k", "v"))
    at, wanted = f"(layout {layout})", tuple((b, t, n, hv)[i] for i in axes)
    is_other = "do" in arrays and arrays["do"].shape != (b, t, n, hv)
    faults = (
        (
            (kb, s, g) != (vb, vs, vg),
            "k, v",
            (shown["k"], shown["v"]),
            f"batch, keys and heads differ {at}",
        ),
        ((b, h) != (kb, kh), "q, k", (shown["q"], shown["k"]), f"batch or head dim differ {at}"),
        (n % g, "query heads", n, f"no multiple of the {g} key heads {at}; wrong layout?"),
        (is_other, "do", shown.get("do"), f"must have the output's shape {wanted} {at}"),
    )
    for is_wrong, what, value, repair in faults:
        if is_wrong:
            raise bad(f"layer {name!r}: {what}", value, repair)

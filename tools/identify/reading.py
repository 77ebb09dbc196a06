"""What `identify` works on: a kernel, called here on the shipped tensors, or a file.

The file has the inputs that a kernel was given and the outputs that it returned.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import visible
from roundscope.attention.testing.foreign.user import (
    Kernel,
    Unavailable,
    function_named,
    in_time,
    library_of,
)
from roundscope.emu.errors import unknown
from roundscope.emu.testing.foreign import ForeignError, check_timeout
from roundscope.tools.errors import UsageError, bad, one_line, why
from roundscope.tools.identify.adapters import ADAPTERS, OF_FILES, kernel, plain_name
from roundscope.tools.identify.machine import Machine, of_file, of_function, of_kernel
from roundscope.tools.identify.options import IdentifyOptions
from roundscope.tools.tensors.files import open_tensors
from roundscope.tools.tensors.layers import (
    BARE,
    SHOWN,
    Layer,
    check_unbiased,
    read_layers,
    sample_path,
)
from roundscope.tools.tensors.overrides import AS_THE_FILE, Overrides, overrides_of

GRADIENTS = ("dq", "dk", "dv")
UNSAID = Machine()
SAMPLE = "layer4"  # the layer of the shipped tensors on which kernels are called


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a kernel, for one key head and the query heads that share it.

    name            the name of the kernel, or of the file
    about           the inputs of the call in words
    x, outputs      the inputs and the outputs of this head, without queries that see no key
    given, returned the inputs and the outputs of all heads and batch entries
    head            the number of the key head
    kernel          the kernel; None for a file
    notes           what the reader must know of the file
    machine         where the call ran, as far as that is said
    """

    name: str
    about: str
    x: Inputs
    outputs: Outputs
    given: Inputs
    returned: Outputs
    head: int
    kernel: Kernel | None = None
    notes: tuple[str, ...] = ()
    machine: Machine = UNSAID


def read(options: IdentifyOptions) -> Call:
    """Return the call that a kernel's name or a file stands for.

    Raises:
        UsageError: one line that names the argument, its value and the repair.
    """
    path, overrides = Path(options.source), overrides_of(options.call)
    if path.is_file():
        name, about, x, outputs, notes = whole_of_file(
            path, options.layout, options.layer, overrides
        )
        call = one_head(name, about, x, outputs, options.head)
        return replace(call, notes=notes, machine=_machine_of(path, options.layer))
    if is_kernel(options.source):
        return _of_kernel(options, overrides)
    raise unknown_source(options.source)


def _machine_of(path: Path, layer: str | None) -> Machine:
    """Return where the call in a file ran, by its metadata."""
    with open_tensors(path) as file:
        prefixes = {name.rpartition(".")[0] for name in file.names if name.endswith("out")}
        prefix = layer or min(prefixes, default="")
        return of_file(lambda name: file.said(prefix, name))


def is_kernel(source: str) -> bool:
    """Return whether a text is the name of a kernel, and not of a file."""
    return bool(
        source in ADAPTERS
        or plain_name(source) in OF_FILES
        or re.fullmatch(r"[\w.]+:[\w.]+", source)
    )


def unknown_source(source: str) -> UsageError:
    """Return the error of a text that is neither a kernel nor a file."""
    path = Path(source)
    if path.suffix in (".safetensors", ".npz") or len(path.parts) > 1:
        repair = "no such file; give a safetensors or npz file, or the name of a kernel"
        return bad("FILE", source, repair)
    if (module := _module_here(source)) is not None:
        functions = ", ".join(f"{source}:{n}" for n in module) or f"{source}:FUNCTION"
        return UsageError(f"{source!r} is a module; name a function of it: {functions}")
    return UsageError(
        unknown("kernel", source, ADAPTERS, "or module:function, or a safetensors or npz file")
    )


def _module_here(name: str) -> list[str] | None:
    """Return the public functions that a module in this folder defines; None if there is none."""
    path = Path(f"{name.replace('.', '/')}.py")
    if not re.fullmatch(r"[\w.]+", name) or not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"^def ([a-z]\w*)\(\s*(q\b)?", text, re.M)
    has_queries = any(q for _, q in found)
    return [str(function) for function, q in found if q or not has_queries][:4]


def _of_kernel(options: IdentifyOptions, overrides: Overrides) -> Call:
    name = options.source
    for option, value in (("--layout", options.layout), ("--layer", options.layer)):
        if value is not None:
            raise bad(
                option, value, f"is for a file; a kernel runs on {SAMPLE} of the shipped tensors"
            )
    [layer] = read_layers(sample_path(), layer=SAMPLE, overrides=overrides)
    assert layer.do is not None
    x = _inputs(layer, bool(overrides.is_causal))
    try:
        check_timeout(options.timeout)
        called = in_time(kernel(name), options.timeout)
        outputs = called(x)
    except Unavailable as error:
        raise bad("KERNEL", name, why(error)) from None
    except ForeignError as error:
        raise bad("KERNEL", name, f"failed: it {error.words}") from None
    except ImportError as error:
        missing = (error.name or one_line(error)).partition(".")[0]
        repair = (
            f"needs {missing}, which is not installed here; install it, or give a file that the"
            " kernel's outputs were saved to"
        )
        raise bad("KERNEL", name, repair) from None
    except (ValueError, TypeError) as error:
        raise bad("KERNEL", name, why(error)) from None
    except RuntimeError as error:
        repair = (
            f"does not run here ({one_line(error)[:200]}); run it on its machine and give a file of"
            " what it returned"
        )
        raise bad("KERNEL", name, repair) from None
    about = f"{SAMPLE} of the shipped tensors"
    machine = of_kernel(plain_name(name))
    if ":" in name and plain_name(name) == name:
        own = function_named(name)
        machine = of_function(own, library_of(own))
    call = one_head(plain_name(name), about, x, outputs, options.head)
    return replace(call, kernel=called, machine=machine)


def whole_of_file(
    path: Path,
    layout: str | None = None,
    layer: str | None = None,
    overrides: Overrides = AS_THE_FILE,
) -> tuple[str, str, Inputs, Outputs, tuple[str, ...]]:
    """Return the name, the words, the inputs, the outputs and the notes of the call in a file.

    layout, layer, overrides: as `read_layers` has them

    Raises:
        UsageError: one line that names the argument, its value and the repair.
    """
    layers = read_layers(path, layout, layer, overrides=overrides)
    if len(layers) > 1:
        names = ", ".join(each.name for each in layers[:SHOWN])
        more = f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
        problem = f"has {len(layers)} layers, {names}{more}; choose one with --layer"
        raise bad("FILE", str(path), problem)
    [own] = layers
    check_unbiased(own, "run that, or add --bias none to leave it out")
    prefix = f"{own.prefix}." if own.prefix else ""
    with open_tensors(path) as file:
        order = (layout or file.metadata["layout"]).upper()
        given = {
            n: _of_call(n, file[prefix + n], own, order)
            for n in ("out", "lse", *GRADIENTS)
            if prefix + n in file.names
        }
        dropout = file.said(own.prefix, "dropout")
        names = ", ".join(sorted(file.names)[:12])
    is_causal = own.is_causal
    if is_causal is None:
        raise bad("is_causal", None, "the file's metadata has none; give --causal or --full")
    if dropout is not None:
        repair = (
            "of the weights were dropped at random, which no plan does; capture the model with"
            " dropout 0, as after model.eval()"
        )
        raise bad("metadata dropout", dropout, repair)
    if "out" not in given:
        raise bad(
            "FILE", str(path), f"no {prefix}out, what the kernel returned; it has {names}; add it"
        )
    if own.do is None and (extra := [n for n in GRADIENTS if n in given]):
        raise bad(
            "FILE",
            str(path),
            f"has {', '.join(extra)}, but no {prefix}do, the gradient of the output; add it, or"
            " leave them out",
        )
    if (lse := given.get("lse")) is not None and lse.shape != _of_rows(own.q):
        del given["lse"]  # of another layout than the one that is compared
    shapes = {
        "out": (*own.q.shape[:3], own.v.shape[3]),
        "lse": _of_rows(own.q),
        "dq": own.q.shape,
        "dk": own.k.shape,
        "dv": own.v.shape,
    }
    for name, array in given.items():
        if array.shape != shapes[name]:
            repair = (
                f"must be {shapes[name]}, (batch, tokens, heads, features), by q, k and v; is the"
                f" layout {order}?"
            )
            raise bad(f"tensor {prefix}{name}", array.shape, repair)
    x = replace(_inputs(own, is_causal), sinks=own.sinks, mask=own.mask)
    about = ", ".join((path.name, *([] if own.name == BARE else [own.name])))
    return path.stem, about, x, Outputs(**given), own.notes


def _of_rows(q: np.ndarray) -> tuple[int, int, int]:
    """Return the shape of numbers of the rows, (B, N, T)."""
    return (q.shape[0], q.shape[2], q.shape[1])


def _of_call(name: str, array: np.ndarray, layer: Layer, order: str) -> np.ndarray:
    """Return a result (B, T, N, H), of L (B, N, T): of packed tensors the part of a sequence."""
    if layer.tokens is None:
        return _btnh(array, order)
    queries, keys = layer.tokens
    if name == "lse":
        return np.ascontiguousarray(array.reshape(1, *array.shape[-2:])[..., queries])
    array = _btnh(array[None] if array.ndim == 3 else array, order)
    return np.ascontiguousarray(array[:, keys if name in ("dk", "dv") else queries])


def _btnh(array: np.ndarray, layout: str) -> np.ndarray:
    is_swapped = layout == "BNTH" and array.ndim == 4
    return np.ascontiguousarray(array.swapaxes(1, 2)) if is_swapped else array


def _inputs(layer: Layer, is_causal: bool) -> Inputs:
    scale = layer.q.shape[-1] ** -0.5 if layer.scale is None else layer.scale
    do = layer.do
    if do is None:
        do = np.zeros((*layer.q.shape[:3], layer.v.shape[3]), np.float32)
    return Inputs(
        q=layer.q,
        k=layer.k,
        v=layer.v,
        do=do,
        scale=scale,
        is_causal=is_causal,
        alignment=layer.alignment,
        window=layer.window,
        softcap=layer.softcap,
        scales=layer.scales,
    )


def one_head(name: str, about: str, x: Inputs, outputs: Outputs, head: int) -> Call:
    """Return the call of one key head, of the first entry of the batch.

    Args:
        name: the name of the kernel, or of the file.
        about: the inputs of the call in words.
        x: the inputs.
        outputs: what the kernel returned.
        head: the number of the key head.

    Raises:
        UsageError: there is no such head.
    """
    heads = x.k.shape[2]
    if not 0 <= head < heads:
        raise bad("--head", head, f"there are {heads} key heads, numbered from 0 to {heads - 1}")
    group = x.q.shape[2] // heads
    inputs, kept, blind = of_key_head(x, outputs, 0, head)
    which = (
        f"head {head} of {heads}"
        if group == 1
        else f"key head {head} of {heads}, with the {group} query heads that share it"
    )
    shape = f"{inputs.q.shape[1]} queries, {x.k.shape[1]} keys, width {x.q.shape[3]}"
    mask = "causal" if x.is_causal else "full"
    if x.alignment is not None and x.q.shape[1] != x.k.shape[1] and (x.is_causal or x.window):
        mask += f" aligned {x.alignment}"
    if x.mask is not None:
        mask += ", masked"
    if blind.any():
        mask += f", without {int(blind.sum())} queries that see no key"
        mask += ", and without dk and dv" if outputs.dk is not None and kept.dk is None else ""
    served = {"window": x.window, "softcap": x.softcap, "sinks": x.sinks}
    mask += "".join(
        f", {name}{'' if name == 'sinks' else f' {value:g}'}"
        for name, value in served.items()
        if value is not None
    )
    return Call(
        name=name,
        about=f"{about}, {which}: {shape}, {mask}, scale {x.scale:.6g}",
        x=inputs,
        outputs=kept,
        given=x,
        returned=outputs,
        head=head,
    )


def of_key_head(
    x: Inputs, outputs: Outputs, entry: int, head: int
) -> tuple[Inputs, Outputs, np.ndarray]:
    """Return the call of one key head, and which of its queries see no key, booleans (T,).

    Those queries are left out of the call.

    Args:
        x: the inputs of all heads.
        outputs: what the kernel returned.
        entry: the entry of the batch.
        head: the number of the key head.

    Raises:
        UsageError: no query sees a key.
    """
    group = x.q.shape[2] // x.k.shape[2]
    key_head, query_heads = slice(head, head + 1), slice(head * group, (head + 1) * group)
    of_batch = slice(entry, entry + 1)

    def cut(n: str, a: np.ndarray) -> np.ndarray:
        part = key_head if n in ("k", "v", "dk", "dv") else query_heads
        return np.ascontiguousarray(a[of_batch, :, part])

    mask = x.mask
    if mask is not None:
        entries = of_batch if mask.shape[0] > 1 else slice(None)
        mask = np.ascontiguousarray(
            mask[entries, query_heads if mask.shape[1] > 1 else slice(None)]
        )
    inputs = replace(
        x,
        q=cut("q", x.q),
        k=cut("k", x.k),
        v=cut("v", x.v),
        do=cut("do", x.do),
        sinks=None if x.sinks is None else x.sinks[query_heads],
        mask=mask,
        scales=None
        if x.scales is None
        else {
            n: a[of_batch, key_head] if a.ndim else a  # scale_s is a number
            for n, a in x.scales.items()
        },
    )
    return _seeing(inputs, Outputs(**{n: cut(n, a) for n, a in outputs.named() if n != "lse"}))


def _seeing(x: Inputs, outputs: Outputs) -> tuple[Inputs, Outputs, np.ndarray]:
    """Return a call without the queries that see no key, and which these are, booleans (T,).

    What a kernel returns for them is its own choice: 0, NaN, or the mean of V. What they add to dk
    and dv is as well, so these are left out unless `do` is 0 there. If there are any, the mask has
    the causality and the window too, which count queries.
    """
    queries, keys = x.q.shape[1], x.k.shape[1]
    mask = np.broadcast_to(visible(x), (1, x.q.shape[2], queries, keys))
    sees = mask.any(-1).reshape(-1, queries).all(0)
    blind: np.ndarray = np.logical_not(sees)
    if sees.all():
        return x, outputs, blind
    if not sees.any():
        raise bad("mask", "of no key", "no query sees a key; choose another layer or batch entry")

    def cut(a: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(a[:, sees])

    inputs = replace(
        x,
        q=cut(x.q),
        do=cut(x.do),
        mask=np.ascontiguousarray(mask[:, :, sees]),
        is_causal=False,
        window=None,
    )
    kept = {n: cut(a) for n, a in outputs.named() if n in ("out", "dq")}
    if not x.do[:, ~sees].any():
        kept |= {n: a for n, a in outputs.named() if n in ("dk", "dv")}
    return inputs, Outputs(**kept), blind

"""The checks of the arguments of `attend` and `examine`: types, shapes, numbers.

Every error message names the argument, its value and how to fix it.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from roundscope.attention.engines.protocol import Name
from roundscope.attention.grammar.injections import check_held
from roundscope.attention.injection import Injection
from roundscope.attention.plans.choices import Sinks
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.attention.sites import BACKWARD
from roundscope.emu.arrays import is_of_jax, is_traced
from roundscope.emu.errors import Problem, unknown
from roundscope.emu.numbers import as_float, check_array, is_known_number, is_known_whole
from roundscope.emu.shown import shown
from roundscope.emu.told import warn_outside

MANY_HEADS = 64  # of a model, so that more heads than tokens may be another layout
ROWS = 2**31  # of a tile, at most
WIDEST = 8  # bytes of a number that enters exactly
ENGINES = get_args(Name)


def check_shapes(q: Any, k: Any, v: Any) -> None:
    """Raise TypeError or ValueError unless q, k and v are matching float arrays (B, T, N, H)."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_floats(name, x)
        if len(x.shape) != 4 or 0 in x.shape:
            raise ValueError(
                f"{name}: shape {tuple(x.shape)}, must be (batch, tokens, heads, features), none 0"
            )
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"v: shape {tuple(v.shape)}, must agree with k {tuple(k.shape)} in batch, keys and"
            " heads"
        )
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise ValueError(
            f"k: shape {tuple(k.shape)}, must agree with q {tuple(q.shape)} in batch and features"
        )
    if q.shape[2] % k.shape[2]:
        raise ValueError(
            f"q: {q.shape[2]} heads, must be a multiple of the {k.shape[2]} heads of k"
            + layout_hint(q.shape[2], k.shape[2], k.shape[1], "(B, G, S, H)", "swapaxes(1, 2)")
        )


def layout_hint(heads: int, key_heads: int, keys: int, layout: str, turn: str) -> str:
    """Return that k and v may be in another layout, if their heads would fit there; else ""."""
    if heads % keys or key_heads <= heads:
        return ""
    return f"; if k and v are {layout}, give k.{turn} and v.{turn}"


def tell_of_tensors(q: Any, k: Any) -> None:
    """Warn of tensors that look like (B, N, T, H), and of queries that are all NaN."""
    tokens, keys, heads = q.shape[1], k.shape[1], q.shape[2]
    if heads >= MANY_HEADS and heads >= 4 * max(tokens, keys):
        warn_outside(
            f"q: shape {tuple(q.shape)} is {tokens} tokens of {heads} heads, (B, T, N, H); if it is"
            " meant as (B, N, T, H), give q.swapaxes(1, 2), and k and v likewise"
        )
    if isinstance(q, np.ndarray) and np.isnan(q[0, 0, 0, 0]) and np.isnan(q).all():
        warn_outside("q: every number is NaN, and so is every result")


def check_floats(name: str, x: Any) -> None:
    """Raise TypeError if x is not an array of floats of at most 64 bits."""
    is_array = isinstance(x, np.ndarray | np.generic) or is_of_jax(x) or _is_of_torch(x)
    if not is_array and type(x).__name__ != "ShapeDtypeStruct":
        kind = type(x).__name__
        what = "None" if x is None else f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}"
        raise TypeError(
            f"{name}: {what}, must be an array of floats; numpy.asarray(x, 'float32') makes one"
        )
    if _is_of_torch(x):
        raise TypeError(
            f"{name}: a PyTorch tensor, must be an array of NumPy or JAX;"
            " roundscope.torch.attention takes tensors (B, N, T, H), and"
            f" {name}.detach().float().cpu().numpy() makes an array, exactly"
        )
    check_array(name, x)
    if x.dtype.kind == "c":
        raise TypeError(
            f"{name}: dtype {x.dtype}, must be real; give {name}.real.astype('float32') if that"
            " is all of it"
        )
    if "float" not in str(x.dtype) or x.dtype.itemsize > WIDEST:
        raise TypeError(
            f"{name}: dtype {x.dtype}, must be a float of at most 64 bits; convert it with"
            " astype('float32')"
        )


def check_numbers(**arrays: Any) -> None:
    """Raise TypeError for a shape without numbers, of which JAX makes programs."""
    for name, x in arrays.items():
        if type(x).__name__ == "ShapeDtypeStruct":
            raise TypeError(f"{name}: a ShapeDtypeStruct, must be an array of floats with numbers")


def check_like_output(name: str, x: Any, shape: tuple[int, ...]) -> None:
    """Raise TypeError or ValueError if x is not a float array of the output's shape."""
    check_floats(name, x)
    if tuple(x.shape) != shape:
        raise ValueError(f"{name}: shape {tuple(x.shape)}, must be that of the output, {shape}")


def plan_given(plan: Any, name: str = "plan") -> Plan:
    """Return a plan, given as such, as the name of a preset, or as "fa2-bf16; OD=fp32".

    Raise TypeError for other types.
    """
    if isinstance(plan, str):
        from roundscope.attention.grammar.text import plan_of  # which reads Plan

        try:
            return plan_of(plan) if ";" in plan else Plan.preset(plan)
        except ValueError as error:
            if not str(error).startswith("unknown preset"):
                raise
            raise Problem(name, None, str(error)) from None
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan={shown(plan)}: give a Plan or a preset's name, such as 'fa2' (FlashAttention-2"
            " as torch runs it), 'fa2-bf16' (as published) or 'exact' (nothing rounds);"
            " `roundscope plans` lists all; `examine` takes a list too"
        )
    return plan


def plans_given(plan: Any, name: str = "plan") -> list[Plan]:
    """Return the plans of the batch entries, or a list of the one plan of all entries."""
    many = isinstance(plan, Sequence) and not isinstance(plan, str) and len(plan) > 0
    return [plan_given(p, name) for p in plan] if many else [plan_given(plan, name)]


def served_given(
    plan: Plan, window: Any, softcap: Any, sinks: Any, heads: int, bias: Any = None
) -> Plan:
    """Return the plan with the window, softcap and sinks of a call, and whether it has a bias.

    A window or softcap that is given replaces that of the plan. The plan's `sinks` is none in a
    call without sinks; in a call with sinks, none becomes key or last.

    Raise TypeError or ValueError if a window, a softcap or sinks (N,) are not valid, or if the plan
    adds no bias.
    """
    plan = replace(plan, biased=bias is not None)
    if window is not None:
        if not is_known_whole(window):
            raise TypeError(
                f"window={shown(window)}: a whole number of keys, a query's own included,"
                " such as 128"
            )
        if not 1 <= window < 2**63:
            raise ValueError(
                f"window={shown(window)}: a query sees at least its own key, and fewer than"
                " 2^63; give 1"
                " or more, or None for all keys"
            )
        plan = replace(plan, window=operator.index(window))
    if softcap is not None:
        if not is_known_number(softcap):
            raise TypeError(
                f"softcap={shown(softcap)}: give a number, such as 50.0; it is part of the"
                " program, and"
                " no data"
            )
        cap = as_float(softcap)
        with np.errstate(over="ignore", under="ignore"):
            is_held = 0.0 < float(np.float32(cap)) < math.inf
        if not is_held:
            raise ValueError(
                f"softcap={shown(softcap)}: give a number above 0 that binary32 holds, such"
                " as 50.0, or"
                " None for no bound"
            )
        plan = replace(plan, softcap=cap)
    if sinks is None:
        return replace(plan, sinks=Sinks.NONE)
    check_floats("sinks", sinks)
    if tuple(sinks.shape) != (heads,):
        raise ValueError(
            f"sinks: shape {tuple(sinks.shape)}, must be a logit for each of the {heads} heads of"
            f" q, ({heads},)"
        )
    if plan.sinks is not Sinks.NONE:
        return plan
    return replace(plan, sinks=Sinks.KEY if plan.normalise_first else Sinks.LAST)


def block_given(name: str, rows: Any) -> int:
    """Return the rows of a tile. Raise TypeError or ValueError unless it is an integer > 0."""
    if not is_known_whole(rows):
        raise TypeError(f"{name}={shown(rows)}: give a whole number of rows of a tile, such as 128")
    if not 1 <= rows <= ROWS:
        raise ValueError(f"{name}={shown(rows)}: give from 1 to 2^31 rows of a tile, such as 128")
    return operator.index(rows)


def causal_given(is_causal: Any) -> bool:
    """Return `is_causal`. Raise TypeError if it is not a bool.

    Any other value, such as the string 'no', would be true or false by accident.
    """
    if not isinstance(is_causal, (bool, np.bool_)):
        raise TypeError(f"is_causal={shown(is_causal)}: give True or False")
    return bool(is_causal)


def scale_given(scale: Any, features: int, *, is_wide: bool) -> tuple[float, float]:
    """Return the scale rounded to binary32, and the scale before that rounding.

    The scale is not rounded if `is_wide`. It is 1 / sqrt(features) if none is given.

    Raise TypeError if it is not a number, and ValueError if it is 0, NaN or infinite, before the
    rounding or after it.
    """
    if scale is not None and not is_known_number(scale):
        raise TypeError(
            f"scale={shown(scale)}: give a number, such as 0.125; it is part of the program,"
            " and no data"
        )
    whole = 1.0 / math.sqrt(features) if scale is None else as_float(scale)
    with np.errstate(over="ignore"):
        rounded = whole if is_wide else float(np.float32(whole))
    if not math.isfinite(rounded) or rounded == 0.0:
        raise ValueError(
            f"scale={shown(scale)}: {rounded:g} in the scores' format, must be finite and not"
            " 0, such as"
            " 0.125"
        )
    return rounded, whole


def injections_given(inject: Any) -> tuple[Injection, ...]:
    """Return injections, given as injections or as texts of the command line, one or a list.

    Raise TypeError for anything else, and ValueError for a text that does not describe an
    injection.
    """
    several = (inject,) if isinstance(inject, (Injection, str)) else inject
    if not isinstance(several, (tuple, list)) or not all(
        isinstance(i, (Injection, str)) for i in several
    ):
        raise TypeError(
            f"inject={shown(inject)}: give an Injection, its text such as 'O:ulps=0.5', a"
            " list of them,"
            " or () for none"
        )
    return tuple(i if isinstance(i, Injection) else _injection_named(i) for i in several)


def _injection_named(text: str) -> Injection:
    try:
        return Injection.parse(text)
    except ValueError as error:
        raise ValueError(f"inject={shown(text)}: {error}") from None


def check_held_values(inject: Sequence[Injection], plan: Plan) -> None:
    """Raise ValueError for an injection of a value that the format of its event does not have."""
    for made in inject:
        try:
            check_held(made, plan)
        except ValueError as error:
            raise ValueError(f"inject {made.site}:{made.what}: {error}") from None


def record_given(record: Any) -> Record | None:
    """Return the record. Raise TypeError if it is neither a `Record` nor None."""
    if record is not None and not isinstance(record, Record):
        raise TypeError(
            f"record={shown(record)}: give a Record, such as Record(events=('P',)), or None"
        )
    return record


def check_forward_record(record: Record | None) -> None:
    """Raise ValueError if all events of a record are of the backward, for a call without one."""
    for name in ("events", "ones", "steps"):
        sites = () if record is None else getattr(record, name)
        if sites and all(site in BACKWARD for site in sites):
            raise ValueError(
                f"record: {name}={sites[0]}: this call runs no backward; call examine with do, or"
                " choose a forward site"
            )


def engine_given(engine: Any) -> str | None:
    """Return the name of an engine, or None.

    Raise TypeError if it is not a string, and ValueError with the nearest name if it is unknown.
    """
    if engine is not None and not isinstance(engine, str):
        raise TypeError(
            f"engine={shown(engine)}: give {', '.join(map(repr, ENGINES))}, or None for that of the"
            " arrays"
        )
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"engine={shown(engine)}: {unknown('engine', engine, ENGINES)}")
    return engine


def mask_given(mask: Any) -> Any:
    """Return the mask as an array of NumPy, or of JAX if it is traced.

    Raise TypeError or ValueError if it is not an array of bool.
    """
    check_array("mask", mask)
    if _is_of_torch(mask):
        raise TypeError(
            "mask: a PyTorch tensor, must be an array of bool; mask.cpu().numpy() makes one"
        )
    try:
        mask = mask if is_traced(mask) else np.asarray(mask)
    except ValueError:
        raise TypeError(
            f"mask={shown(mask)}: must be an array of bool, with rows of one length"
        ) from None
    if mask.dtype != bool:
        raise ValueError(
            f"mask: dtype {mask.dtype}, must be bool, True where a query sees a key; give numbers"
            " that are added to the scores as bias"
        )
    return mask


def check_scores_shape(name: str, x: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless x, of any library, broadcasts to (batch, heads, queries, keys)."""
    own = tuple(x.shape)
    pairs = zip(reversed(own), reversed(shape), strict=False)
    if len(own) > 4 or any(n not in (1, size) for n, size in pairs):
        raise ValueError(
            f"{name}: shape {own}, must broadcast to (batch, heads, queries, keys) = {shape}"
        )


def bias_given(bias: Any, shape: tuple[int, ...]) -> Any:
    """Return the bias as an array of NumPy, or of JAX if it is traced.

    Raise TypeError or ValueError unless it is an array of floats that broadcasts to shape, (batch,
    heads, queries, keys).
    """
    if str(getattr(bias, "dtype", "")).endswith("bool"):
        raise TypeError(
            "bias: dtype bool, must be numbers that are added to the scores; give booleans, True"
            " where a query sees a key, as mask"
        )
    check_floats("bias", bias)
    check_scores_shape("bias", bias, shape)
    return bias if is_traced(bias) else np.asarray(bias)


def _is_of_torch(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch"

"""`apart`: the constants in which two operations differ: the eps of a norm, a scale, a base."""

from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

from roundscope.operations.models.calls import ALIASES
from roundscope.operations.models.tape import Entry

PLAIN = (int, float, str, bool)


def constants_of(entry: Entry) -> dict[str, Any]:
    """Return the constants that an entry was computed with, by name.

    They are the settings of its module or call and the numbers and words among its arguments. Of
    the frequencies of a table of angles it is their base, if they are its powers.

    Example:
        >>> from roundscope.operations.models.tape import Ref
        >>> kind = {"operation": "rms_norm", "function": "Norm", "module": "", "step": 0}
        >>> entry = Entry(
        ...     number=0, arguments=([Ref(0), -1], {"keepdim": True}), outputs=(1,),
        ...     settings={"variance_epsilon": 1e-6, "frequencies": [1.0, 0.1, 0.01]}, **kind,
        ... )
        >>> constants_of(entry)
        {'eps': 1e-06, 'argument 1': -1, 'keepdim': True, 'base': 1000.0}
    """  # fmt: skip
    args, kwargs = entry.arguments
    found = {ALIASES.get(name, name): x for name, x in entry.settings.items()}
    found |= {f"argument {n}": x for n, x in enumerate(args)} | dict(kwargs)
    frequencies = found.pop("frequencies", None)
    found = {name: x for name, x in found.items() if isinstance(x, PLAIN)}
    return found | (_of_angles(frequencies) if frequencies else {})


def _of_angles(frequencies: Sequence[float]) -> dict[str, Any]:
    count = len(frequencies)
    base = frequencies[1] ** -count if count > 1 and frequencies[1] > 0 else 0.0
    if all(isclose(x, base ** (-n / count), rel_tol=1e-5) for n, x in enumerate(frequencies)):
        return {"base": float(f"{base:.5g}")}  # that of frequencies in FP32
    return {"frequencies": f"{frequencies[0]:.6g} to {frequencies[-1]:.6g}"}


def apart(a: Sequence[Entry], b: Sequence[Entry]) -> tuple[str, str]:
    """Return the constants in which two runs' entries of one operation differ, in words.

    Those that both have by one name are compared; ("", "") where none differs.
    """
    told: dict[str, tuple[Any, Any]] = {}
    for one, two in zip(a, b, strict=False):
        if "arithmetic" in one.settings or "arithmetic" in two.settings:
            continue  # its steps, which are told, have their constants
        x, y = constants_of(one), constants_of(two)
        if "mask" in {*one.held} ^ {*two.held}:
            x.pop("is_causal", None)  # which the mask of the other one may say
        told |= {n: (x[n], y[n]) for n in x if n in y and _differ(x[n], y[n]) and n not in told}
    return _words(told, 0), _words(told, 1)


def _differ(x: Any, y: Any) -> bool:
    return bool(x != y and (x == x or y == y))


def _words(told: Mapping[str, tuple[Any, Any]], side: int) -> str:
    return ", ".join(f"{name} {_shown(values[side])}" for name, values in told.items())


def _shown(x: Any) -> str:
    short = f"{x:.15g}" if isinstance(x, float) else str(x)
    return short if not isinstance(x, float) or float(short) == x else repr(x)

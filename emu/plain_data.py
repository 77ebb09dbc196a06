"""Data that somebody else may have written as JSON: read, and compared with the shape that is ours.

A shape is written as the data it asks for:

    int, float, str, bool     a value of this type; float takes whole numbers too, int no bool
    range(0, 100)             a whole number in this range
    None                      null
    "inf"                     this text
    (int, None)               one of several shapes
    [int]                     a list, of any length, of one shape
    {"step": int}             an object that has these names at least
    {str: int}                an object with any names
    list, dict                a list, an object, whatever is in it
    object                    anything
"""

import json
from typing import Any

LARGEST = 1 << 63  # whole numbers below it are those of NumPy and SQLite
COUNT = range(LARGEST)
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def parsed(text: str | bytes) -> Any:
    """Return the data of a JSON text.

    Raises:
        ValueError: It is no JSON, nests too deeply, or has a number of too many digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise ValueError("a number of it has thousands of digits") from None


def misfit(found: Any, shape: Any, place: str = "") -> str | None:
    """Return in words where data do not have a shape, or None where they have it.

    Example:
        >>> misfit({"arms": [{"lr": None}]}, {"arms": [{"lr": float}]})
        'arms[0].lr is null, not a number'
        >>> misfit({"arms": []}, {"arms": [{"lr": float}]}) is None
        True
    """
    if isinstance(shape, tuple):
        amiss = [misfit(found, each, place) for each in shape]
        if None in amiss:
            return None
        alike = (text for text, each in zip(amiss, shape, strict=True) if _is_alike(found, each))
        return next(alike, f"{place or 'it'} is {_said(found)}, not {_wanted(shape)}")
    if not _is_alike(found, shape):
        return f"{place or 'it'} is {_said(found)}, not {_wanted(shape)}"
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(shape, list):
        parts = [(each, shape[0], f"{place}[{i}]") for i, each in enumerate(found)]
    elif isinstance(shape, dict):
        start = f"{place}." if place else ""
        wanted = dict.fromkeys(found, shape[str]) if str in shape else shape
        for name in wanted:
            if name not in found:
                return f"{start}{name} is missing"
        parts = [(found[name], each, f"{start}{name}") for name, each in wanted.items()]
    return next((text for part in parts if (text := misfit(*part))), None)


def _is_alike(found: Any, shape: Any) -> bool:
    """Return whether a value is of the kind that a shape asks for, whatever its parts are."""
    if shape is object:
        return True
    if isinstance(shape, range):
        return type(found) is int and found in shape
    if shape is float:
        return type(found) is float or (type(found) is int and abs(found) < LARGEST)
    if shape is int:
        return type(found) is int and abs(found) < LARGEST
    if isinstance(shape, str):
        return bool(found == shape)
    if isinstance(shape, list | dict):
        return isinstance(found, type(shape))
    return found is None if shape is None else type(found) is shape


def _wanted(shape: Any) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_wanted, shape))
    if isinstance(shape, str):
        return repr(shape)
    if isinstance(shape, range):
        end = "" if shape.stop == LARGEST else f" to {shape.stop - 1}"
        return f"a whole number from {shape.start}{end}"
    if isinstance(shape, list | dict):
        return "a list" if isinstance(shape, list) else "an object"
    return "null" if shape is None else _WORDS[shape]


def _said(found: Any) -> str:
    if isinstance(found, list | dict):
        return "a list" if isinstance(found, list) else "an object"
    text = json.dumps(found)
    return text if len(text) <= 40 else f"{text[:37]}..."

"""Whole numbers in words: 3, Python's ranges 0:64 and 0:64:2, the older 0-63 with both ends, and
lists of these, separated by commas.
"""

import re

MOST = 1_000_000  # numbers of one range, so that a stop with a digit too many fills no memory
_INCLUSIVE = re.compile(r"([0-9]{1,12})-([0-9]{1,12})")
_PYTHON = re.compile(r"(\+?[0-9]{0,12}):(\+?[0-9]{1,12})(?::([+-]?[0-9]{1,12}))?")
_ONE = re.compile(r"[0-9]{1,12}")


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a text such as 0,2:5 or 0-2,5, in the order of the text.

    Raises:
        ValueError: A part is not a number or a range, or is empty. The message names it and how to
            fix it.
    """
    return tuple(i for part in text.split(",") for i in one_range(part.strip()))


def selection(text: str) -> range | tuple[int, ...]:
    """Return what `numbers` returns, but a single range as a `range`."""
    return one_range(text.strip()) if "," not in text else numbers(text)


def is_range(text: str) -> bool:
    """Return whether a text is meant as a range: it has a colon, or the form 0-63."""
    return ":" in text or _INCLUSIVE.fullmatch(text) is not None


def one_range(text: str) -> range:
    """Return the range of 3, 0:64, 0:64:2, :64, or 0-63, which has both ends.

    Raises:
        ValueError: The text has none of these forms, is empty, or has more than `MOST` numbers. The
            message names it and how to fix it.
    """
    if _ONE.fullmatch(text):
        return range(int(text), int(text) + 1)
    if match := _INCLUSIVE.fullmatch(text):
        found = range(int(match[1]), int(match[2]) + 1)
        hint = "write the smaller number first"
    elif match := _PYTHON.fullmatch(text):
        if int(match[3] or 1) == 0:
            raise ValueError(f"'{text}': the step is 0; leave it out for steps of 1")
        found = range(int(match[1] or 0), int(match[2]), int(match[3] or 1))
        hint = "the stop is left out, so that 0:10 is 0 to 9"
    elif ":" in text:
        raise ValueError(f"'{text}': write a range as a:b or a:b:step, in whole numbers from 0")
    else:
        raise ValueError(
            f"'{text}': no whole number from 0; write one, a range 0:64, or a list 0,5"
        )
    if not found:
        raise ValueError(f"'{text}': is empty; {hint}")
    if len(found) > MOST:
        raise ValueError(f"'{text}': has {len(found)} values, at most {MOST} are read")
    return found


def spelled(where: int | range | tuple[int, ...]) -> str:
    """Return numbers in words that `selection` reads, ascending: 3, 0:64, or 0:2,5."""
    chosen = sorted({where} if isinstance(where, int) else set(where))
    runs: list[list[int]] = []
    for n in chosen:
        if runs and n == runs[-1][1]:
            runs[-1][1] = n + 1
        else:
            runs.append([n, n + 1])
    return ",".join(f"{lo}:{hi}" if hi > lo + 1 else str(lo) for lo, hi in runs)

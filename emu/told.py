"""`warn_outside`: a warning that names the line of the user's program, and none of ours."""

import sys
import warnings

OURS = ("roundscope", "torch", "transformers", "contextlib")


def warn_outside(text: str) -> None:
    """Warn of what the nearest line outside of this package and of the libraries it is in does.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as found:
        ...     warnings.simplefilter("always")
        ...     warn_outside("take care")
        >>> str(found[0].message)
        'take care'
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS

"""Errors that a user can repair: one line that names the argument, its value and the repair."""

import os


class UsageError(ValueError):
    """Bad usage; the command line prints the message as one line and exits with code 2.

    Attributes:
        repair: What is wrong with the value and what to give instead, without the argument and the
            value; "" if the message is not in these parts.
    """

    repair = ""


def bad(argument: str, value: object, repair: str) -> UsageError:
    """Return the error 'argument value: repair', as in  layout 'NHTB': use BNTH or BTNH."""
    error = UsageError(f"{argument} {shown(value)}: {repair}")
    error.repair = repair
    return error


def why(error: BaseException) -> str:
    """Return what is wrong with a value, on one line, for a layer that names the argument itself.

    Of an error in parts (`bad`, `emu.errors.Problem`) it is the repair, of others the message.
    """
    repair = getattr(error, "repair", "")
    return one_line(ValueError(repair) if repair else error)


def shown(value: object) -> str:
    """Return a value as an error shows it: a text in quotes, and of a long one its beginning."""
    from roundscope.emu.shown import cut  # which numpy comes with

    return repr(cut(value)) if isinstance(value, str) else cut(str(value))


def printable(text: str) -> str:
    r"""Return a text from outside, its control characters as escapes.

    So no name in a file can move a terminal's cursor, set its title or begin a line of ours.

    Example:
        >>> printable("layers.0\x1b[2J\n")
        'layers.0\\x1b[2J\\n'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, or its type's name if it has none.

    An error of the operating system names the file, the reason and what to do, without its number.
    """
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        name = shown(os.fspath(error.filename))
        return f"{name}: {error.strerror.lower()}; choose another file or folder"
    from roundscope.emu.shown import tidy  # which numpy comes with

    return tidy(" ".join(str(error).split())) or type(error).__name__


class StorageError(OSError):
    """A results file cannot be read or written now; what was saved before stays readable.

    The command line exits with code 1.
    """


class ExecutorError(OSError):
    """Workers cannot be reached, cannot start or are not ours; what was saved before stays.

    The command line exits with code 1.
    """

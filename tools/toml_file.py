"""A TOML file that a user wrote, read whole."""

import tomllib
from pathlib import Path
from typing import Any

from roundscope.tools.errors import bad, one_line

LARGEST = 1 << 20  # bytes; a file of settings has a thousandth of it


def toml_of(path: Path, argument: str) -> dict[str, Any]:
    """Return what a TOML file says.

    argument: how the command calls the file. Raises UsageError for one that is missing, no ordinary
    file, or no TOML.
    """
    if not path.exists():
        raise bad(argument, str(path), "does not exist; name a TOML file")
    if not path.is_file():  # reading a pipe would wait for ever
        raise bad(argument, str(path), "is no ordinary file; name a TOML file")
    try:
        if path.stat().st_size > LARGEST:
            raise bad(argument, str(path), f"has more than {LARGEST} bytes; name a TOML file")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise bad(argument, str(path), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise bad(argument, str(path), f"is no TOML: byte {error.start} is no UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise bad(argument, str(path), f"is no TOML: {one_line(error)}") from None
    except (ValueError, RecursionError):
        repair = "is no TOML: it nests too deeply, or a number has thousands of digits"
        raise bad(argument, str(path), repair) from None

"""Places that a command is asked to write, tried before the work and not after it.

A place is tried by writing: permissions alone do not tell whether a disk is full, is read-only or
takes no files. The trial leaves nothing.
"""

import os
import tempfile
from pathlib import Path

from roundscope.emu.whole_files import LONGEST
from roundscope.tools.errors import UsageError, bad


def can_write_folder(option: str, out: Path) -> None:
    """Raise UsageError if no files can be written into a folder, which need not exist yet."""
    _check_names(option, out)
    if os.path.lexists(out) and not out.is_dir():
        is_file = out.is_file()
        raise bad(option, str(out), f"is {'a file' if is_file else 'no folder'}; name a folder")
    _try(option, out, out)


def can_replace(out: Path, *names: str) -> None:
    """Raise UsageError if a file of such a name in a folder of --out could not be replaced.

    A command that writes several files asks for all of them first, so that it writes all or none.
    """
    for path in (out / name for name in names):
        if path.exists() and not path.is_file():
            problem = f"its {path.name} is a folder or a device, which no file replaces"
            raise bad("--out", str(out), f"{problem}; choose another folder")


def can_write_file(option: str, out: Path) -> None:
    """Raise UsageError if a file cannot be written, or is one that must not be replaced."""
    _check_names(option, out)
    if out.is_dir():
        raise bad(option, str(out), "is a folder; name a file")
    if out.exists() and not out.is_file():
        raise bad(option, str(out), "is a device and no file; name a file")
    _try(option, out, out.parent)


def _check_names(option: str, out: Path) -> None:
    """Raise UsageError for a name that no file system takes."""
    if long := [part for part in out.parts if len(os.fsencode(part)) > LONGEST]:
        size = len(os.fsencode(long[0]))
        raise bad(option, str(out), f"a name of {size} bytes; give at most {LONGEST}")


def _try(option: str, out: Path, folder: Path) -> None:
    """Write a file without a name into a folder, or into the nearest one above it that exists."""
    try:
        there = next(f for f in (folder, *folder.absolute().parents) if os.path.lexists(f))
        if not there.is_dir():
            raise bad(option, str(out), f"{there} is not a directory; choose another folder")
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 512)
            file.flush()
    except UsageError:
        raise
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        repair = f"cannot be written ({why}); choose a folder that you may write"
        raise bad(option, str(out), repair) from None

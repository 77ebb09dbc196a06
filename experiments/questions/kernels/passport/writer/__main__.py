"""`python -m writer FOLDER [KERNEL,...]`."""

import sys
from pathlib import Path

from .write import write

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m writer FOLDER [KERNEL,...]")
    only = sys.argv[2].split(",") if len(sys.argv) == 3 else None
    try:
        written = write(Path(sys.argv[1]), only)
    except ValueError as error:
        sys.exit(str(error))
    print(f"{len(written)} files in {sys.argv[1]}")

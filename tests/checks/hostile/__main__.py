"""Ask hostile cases, area by area, and count: python -m tests.checks.hostile [AREA ...] [--show].

Exit code 1 if a case is faulty. --show prints every faulty case; --only TEXT asks the cases whose
name has the text; --part K/N asks an N-th of them, and all parts together ask all; --minutes M
asks no more of an area after M minutes, and its row tells how many cases were left.
"""

import argparse
import importlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.checks.hostile.verdict import Asked, Verdict

# each area is a module of this package, whose `verdicts(asked)` yields Verdicts
AREAS = ("words", "grammar", "calls", "files", "results")


def area(name: str) -> Callable[[Asked], Iterator[Verdict]]:
    """Return the function that asks the cases of an area."""
    found: Callable[[Asked], Iterator[Verdict]]
    found = importlib.import_module(f"tests.checks.hostile.{name}").verdicts
    return found


def main() -> int:
    """Ask, print the table of counts, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", default=AREAS, metavar="AREA")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--part", default="1/1", metavar="K/N")
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="M")
    parser.add_argument("--show", action="store_true")
    asked = parser.parse_args()
    part, parts = map(int, asked.part.split("/"))
    faults = 0
    print(f"{'area':10} {'tried':>6} {'clean':>6} {'faulty':>6} {'time':>6}  of which", flush=True)
    for name in asked.areas:
        start, kinds, tried = time.monotonic(), Counter[str](), 0
        wanted = Asked(asked.only, part - 1, parts, start + 60.0 * asked.minutes)
        for verdict in area(name)(wanted):
            tried += 1
            if verdict.fault:
                kinds[verdict.fault] += 1
                if asked.show:
                    print(f"{verdict.fault:12} {verdict.case}\n    {verdict.answer}", flush=True)
        faulty = kinds.total()
        faults += faulty
        said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        if wanted.left:
            said += f" (stopped: {wanted.left} cases not asked)"
        took = f"{time.monotonic() - start:.0f} s"
        print(f"{name:10} {tried:6} {tried - faulty:6} {faulty:6} {took:>6}  {said}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""The tests to run after a small change, for `make quick`: python -m tests.checks.quick [REVISION].

They are the changed test files, and the tests that import a changed module; changed means since
REVISION (by default the last commit), untracked files included. Without a change they are a core
set: the layers, the golden digests, the rule of rounding, twins, the words of plans.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = (
    "tests/test_layers.py",
    "tests/test_golden.py",
    "tests/emu/roundings",
    "tests/attention/test_twins.py",
    "tests/attention/grammar",
)
LAYERS = ("emu", "events", "attention", "operations", "tools", "experiments", "roundscope")


def changed(revision: str) -> list[str]:
    """Return the files that differ from a revision and those that git does not know yet."""
    listed = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for words in (
            ("diff", "--name-only", revision),
            ("ls-files", "--others", "--exclude-standard"),
        )
    )
    return [name for text in listed for name in text.splitlines() if name.endswith(".py")]


def tests_of(names: list[str]) -> set[str]:
    """Return the test files among some files, and those that import a module among them."""
    every = {p.relative_to(ROOT).as_posix(): p.read_text() for p in ROOT.glob("tests/**/test_*.py")}
    found = set(every) & set(names)
    for name in names:
        *folders, module = Path(name).with_suffix("").parts
        if folders and folders[0] in LAYERS:
            package = ".".join(["roundscope", *folders])
            forms = (f"{package}.{module} ", f"from {package} import {module}")
            found |= {test for test, text in every.items() if any(form in text for form in forms)}
    return found


if __name__ == "__main__":
    print(*(sorted(tests_of(changed(*sys.argv[1:] or ["HEAD"]))) or CORE))

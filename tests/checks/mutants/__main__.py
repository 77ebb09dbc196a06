"""Plant faults in a copy of the tree, one at a time, and see which of them our tests notice.

    python -m tests.checks.mutants                         all faults
    python -m tests.checks.mutants --only NAME NAME        some of them
    python -m tests.checks.mutants --list                  the names, and what each imitates
    python -m tests.checks.mutants --out results.json --table docs/notes/mutants.md

The copy is of the committed tree: a change that is not committed is not tested. With --out the
results are also kept in a file; results of other faults that the file already has stay in it, and
--table writes all of them. A fault that its own tests do not notice is tried with all tests of
`emu` and `attention`, which takes long; --narrow leaves that out. With --work the copy and its
compiled kernels stay in a folder, so that the next run finds them. In the end all tests that
noticed a fault run on a copy without one, where they must pass. The exit code is 1 if a fault was
not noticed.
"""

import argparse
import queue
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.checks.mutants.catalogue import FAULTS, chosen
from tests.checks.mutants.copies import ROOT, check_own_package, committed, renewed
from tests.checks.mutants.faults import Fault, planted
from tests.checks.mutants.running import WIDER, Result, check_unchanged, tried
from tests.checks.mutants.table import load, markdown, save


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        faults = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print("\n".join(f"{fault.name:32} {fault.imitates}" for fault in faults))
        return 0
    results = load(options.out) if options.out else {}
    own = {}
    kept = options.work and nullcontext(options.work.resolve())
    with kept or TemporaryDirectory(prefix="mutants-") as folder:
        for result in _all_tried(
            faults, Path(folder), options.jobs, () if options.narrow else WIDER
        ):
            own[result.name] = results[result.name] = result
            print(_told(result), flush=True)
            if options.out:
                save(options.out, results)
    if options.table:
        options.table.write_text(markdown(FAULTS, results))
    missed = [result.name for result in own.values() if not result.caught]
    print(f"{len(own)} faults, {len(own) - len(missed)} caught", *missed, sep="\n  not caught: ")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="python -m tests.checks.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="faults to plant")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--out", type=Path, metavar="FILE", help="results, as JSON")
    parser.add_argument("--table", type=Path, metavar="FILE", help="results, as Markdown")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies at a time")
    parser.add_argument("--narrow", action="store_true", help="only the tests that faults name")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where copies and kernels stay")
    return parser


def _all_tried(
    faults: Sequence[Fault], work: Path, jobs: int, wider: Sequence[str]
) -> Iterator[Result]:
    """Yield what became of each fault.

    In the end the tests that noticed faults run on a copy without a fault, where they must pass.

    work   the folder of the copies, one for each job
    wider  the tests for faults that their own tests do not notice
    """
    archive = committed()
    for fault in faults:
        planted(fault, ROOT)
    folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for n in range(jobs):
        (work / str(n)).mkdir(parents=True, exist_ok=True)
        folders.put(work / str(n))
    check_own_package(work / "0", renewed(work / "0", archive))
    tests = set()

    def one(fault: Fault) -> Result:
        folder = folders.get()
        try:
            return tried(folder, archive, fault, wider)
        finally:
            folders.put(folder)

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(one, fault) for fault in faults]):
            tests.add(done.result().test)
            yield done.result()
    if named := sorted(test for test in tests if "::" in test):
        run = check_unchanged(work / "0", archive, named)
        print(f"without a fault these {len(named)} tests pass ({run.seconds:.0f} s)", flush=True)


def _told(result: Result) -> str:
    """Return one line about a result."""
    how = result.test if result.caught else "NOT CAUGHT"
    wider = "" if result.nearest or not result.caught else " (only by the wider tests)"
    return f"{result.name}: {how}{wider}, {result.seconds:.0f} s. {result.message[:120]}"


if __name__ == "__main__":
    sys.exit(main())

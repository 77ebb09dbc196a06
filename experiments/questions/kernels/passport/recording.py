"""`roundscope kernels --record FILE`: judge what kernels return, here or elsewhere."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from roundscope.emu.errors import unknown
from roundscope.emu.testing.foreign import check_timeout
from roundscope.experiments.questions.kernels.passport import outputs, record
from roundscope.experiments.questions.kernels.passport.judged import judge
from roundscope.experiments.questions.kernels.passport.outputs import Written
from roundscope.experiments.questions.kernels.passport.record import Record
from roundscope.experiments.questions.kernels.passport.writer.write import KERNELS, versions, wanted
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.progress import bar, telling

WRITER = Path(__file__).parent


def recorded(
    path: Path,
    written: Path | None = None,
    only: Sequence[str] | None = None,
    timeout: float | None = None,
) -> Record:
    """Add kernels to the record in a file, which is made if there is none, and return it.

    Args:
        path: The record. It is written after every kernel, so that what is done is kept.
        written: The folder of a writer that ran elsewhere; None to run the kernels of this
            environment, each in a process of its own.
        only: The names of kernels; None for all.
        timeout: The seconds that the process of a kernel may take.

    Raises:
        UsageError: A name, a folder or a file is not what it should be.
        StorageError: The record is damaged, or was written by a later release.
    """
    for name in only or ():
        if name not in KERNELS:
            raise UsageError(unknown("kernel", name, KERNELS))
    check_timeout(timeout)
    whole = record.read(path) if path.exists() else Record()
    if written is not None:
        files = [outputs.read(file) for file in outputs.files_in(written)]
        found = [each for each in files if only is None or each.about["kernel"] in only]
        if not found:
            raise bad("--only", ",".join(only or ()), f"{written} has no file of these kernels")
        return _judged(path, whole, found, len(found))
    names = list(dict.fromkeys(name for name, _ in wanted(only, versions())))
    if not names:
        raise bad("--only", ",".join(only or KERNELS), "no library of these kernels is installed")
    return _judged(path, whole, _called(names, timeout), len(names))


def _judged(path: Path, whole: Record, files: Iterator[Written] | list[Written], n: int) -> Record:
    """Return the record with these files in it. Bits that are known are not judged again."""
    with bar("kernels", n) as progress, telling("kernels") as tell:
        names: set[str] = set()
        for number, each in enumerate(files):
            release = record.release_of(each)
            names.add(release.kernel)
            judged = whole.bits.get(release.bits)
            if judged is None and not release.failed:
                label = f"{release.kernel} {release.type} {release.version}"
                judged = judge(each, lambda text, label=label: tell(f"{label}: {text}"))  # type: ignore[misc]
            whole = whole.with_release(release, judged)
            record.write(path, whole)
            progress(min(number + 1, n) if isinstance(files, list) else len(names))
    return whole


def _called(names: Sequence[str], timeout: float | None) -> Iterator[Written]:
    """Yield what the kernels of this environment return."""
    with tempfile.TemporaryDirectory() as made:
        for name in names:
            folder = Path(made) / name
            command = [sys.executable, "-m", "writer", str(folder), name]
            try:
                ended = subprocess.run(
                    command, cwd=WRITER, timeout=timeout, capture_output=True, text=True
                )
            except subprocess.TimeoutExpired:
                raise UsageError(
                    f"{name}: took more than {timeout:g} s; give more, or leave it out by --only"
                ) from None
            if ended.returncode:
                last = (ended.stderr.strip().splitlines() or [f"exit {ended.returncode}"])[-1]
                raise UsageError(f"{name}: its process ended ({last}); leave it out by --only")
            yield from (outputs.read(file) for file in sorted(folder.glob("*.npz")))

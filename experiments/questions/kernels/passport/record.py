"""The record: releases of kernels, and what was said of the bits that each returned.

Releases that returned the same bits share what is said of them.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from roundscope.emu.plain_data import COUNT, parsed
from roundscope.emu.whole_files import read_whole
from roundscope.experiments.questions.kernels.passport.judged import Judged, Result
from roundscope.experiments.questions.kernels.passport.outputs import Written
from roundscope.experiments.questions.kernels.passport.plans import Twin
from roundscope.tools.errors import StorageError, bad
from roundscope.tools.results.folder import write_json
from roundscope.tools.results.machine import all_versions
from roundscope.tools.results.tables import json_of

NAME, VERSION = "roundscope-passport", 1
_NUMBER = (float, None, "nan", "inf", "-inf")
_NUMBERS, _COUNTS = ("error", "gain", "bias"), ("of", "nan", "infinite")
_RESULT: dict[str, Any] = {"digest": str, "rows": str}
_RESULT |= dict.fromkeys(_NUMBERS, _NUMBER) | dict.fromkeys(_COUNTS, COUNT)
_WORDS = {"forward": {str: str}, "backward": {str: str}}
_TWIN = {
    "plan": str,
    "equal": {str: _NUMBER},
    "ties": COUNT,
    "arithmetic": _WORDS,
    "others": [_WORDS],
    "tried": COUNT,
}
_TEXTS = ("kernel", "library", "version", "operation", "type", "device", "failed", "bits")
SHAPE = {
    "schema": {"name": str, "version": COUNT},
    "releases": [
        dict.fromkeys(_TEXTS, str)
        | {"versions": {str: str}, "inputs": {str: str}, "seed": COUNT, "again": (bool, None)}
    ],
    "bits": {
        str: {
            "operation": str,
            "type": str,
            "results": {str: _RESULT},
            "drift": _NUMBER,
            "twin": (None, _TWIN),
        }
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One kernel of one release, on one device.

    Attributes:
        kernel, type, operation: What ran.
        library, version, versions: Whose it is, and the versions of all that it may depend on.
        device: The name of the processor.
        seed, inputs: What its inputs were drawn from, and a digest of each.
        again: Whether a second call gave the same bits; None of one that failed.
        failed: Why there are no numbers; "" if there are.
        bits: The key of what it returned in `Record.bits`; "" if it failed.
    """

    kernel: str
    type: str
    operation: str
    library: str
    version: str
    versions: Mapping[str, str]
    device: str
    seed: int
    inputs: Mapping[str, str]
    again: bool | None
    failed: str
    bits: str

    @property
    def key(self) -> tuple[Any, ...]:
        """What is one line of a record."""
        return self.kernel, self.type, self.device, tuple(sorted(self.versions.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Releases, and what is said of their bits.

    Attributes:
        releases: The releases.
        bits: What was said of the results of a release, by `Release.bits`.
        versions: The versions of what judged.
    """

    releases: tuple[Release, ...] = ()
    bits: Mapping[str, Judged] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=lambda: all_versions("numpy"))

    def with_release(self, release: Release, judged: Judged | None) -> "Record":
        """Return the record with a release, in place of the same one."""
        kept = tuple(r for r in self.releases if r.key != release.key)
        bits = dict(self.bits) if judged is None else {**self.bits, release.bits: judged}
        used = {r.bits for r in (*kept, release)}
        return replace(
            self,
            releases=(*kept, release),
            bits={name: each for name, each in bits.items() if name in used},
        )


def bits_of(written: Written) -> str:
    """Return the key of what a kernel returned: of its call and of the bits of every result."""
    from roundscope.experiments.questions.kernels.passport.writer.calls import digest

    about = written.about
    named = [f"{name} {digest(x)}" for name, x in sorted(written.results.items())]
    text = repr((about["operation"], about["type"], sorted(about["inputs"].items()), named))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


RUNS_ON = {
    "transformers": ("torch",),
    "liger-kernel": ("torch", "triton"),
    "fla-core": ("torch", "triton"),
    "sageattention": ("torch", "triton"),
    "nvidia-cudnn-frontend": ("torch", "nvidia-cudnn-cu13"),
    "jax": ("jaxlib",),
    "flax": ("jax", "jaxlib"),
    "tokamax": ("jax", "jaxlib"),
    "keras": ("jax", "jaxlib"),
    "mlx": ("mlx-cpu",),
}
"""By library, the other packages whose versions decide the bits of its kernels."""


def release_of(written: Written) -> Release:
    """Return the release that wrote a file, with the versions that decide its bits."""
    about = written.about
    given = {name: about[name] for name in Release.__slots__ if name in about}
    failed = bool(about["failed"])
    names = (about["library"], *RUNS_ON.get(about["library"], ()))
    given |= {
        "again": None if failed else bool(about.get("again")),
        "versions": {name: about["versions"][name] for name in names if name in about["versions"]},
    }
    return Release(**given, bits="" if failed else bits_of(written))


def write(path: Path, record: Record) -> None:
    """Write a record, whole or not at all."""
    order = sorted(record.releases, key=lambda r: (r.kernel, r.type, r.device, numbered(r.version)))
    data = {
        "schema": {"name": NAME, "version": VERSION},
        "versions": dict(record.versions),
        "releases": [asdict(release) for release in order],
        "bits": {name: asdict(record.bits[name]) for name in sorted(record.bits)},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, data)


def numbered(version: str) -> tuple[Any, ...]:
    """Return the numbers of a version, by which releases are in order.

    Example:
        >>> numbered("0.10.2") > numbered("0.9.1"), numbered("2.13.0+cpu")[:2]
        (True, (2, 13))
    """
    parts = version.partition("+")[0].replace("-", ".").split(".")
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def read(path: Path) -> Record:
    """Return a record.

    Raises:
        UsageError: There is no such file.
        StorageError: It is damaged, or was written by a later release of Roundscope.
    """
    if not path.is_file():
        raise bad("--compare", str(path), "no such file; give one that --record wrote")
    text = read_whole(path)
    _check_schema(path, text)
    data = json_of(path, "the record", text, SHAPE)
    releases = tuple(
        Release(**{name: each[name] for name in Release.__slots__}) for each in data["releases"]
    )
    bits = {name: _judged(each) for name, each in data["bits"].items()}
    if unknown := {r.bits for r in releases} - {*bits, ""}:
        raise StorageError(f"{path}: nothing is said of the bits {min(unknown)}; restore the file")
    versions = {str(name): str(text) for name, text in data.get("versions", {}).items()}
    return Record(releases=releases, bits=bits, versions=versions)


def _check_schema(path: Path, text: bytes) -> None:
    """Raise StorageError for another kind of file, and for a later schema."""
    try:
        data = parsed(text)
    except ValueError:
        return  # which is told with the shape
    schema = data.get("schema") if isinstance(data, dict) else None
    name, version = (
        schema.get(n) if isinstance(schema, dict) else None for n in ("name", "version")
    )
    if name != NAME:
        raise StorageError(f"{path}: is no passport of kernels; give what --record wrote")
    if isinstance(version, int) and version > VERSION:
        raise StorageError(
            f"{path}: was written by a later release of Roundscope (schema {version}; this one"
            f" reads up to {VERSION}): install that release, or record again with this one"
        )


def _judged(data: Mapping[str, Any]) -> Judged:
    results = {}
    for name, each in data["results"].items():
        known: dict[str, Any] = {n: each[n] for n in Result.__slots__}
        results[name] = Result(**known | {n: _number(each[n]) for n in _NUMBERS})
    twin = data["twin"]
    if twin is not None:
        equal = {name: _number(x) for name, x in twin["equal"].items()}
        twin = Twin(**{n: twin[n] for n in Twin.__slots__} | {"equal": equal})
    return Judged(
        operation=data["operation"],
        type=data["type"],
        results=results,
        drift=_number(data["drift"]),
        twin=twin,
    )


def _number(x: float | str | None) -> float:
    return math.nan if x is None else float(x)


def merged(records: Iterable[Record]) -> Record:
    """Return the releases of several records in one; of the same release, that of the last."""
    whole = Record()
    for record in records:
        for release in record.releases:
            whole = whole.with_release(release, record.bits.get(release.bits))
    return whole

"""Hostile files of tensors, and every command that reads one.

A command refuses, in one line that names the file, a tensor or an entry of the metadata, and the
repair, and leaves nothing behind; or reads. What no command may read is marked.
"""

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from roundscope.tools.sweep.conditions import inputs
from roundscope.tools.tensors.files import TYPES
from tests.checks.hostile.results import POOL
from tests.checks.hostile.scene import run, scene, tidy
from tests.checks.hostile.verdict import ALL, Asked, Verdict, fault_of_message

NAME = "h.safetensors"
READ, REFUSED, EITHER = "read", "refused", ""
TRACE = "trace {} --no-budget --out new"
OTHERS = (
    "identify {} --budget 9",
    "check {} --budget 9 --out new",
    "diagnose {} --out new",
    "sweep input={} --out new.sqlite --executor threads:pool",
)
TEXTS = {
    "empty": "",
    "space": " ",
    "word": "x",
    "nan": "nan",
    "inf": "inf",
    "minus": "-1",
    "zero": "0",
    "huge": "1e400",
    "digits": "9" * 5000,
    "2^63": str(1 << 63),
    "half": "1.5",
    "list": "[1, 2]",
    "null": "null",
    "True": "True",
    "hex": "0x10",
    "underscore": "1_000",
    "arabic": "\u0661\u0666",
    "superscript": "\u00b2",
    "escape": "\x1b]0;title\x07",
    "lines": "a\nb\x00c",
    "bidi": "\u202e1",
    "long": "y" * 100_000,
}
KEYS = (
    "layout", "scale", "is_causal", "alignment", "window", "softcap", "dropout", "step",
    "implementation", "notes", "source", "name", "format", "q.scale", "k.scale", "scale_layout",
)  # fmt: skip
FREE = ("step", "implementation", "notes", "source", "name", "format")  # any text is one of these
SHOWN = ("escape", "lines", "bidi", "long")
ROLES = ("q", "k", "v", "do", "out", "dq", "dk", "dv", "mask", "sinks", "lse")


class Case(NamedTuple):
    """A file: its name, what is in it, and what a command should do with it."""

    name: str
    made: Callable[[Path], None]
    wanted: str = EITHER


def good(T: int = 16, N: int = 2, G: int = 2, H: int = 16, S: int | None = None) -> dict[str, Any]:
    """Return small tensors in layout BNTH, all of which attention has."""
    random = np.random.default_rng(1)

    def draw(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    S = T if S is None else S
    of_q, of_k = (1, N, T, H), (1, G, S, H)
    found = {n: draw(*of_q) for n in ("q", "do", "out", "dq")}
    return found | {n: draw(*of_k) for n in ("k", "v", "dk", "dv")}


META = {"layout": "BNTH", "is_causal": "false"}


def stored(
    tensors: dict[str, Any], meta: Any = META, head: Callable[[dict[str, Any]], Any] | None = None
) -> bytes:
    """Return the bytes of a safetensors file; head changes its header."""
    header: dict[str, Any] = {} if meta is None else {"__metadata__": meta}
    body = b""
    for name, x in tensors.items():
        kind = next(n for n, t in TYPES.items() if np.dtype(t) == x.dtype)
        data = x.tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(x.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    found = header if head is None else head(header)
    text = found if isinstance(found, bytes) else json.dumps(found).encode()
    return struct.pack("<Q", len(text)) + text + body


def _file(content: bytes) -> Callable[[Path], None]:
    return lambda path: _kept(path.write_bytes(content))


def _kept(_: Any) -> None:
    return None


def _st(name: str, wanted: str = EITHER, meta: Any = META, **tensors: Any) -> Case:
    """Return the good file with some tensors in the place of its own; None: without it."""
    found = {n: x for n, x in (good() | tensors).items() if x is not None}
    return Case(name, _file(stored(found, meta)), wanted)


def cases() -> Iterator[Case]:
    """Yield every file."""
    yield _st("good", READ)
    for part in (_types, _texts, _calls, _shapes, _names, _headers, _archives, _places, _values):
        yield from part()


def _types() -> Iterator[Case]:
    whole = good()
    for kind, role in product(TYPES.values(), ("k", "do", "out", "mask", "sinks")):
        shape = {"mask": (1, 1, 16, 16), "sinks": (2,)}.get(role, whole["q"].shape)
        bits = np.ones(np.prod(shape) * np.dtype(kind).itemsize, np.uint8)
        x = bits.view(kind).reshape(shape)
        yield _st(f"{role} of {np.dtype(kind)}", **{role: x})
    for kind in (np.float64, np.float16, ml_dtypes.bfloat16):
        yield _st(f"all {np.dtype(kind)}", READ, **{n: x.astype(kind) for n, x in whole.items()})
    mixed = {"q": np.float64, "k": np.float16, "v": ml_dtypes.bfloat16, "do": np.float32}
    yield _st("mixed types", **{n: whole[n].astype(t) for n, t in mixed.items()})


def _texts() -> Iterator[Case]:
    for key, (name, text) in product(KEYS, TEXTS.items()):
        if key in FREE and name not in SHOWN:
            continue
        yield _st(f"{key}: {name}", meta=META | {key: text})
    for key, name in product(("scale", "window", "softcap"), ("nan", "inf", "huge", "word")):
        yield _st(f"{key} is {name}", REFUSED, meta=META | {key: TEXTS[name]})
    for name, odd in (("list", []), ("number", 3), ("null", None), ("nested", {"layout": {}})):
        yield _st(f"metadata {name}", meta=odd)
    yield _st("10,000 entries", READ, meta=META | {f"a{i}": "b" for i in range(10_000)})


def _calls() -> Iterator[Case]:
    asked: dict[str, dict[str, str]] = {
        "window without causal": {"window": "4"},
        "window 0": {"window": "0", "is_causal": "true"},
        "window longer than all": {"window": "1000", "is_causal": "true"},
        "softcap tiny": {"softcap": "1e-45"},
        "softcap and scale 0": {"softcap": "5", "scale": "0"},
        "scale tiny": {"scale": "1e-320"},
        "scale negative": {"scale": "-0.25"},
        "alignment of full": {"alignment": "bottom-right"},
        "dropout 1": {"dropout": "1"},
        "layer and file": {"scale": "0.25", "q.scale": "0.5", "layers.0.scale": "3"},
    }
    for name, meta in asked.items():
        yield _st(name, meta=META | meta)
    for T, S in ((16, 8), (8, 16), (1, 16), (16, 1)):
        for causal, alignment in product(("true", "false"), ("top-left", "bottom-right")):
            meta = META | {"is_causal": causal, "alignment": alignment}
            content = stored(good(T, S=S), meta)
            yield Case(f"{T} queries, {S} keys, {causal}, {alignment}", _file(content))


def _shapes() -> Iterator[Case]:
    whole = good()
    for name in whole:
        x = whole[name]
        odd = {
            "wider": np.concatenate([x, x], -1),
            "longer": np.concatenate([x, x], 2),
            "of more heads": np.concatenate([x, x, x], 1),
            "of more entries": np.concatenate([x, x]),
            "of 3 axes": x[0],
            "of 5 axes": x[None],
            "of 6 axes": x[None, None],
            "of 1 axis": x.ravel(),
            "a number": x.ravel()[0].reshape(()),
            "empty": x[:, :, :0],
            "without features": x[..., :0],
            "without heads": x[:, :0],
            "missing": None,
        }
        for said, value in odd.items():
            yield _st(f"{name} {said}", **{name: value})
    for shape in ((16, 16), (1, 16), (2, 16, 16), (1, 3, 16, 16), (2, 1, 16, 16), (1, 1, 16, 17),
                  (0,), (), (1, 1, 1, 1), (1, 1, 16, 1), (1, 1, 1, 16)):  # fmt: skip
        yield _st(f"mask {shape}", mask=np.ones(shape, bool))
    yield _st("mask closes all", mask=np.zeros((1, 1, 16, 16), bool))
    yield _st("mask of 2 and 3", mask=np.full((1, 1, 16, 16), 2, np.uint8))
    for shape in ((), (1,), (3,), (2, 1), (1, 2), (0,)):
        yield _st(f"sinks {shape}", sinks=np.zeros(shape, np.float32))
    for N, G in ((6, 4), (2, 3), (4, 2), (4, 1)):
        wanted = READ if N % G == 0 else REFUSED
        yield Case(f"{N} heads of {G} key heads", _file(stored(good(N=N, G=G), META)), wanted)
    yield Case("one token", _file(stored(good(1, 1, 1, 1), META)))
    yield _st("no layout", meta={})
    square = good(2, 2, 2, 2)
    yield Case("any layout", _file(stored(square, {})))


def _names() -> Iterator[Case]:
    whole = good()
    odd = {
        "collide": ("a/b", "a-b"),
        "collide in case": ("A", "a"),
        "unicode forms": ("caf\u00e9", "cafe\u0301"),
        "dots": ("..", "..."),
        "above": ("../../x", "/x"),
        "escapes": ("\x1b[2J", "\x1b]0;t\x07"),
        "NUL": ("a\0b", "a"),
        "lines": ("a\nroundscope: all is well", "b"),
        "long": ("n" * 300, "n" * 301),
        "spaces": (" ", "  "),
        "bidi": ("\u202eevil", "x"),
        "markup": ("[bold]x[/bold]", "<script>alert(1)</script>"),
        "formula": ("=1+1", "@x"),
        "dollars": (r"$\frac{$", "$x"),
        "windows": ("CON", "aux.txt"),
        "layers": ("layers.1", "layers.01"),
        "layers and steps": ("step.0.layers.0", "layers.0"),
        "numbers": ("layers.99999999999999999999", "layers.-1"),
        "emoji": ("\U0001f52c", "\U0001f52c\ufe0f"),
        "surrogate": ("\ud800", "x"),
    }
    for name, pair in odd.items():
        tensors = {f"{own}.{n}": whole[n] for own in pair for n in ("q", "k", "v", "out")}
        yield Case(f"names: {name}", _file(stored(tensors, META)))
    extra = {f"{n}{tail}": whole[n] for n in "qkv" for tail in ("", ".weight", "_proj")}
    yield Case("names: of weights too", _file(stored(extra, META)))
    upper = {n.upper(): whole[n] for n in "qkv"}
    yield Case("names: in capitals", _file(stored(upper, META)), REFUSED)
    many = {f"layers.{i}.{n}": whole[n][:, :1, :1, :1] for i in range(300) for n in "qkv"}
    yield Case("names: 300 layers", _file(stored(many, META)))


def _headers() -> Iterator[Case]:
    whole = good()

    def header(name: str, change: Callable[[dict[str, Any]], Any], wanted: str = REFUSED) -> Case:
        return Case(f"header: {name}", _file(stored(whole, META, change)), wanted)

    def with_(role: str, **entries: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda head: head | {role: head[role] | entries}

    yield header("offsets swapped", with_("q", data_offsets=[2048, 0]))
    yield header("offsets of three", with_("q", data_offsets=[0, 1024, 2048]))
    yield header("offsets as text", with_("q", data_offsets=["0", "2048"]))
    yield header("offsets null", with_("k", data_offsets=None))
    yield header("offsets huge", with_("k", data_offsets=[0, 1 << 70]))
    yield header("offsets overlap", with_("k", data_offsets=[1024, 3072]))
    yield header("a gap", with_("q", shape=[1, 2, 8, 16], data_offsets=[0, 1024]))
    yield header("shape as text", with_("q", shape="1,2,16,16"))
    yield header("shape null", with_("q", shape=None))
    yield header("shape of bools", with_("q", shape=[True, 2, 16, 16]))
    yield header("shape product wraps", with_("q", shape=[1 << 32, 1 << 32, 1, 1]))
    yield header("type in small letters", with_("q", dtype="f32"))
    yield header("type null", with_("q", dtype=None))
    yield header("an entry more", with_("q", device="cuda"), EITHER)
    yield header("a tensor null", lambda head: head | {"q": None})
    yield header("a tensor list", lambda head: head | {"q": []})
    yield header("a list", lambda head: [head])
    yield header("a text", lambda head: "x")
    yield header("NaN", lambda head: json.dumps(head).replace("16", "NaN", 1).encode())
    yield header("deep", lambda head: b"[" * 200_000)
    yield header("deep objects", lambda head: b'{"a":' * 200_000)
    yield header("UTF-16", lambda head: json.dumps(head).encode("utf-16"))
    yield header("a BOM", lambda head: json.dumps(head).encode("utf-8-sig"))
    yield header("cut", lambda head: json.dumps(head).encode()[:-9])
    yield header("ends in NULs", lambda head: json.dumps(head).encode() + b"\0" * 8)
    yield header("ends in spaces", lambda head: json.dumps(head).encode() + b" " * 8, READ)
    again = b'{"__metadata__":{},'
    yield header("twice metadata", lambda head: again + json.dumps(head)[1:].encode(), EITHER)
    content = stored(whole)
    yield Case("header: bytes behind", _file(content + b"\0" * 7), REFUSED)
    yield Case("header: size 0", _file(bytes(8) + content[8:]), REFUSED)
    for cut in (1, 9, 100, len(content) // 2, len(content) - 1):
        yield Case(f"header: cut at {cut}", _file(content[:cut]), REFUSED)


def _npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def _npy(head: str, version: bytes = b"\x01\x00", body: bytes = b"") -> bytes:
    text = head.encode()
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + size + text + body


def _zipped(changes: dict[str, bytes], **options: Any) -> bytes:
    stream = io.BytesIO()
    entries = {}
    for name, x in good().items():
        each = io.BytesIO()
        np.lib.format.write_array(each, x)
        entries[f"{name}.npy"] = each.getvalue()
    with zipfile.ZipFile(stream, "w", **options) as file:
        for name, content in (entries | changes).items():
            file.writestr(name, content)
    return stream.getvalue()


def _archives() -> Iterator[Case]:
    whole = good()

    def npz(name: str, content: bytes, wanted: str = EITHER) -> Case:
        return Case(f"npz: {name}", _file(content), wanted)

    told = {n: np.array(t) for n, t in META.items()}
    yield npz("good", _npz(**whole, **told), READ)
    yield npz("objects", _npz(**(whole | {"q": np.array([{}, []], object)}), **told), REFUSED)
    yield npz("records", _npz(**(whole | {"q": np.zeros(16, "f4,i4")}), **told), REFUSED)
    yield npz("texts", _npz(**(whole | {"q": np.full((1, 2, 16, 16), "a")}), **told), REFUSED)
    yield npz("dates", _npz(**(whole | {"q": np.zeros((1, 2, 16, 16), "M8[s]")}), **told), REFUSED)
    yield npz("long doubles", _npz(**(whole | {"q": whole["q"].astype("g")}), **told))
    yield npz("big-endian", _npz(**{n: x.astype(">f4") for n, x in whole.items()}, **told), READ)
    yield npz("Fortran", _npz(**{n: np.asfortranarray(x) for n, x in whole.items()}, **told), READ)
    yield npz("layout a list", _npz(**whole, layout=np.array(["BNTH", "BTNH"])), REFUSED)
    yield npz("scale a matrix", _npz(**whole, **told, scale=np.ones((2, 2))))
    yield npz("scale bytes", _npz(**whole, **told, scale=np.array(b"\xff\xfe")))
    yield npz("an unknown type", _npz(**whole, **told, **{"q.dtype": np.array("float3")}))
    bomb = _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 16000, 16000), }\n",
                body=bytes(1 << 26))  # fmt: skip
    yield npz("a bomb", _zipped({"q.npy": bomb}, compression=zipfile.ZIP_DEFLATED), REFUSED)
    heads = {
        "code": "__import__('os').system('touch ran')",
        "a sum": "{'descr': '<f4', 'fortran_order': False, 'shape': (1+1,), }",
        "negative": "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2), }",
        "deep": "(" * 5000,
        "object": "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "keys": "{'descr': '<f4'}",
        "empty": "",
    }
    for name, head in heads.items():
        yield npz(f"head {name}", _zipped({"q.npy": _npy(head + "\n")}), REFUSED)
    for version in (b"\x02\x00", b"\x03\x00", b"\x09\x09"):
        head = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 16, 16), }\n"
        body = whole["q"].tobytes()
        yield npz(f"version {version[0]}", _zipped({"q.npy": _npy(head, version, body)}))
    yield npz("a folder inside", _zipped({"x/": b""}))
    yield npz("a path above", _zipped({"../../q.npy": b"x"}))
    yield npz("an entry of text", _zipped({"notes.txt": b"hello"}))
    yield npz("torch", _zipped({"archive/data.pkl": b"\x80\x02."}), REFUSED)
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield npz(f"method {method}", _zipped({}, compression=method))
    content = _zipped({})
    yield npz("a bad sum", content.replace(whole["q"].tobytes()[:64], bytes(64)), REFUSED)
    yield npz("cut", content[: len(content) // 2], REFUSED)
    yield npz("without end", content[:-10], REFUSED)
    yield npz("before it", b"x" * 100 + content, REFUSED)
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    yield npz("empty", empty.getvalue(), REFUSED)


def _places() -> Iterator[Case]:
    content = stored(good())

    def link(to: str) -> Callable[[Path], None]:
        return lambda path: path.symlink_to(to)

    def linked(path: Path) -> None:
        path.with_name("real.bin").write_bytes(content)
        path.symlink_to("real.bin")

    yield Case("place: a folder", lambda path: path.mkdir(), REFUSED)
    yield Case("place: a pipe", lambda path: os.mkfifo(path), REFUSED)
    yield Case("place: a link", linked, READ)
    yield Case("place: a link to nothing", link("nothing"), REFUSED)
    yield Case("place: a link to itself", link(NAME), REFUSED)
    yield Case("place: a link to zeros", link("/dev/zero"), REFUSED)
    yield Case("place: a link to the folder", link("."), REFUSED)
    yield Case("place: empty", _file(b""), REFUSED)
    foreign = {
        "gzip": b"\x1f\x8b",
        "pickle": b"\x80\x04",
        "hdf5": b"\x89HDF\r\n\x1a\n",
        "png": b"\x89PNG",
        "npy": b"\x93NUMPY\x01\x00",
        "GGUF": b"GGUF\x03",
        "JSON": b'{"q": [1, 2]}',
        "sqlite": b"SQLite format 3\0",
    }
    for name, magic in foreign.items():
        yield Case(f"place: {name}", _file(magic + bytes(300)), REFUSED)


def _values() -> Iterator[Case]:
    whole = good()
    payload = np.full(whole["q"].shape, 0x7FC12345, np.uint32).view(np.float32)
    for role in whole:
        yield _st(f"{role} NaN with payload", **{role: payload})
        one = whole[role].copy()
        one[0, 0, -1, -1] = np.inf
        yield _st(f"{role} with one infinity", **{role: one})
        yield _st(f"{role} zeros", **{role: np.zeros_like(one)})
    for kind, code in ((ml_dtypes.float8_e4m3fn, 0x7F), (ml_dtypes.float8_e5m2, 0x7D)):
        bits = np.full(whole["q"].shape, code, np.uint8).view(kind)
        yield _st(f"{np.dtype(kind)} NaN", **dict.fromkeys("qkv", bits))
    words = np.full(whole["q"].shape, 0xFFC1, np.uint16).view(ml_dtypes.bfloat16)
    yield _st("bfloat16 NaN", **dict.fromkeys("qkv", words))
    tiny = np.full(whole["q"].shape, 1e-45, np.float32)
    yield _st("subnormal", **dict.fromkeys("qkv", tiny))
    yield _st("constant", **dict.fromkeys(("q", "k", "v", "do"), np.ones_like(tiny)))
    large = whole["q"].astype(np.float64) * 1e300
    yield _st("beyond float32", **dict.fromkeys("qkv", large))


def verdicts(asked: Asked = ALL) -> Iterator[Verdict]:
    """Yield a verdict for each file, of `trace` and of one of the other commands."""
    with scene() as folder:
        (folder / "threads.py").write_text(POOL)
        kept = {path.name for path in folder.iterdir()} | {"__pycache__"}
        for number, case in enumerate(cases()):
            named = case.name.startswith("names")
            for line in (f"{TRACE} --png" if named else TRACE, OTHERS[number % len(OTHERS)]):
                name = f"{case.name}: {line.split()[0]}"
                if name in asked:
                    case.made(folder / NAME)
                    yield _judged(name, case, line, folder, kept)


def _forget() -> None:
    """Forget what a sweep has read: in a process of its own no file changes meanwhile."""
    for function in vars(inputs).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _judged(name: str, case: Case, line: str, folder: Path, kept: set[str]) -> Verdict:
    _forget()
    answer = run(line.format(NAME).split(), 60.0)
    text = f"{answer.code} {answer.err.strip()[:400]}"
    made = {path.name for path in folder.iterdir()} - kept - {NAME, "real.bin"}
    outside = tidy(folder, kept)
    verb = line.split()[0]
    fault = ""
    if answer.code is None:
        fault = "slow"
    elif answer.code not in (0, 1, 2):
        fault = f"code {answer.code}"
    elif outside:
        fault = "written elsewhere"
    elif any(c in answer.out + answer.err for c in "\x1b\x07\x00"):
        fault = "control characters"
    elif answer.code == 2:
        fault = fault_of_message(answer.err, "h.safetensors", *ROLES, *KEYS, "FILE", "layer")
        if not fault and made:
            fault = "left behind"
        if case.wanted == READ and verb == "trace":
            fault = fault or "refused"
    elif case.wanted == REFUSED and not (answer.code == 1 and verb == "sweep"):
        fault = "accepted"
    if answer.code in (0, 1) and not fault:
        fault = fault_of_message(answer.err)
        text = f"0 {text}"
    return Verdict(name, fault, text)

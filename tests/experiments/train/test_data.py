"""Tokens: the same batch for the same (data, seed, step), always."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from roundscope.experiments.train.gpt import data
from roundscope.tools.errors import UsageError


def config(**changes):
    return SimpleNamespace(
        **({"data": "repeat", "data_seed": 0, "batch": 4, "context": 32, "vocab": 256} | changes)
    )


@pytest.fixture
def counted(tmp_path):
    """nanoGPT's files, token i at place i."""
    np.arange(500, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(500, 560, dtype="<u2").tofile(tmp_path / "val.bin")
    return tmp_path


def test_files_are_read_in_place(counted):
    """Rows that are not consecutive tokens, leave the file's range, or never reach its ends."""
    found = data.batches(config(data=str(counted), vocab=1000, batch=64))
    first = set()
    for step in range(100):
        tokens = found.batch(step)
        assert tokens.shape == (64, 33) and tokens.dtype == np.int32
        assert (np.diff(tokens) == 1).all() and tokens.max() < 500
        first |= set(tokens[:, 0].tolist())
    assert min(first) == 0 and max(first) == 500 - 33
    assert found.val(3).min() >= 500


@pytest.mark.parametrize("name", ["repeat", "sink"])
def test_a_batch_depends_on_seed_and_step_alone(name):
    """State that is carried from batch to batch: a resumed run, or a second arm, would see
    others.
    """
    one, two = data.batches(config(data=name)), data.batches(config(data=name))
    forwards = [one.batch(step) for step in range(5)]
    backwards = [two.batch(step) for step in reversed(range(5))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    others = [one.batch(5), one.val(0), data.batches(config(data=name, data_seed=1)).batch(0)]
    assert not any(np.array_equal(forwards[0], other) for other in others)


def test_the_random_bits_are_pinned(counted):
    """Another generator, or another use of it: recorded runs would no longer replay.

    Philox4x64-10 of key (0, 2 step + part), modulo.
    """
    found = data.batches(config(data=str(counted), vocab=1000))
    raw = np.random.Philox(key=np.array([0, 14], np.uint64)).random_raw(4)
    assert found.batch(7)[:, 0].tolist() == [int(r) % 468 for r in raw] == [461, 354, 186, 103]


def test_repeat_repeats():
    """Runs longer than 16, or no runs: then nothing would bring out several equal maxima."""
    tokens = data.batches(config(batch=64, context=127)).batch(0)
    same = (np.diff(tokens) == 0).mean()
    assert 0.83 < same < 0.93  # runs of mean length 8.5
    changes = [np.flatnonzero(np.diff(row)) for row in tokens]
    assert (
        max(int(np.diff(c).max()) for c in changes) <= 2 * 16
    )  # two neighbours may be equal by chance


def test_sink_has_a_sink():
    """A stream whose first token is not the sink, or in which it is rare, or that has nothing to
    learn.
    """
    tokens = data.batches(config(data="sink", batch=64, context=127)).batch(0)
    assert (tokens[:, 0] == 0).all()
    assert 0.2 < (tokens[:, 1:] == 0).mean() < 0.35
    follows = tokens[:, 1:] == (5 * tokens[:, :-1] + 7) % 256
    assert 0.4 < follows.mean() < 0.75


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": "stdlibb"}, ["stdlibb", "did you mean 'stdlib'"]),
        ({"data": "DIR", "vocab": 300}, ["vocab 300", "vocab="]),
        ({"data": "DIR", "context": 500, "vocab": 999}, ["train.bin", "bytes"]),
        ({"data": "EMPTY"}, ["has no train.bin", "roundscope prepare"]),
    ],
)
def test_errors_name_value_and_repair(counted, changes, words):
    """A wrong number of tokens, or missing data, found out deep inside JAX."""
    (counted / "empty").mkdir()
    places = {"DIR": str(counted), "EMPTY": str(counted / "empty")}
    with pytest.raises(UsageError) as error:
        data.batches(
            config(**(changes | {"data": places.get(changes["data"], changes["data"])}))
        ).batch(0)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_prepare_writes_bytes(tmp_path, capsys):
    """Documents out of order, lost bytes, binary files, or overwritten data."""
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "b.txt").write_bytes(b"second")
    (tmp_path / "in" / "a.txt").write_bytes("first é ".encode())
    (tmp_path / "in" / "sub" / "c.txt").write_bytes(b"third")
    (tmp_path / "in" / "image").write_bytes(b"\x00\x01")
    (tmp_path / "in" / ".hidden").write_bytes(b"no")
    data.prepare([tmp_path / "in"], tmp_path / "out", as_json=True)
    told = json.loads(capsys.readouterr().out)
    text = "first é secondthird".encode()
    train, val = (np.fromfile(tmp_path / "out" / name, "<u2") for name in ("train.bin", "val.bin"))
    assert (
        bytes(np.concatenate([train, val]).astype(np.uint8)) == text and val.size == len(text) // 10
    )
    assert told["train"] == train.size and len(told["skipped"]) == 1 and told["vocab"] == 256
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "meta.json",
        "train.bin",
        "val.bin",
    ]
    data.prepare([tmp_path / "in"], tmp_path / "out", as_json=True)  # as after a kill at the end
    assert json.loads(capsys.readouterr().out) == told
    with pytest.raises(UsageError, match="other data"):
        data.prepare([tmp_path / "in" / "a.txt"], tmp_path / "out", as_json=True)
    (tmp_path / "out" / "val.bin").unlink()
    with pytest.raises(UsageError, match="other data"):
        data.prepare([tmp_path / "in"], tmp_path / "out", as_json=True)
    with pytest.raises(UsageError, match="no text"):
        data.prepare([tmp_path / "in" / "image"], tmp_path / "other", as_json=True)


def test_stdlib_is_made_once(tmp_path, monkeypatch):
    """A corpus that changes with the file system's order, takes in tests or installed packages, or
    is made at every start.
    """
    root = tmp_path / "lib"
    for name, text in {
        "z.py": "z" * 60,
        "a.py": "a" * 60,
        "test/t.py": "t",
        "site-packages/p.py": "p",
        "m/__init__.py": "m" * 60,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(data.sysconfig, "get_paths", lambda: {"stdlib": str(root)})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = data.stdlib()
    tokens = np.concatenate(
        [np.fromfile(folder / name, "<u2") for name in ("train.bin", "val.bin")]
    )
    assert bytes(tokens.astype(np.uint8)) == b"a" * 60 + b"m" * 60 + b"z" * 60
    written = (folder / "train.bin").stat().st_mtime_ns
    assert data.stdlib() == folder and (folder / "train.bin").stat().st_mtime_ns == written
    (folder / "train.bin").write_bytes(b"a\0" * 8)
    assert data.stdlib() == folder and (folder / "train.bin").stat().st_size > 100
    (root / "z.py").write_text("longer than before" * 9)
    assert data.stdlib() != folder
    (nothing := tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(nothing))
    assert (data.stdlib() / "train.bin").is_file()  # and is removed at the process's end

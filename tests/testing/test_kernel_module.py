"""`pytest --pyargs roundscope.testing.attention`: what it says of good and of faulty kernels."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from roundscope.attention.testing.edges import edge_names
from roundscope.attention.testing.families import FAMILIES
from tests.testing.processes import MODULE, pytest_in

KERNELS = """
import numpy as np

def exact(q, k, v, *, scale, is_causal, mask=None):
    share = q.shape[2] // k.shape[2]
    s = scale * np.einsum("btnh,bsnh->bnts", q, k.repeat(share, 2), dtype=np.float64)
    sees = np.ones(s.shape[2:], bool) if mask is None else mask
    if is_causal:
        sees = sees & np.tri(*s.shape[2:], dtype=bool)
    s = np.where(sees, s, -np.inf)
    m = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(m), 0.0, m))
    p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
    return np.einsum("bnts,bsnh->btnh", p, v.repeat(share, 2)).astype(np.float32)

def faulty(q, k, v, *, scale, is_causal):
    if q.shape[2] == 1:
        raise NotImplementedError("one head")
    out = exact(np.nan_to_num(q), k, v, scale=scale, is_causal=False)
    return out if len(q) > 1 else np.nextafter(out, np.float32(0))

def without_gpu(q, k, v, *, scale, is_causal):
    raise RuntimeError("No CUDA GPUs are available")

def broken(q, k, v, *, scale, is_causal):
    raise KeyError("tile")
"""
ASKED = ("--pyargs", MODULE, "--claims", "fa2-bf16", "--kernel-features", "8")
FEW = "gaussian or token or entry or NaN or infinity or mask or alone or second"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that has kernels, and settings under which every warning is an error."""
    folder: Path = tmp_path_factory.mktemp("project")
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    )
    return folder


def outcomes(folder: Path, *words: str, **options: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return the outcome and its reason of each test, by the test's name."""
    done: subprocess.CompletedProcess[str] = pytest_in(
        folder, *ASKED, *words, "--junitxml", "report.xml", **options
    )
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), done.stderr
    found = {}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        ends = {
            "skipped" if end.tag == "skipped" else "failed": end.get("message", "")
            for end in case
            if end.tag in ("skipped", "failure", "error")
        }
        notes = [n.get("value", "") for n in case.iter("property")]
        (end,) = ends.items() or [("noted" if notes else "passed", "".join(notes))]
        found[case.get("name", "")] = end
    printed = [note for word, note in found.values() if word == "noted"]
    assert all(note in done.stdout for note in printed)
    return found


def test_a_good_kernel_passes_with_notes(project):
    """A test that fails a kernel that is more exact than its plan, or a note that is lost."""
    found = outcomes(project, "--kernel", "kernels:exact", "-k", FEW)
    assert not {name: end for name, end in found.items() if end[0] == "failed"}
    skipped = {name: reason for name, (word, reason) in found.items() if word == "skipped"}
    assert skipped == {
        f"test_as_good_as_the_plan[gaussian-{call}-gradients]": "The kernel has no gradients."
        for call in ("full", "causal")
    }
    assert found["test_as_good_as_the_plan[gaussian-causal-forward]"][0] == "passed"
    assert found["test_edges[a mask, causal]"][0] == "passed"
    word, note = found["test_edges[infinity in a value, causal]"]
    assert word == "noted" and "earlier rows" in note


def test_a_faulty_kernel_fails_where_it_is_wrong_and_nowhere_else(project):
    """A question that is never asked, or whose answer ends in another test."""
    found = outcomes(project, "--kernel", "kernels:faulty", "-k", FEW)
    word, reason = found["test_as_good_as_the_plan[gaussian-causal-forward]"]
    assert word == "failed" and "out: the relative rms error is" in reason
    assert found["test_as_good_as_the_plan[gaussian-full-forward]"][0] == "passed"
    assert found["test_edges[NaN in a query, full]"][0] == "failed"
    assert found["test_edges[one token, full]"][0] == "passed"
    assert found["test_same_results[a second call, causal]"][0] == "passed"
    word, note = found["test_same_results[an entry of the batch alone, full]"]
    assert word == "noted" and "of out, as exact as the plan" in note
    word, reason = found["test_edges[one entry and one head, full]"]
    assert word == "skipped" and "(NotImplementedError at kernels.py:18: one head)" in reason
    assert found["test_edges[a mask, full]"] == ("skipped", "The kernel takes no mask.")


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("kernels:without_gpu", "kernel: needs a GPU, and none is found here"),
        ("fa4", "kernel: needs flash_attn, which is not installed here"),
        ("sdpa-flash", "on a CPU is another kernel than its plan's, which needs a GPU"),
    ],
)
def test_a_kernel_that_cannot_run_here_is_skipped_with_a_sentence(project, kernel, reason):
    """A red CI without a GPU, or a skip that gives another reason; a name that check takes."""
    found = outcomes(project, "--kernel", kernel, "-k", "gaussian-causal or second or token")
    assert found and {word for word, _ in found.values()} == {"skipped"}
    assert all(reason in why for _, why in found.values()), found


def test_a_kernel_that_always_raises_has_failed(project):
    """ "The kernel has no gradients" of a kernel that returns nothing at all."""
    found = outcomes(project, "--kernel", "kernels:broken", "-k", "gaussian-causal")
    assert {word for word, _ in found.values()} == {"failed"}
    assert all("KeyError at kernels.py" in why for _, why in found.values())


def test_workers_of_xdist_know_the_kernel(project):
    """Options that only the main process has."""
    found = outcomes(
        project,
        "--kernel",
        "kernels:exact",
        "-k",
        "token",
        "-n2",
        plugins=("roundscope.testing.plugin", "xdist"),
    )
    assert len(found) == 7 and {word for word, _ in found.values()} == {"passed"}


def test_every_question_has_a_readable_name(project):
    """A family or an edge that has no test."""
    done = pytest_in(project, *ASKED, "--kernel", "kernels:exact", "--collect-only", "-q")
    names = {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line}
    for family in FAMILIES:
        for call in ("full", "causal"):
            for results in ("forward", "gradients"):
                assert f"test_as_good_as_the_plan[{family}-{call}-{results}]" in names
    for call, is_causal in (("full", False), ("causal", True)):
        for edge in edge_names(is_causal):
            assert f"test_edges[{edge}, {call}]" in names
    kinds = ("a second call", "an entry of the batch alone", "the first 65 tokens alone")
    assert {f"test_same_results[{kind}, causal]" for kind in kinds} <= names


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "roundscope.testing.attention tests the kernel that --kernel names"),
        (("--kernel", "kernels:exacts"), "unknown function 'exacts'; did you mean 'exact'"),
        (("--kernel", "kernels:exact", "--claims", "fa2-bf17"), "did you mean 'fa2-bf16'"),
    ],
)
def test_a_call_without_a_kernel_says_how_to_call_it(project, words, expected):
    """A traceback, or a run in which every test fails for the same reason."""
    done = pytest_in(project, "--pyargs", MODULE, *words)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("ERROR: ") and expected in line

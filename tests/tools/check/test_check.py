"""`roundscope check`: its verdicts, its files, its exit codes, and what it refuses."""

import json
import math
import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.attention import Plan, examine
from roundscope.attention.testing.calls import Outputs
from roundscope.attention.testing.cases import Answer, Case, strict
from roundscope.attention.testing.comparison import Comparison, Finding, weigh
from roundscope.attention.testing.edges import edge_names
from roundscope.attention.testing.families import FAMILIES, draw
from roundscope.tools.check import report, run
from roundscope.tools.check.findings import Findings
from roundscope.tools.check.options import TESTS, CheckedCalls, CheckOptions
from roundscope.tools.check.run import OTHER, drawn, edge_cases, kinds
from roundscope.tools.identify.identify import Kind, identify
from roundscope.tools.report.html import page

HERE = "tests.tools.check.kernels_to_check"
SMALL = ("--tokens", "40", "--features", "16", "--causal")


@pytest.fixture
def check(roundscope, tmp_path):
    """Run the command on small calls; return its code, its text, and check.json."""

    def run(source, *more, claims="fa2-bf16"):
        out = tmp_path / "out"
        code, text, error = roundscope(
            "check", source, "--claims", claims, "--out", out, *SMALL, *more
        )
        record = out / "check.json"
        return code, text + error, json.loads(record.read_text()) if record.exists() else None

    return run


def answers(data, test):
    return {c["name"]: c["answer"] for c in data["cases"] if c["test"] == test}


def test_a_good_kernel_passes_every_test(check, tmp_path):
    """A good kernel that is failed, or a test of the five that does not run."""
    code, text, data = check(f"{HERE}:good", "--junit", tmp_path / "check.xml", "--budget", "0")
    assert code == 0 and data["passed"] and "is as good as fa2-bf16" in text
    assert {c["test"] for c in data["cases"]} == set(TESTS)
    assert not [c for c in data["cases"] if c["answer"] == "fail"]
    assert data["compared"]["heads"] >= 40 * 8
    html = (tmp_path / "out" / "report.html").read_text()
    assert data["sentence"] in re.sub("<[^>]*>", "", html) and "<svg " in html
    suite = ElementTree.parse(tmp_path / "check.xml").getroot().find("testsuite")
    assert int(suite.get("tests")) == len(data["cases"]) and suite.get("failures") == "0"


def test_the_output_alone_of_a_kernel_known_by_name():
    """--forward that judges gradients too, where a kernel is known by its name."""
    x = drawn(CheckOptions(source="sdpa-math", tokens=8, heads=1, batch=1), "ties, full", 0)
    for forward, names in ((True, {"out"}), (False, {"out", "dq", "dk", "dv"})):
        kernel = run.kernel_asked(CheckOptions(source="sdpa-math", forward=forward))
        assert {name for name, _ in kernel(x).named()} - {"lse"} == names


def test_a_short_output_is_a_bias(check, tmp_path):
    """A bias that a tolerance of one percent lets pass; an exit code of 0 for it."""
    junit = tmp_path / "check.xml"
    code, _, data = check(f"{HERE}:short", "--only", "envelope,bias", "--junit", junit)
    assert code == 1 and not data["passed"] and "it is biased" in data["sentence"]
    failed = [c for c in data["cases"] if c["answer"] == "fail" and c["test"] == "bias"]
    assert failed and all(c["name"].endswith(": out") for c in failed)
    assert any("too short" in c["sentence"] for c in failed)
    assert {c["answer"] for c in data["cases"] if not c["name"].endswith("out")} <= {"pass", "note"}
    failures = ElementTree.parse(junit).getroot().findall("testsuite/testcase/failure")
    assert len(failures) == sum(c["answer"] == "fail" for c in data["cases"])


def test_no_rounding_explains_a_wrong_mask(check):
    """A mistake in the code that is called a rounding."""
    code, _, data = check(f"{HERE}:masked_by_one", "--budget", "0")
    first = f"{HERE}:masked_by_one is not as good as fa2-bf16: the output is what attention with a"
    assert code == 1 and data["sentence"].startswith(f"{first} causal mask that hides")
    [bits] = [c for c in data["cases"] if c["test"] == "explanation"]
    assert bits["sentence"].startswith("On the shipped tensors (12 heads of 32 features, 256")
    assert "ended the draws" in data["notes"][-2]  # nothing is learned by the other inputs
    assert "only these edges" in data["notes"][-1] and len(answers(data, "edges")) == 6
    assert answers(data, "explanation") == {"the arithmetic of its bits": "fail"}
    assert "fail" in answers(data, "envelope").values()


def test_a_kernel_without_gradients_is_checked_by_its_output(check):
    """Gradients that are made up, or a kernel of inference that cannot be checked."""
    code, text, data = check(f"{HERE}:forward_only", "--only", "envelope,bias,invariance")
    assert code == 0 and "returns no gradients" in text
    assert set(data["compared"]["equal_bits"]) == {"out"}
    assert data["compared"]["equal_bits"]["out"] == 1.0


def test_sizes_that_a_kernel_does_not_take(check, roundscope):
    """A traceback, or a refusal that does not say what to do."""
    code, text, _ = check(f"{HERE}:picky")
    assert code == 1 and "tokens must be 128" in text and "--tokens" in text
    assert len(text.splitlines()) == 1
    code, text, data = check(
        f"{HERE}:picky", "--tokens", "128", "--only", "envelope,invariance,edges", "--draws", "1"
    )
    assert code == 0
    assert "It returns no gradients" in data["notes"][0]
    assert answers(data, "invariance")["the first 84 tokens alone"] == "not run"
    assert answers(data, "edges")["one token"] == "not run"


def test_strict_makes_other_bits_a_failure():
    """Other bits that pass where somebody asked for the same."""
    note = Case(test="a", name="a", answer=Answer.NOTE, sentence="Other bits.", is_strict=True)
    other = replace(note, is_strict=False)
    assert strict(note).answer is Answer.FAIL and strict(other) == other


def stored(tmp_path, change=lambda out: out, heads=40, layers=1):
    """Return a file of the calls of a good kernel, whose output is changed."""
    from tests.checks.mutants.reference import attention

    tensors = {}
    for layer in range(layers):
        asked = CheckOptions(source="", claims="fa2-bf16", tokens=40, features=16, seed=layer)
        x = drawn(replace(asked, batch=1, heads=heads), "gaussian, causal", 0)
        out, dq, dk, dv = attention(x.q, x.k, x.v, x.do, scale=x.scale, is_causal=True)
        arrays = {"q": x.q, "k": x.k, "v": x.v, "do": x.do, "dq": dq, "dk": dk, "dv": dv}
        arrays["out"] = change(out).astype(ml_dtypes.bfloat16)
        tensors |= {f"l{layer}.{n}": np.ascontiguousarray(a) for n, a in arrays.items()}
    path = tmp_path / "calls.safetensors"
    save_file(tensors, path, {"layout": "BTNH", "is_causal": "true"})
    return path


def test_a_file_of_a_kernels_results(roundscope, tmp_path):
    """A file that is not read whole, or a bias in it that is not seen."""
    options = ("--claims", "fa2-bf16", "--only", "envelope,bias,edges", "--causal")
    good = stored(tmp_path, heads=24, layers=2)
    code, text, _ = roundscope("check", good, *options, "--out", tmp_path / "good")
    data = json.loads((tmp_path / "good" / "check.json").read_text())
    assert code == 0, text
    assert data["compared"]["heads"] == 48 and "2 layers" in data["about"]
    assert answers(data, "edges") == {"all": "not run"}
    short = stored(tmp_path, lambda out: out * 0.99)
    code, text, _ = roundscope("check", short, *options, "--out", tmp_path / "short")
    assert code == 1 and "too short" in text


def test_a_file_of_few_heads_says_that_means_tell_nothing(roundscope, tmp_path):
    """A pass that seems to be evidence and is none."""
    few = stored(tmp_path, lambda out: out * 0.99, heads=4)
    options = ("--claims", "fa2-bf16", "--only", "envelope", "--causal", "--out", tmp_path / "few")
    _, text, _ = roundscope("check", few, *options)
    assert "The file has 4 heads" in text and "needs" in text


@pytest.mark.parametrize(
    ("words_given", "said"),
    [
        (("nothing",), "nothing"),
        (("no_such_module:f",), "name a module and a function"),
        (("no/such.safetensors",), "no such file"),
        ((f"{HERE}:good", "--claims", "fa5"), "fa5"),
        ((f"{HERE}:good", "--set", "P=bf17"), "bf17"),
        ((f"{HERE}:good", "--only", "bia"), "--only: unknown test 'bia'; did you mean 'bias'"),
        ((f"{HERE}:good", "--tokens", "0"), "give 1 or more"),
        ((f"{HERE}:good", "--dtype", "int8"), "must be one of"),
        ((f"{HERE}:good", "--block-q", "0"), "--block-q 0: give 1 or more"),
        ((f"{HERE}:good", "--seed", "-1"), "--seed -1: give 0 or more"),
        ((f"{HERE}:good", "--junit", "."), "is a folder"),
        ((f"{HERE}:nsch",), "unknown function 'nsch'. Known: "),
        ((f"{HERE}:shrt",), "unknown function 'shrt'; did you mean 'short'? Known: short masked"),
        (
            (f"{HERE}:good", "--window", "24"),
            "no window, so that it cannot be told --window 24; add the",
        ),
        (
            (f"{HERE}:windowed", "--mask", "none"),
            "takes no mask, so that it cannot be told --mask none",
        ),
        ((f"{HERE}:not_a_function",), "must be a function"),
        ((f"{HERE}:without_gpu",), "needs a GPU, and none is found here"),
        ((f"{HERE}:good", "--false-alarm", "2"), "give a probability"),
        ((f"{HERE}:good", "--library", "cupy"), "cupy"),
    ],
)
def test_wrong_words_are_refused_in_one_line(roundscope, tmp_path, words_given, said):
    """A traceback, or a default taken in silence."""
    code, out, error = roundscope("check", *words_given, "--out", tmp_path / "never")
    assert code == 2 and said in error and len(error.strip().splitlines()) == 1
    assert out == "" and not (tmp_path / "never").exists()


def test_a_function_is_told_of_a_window(check):
    """A window of the command that the kernel, or the plan, never hears of."""
    said = ("--window", "8", "--scale", "0.5", "--forward", "--only")
    code, text, data = check(f"{HERE}:windowed", *said, "edges")
    assert code == 0 and data["passed"], text
    assert "window 8" in text and "assert_as_good_as" not in text
    code, text, _ = check(f"{HERE}:deaf", *said, "envelope")
    assert code == 1 and "no window" in text


def test_a_module_without_a_function_is_told_which_it_has(roundscope, tmp_path, monkeypatch):
    """A list of kernels that are not here, for the name of a file that is."""
    (tmp_path / "mine.py").write_text("def helper(x): ...\ndef flash(q, k, v): ...\n")
    monkeypatch.chdir(tmp_path)
    code, _, error = roundscope("check", "mine")
    assert code == 2 and error.strip().endswith("name a function of it: mine:flash")
    code, _, error = roundscope("check", "mine:flash", "--claims", "fa22")
    assert code == 2 and "--claims fa22: unknown preset 'fa22'; did you mean 'fa2'?" in error
    code, _, error = roundscope("sites", "x", "y")
    assert code == 2 and "roundscope sites --help says what it takes" in error


def test_a_kernel_that_misbehaves_fails_the_check(roundscope, tmp_path):
    """The exit code of a pass, or of bad usage, for a kernel that exits; a report without it."""
    junit = tmp_path / "check.xml"
    code, out, error = roundscope("check", f"{HERE}:exits", "--junit", junit, "--json")
    assert code == 1 and out == "" and "ends the process (SystemExit, code 0)" in error
    assert len(error.strip().splitlines()) == 1 and "ends the process" in junit.read_text()


def test_kinds_of_inputs():
    """A kind that is drawn with the sizes of another."""
    asked = CheckOptions(source="", claims="fa2", tokens=32, features=8)
    assert drawn(asked, "sink, full", 0).is_causal is False
    many = drawn(asked, "gaussian, full, many keys", 0)
    assert many.q.shape[1] == 16 and many.k.shape[1] == 1100
    grouped = drawn(asked, "gaussian, causal, grouped heads", 0)
    assert grouped.is_causal and grouped.q.shape[2] == 2 * grouped.k.shape[2]
    assert {kind.split(", ")[1] for kind in OTHER} == {"full", "causal"}


def test_reasons_are_of_every_test_that_failed():
    """A page that opens with six reasons of one test and hides another test's."""
    asked = CheckOptions(source="k:f", claims="fa2")
    cases = [
        Case(test=test, name=f"{i}", answer=Answer.FAIL, sentence="Wrong.")
        for test in ("envelope", "edges")
        for i in range(9)
    ]
    found = Findings(name="f", about="calls", asked=asked, cases=cases)
    lines = report.report(found).parts[0].points
    assert {line.partition(",")[0] for line in lines[:-1]} == {"envelope", "edges"}
    assert lines[-1] == f"{18 - report.MANY} more below"
    assert "is not as good as fa2" in page(report.report(found))


def test_an_error_on_the_real_tensors_is_told(check):
    """A kernel that crashes on real tensors, and is judged on drawn ones without a word."""
    _, text, data = check(f"{HERE}:crashes", "--only", "explanation", "--budget", "0")
    [note] = [n for n in data["notes"] if "real tensors" in n]
    assert "KeyError at kernels_to_check.py:" in note and "no tile for 32 features" in note
    assert "KeyError" in text


def test_numbers_that_are_not_finite_come_first(check, tmp_path):
    """Errors of the numbers that are left: 0.00e+00 beside an output with an infinity."""
    code, text, data = check(f"{HERE}:lost", "--only", "envelope,bias", "--draws", "1", "--forward")
    first = (
        "gaussian, causal: out: 1 of 25,600 numbers is NaN and 1 is infinite where the plan's are"
        " finite, the first at batch entry 0, head 0, token 3, feature 5."
    )
    assert code == 1 and data["sentence"].startswith(first)
    assert " ".join(text.split()).partition("check: ")[0].startswith(first)
    assert first in unescape((tmp_path / "out" / "report.html").read_text())
    sizes = [f["kernel"] for f in data["compared"]["findings"] if f["statistic"] == "rms"]
    assert sizes and set(sizes) == {"inf"}
    assert {c["answer"] for c in data["cases"] if c["test"] == "bias"} == {"not run"}


def test_the_next_command_asks_the_same():
    """A command that forgets what was said, and fails where the first one passed."""
    asked = CheckOptions(source="k:f", claims="fa2", forward=True, tokens=64, head=2)
    causal = CheckedCalls(causal=True)
    asked = replace(asked, call=causal, is_strict=True, only="edges", block_q=32)
    again = "roundscope check k:f --claims fa2 --causal --forward --strict --tokens 64"
    found = Findings(name="f", about="calls", asked=asked)
    why, command = report.next_step(found)
    assert command == f"{again} --block-q 32 --head 2 --only edges --junit check.xml"
    said = "is_causal=True, backward=False, strict=True, tokens=64, block_q=32)"
    assert f'assert_as_good_as(kernel, "fa2", {said}' in why
    failed = Case(test="envelope", name="a", answer=Answer.FAIL, sentence="Wrong.")
    _, command = report.next_step(replace(found, cases=[failed]))
    assert command == "roundscope identify k:f --causal --head 2 --budget 50000"
    odd = replace(asked, layout="BTNH", only=None)  # which identify cannot be told of a function
    _, command = report.next_step(replace(found, asked=odd, cases=[failed]))
    said = "--layout BTNH --block-q 32 --head 2 --budget 50000 --only explanation"
    assert command == f"{again} {said}"


def test_the_next_command_of_a_file_says_how_its_call_is_read(tmp_path):
    """An option of a file's call that is dropped, so that another call is identified."""
    path = tmp_path / "a.npz"
    path.touch()
    call = CheckedCalls(causal=True, softcap="none", scale="0.5")
    asked = CheckOptions(source=str(path), claims="fa2", call=call, layer="l 1")
    failed = Case(test="envelope", name="a", answer=Answer.FAIL, sentence="Wrong.")
    found = Findings(name="f", about="calls", asked=asked, cases=[failed])
    said = "--causal --scale 0.5 --softcap none"
    _, command = report.next_step(found)
    assert command == f"roundscope identify {path} {said} --layer 'l 1' --budget 50000"
    why, command = report.next_step(replace(found, cases=[]))
    assert command.startswith(f"roundscope check {path} --claims fa2 {said} ")
    assert "assert_as_good_as" not in why


def test_the_suspect_is_the_next_step():
    """Advice to look for a rounding where the mistake in the code is known."""
    words = "the output is what attention with no causal mask gives, to 0.2%"
    compared = Comparison(plan="fa2", false_alarm=1e-4, suspect=words)
    failed = Case(test="explanation", name="a", answer=Answer.FAIL, sentence="Wrong.")
    asked = CheckOptions(source="k:f", claims="fa2", tokens=64)
    found = Findings(name="f", about="calls", asked=asked, cases=[failed], compared=compared)
    why, command = report.next_step(found)
    assert words in found.sentence and words not in why
    assert why.startswith("Next: look for that")
    assert command == "roundscope check k:f --claims fa2 --tokens 64"
    assert found.sentence == f"f is not as good as fa2: {words}."
    further = [
        Case(test="envelope", name="a", answer=Answer.FAIL, sentence="Wrong."),
        Case(test="edges", name="a", answer=Answer.FAIL, sentence="Wrong."),
    ]
    both = replace(found, cases=[*further, failed])
    assert both.sentence.endswith(
        "It is less exact. It also fails edges, which may follow from that."
    )
    nan = [replace(further[1], name=name) for name in ("NaN in a query", "NaN in a query, full")]
    assert replace(found, cases=[further[0], *nan]).sentence.endswith(
        f"{words}. It is less exact. It also fails NaN in a query, which that does not explain."
    )


def test_a_rounding_that_the_search_found_is_in_the_first_line():
    """A headline without the cause that stands in a row below it, and advice to search on."""
    x = draw("gaussian", batch=1, heads=1, tokens=16, features=16)
    out = np.asarray(examine(x.q, x.k, x.v, plan="fa2-bf16", record=None, **x.options).out)
    found = identify(x, Outputs(out=out), lambda text: None, 0)
    changed = replace(found.best, plan=Plan.preset("fa2-bf16").changed("P=bf16:toward-zero"))
    found = replace(found, base="fa2-bf16", words=["P=bf16:toward-zero"], best=changed)
    failed = Case(test="envelope", name="a", answer=Answer.FAIL, sentence="Wrong.")
    asked = CheckOptions(source="k:f", claims="fa2-bf16")
    said = Findings(name="f", about="calls", asked=asked, cases=[failed], search=found)
    assert "P=bf16:toward-zero explains it" in said.sentence.splitlines()[0]
    more = ["log2_e=none", "P=bf16:toward-zero", "S.sum=ascending"]
    many = replace(said, search=replace(found, words=more))
    assert "P=bf16:toward-zero explains it (fa2-bf16 with that, log2_e=none and S.sum" in (
        many.sentence
    )
    why, command = report.next_step(said)
    assert why.startswith("Next: look for that") and "identify" not in command
    assert "--set P=bf16:toward-zero" in command


def test_what_no_plan_explains_is_counted_and_sent_to_masks_only_where_it_is_far():
    """ "No rounding explains its numbers", and "masks, tiles, scales", of a row sum in BF16."""
    x = draw("gaussian", batch=1, heads=1, tokens=16, features=16)
    out = np.asarray(examine(x.q, x.k, x.v, plan="fa2-bf16", record=None, **x.options).out)
    same = identify(x, Outputs(out=out), lambda text: None, 0)
    failed = Case(test="explanation", name="a", answer=Answer.FAIL, sentence="Wrong.")
    asked = CheckOptions(source="k:f", claims="fa2")
    for kind, is_far in ((Kind.LOW_BITS, False), (Kind.NO_ROUNDING, True)):
        search = replace(same, kind=kind)
        said = Findings(name="f", about="", asked=asked, cases=[failed], search=search)
        tried = f"none of the {same.forward.tried} plans tried"
        assert f"{tried} explains its numbers" in said.sentence
        why, _ = report.next_step(said)
        assert tried in why and ("masks" in why) is is_far


def test_what_no_rounding_breaks_is_not_blamed_on_the_rounding():
    """The claimed plan as the cause of a hidden NaN, and the same command as the way out."""
    x = draw("gaussian", batch=1, heads=1, tokens=16, features=16)
    out = np.array(examine(x.q, x.k, x.v, plan="fa2-bf16", record=None, **x.options).out)
    search = identify(x, Outputs(out=out), lambda text: None, 0)
    nearest = replace(search.best, plan=Plan.preset("fa2-bf16"))
    search = replace(search, kind=Kind.NEAR, base="fa2-bf16", words=[], best=nearest)
    asked = CheckOptions(source="k:f", claims="fa2-bf16")
    failed = [
        Case(test="edges", name=name, answer=Answer.FAIL, sentence="It is not NaN.")
        for name in ("NaN in a query", "NaN in a query, full")
    ]
    found = Findings(name="f", about="", asked=asked, cases=failed, search=search)
    said = "f is not as good as fa2-bf16: it fails at edges. NaN in a query: It is not NaN."
    assert found.sentence == said
    why, command = report.next_step(found)
    assert "NaN in a query" in why and command.endswith("--only edges")
    # another arithmetic is no cause of it either, and the claimed one never the way out
    other = replace(search, words=["P=fp16"], best=replace(nearest, plan=Plan.preset("fp32")))
    assert replace(found, search=other).sentence == said
    less = Case(test="envelope", name="a", answer=Answer.FAIL, sentence="Wrong.")
    for near in (search, other):
        _, command = report.next_step(replace(found, search=near, cases=[less]))
        assert command != "roundscope check k:f --claims fa2-bf16", near.words


def test_a_headline_names_the_notes():
    """ "Right at 2 edges" above a row without keys that gives the mean of V."""
    edges = [
        Case(test="edges", name=name, answer=answer, sentence="Said.")
        for name, answer in (("one", Answer.PASS), ("two", Answer.PASS), ("blind", Answer.NOTE))
    ]
    found = Findings(
        name="f", about="", asked=CheckOptions(source="k:f", claims="fa2"), cases=edges
    )
    assert found.sentence == ("f is as good as fa2: right at 2 edges, and with a note at 1: blind.")


def test_an_error_beyond_the_margin_on_few_heads_is_not_called_exact():
    """ "As exact" above a dk of 1.45 times the plan's, since 8 heads cannot give an alarm."""
    d = np.log(np.linspace(1.4, 1.5, 8))
    findings = [
        Finding(
            inputs="the file", result=name, statistic="rms", direction=1, kernel=size, plan=1.0,
            heads=8, evidence=weigh(x, math.log(1.05), 1e-6),
        )
        for name, size, x in (("dk", 1.45, d), ("dv", 1.0, 0 * d))
    ]  # fmt: skip
    compared = Comparison(plan="fa2", false_alarm=1e-4, findings=findings, heads=8)
    asked = CheckOptions(source="f.safetensors", claims="fa2")
    found = Findings(name="f", about="", asked=asked, compared=compared)
    assert found.is_fine and found.sentence.startswith("Whether f is as exact as fa2 is not told")
    assert "with 8 heads" in found.sentence and "dk 1.45 times" in found.sentence
    assert "dv" not in found.sentence and "keep it" not in report.next_step(found)[0]
    compared.findings = findings[1:]
    assert "as exact" in found.sentence


def test_no_longer_search_for_a_kernel_that_is_known_to_have_no_plan():
    case = Case(test="envelope", name="a", answer=Answer.FAIL, sentence="Wrong.")
    compared = Comparison(plan="fa2", false_alarm=1e-4, known="it is known.")
    asked = CheckOptions(source="sdpa-flash", claims="fa2")
    found = Findings(name="f", about="", asked=asked, cases=[case], compared=compared)
    _, command = report.next_step(found)
    assert "identify" not in command and command.endswith("--forward --only envelope")


def test_every_family_and_every_edge_is_asked_in_both_kinds_of_calls(monkeypatch):
    """Extreme inputs of causal calls alone, so that a fault of full calls passes."""
    assert set(kinds(None)) == {f"{f}, {mode}" for f in FAMILIES for mode in ("causal", "full")}
    asked = CheckOptions(source="", claims="fa2-bf16", tokens=8, features=8)

    def recorded(kernel, plan, *, is_causal, names=None, **more):
        for name in edge_names(is_causal):
            if names is None or name in names:
                yield Case(test="edges", name=name, answer=Answer.PASS, sentence="Said.")

    monkeypatch.setattr(run, "check_edges", recorded)
    found = [c.name for c in edge_cases(lambda x: None, asked.reference(), asked, (True, False))]
    wanted = [*edge_names(True), *(f"{name}, full" for name in edge_names(False))]
    assert found == wanted and "scores of thousands, full" in found


def test_a_kernel_that_raises_at_once_has_failed_the_check(check, tmp_path):
    """A kernel that never runs is no wrong word of the command line, and CI reads its file."""
    path = tmp_path / "check.xml"
    code, text, data = check(f"{HERE}:picky", "--junit", path)
    assert (code, data) == (1, None) and "does not run on q of shape" in text
    assert 'failures="1"' in path.read_text() and "tokens must be 128" in path.read_text()

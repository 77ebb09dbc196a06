"""One grammar: the same words give the same arithmetic in Python and in every verb, and
docs/reference/grammar.md is true.
"""

import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from roundscope.attention import PRESETS, Injection, Plan, Site
from roundscope.attention.grammar.edits import KINDS
from roundscope.attention.grammar.roundings import event_of
from roundscope.attention.plans.record import CHOICES
from roundscope.attention.sites import OF_KERNELS
from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.emu.formats.format import NAMED
from roundscope.emu.roundings.modes import BINARY32, Overflow, RoundingMode
from roundscope.experiments.cli.main import main
from roundscope.experiments.questions.dose.doses import Dose, scale
from roundscope.experiments.questions.proxy.study import asked as study
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.gpt.linear import formats_of
from roundscope.experiments.train.mx import INDEX
from roundscope.experiments.train.mx import Site as LinearSite
from roundscope.experiments.train.settings import settings
from roundscope.experiments.train.student.arms import Config as Student
from roundscope.experiments.train.student.arms import arm_of, plan_of
from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.conditions.axes import each_point, spec_of
from roundscope.tools.sweep.conditions.condition import cell_of
from tests.tools.trace.inputs import asked

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "grammar.md"
PRESET = "qiu-yao"
TRAINED = Config(layers=1, heads=2, width=32, context=32, plan=PRESET, sums="preset")


def of_python(text):
    return Plan.preset(PRESET).changed(text, seed=0)


def of_trace(text):
    return asked(plan=PRESET, changes=[text]).plan


def _preset(text):
    return [] if "plan=" in text else [f"preset={PRESET}"]


TILE = ("tile=128",)  # blocks of 128 do not fit into a tile of 64


def of_sweep(text):
    words = [*_preset(text), "backward=true", *TILE, *text.split()]
    [point] = list(each_point(spec_of(words)))
    return cell_of(point).plan


def of_a_sweep_s_file(text, tmp_path):
    lines = [
        f'"{name}" = "{value}"'
        for name, _, value in (
            word.partition("=") for word in [*_preset(text), *TILE, *text.split()]
        )
    ]
    (tmp_path / "axes.toml").write_text("\n".join(["backward = true", "[axes]", *lines]))
    return cell_of(next(each_point(spec_of([str(tmp_path / "axes.toml")])))).plan


def of_training(text):
    plans = {plan for row in plans_of(TRAINED, [text]) for plan in row}
    assert len(plans) == 1
    return plans.pop()


def of_a_training_s_file(text, tmp_path):
    (tmp_path / "run.toml").write_text(
        f'plan = "{PRESET}"\nsums = "preset"\nsteps = 20\n[at]\n5 = "{text}"\n'
    )
    asked_for = settings([str(tmp_path / "run.toml")])
    return of_training(dict(asked_for.at)[5])


AS_IT_IS = ("Q=bf16", "O=bf16:ties-to-even", "o=bf16")
WORDS = [
    *(f"{site}={text}" for site in Site if site not in OF_KERNELS for text in ("fp16:stochastic",)),
    *(f"Q={name}" for name in NAMED if name != "e8m0fnu"),
    *(f"O=bf16:{mode}" for mode in RoundingMode),
    *(f"P={name}" for name in BLOCK_NAMED),
    "P=mxfp8_e4m3:rceil",
    "V=mxfp4:even:stochastic",
    "Q=e4m3fn:nan",
    "O=bf16:to-odd:saturate",
    "O=fp16:inf",
    "o=bf16",
    "O=bf16 P=fp16",
    "PV.sum=hopper:bf16",
    "S.sum=chunked16:bf16:toward-zero",
    "DELTA.sum=exact",
    "DK.sum=native",
    "accumulator.PV=pairwise",
    "format.O=fp32",
    "mode.O=toward-zero",
    "O.mode=toward-zero",
    "format=fp16",
    "mode=to-odd",
    "sum=halves",
    "exp=base2",
    "stabiliser=2",
    "stabilizer=2.5",
    "key_order=descending",
    "delta_from=CENTRED",
    "unfused=true",
    "only=O+PV.step",
    "but=P",
    "plan=fa2-bf16",
    "exp=ex2",
    "exp=cuda",
    "ROWSUM.sum=warps",
    "DELTA.sum=octets8",
    "PV.sum=hopper-8:bf16",
    "S.sum=strided32",
]


@pytest.mark.parametrize("text", WORDS)
def test_the_same_words_are_the_same_arithmetic_in_every_verb(text, tmp_path):
    """Q=e4m3fn that overflows to NaN in one verb and saturates in another; a word that one verb
    does not know.
    """
    files = [of_a_sweep_s_file(text, tmp_path), of_a_training_s_file(text, tmp_path)]
    found = [of_python(text), of_trace(text), of_sweep(text), of_training(text), *files]
    assert len({replace(plan, name="") for plan in found}) == 1
    assert text in AS_IT_IS or replace(found[0], name="") != replace(Plan.preset(PRESET), name="")


OF_KERNELS_ONLY = [  # no axes of a sweep
    "exp=ex2 log2_e=scale fused_exponent=true LSE2=bf16",
    "row_sum=lanes LANES=bf16",
    "log=lg2",
    "reciprocal=rcp",
    "exp=ex2 exponent_again=after",
    "registers=true OI=bf16",
    "query_order=descending",
    "gradients_apart=dq",
    "exp=ex2 log2_e=scale lse_base2=true",
    "ds_from_p=true",
    "unfused=true saved_p=true",
    "score_gradient=softmax",
    "gradient_scale=operand",
]


@pytest.mark.parametrize("text", OF_KERNELS_ONLY)
def test_words_of_kernels_are_the_same_in_trace_and_train(text, tmp_path):
    """A step of real kernels that a training drops in silence."""
    found = [
        of_python(text),
        of_trace(text),
        of_training(text),
        of_a_training_s_file(text, tmp_path),
    ]
    assert len({replace(plan, name="") for plan in found}) == 1
    assert replace(found[0], name="") != replace(Plan.preset(PRESET), name="")


@pytest.mark.parametrize(
    "text",
    [
        "W=mxfp8_e4m3:rceil",
        "W=bf16:stochastic",
        "W=mxfp4",
        "W=e4m3fn",
        "site=W -> e5m2:toward-zero",
        "W=e4m3fn:nan",
    ],
)
def test_linear_layers_round_as_attention_does(text):
    """A format that saturates in one kind of layer only, or a rule that is lost."""
    wanted = event_of(re.split("=|-> ", text)[-1])
    for formats in (
        formats_of(TRAINED, [text]).formats,
        formats_of(
            TRAINED, [f"matrix=all {text}" if "->" in text else f"matrix=all -> {text}"]
        ).formats,
    ):
        assert {own[INDEX[LinearSite.W]] for row in formats for own in row} == {wanted}
    student = plan_of(Student(), (text,)).formats
    assert {own[INDEX[LinearSite.W]] for row in student for own in row} == {wanted}
    assert {own[INDEX[LinearSite.X]] for row in student for own in row} == {BINARY32}


def test_a_dose_is_a_change_in_the_same_words():
    dose = Dose(site=Site.OD, mode=RoundingMode.TOWARD_ZERO, bits=8, rate=1e-2, steps=10)
    assert of_training(dose.change[0]).roundings == of_python("OD=e8m7:toward-zero").roundings
    assert scale(["p=2:5", "site=O,PV"], quick=True, seeds="0:3") == scale(
        ["p=2-4", "site=O,PV"], quick=True, seeds="0-2"
    )


def test_places_and_ranges_are_those_of_every_verb(tmp_path):
    """Seeds that miss the last in one verb; a layer that is counted from 1."""
    wide = Config(layers=4, heads=2, width=32, context=32, plan=PRESET)
    for text in (
        "layer=1:3 -> O=fp32",
        "layer=1-2 -> O=fp32",
        "layer=1,2 site=O -> fp32",
        "layer=1:2,2 head=:2 -> O=fp32",
    ):
        assert [str(row[0][Site.O]) for row in plans_of(wide, [text])] == [
            "bf16",
            "fp32",
            "fp32",
            "bf16",
        ]
    assert settings(["steps=20"], seeds="0:3,7").arms == settings(["steps=20"], seeds="0-2,7").arms
    student = [
        plan_of(Student(depth=4), (text,))
        for text in ("layer=1:3 -> W=bf16", "layer=1-2 site=W -> bf16")
    ]
    assert student[0] == student[1] and [
        str(row[0][INDEX[LinearSite.W]]) for row in student[0].formats
    ] == ["fp32", "bf16", "bf16", "fp32"]
    asked_for = [
        study([], name="formats", seeds=seeds, quick=True).seeds
        for seeds in ("0:3", "0-2", "0,1,2")
    ]
    assert asked_for == [(0, 1, 2)] * 3
    assert list(each_point(spec_of(["seed=0:3", "T=8"]))) == list(
        each_point(spec_of(["seed=0-2", "T=8"]))
    )


def test_an_axis_of_one_event_is_the_older_axis():
    """Two keys, and two cells to compute, of one condition."""
    old = {
        p["format.O"]: cell_of(p).key
        for p in each_point(spec_of(["format.O=bf16,fp32", "accumulator.PV=exact"]))
    }
    new = {
        p["format.O"]: cell_of(p).key for p in each_point(spec_of(["O=bf16,fp32", "PV.sum=exact"]))
    }
    assert old == new and len(set(new.values())) == 2
    assert (
        cell_of({"O": "bf16:stochastic"}).key
        == cell_of({"format.O": "bf16", "mode.O": "stochastic"}).key
    )
    assert cell_of({"plan": "fa2-bf16"}).key == cell_of({"preset": "fa2-bf16"}).key
    assert (
        cell_of({"delta_from": "preset"}).plan
        == cell_of({}).plan
        != cell_of({"delta_from": "O"}).plan
    )
    with pytest.raises(
        UsageError,
        match=r"format\.O 'bf16:stochastic': names a mode, and mode\.O=to-odd is given too",
    ):
        cell_of({"O": "bf16:stochastic", "mode.O": "to-odd"})


def test_s_is_the_number_of_keys_and_an_event():
    """S=512 that is an event, or S=bf16 that is refused."""
    assert spec_of(["S=512"]).axes == (("S", [512]),) and spec_of(["S=bf16"]).axes == (
        ("format.S", ["bf16"]),
    )


def test_a_mode_of_all_leaves_the_one_that_is_named():
    """An event's own mode undone by that of all."""
    plan = of_sweep("O=bf16:stochastic mode=toward-zero")
    assert (plan[Site.O].mode, plan[Site.P].mode) == ("stochastic", "toward-zero")


# ---- the page


def blocks(kind):
    """The lines of the page's code blocks of a kind, comments and ends of words that go on
    joined.
    """
    text = PAGE.read_text(encoding="utf-8")
    found = "\n".join(re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL))
    return [
        line.partition("  #")[0].strip()
        for line in found.splitlines()
        if line.strip() and not line.startswith("#")
    ]


def test_every_change_of_the_page_is_read_in_every_verb():
    for text in blocks("change"):
        assert of_python(text).name and of_trace(text).name and of_training(text).name


def test_every_place_of_the_page_is_read():
    deep = Config(layers=6, heads=8, width=64, context=32, plan=PRESET)
    for text in blocks("place"):
        assert plans_of(deep, [text]) is not None
    for text in blocks("linear"):
        assert formats_of(deep, [text]) is not None
        for of_gpt, of_student in dict(qkv="up", fc1="down", proj="up", fc2="gate").items():
            text = text.replace(of_gpt, of_student)
        arm_of(Student(depth=6), f"a={text}")


def test_every_injection_of_the_page_is_read():
    for text in blocks("injection"):
        assert Injection.parse(text)


def read(words):
    """A command of the page, as far as its words."""
    verb, rest = words[1], words[2:]

    def option(name):
        return [b for a, b in pairwise(rest) if a == name]

    plain = [
        b
        for a, b in pairwise(words[1:])
        if not b.startswith("--") and (a in FLAGS or not a.startswith("--"))
    ]
    if verb == "trace":
        asked(
            plan=(option("--plan") or [PRESET])[0],
            changes=option("--set"),
            inject=option("--inject"),
            record=option("--record"),
        )
    elif verb == "sweep":
        [cell_of(p) for p in each_point(spec_of(plain, option("--zip"), "--backward" in rest))]
    elif verb == "train":
        changes = [
            f"{step}:{change}"
            for step, change in re.findall(r"--at\0(\d+)\0([^\0]*)", "\0".join(rest))
        ]
        plain = [w for w in plain if w not in {change.partition(":")[2] for change in changes}]
        found = settings(
            plain, arms=option("--arm"), at=changes, seeds=(option("--seeds") or [None])[0]
        )
        [plans_of(found.config, arm.changes) for arm in found.arms]
    elif verb == "proxy":
        study(plain, name="formats", own=option("--arm"), seeds=(option("--seeds") or [None])[0])
    elif verb == "dose":
        scale(plain, quick="--quick" in rest, seeds=(option("--seeds") or [None])[0])
    else:
        raise AssertionError(words)


FLAGS = ("--backward", "--quick", "--sample", "--causal")


def test_every_command_of_the_page_is_read():
    lines = blocks("sh")
    assert {shlex.split(line)[1] for line in lines} == {"trace", "sweep", "train", "proxy", "dose"}
    for line in lines:
        read(shlex.split(line))


def test_every_example_in_python_and_toml_of_the_page_runs(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, {})
    of_sweeps, of_trainings = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "axes.toml").write_text(of_sweeps)
    (tmp_path / "run.toml").write_text(of_trainings)
    assert [cell_of(p) for p in each_point(spec_of([str(tmp_path / "axes.toml")]))]
    found = settings([str(tmp_path / "run.toml")])
    assert all(
        plans_of(found.config, (*arm.changes, *(change for _, change in found.at)))
        for arm in found.arms
    )


def test_the_page_has_every_word():
    """A word that the parser knows and the page does not."""
    text = PAGE.read_text(encoding="utf-8")
    assert "<!-- made from the code: choices -->\n" in text  # which has the words of all fields
    kinds = [name for name in KINDS if name not in CHOICES]
    words = [*kinds, *RoundingMode, *Overflow, *BLOCK_NAMED, *Site, "inputs", "forward", "backward"]
    assert [word for word in words if f"`{word}`" not in text and f"`{word}=" not in text] == []


# ---- the bare command


def test_bare_is_help_and_short_options_work(capsys):
    """Missing command, and no word on what there is."""
    for words in ([], ["-h"], ["--help"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert not stop.value.code and "diagnose" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert not stop.value.code and re.fullmatch(
        r"roundscope \d+\.\d+\.\d+\S*\n", capsys.readouterr().out
    )


@pytest.mark.parametrize("verb", ["trace", "diagnose", "sweep", "train", "proxy", "explain"])
def test_help_of_a_verb_has_its_lists(verb, capsys):
    """A list in braces that nobody fills, a preset that the help does not know."""
    with pytest.raises(SystemExit) as stop:
        main([verb, "-h"])
    out = capsys.readouterr().out
    joined = "".join(out.split())
    assert not stop.value.code and not re.search(r"\{[a-z_]+\}", out)
    if verb == "trace":
        assert all(name.replace("-", "") in joined.replace("-", "") for name in PRESETS)

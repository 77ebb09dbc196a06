"""Hostile command lines: every option of every verb, with values that no option takes.

Verbs and options are those of the command line itself, so a new one is asked without a change here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import typer

from roundscope.experiments.cli import main as cli
from roundscope.tools.sweep.conditions.cell import DEFAULTS, OPTIONAL
from tests.checks.hostile.scene import Answer, run, scene, tidy
from tests.checks.hostile.verdict import ALL, Asked, Verdict, fault_of_message

# a short line of each verb that is right, to which a hostile word is added
LINES = {
    "formats": "formats bf16",
    "explain": "explain 1.5 --to bf16",
    "sites": "sites",
    "plans": "plans",
    "trace": "trace t.safetensors --no-budget --beside none",
    "diagnose": "diagnose t.safetensors",
    "identify": "identify o.safetensors --budget 1",
    "compare": "compare a.safetensors a.safetensors",
    "budget": "budget km:model --no-gradients",
    "check": "check km:good --tokens 16 --features 16 --heads 1 --batch 2 --draws 1 --budget 1"
    " --only explanation --forward",
    "sweep": "sweep T=16 N=1 H=16 --dry-run",
    "reproduce": "reproduce golden --draw",
    "studies": "studies",
    "accumulators": "accumulators",
    "kernels": "kernels --draw",
    "watch": "watch log.jsonl",
    "check-cast": "check-cast km:cast --format bf16",
    "prepare": "prepare text.txt --out data",
    "train": "train steps=1 layers=1 heads=1 width=8 context=8 batch=1 --out run",
    "dose": "dose steps=1",
    "proxy": "proxy --draw",
    "export": "export s.sqlite s.csv",
    "report": "report s.sqlite",
    "bench": "bench round",
    "doctor": "doctor",
}
TEXTS = {
    "empty": "",
    "space": " ",
    "control": "a\x1b[2Jb\x07\n",
    "unicode": "\N{SNOWMAN}\N{RIGHT-TO-LEFT OVERRIDE}",
    "long": "x" * 5000,
    "word": "nonsense",
}
NUMBERS = {
    "minus": "-1",
    "1e400": "1e400",
    "nan": "nan",
    "inf": "inf",
    "minus inf": "-inf",
    "5000 digits": "9" * 5000,
    "digits of others": "\N{ARABIC-INDIC DIGIT FIVE}",
    "text": "x",
    "empty": "",
    "space": " ",
    "fraction": "1.5",
    "underscore": "1_0",
    "10**30": str(10**30),
    "list": "1,2",
}
PATHS = {
    "empty": "",
    "space": " ",
    "missing": "no/such",
    "under a file": "afile/x",
    "/dev/null": "/dev/null",
    "/dev/full": "/dev/full",
    "under /dev/null": "/dev/null/x",
    "under /proc": "/proc/x/y",
    "long": "x" * 5000,
    "control": "a\x1b[2J",
    "unicode": "\N{SNOWMAN}",
}
# what a hostile value may do after all, by verb (or *), option and kind of value
TAKEN = {
    ("*", "seeds", "list"),
    ("sweep", "scale=", "minus"),
    ("train", "changes=", "empty"),
    ("*", "scale", "10**30"),
    ("*", "softcap", "10**30"),
    ("explain", "value", "minus inf"),
    ("*", "*", "underscore"),  # numbers as Python writes and reads them
    ("*", "*", "digits of others"),
    ("explain", "value", "nan"),
    ("explain", "value", "inf"),
    ("explain", "value", "fraction"),
    ("explain", "value", "10**30"),
    ("explain", "overflow", "nan"),
    ("explain", "overflow", "inf"),
    ("*", "seed", "10**30"),
    ("*", "out", "missing"),
    ("*", "out", "unicode"),
    ("*", "out", "control"),
    ("*", "junit", "missing"),
    ("*", "junit", "unicode"),
    ("*", "junit", "control"),
    ("*", "seed", "5000 digits"),
    ("*", "timeout", "fraction"),
    ("*", "scale", "minus"),
    ("*", "scale", "fraction"),
    ("*", "softcap", "fraction"),
    ("explain", "value", "minus"),
    ("explain", "plus", "minus"),
    ("explain", "plus", "fraction"),
    ("explain", "plus", "nan"),
    ("explain", "plus", "inf"),
    ("explain", "plus", "minus inf"),
    ("explain", "plus", "10**30"),
}


SET = {
    "empty": "",
    "minus": "-1",
    "nan": "nan",
    "1e400": "1e400",
    "5000 digits": "9" * 5000,
    "word": "nonsense",
    "twice": "1=1",
    "range": "1:",
    "unicode": "\N{SNOWMAN}",
    "escape": "a\x1b[2J",
    "comma": ",",
}
TRAIN = (
    "layers heads width context vocab batch steps parts lr min_lr warmup decay_steps beta1 beta2"
)
TRAIN += (
    " weight_decay clip position qk_norm tied mlp_ratio gated llama optimizer matmul plan changes"
)
TRAIN += (
    " sums engine block data data_seed init_seed checkpoint_every keep monitor_every drift_alarm"
)
PROXY = "depth width ratio phi norm batch steps noise lr min_lr warmup beta1 beta2 block seed"
SETTINGS = {  # the words KEY=VALUE of a verb
    "sweep": ("tile", *DEFAULTS, *OPTIONAL, "O", "PV.sum", "O.mode"),
    "train": TRAIN.split(),
    "proxy": (*PROXY.split(), "measure_every", "mx"),
}


class Option(NamedTuple):
    """An option or argument of a verb: its name, what is written before its value, its values."""

    name: str
    flag: str | None
    values: dict[str, str]


def options(verb: str) -> list[Option]:
    """Return the options and arguments of a verb that take a value."""
    command: Any = typer.main.get_command(cli.app)
    hints = get_type_hints(command.commands[verb].callback)
    found = []
    for param in command.commands[verb].params:
        if getattr(param, "is_flag", False) or param.name == "help":
            continue
        flag = param.opts[0] if param.opts[0].startswith("-") else None
        kinds = {hints[param.name], *get_args(hints[param.name])}
        values = TEXTS | NUMBERS
        if kinds & {Path, list[Path]}:
            values = PATHS
        elif kinds & {int, float}:
            values = NUMBERS
        found.append(Option(param.name, flag, values))
    return found


def lines(verb: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what is tried, the word that a message has to have, and the line."""
    base = LINES[verb].split()
    for option in options(verb):
        for kind, value in option.values.items():
            if option.flag is None:  # in the place of the verb's first argument
                line = [base[0], *(["--"] if value.startswith("-") else []), value]
                line[1:1] = base[2:]
            elif option.flag in base:
                at = base.index(option.flag)
                line = [*base[: at + 1], value, *base[at + 2 :]]
            else:
                line = [*base, option.flag, value]
            yield f"{option.name} {kind}", option.name, line
    for name in SETTINGS.get(verb, ()):
        for kind, value in SET.items():
            old = [word for word in base if not word.startswith(f"{name}=")]
            yield f"{name}= {kind}", name, [*old, f"{name}={value}"]
    yield "an unknown option", "--no-such", [*base, "--no-such", "1"]
    yield "too many words", "", [*base, *["\N{SNOWMAN}"] * 5]


def verdict(verb: str, tried: str, name: str, line: list[str], answer: Answer) -> Verdict:
    """Judge the answer to a hostile line."""
    case = f"{verb}: {tried}"
    option, _, kind = tried.partition(" ")
    may = any((v, o, kind) in TAKEN for v in (verb, "*") for o in (option, "*"))
    said = answer.err.strip()
    shown = f"[{answer.code}, {answer.seconds:.1f} s] {said[-400:] or answer.out[:100]!r}"
    if answer.code in (3, 99) or "Traceback" in said:
        return Verdict(case, "traceback", shown)
    if answer.code in (0, 1, None):
        if may:
            return Verdict(case, fault_of_message(said) if answer.code else "", shown)
        return Verdict(case, "accepted", shown)
    names = [name, name.rstrip("_").replace("_", "-"), *[w[:20] for w in line[1:] if len(w) > 3]]
    names += [form for w in line[1:] for form in (repr(w), repr(w)[1:-1], f"'{w}'", f"={w}")]
    names += [part for part in (*line[-1].split(","), line[-1].partition("=")[2]) if len(part) < 9]
    names += [repr(w.partition("=")[2] or w.strip())[1:20] for w in line[1:]]  # as it is shown
    names += [line[-1].partition("=")[2][:20], "mode.O", "accumulator.PV", "file name too long"]
    if fault := fault_of_message(said, *(names if name else [])):
        return Verdict(case, fault, shown)
    if answer.seconds > LATE:
        return Verdict(case, "late", shown)
    return Verdict(case, "", shown)


LATE = 8.0  # seconds after which a refusal comes after work


def verdicts(asked: Asked = ALL) -> Iterator[Verdict]:
    """Yield a verdict for each line."""
    with scene() as folder:
        kept = {path.name for path in folder.iterdir()} | {"__pycache__"}
        for verb in LINES:
            for tried, name, line in lines(verb):
                if f"{verb}: {tried}" not in asked:
                    continue
                answer = run(line, LATE)
                found = verdict(verb, tried, name, line, answer)
                if strange := tidy(folder, kept):
                    found = found._replace(fault=f"wrote {strange}")
                yield found

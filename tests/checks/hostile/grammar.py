"""Hostile words of the grammar: right plans, changes, injections and formats, broken in one place.

Each text is read by the functions that every command reads it with. They may read it or refuse it;
an answer within the time is enough, and a refusal is one clear line of a ValueError.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import roundscope as rs
from roundscope import emu
from roundscope.attention.grammar.edits import KINDS
from roundscope.attention.grammar.injections import RANGES
from roundscope.attention.grammar.text import plan_of
from roundscope.emu.formats.format import NAMED
from tests.checks.hostile.verdict import ALL, Asked, Late, Verdict, fault_of_message, strictly

LIMIT = 5  # seconds
ALPHABET = ":=;,->.[] \t0123456789eEfinabx@*+~\u2603\x1b\u0665"
PLAN = rs.Plan.preset("fa2-bf16")


def right() -> dict[str, tuple[Callable[[str], Any], list[str]]]:
    """Return, by kind, the function that reads texts and texts that are right."""
    kinds = [f"{name}=1" for name in KINDS] + [f"{name}=none" for name in KINDS]
    return {
        "change": (
            PLAN.changed,
            [
                "O=bf16:stochastic",
                "P=e4m3fn:toward-zero:saturate",
                "S.sum=hopper:bf16",
                "site=O,P -> fp32",
                "PV.sum=chunked:16:bf16",
                *kinds,
            ],
        ),
        "plan": (plan_of, [*rs.PRESETS, "fa2-bf16; OD=fp32", "fa2@hopper", "all:bf16"]),
        "injection": (
            rs.Injection.parse,
            [
                "O:ulps=0.5:rows=0:64:heads=3",
                "P:flip=3:rows=5,9",
                "PV:exact",
                "O:bias=1e-3",
                "P:set=nan",
                "O:noise=1",
                *(f"S:exact:{name}=0:4,7" for name in RANGES),
                "S:exact:share=0.25",
            ],
        ),
        "format": (emu.rounding, [*NAMED, "e5m10", "e4m3fn:stochastic:saturate"]),
        "block format": (emu.block_format, [*emu.BLOCK_NAMED, "mxfp8_e4m3:rceil:stochastic"]),
        "number": (lambda text: emu.explain(text, "bf16"), ["1.5", "1/3", "0x1.8p3", "-inf"]),
    }


def broken(text: str, chance: random.Random) -> Iterator[str]:
    """Yield texts that differ from a text in one place."""
    yield from (
        f"{text}:",
        f":{text}",
        f"{text};",
        f"{text},",
        f"{text}={text}",
        text + " ",
        text * 2,
    )
    yield from (text.replace("=", "=="), text.replace(":", "::"), text.replace("=", " = "))
    for number in (
        "-1",
        "0",
        "1e400",
        "nan",
        "9" * 5000,
        "10" * 20,
        "1_0",
        "0x10",
        "1:",
        ":1",
        "5:2",
    ):
        head, equals, _ = text.rpartition("=")
        yield f"{head}{equals}{number}"
        yield f"{text}:{number}"
    for _ in range(12):
        at = chance.randrange(len(text) + 1)
        letter = chance.choice(ALPHABET)
        yield text[:at] + letter + text[at + chance.randrange(2) :]
        yield text[:at] + text[at + 1 :]


def verdicts(asked: Asked = ALL) -> Iterator[Verdict]:
    """Yield a verdict for each text; the same texts at each run."""
    chance = random.Random(0)
    for kind, (read, texts) in right().items():
        for word in texts:
            for text in dict.fromkeys(broken(word, chance)):
                case = f"{kind}: {ascii(text)[:100]}"
                if case in asked:
                    yield _judged(case, read, text)


def _judged(case: str, read: Callable[[str], Any], text: str) -> Verdict:
    try:
        with strictly(LIMIT):
            read(text)
    except Late:
        return Verdict(case, "slow")
    except ValueError as error:
        said = str(error)
        fault = "several lines" if "\n" in said.strip() else fault_of_message(said)
        return Verdict(case, fault, said[:300])
    except BaseException as error:
        return Verdict(case, "another error", f"{type(error).__name__}: {str(error)[:300]}")
    return Verdict(case, "")

"""The command `plans`: the published plans of attention and of operations, a line for each.

What is said of a plan is the docstring of the function that makes it, as in the reference.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from roundscope.events.plan import base_name
from roundscope.tools.errors import bad
from roundscope.tools.report import terminal
from roundscope.tools.report.model import Part, Table, Text

NOT = "ot compared with hardware"
# what a test of ours compares with was recorded there
RECORDED = {"test_on_a_gpu": ["H100"], "test_gradients_on_a_gpu": ["H100", "H200"]}
_SOURCE = re.compile(r"arXiv|\.(?:py|cuh?|cpp|h)\b|\b\d+\.\d+|\b(?=[0-9a-f]*\d)[0-9a-f]{7,}\b|OCP")
_CLAUSE = re.compile(r": | \(|; |, (?:and|which|whose|as|for|in|of|with|where|tensor|cast) ")
_SENTENCE = re.compile(r"(?<=[^A-Z])\.\s+(?=[A-Z])")


def rows() -> list[dict[str, Any]]:
    """Return one record for each plan: presets, twins, then those of each operation.

    The fields: `operation`; `name`; `what` it is; its `source`; whether its bits were `compared`
    with those of a kernel or a library; `on` which machines; the sentence that says how far they
    agree, `bits`; the `kernels` of check and identify that it stands for; and, of attention, the
    formats to which Q, K, V and P round, `rounds`. What is not known is empty.
    """
    from roundscope.operations import OPERATIONS

    found = [*_of_attention()]
    for own in OPERATIONS.values():
        for name, make in own.published.items():
            if name not in ("exact", "fp32"):
                found.append(_operation(own.name, name, make))
    return found


def _of_attention() -> Iterator[dict[str, Any]]:
    from roundscope.attention.grammar.roundings import spelled
    from roundscope.attention.plans.plan import Plan
    from roundscope.attention.plans.presets import PRESETS
    from roundscope.attention.plans.twins import TWINS

    def rounds(plan: Plan) -> str:
        return " ".join(dict.fromkeys(_format(spelled(plan.event(site))) for site in "QKVP"))

    for name, make in PRESETS.items():
        text = told(make)
        yield _record("attention", name, text, source=source_of(text), rounds=rounds(make()))
    for name, twin in TWINS.items():
        yield _record(
            "attention",
            name,
            told(twin.make),
            source=twin.source,
            compared=True,
            on=machines(twin.source),
            bits=_least(twin.least),
            kernels=list(twin.kernels),
            rounds=rounds(twin.plan),
        )


def _least(shares: Mapping[str, float]) -> str:
    """Return how many bits of a twin's results are those of its kernel."""
    some = [f"at least {share:.2%} of {name}" for name, share in shares.items() if share]
    others = [f"nothing is claimed of {name}" for name, share in shares.items() if not share]
    every = "every bit" + (f", but {', '.join(some)}" if some else "")
    return "; ".join([every, *others])


def _operation(operation: str, name: str, make: Callable[[], Any]) -> dict[str, Any]:
    text = told(make)
    bits = text.partition("\n\n")[2]
    compared = bool(bits) and NOT not in text
    on = machines(bits) if compared else []
    source = source_of(text)
    return _record(
        operation, name, text, source=source, compared=compared, on=on, bits=_one_line(bits)
    )


def _format(text: str) -> str:
    """Return the format of a rounding in words, of blocks without a name that of their numbers."""
    element, bracket, _ = text.partition("[")
    return f"{element}-blocks" if bracket else text.partition(":")[0]


def _record(operation: str, name: str, text: str, **more: Any) -> dict[str, Any]:
    plain = {"source": "", "compared": False, "on": [], "bits": "", "kernels": [], "rounds": ""}
    what = _one_line(text.partition("\n\n")[0])
    return {"operation": operation, "name": name, "what": what} | plain | more


def told(make: Callable[[], Any]) -> str:
    """Return the docstring of a function that returns a plan, as text about the plan."""
    return re.sub(r"^the\b", "The", (inspect.getdoc(make) or "").removeprefix("Return "))


def source_of(text: str) -> str:
    """Return what stands in brackets and names a paper, a file, a version or a commit."""
    found = [x for x in re.findall(r"\(([^()]+)\)", text) if _SOURCE.search(x)]
    named = re.findall(r"[Ss]ource is ([^,]+)", text)
    return _one_line((named + [x for x in found if "test_" not in x] + [""])[0])


def machines(text: str) -> list[str]:
    """Return the machines with whose results a plan was compared, by the text about it."""
    named = [x for x in ("H100", "H200") if x in text]
    cited = [own for test, own in RECORDED.items() if test in text]
    on_gpu = named or (cited[0] if cited else [])
    return [*(["CPU"] if "on a CPU" in text or not on_gpu else []), *on_gpu]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def about(name: str) -> str:
    """Return one sentence on what a plan of attention is, by its name; "" if none is known."""
    base = base_name(name)
    found = next((r for r in _of_attention() if r["name"] == base), None)
    if found is None:
        return ""
    seen = f"with the bits of {found['source']}" if found["compared"] else ""
    if not seen and base not in ("exact", "fp32"):
        seen = "a published algorithm, compared with no hardware"
    return f"{base}: {', '.join(filter(None, (_short(found['what']), seen)))}."


def chosen(words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the records of which one of these words is a part of what `_found_by` says; or all.

    Raises UsageError for a word that no plan has.
    """
    every = rows()
    texts = [_found_by(r) for r in every]
    for word in words:
        if not any(word.lower() in text for text in texts):
            known = " ".join(dict.fromkeys(r["operation"] for r in every))
            repair = f"no plan has it in name, source or machine; give a part, or one of {known}"
            raise bad("WORD", word, repair)
    is_meant = [not words or any(w.lower() in text for w in words) for text in texts]
    return [r for r, meant in zip(every, is_meant, strict=True) if meant]


def _found_by(r: dict[str, Any]) -> str:
    """Return the operation, name, formats, kernels, machines and source of a plan, as one text."""
    own = (r["operation"], r["name"], r["rounds"], *r["kernels"], *r["on"], r["source"])
    return " ".join(own).lower()


def show(words: Sequence[str] = (), as_json: bool = False) -> None:
    """Print the plans as a table for each operation, or as JSON."""
    found = chosen(words)
    if as_json:
        terminal.print_json(found)
        return
    parts: list[Part] = []
    for operation in dict.fromkeys(r["operation"] for r in found):
        own = [r for r in found if r["operation"] == operation]
        heads = ["plan", "compared on", "what it is"]
        cells = [[r["name"], ", ".join(r["on"]) or "-", _short(r["what"])] for r in own]
        if any(r["rounds"] for r in own):
            heads.insert(1, "Q, K, V and P")
            for cell, r in zip(cells, own, strict=True):
                cell.insert(1, r["rounds"])
        parts += [Table(heads, cells, title=operation), Text("")]
    terminal.show([*parts, Text(LEGEND, "note")])


def _short(what: str) -> str:
    """Return the beginning of a text, which fits beside the name of a plan."""
    return _CLAUSE.split(_SENTENCE.split(what)[0].rstrip("."))[0]


LEGEND = (
    "compared on: the machines on which a plan's bits were compared with those of the kernel or"
    " library; - means with none. --json has each source, how far the bits agree, and which kernels"
    " of check and identify a plan stands for. Other plans: all:FORMAT, NAME-fp16,"
    " NAME@ARCHITECTURE, and NAME with changes."
)

"""`roundscope check`: five tests of a kernel that runs here, or of a file of its results."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.attention.plans.named import fitting
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.cases import Answer, Case, not_run, strict
from roundscope.attention.testing.comparison import Comparison, compare, heads_needed, level_of
from roundscope.attention.testing.edges import SPECIAL, check_edges, judged
from roundscope.attention.testing.errors import UNITS
from roundscope.attention.testing.exact import visible
from roundscope.attention.testing.families import FAMILIES, draw, rounded
from roundscope.attention.testing.foreign.user import (
    GIVEN,
    Kernel,
    Unavailable,
    in_time,
    kernel_of,
    takes,
    unavailable,
)
from roundscope.attention.testing.invariance import check_invariance
from roundscope.attention.testing.reference import Reference
from roundscope.emu.testing.foreign import ForeignError, check_timeout, is_refusal, raised
from roundscope.tools.check.findings import BITS, MARGINS, Findings, of_comparison, of_search
from roundscope.tools.check.options import CheckOptions, checked
from roundscope.tools.check.report import report, request
from roundscope.tools.errors import bad, why
from roundscope.tools.identify.adapters import ADAPTERS, OF_FILES, kernel, plain_name
from roundscope.tools.identify.identify import identify
from roundscope.tools.identify.reading import (
    SAMPLE,
    is_kernel,
    unknown_source,
    whole_of_file,
)
from roundscope.tools.report.deliver import deliver, failed
from roundscope.tools.report.progress import telling
from roundscope.tools.report.wording import listed, many
from roundscope.tools.results.folder import as_word, checked_folder, free_folder
from roundscope.tools.tensors.layers import BARE, read_layers, sample_path

Tell = Callable[[str], None]
RECORD = "check.json"
OTHER: dict[str, dict[str, int]] = {  # calls of other sizes, and these sizes
    "gaussian, full, many keys": {"tokens": 16, "keys": 1100},
    "one-signed-v, full, many keys": {"tokens": 16, "keys": 1100},
    "ties, full, 128 keys": {"tokens": 128},  # means of 128 numbers of a grid are ties too
    "gaussian, causal, grouped heads": {"heads": 16, "key_heads": 8},
}
SOUGHT = 256  # tokens of the real tensors on which the arithmetic is looked for
REAL = "real tensors"
FEW_EDGES = ("one token", "a tile and one token", *SPECIAL)  # once a gross mistake is known


def run(asked: CheckOptions) -> int:
    """Check a kernel, print the report and write the files. Return 1 if a case fails, else 0."""
    checked_folder(asked.out, RECORD)
    checked(asked)
    with telling("check") as tell:
        try:
            found = check(asked, tell)
        except ForeignError as error:
            suite = f"check {asked.source} against {asked.plan}"
            return failed(asked.junit, suite, asked.source, error)
    name = as_word(f"check-{found.name}-{asked.claimed}")[:80]
    folder = asked.out or free_folder(name, request(asked), RECORD)
    deliver(report(found), folder, RECORD, as_json=asked.json, junit_file=asked.junit)
    return 0 if found.is_fine else 1


def check(asked: CheckOptions, tell: Tell) -> Findings:
    """Return what a check finds of a kernel or on a file.

    Raises:
        UsageError: there is no such kernel or file, or the kernel does not run.
        ForeignError: the kernel gives no results, or does what no kernel may do.
    """
    began = time.perf_counter()
    path = Path(asked.source)
    if path.is_file():
        found = _of_file(path, asked, tell)
    elif is_kernel(asked.source):
        found = _of_kernel(asked, tell)
    else:
        raise unknown_source(asked.source)
    if asked.is_strict:
        found.cases = [strict(case) for case in found.cases]
    found.seconds = time.perf_counter() - began
    return found


def kernel_asked(asked: CheckOptions) -> Kernel:
    """Return the kernel that was asked for. Raises UsageError if there is none of this name."""
    try:
        check_timeout(asked.timeout)
        if asked.source in ADAPTERS or plain_name(asked.source) in OF_FILES:
            named = in_time(kernel(asked.source), asked.timeout)
            return (lambda x: _output_alone(named(x))) if asked.forward else named
        own = kernel_of(
            asked.source,
            library=asked.library,
            layout=asked.layout,
            dtype=asked.dtype,
            backward=asked.backward,
        )
        return in_time(own, asked.timeout)
    except (ValueError, TypeError, ImportError) as error:
        raise bad("KERNEL", asked.source, unavailable(error) or why(error)) from None


def _output_alone(outputs: Outputs) -> Outputs:
    """Return the results of a kernel without its gradients: what --forward asks about."""
    return replace(outputs, dq=None, dk=None, dv=None)


def said_of(asked: CheckOptions) -> dict[str, Any]:
    """Return what the command says of every call of a kernel: scale, window, softcap, alignment."""
    o = asked.overrides
    said = {"scale": o.scale, "window": o.window, "softcap": o.softcap, "alignment": o.alignment}
    return {name: value for name, value in said.items() if value}


def check_takes(function: Kernel, asked: CheckOptions) -> None:
    """Raise UsageError for an option of a call that the kernel cannot be told of."""
    own = said_of(asked)
    for f in fields(asked.call):
        value = getattr(asked.call, f.name)
        if f.name == "causal" or value is None or (f.name in own and takes(function, f.name)):
            continue
        if f.name not in own and f.name in (*GIVEN, "scale"):
            continue  # none, as without the option
        keyword = f"add the keyword {f.name} to the function, or " if f.name in GIVEN else ""
        repair = (
            f"takes no {f.name}, so that it cannot be told --{f.name} {value}; {keyword}save its q,"
            " k, v and out in a file (docs/howto/save-tensors.md), and check that with this option"
        )
        raise bad("KERNEL", asked.source, repair)


def kinds(is_causal: bool | None) -> list[str]:
    """Return the kinds of inputs in words: every family, in causal and in full calls."""
    modes = {None: ("causal", "full"), True: ("causal",), False: ("full",)}[is_causal]
    return [f"{family}, {mode}" for mode in modes for family in FAMILIES]


def drawn(asked: CheckOptions, kind: str, look: int) -> Inputs:
    """Return the inputs of a kind."""
    family, mode = kind.split(", ")[:2]
    sizes = {"tokens": asked.tokens, "heads": asked.heads} | OTHER.get(kind, {})
    x = draw(
        family,
        seed=asked.seed + look,
        batch=asked.batch,
        features=asked.features,
        is_causal=mode == "causal",
        dtype=asked.dtype,
        **sizes,
    )
    return replace(x, **said_of(asked))


def taken_kinds(function: Kernel, asked: CheckOptions) -> tuple[list[str], list[str]]:
    """Return the kinds of calls of other sizes that a kernel takes, and those that it does not."""
    modes = {None: ("causal", "full"), True: ("causal",), False: ("full",)}[asked.is_causal]
    taken: list[str] = []
    refused: list[str] = []
    for kind in (kind for kind in OTHER if kind.split(", ")[1] in modes):
        try:
            function(drawn(asked, kind, 0))
            taken.append(kind)
        except Exception as error:  # whatever a library raises; a fault is told where it is asked
            (refused if is_refusal(error) else taken).append(kind)
    return taken, refused


def comparison(
    function: Kernel, asked: CheckOptions, of_kinds: Sequence[str], tell: Tell = lambda text: None
) -> Comparison:
    """Compare a kernel with its plan on inputs of `kinds` and `OTHER`, to their end."""
    return compare(
        function,
        asked.reference(),
        of_kinds,
        partial(drawn, asked),
        draws=asked.draws,
        margins=MARGINS,
        unit=UNITS[asked.dtype],
        false_alarm=asked.false_alarm,
        stop=False,
        stop_gross=True,
        tell=tell,
    )


def _of_kernel(asked: CheckOptions, tell: Tell) -> Findings:
    function, plan = kernel_asked(asked), asked.reference()
    check_takes(function, asked)
    tell("first call")
    runs = _running(function, asked)
    found = Findings(name=plain_name(asked.source), about=_about(asked), asked=asked)
    if not runs and asked.backward:
        found.notes.append("It returns no gradients, so that only the output was checked.")
    if {"envelope", "bias"} & set(asked.tests):
        others, refused = taken_kinds(function, asked)
        if refused:
            found.notes.append(f"It does not take these calls: {'; '.join(refused)}.")
        every = [*kinds(asked.is_causal), *others]
        found.compared = comparison(function, asked, every, tell)
        found.cases += _compared(found.compared, asked)
        if known := found.compared.known:
            found.notes.append(f"{known[:1].upper()}{known[1:]}.")
        if left := found.compared.left_out:
            found.notes.append(
                f"The first gross failure ended the draws: {len(left)} of {len(every)} kinds of"
                " inputs were not asked about."
            )
    if "explanation" in asked.tests:
        found.cases.append(_explained(function, asked, tell, found))
    modes = (True, False) if asked.is_causal is None else (asked.is_causal,)
    if "invariance" in asked.tests:
        tell("invariance")
        x = replace(drawn(asked, "gaussian, causal", 0), is_causal=modes[0])
        found.cases += check_invariance(function, plan, x, margins=MARGINS, dtype=asked.dtype)
    if "edges" in asked.tests:
        tell("edges")
        if found.suspect:  # what is grossly wrong fails nearly all edges, and slowly
            found.cases += edge_cases(function, plan, asked, modes[:1], FEW_EDGES)
            found.notes.append(
                "The mistake is known, so that only these edges were asked about:"
                f" {listed(FEW_EDGES)}."
            )
        else:
            found.cases += edge_cases(function, plan, asked, modes)
            found.cases.append(_real_tensors(function, asked, modes[0]))
    return found


def _running(function: Kernel, asked: CheckOptions) -> bool:
    """Return whether a kernel gives gradients.

    Raises:
        UsageError: it does not run on the inputs of the check.
        ForeignError: it gives no results, or does what no kernel may do.
    """
    x = drawn(asked, kinds(asked.is_causal)[0], 0)
    try:
        return function(x).dq is not None
    except Unavailable as error:
        raise bad("KERNEL", asked.source, why(error)) from None
    except Exception as error:  # whatever a library raises
        if isinstance(error, ForeignError) and not error.is_refusal:
            raise
        shape = f"q of shape {x.q.shape}, (batch, tokens, heads, features)"
        repair = (
            f"does not run on {shape}: {raised(error)}; choose"
            " sizes that it takes with --tokens, --features, --heads and --batch, or --forward"
        )
        if missing := unavailable(error):
            raise bad("KERNEL", asked.source, missing) from None
        if ":" in asked.source:  # somebody's own, whose check has failed
            raise ForeignError("kernel", repair) from error
        raise bad("KERNEL", asked.source, repair) from None


def _about(asked: CheckOptions) -> str:
    mode = {None: "causal and full", True: "causal", False: "full"}[asked.is_causal]
    return (
        f"calls of {asked.batch} x {many(asked.heads, 'head')}, {many(asked.tokens, 'token')},"
        f" {many(asked.features, 'feature')}, {mode}, {asked.dtype}"
        + "".join(f", {name} {value}" for name, value in said_of(asked).items())
    )


def _compared(compared: Comparison, asked: CheckOptions) -> Iterator[Case]:
    seconds = compared.seconds / 2
    for test in ("envelope", "bias"):
        if test in asked.tests:
            yield from of_comparison(compared, test, seconds)


def _real(asked: CheckOptions, is_causal: bool) -> Inputs:
    """Return a layer of the shipped tensors, its first tokens."""
    [layer] = read_layers(sample_path(), layer=SAMPLE)
    assert layer.do is not None
    q, k, v, do = (
        rounded(a[:1, :SOUGHT], asked.dtype) for a in (layer.q, layer.k, layer.v, layer.do)
    )
    scale = layer.scale if layer.scale is not None else q.shape[-1] ** -0.5
    x = Inputs(q=q, k=k, v=v, do=do, scale=scale, is_causal=is_causal)
    return replace(x, **said_of(asked))


def _explained(function: Kernel, asked: CheckOptions, tell: Tell, found: Findings) -> Case:
    """Look for the plan of the kernel's bits on real tensors, or else on drawn ones."""
    notes, tensors = found.notes, "the shipped tensors"
    is_causal = asked.is_causal is not False
    x = _real(asked, is_causal)
    try:
        outputs = function(x)
    except Exception as error:  # a kernel may not take 32 features
        if not is_refusal(error):
            sentence = f"It failed on the real tensors: {raised(error)}."
            return Case(test="explanation", name=BITS, answer=Answer.FAIL, sentence=sentence)
        shape = x.q.shape
        notes.append(
            f"It raised an error on the real tensors, q of shape {shape}: {raised(error)}. Its"
            " arithmetic was looked for on drawn tensors."
        )
        x = drawn(asked, f"gaussian, {'causal' if is_causal else 'full'}", 0)
        tensors = "drawn tensors"
        try:
            outputs = function(x)
        except Exception as again:  # it took them before
            sentence = f"It raised an error on these inputs: {raised(again)}."
            return Case(test="explanation", name=BITS, answer=Answer.FAIL, sentence=sentence)
    batch, tokens, heads, features = x.q.shape
    where = f"On {tensors} ({many(batch * heads, 'head')} of {features} features, {tokens} tokens)"
    return _searched(x, outputs, asked, tell, found, where)


def _searched(
    x: Inputs, outputs: Outputs, asked: CheckOptions, tell: Tell, found: Findings, where: str = ""
) -> Case:
    """Return the case of the search; where a mistake in the code is known, structures alone."""
    with np.errstate(all="ignore"):
        found.search = identify(
            x,
            outputs,
            lambda text: tell(f"explanation: {text}"),
            0 if found.suspect else asked.budget,
            head=asked.head,
        )
    return of_search(found.search, where)


def edge_cases(
    function: Kernel,
    plan: Reference,
    asked: CheckOptions,
    modes: tuple[bool, ...],
    names: Sequence[str] | None = None,
) -> Iterator[Case]:
    """Yield the answers of a kernel at every edge, or at those of some names.

    modes: whether calls are causal, or both. Of chosen names the mistake is known already.
    """
    for is_causal in modes:
        is_further = is_causal is not modes[0]
        for case in check_edges(
            function,
            plan,
            features=asked.features,
            is_causal=is_causal,
            margins=MARGINS,
            dtype=asked.dtype,
            said=said_of(asked),
            names=names,
            explains=names is None,
        ):
            yield replace(case, name=f"{case.name}, full") if is_further else case


def _real_tensors(function: Kernel, asked: CheckOptions, is_causal: bool) -> Case:
    x = _real(asked, is_causal)
    began = time.perf_counter()
    try:
        real = asked.reference()
        verdict = judged(function, real, x, MARGINS, asked.dtype)
    except Exception as error:  # a kernel may not take 32 features
        return not_run("edges", REAL, error, began)
    seconds = time.perf_counter() - began
    return Case(test="edges", name=REAL, seconds=seconds, **verdict._asdict())


def _of_file(path: Path, asked: CheckOptions, tell: Tell) -> Findings:
    """Check the calls in a file: every layer of it is a draw of the same kind."""
    said = asked.overrides
    layers = read_layers(path, asked.layout, asked.layer, overrides=said)
    if is_half := all(fitting("", each.types) for each in layers):
        asked = replace(asked, dtype="float16")
    calls = []
    for each in layers:
        layer = None if each.name == BARE else each.name
        calls.append(whole_of_file(path, asked.layout, layer, said))
    inputs, outputs = [c[2] for c in calls], [c[3] for c in calls]
    if asked.forward:
        outputs = [_output_alone(x) for x in outputs]
    if any("scale_o" in (x.scales or {}) for x in inputs):
        repair = "outputs are compared without it; store out divided by it, and leave scale_o out"
        raise bad("FILE", str(path), f"has scale_o: {repair}")
    features = inputs[0].q.shape[-1]
    heads = sum(x.q.shape[0] * x.q.shape[2] for x in inputs)
    several = f", {len(calls)} layers" if len(calls) > 1 else ""
    found = Findings(
        name=path.name, about=f"{many(heads, 'head')}, {features} features{several}", asked=asked
    )
    found.notes += dict.fromkeys(f"{note}." for each in layers for note in each.notes)
    if is_half:
        found.notes.append("Its tensors are FP16, and so the plan has FP16 in place of BF16.")
    needed = heads_needed(level_of(asked.false_alarm, 1, 1))
    if heads < needed:
        found.notes.append(
            f"The file has {many(heads, 'head')}: an alarm from means over heads needs {needed} at"
            f" --false-alarm {asked.false_alarm:g}, so only single heads can fail."
        )
    if {"envelope", "bias"} & set(asked.tests):
        answers = iter(outputs)
        found.compared = compare(
            lambda x: _comparable(x, next(answers)),
            asked.reference(),
            ["the file"],
            lambda kind, look: inputs[look],
            draws=len(calls),
            margins=MARGINS,
            unit=UNITS[asked.dtype],
            false_alarm=asked.false_alarm,
            stop=False,
            is_sequential=False,
            tell=tell,
        )
        found.cases += _compared(found.compared, asked)
    if "explanation" in asked.tests:
        found.cases.append(_searched(inputs[0], outputs[0], asked, tell, found))
    sentence = "A file has no kernel to call."
    for test in ("invariance", "edges"):
        if test in asked.tests:
            found.cases.append(
                Case(test=test, name="all", answer=Answer.NOT_RUN, sentence=sentence)
            )
    return found


def _comparable(x: Inputs, outputs: Outputs) -> Outputs:
    """Return outputs with all three gradients or none, and 0 in rows of queries that see no key.

    What a kernel returns in such rows is its own choice.
    """
    shape = (x.q.shape[0], x.q.shape[2], x.q.shape[1], x.k.shape[1])
    sees: np.ndarray = np.broadcast_to(visible(x), shape).max(-1)
    seen = sees.swapaxes(1, 2)[..., None]
    out = np.where(seen, outputs.out, np.float32(0.0))
    if outputs.dq is None or outputs.dk is None or outputs.dv is None:
        return Outputs(out=out, lse=outputs.lse)
    dq = np.where(seen, outputs.dq, np.float32(0.0))
    return Outputs(out=out, lse=outputs.lse, dq=dq, dk=outputs.dk, dv=outputs.dv)

"""What a trace reports, in this order: how exact are the results, which event is to blame, what
would help, and then what every event did.
"""

import shlex
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from roundscope.tools.look.plans import about
from roundscope.tools.report.model import (
    Code,
    Folded,
    Mood,
    Opening,
    Part,
    Picture,
    Raw,
    Report,
    Section,
    Text,
    notes,
)
from roundscope.tools.trace.costs import VISIBLE, cost, visible
from roundscope.tools.trace.report import tables
from roundscope.tools.trace.report.captions import budget_picture, mechanisms, pictures
from roundscope.tools.trace.report.words import details, plan_words
from roundscope.tools.trace.stopping import stop
from roundscope.tools.trace.summary import Summary
from roundscope.tools.trace.verdict import verdict

SCRIPT = """<script>
(() => {
  const asked = () => new URLSearchParams(location.hash.slice(1));
  const bars = document.querySelector(".filters");
  if (!bars) return;
  bars.hidden = false;
  const [layer, head] = ["layer", "head"].map((name) => bars.querySelector(`[name=${name}]`));
  const show = () => {
    const words = asked();
    if (layer) layer.value = words.get("layer") ?? "";
    head.value = words.get("head") ?? "";
    for (const part of document.querySelectorAll("section[data-layer]"))
      part.hidden = Boolean(layer && layer.value) && part.dataset.layer !== layer.value;
    for (const row of document.querySelectorAll(".heads tr"))
      row.hidden = head.value !== "" && row.cells[0].tagName === "TD"
        && row.cells[0].textContent !== head.value;
    if (head.value !== "")
      for (const table of document.querySelectorAll(".heads")) table.closest("details").open = true;
  };
  const tell = () => {
    const words = new URLSearchParams();
    if (layer && layer.value) words.set("layer", layer.value);
    if (head.value !== "") words.set("head", head.value);
    history.replaceState(null, "", `#${words}`);
    show();
  };
  for (const field of [layer, head]) if (field) field.addEventListener("input", tell);
  addEventListener("hashchange", show);
  if (/^#(layer|head)=/.test(location.hash)) show();
})();
</script>"""


def controls(layers: list[str], heads: int) -> str:
    """Return the fields that choose a layer, if there are several, and a head.

    They are hidden where no script runs. What is chosen stands in the page's address, as
    #layer=NAME&head=3.
    """
    names = "".join(f"<option value='{escape(x, quote=True)}'>{escape(x)}</option>" for x in layers)
    choice = (
        f"<label>Show layer <select name=layer><option value=''>all</option>{names}</select>"
        "</label><br>"
        if len(layers) > 1
        else ""
    )
    head = (
        "<label>In the table of the errors of every head, show head <input name=head"
        f" type=number min=0 max={heads - 1} placeholder=all"
        " style='width:5em'></label>"
    )
    return f"<p class='filters note' hidden>{choice}{head}</p>"


PICTURED = 16  # layers of which a page has pictures, at most
Progress = Callable[[str], None]
HOW = [
    Text(
        "Relative rms error: the size of the difference from exact"
        " attention (binary64 throughout), over the size of the exact result. Too long or too short"
        " (the gain): the difference along the exact result, as a part of its length; noise leaves"
        " about 0, and a rounding that is biased does not. z is the gain over its standard error,"
        " from the scatter of heads. Rounded once: the error that remains if everything but the"
        " last rounding is exact, which no result in this format can beat.",
        lead="Results.",
    ),
    Text(
        "A rounding event is one operation and one rounding, with a name. Each event"
        " is run alone, with all else in binary64; its share is its squared error over that of the"
        " whole plan, since independent errors add in squares. Then it is taken away alone: the"
        " error that is left says what more bits for this event would buy. Sums on tensor cores"
        " read narrow operands only, and injected errors are in ulps of the plan's formats, so for"
        " these the share is the change when they are taken away. Interaction is what the shares do"
        " not add up to: above 0 errors point the same way, below 0 they cancel. A result with an"
        " infinite or NaN number has an infinite error and no shares: inf marks the events that"
        " alone make it so.",
        lead="Error budget.",
    ),
    Text(
        "Errors are in ulps, units in the last place of the event's format. ▲ ▼ mark events"
        " that are biased up or down.",
        lead="Events.",
    ),
    Text(
        "The null hypothesis: flip the signs of all errors of a row together, by a fair coin per"
        " row. Then z = Σ s / √(Σ s²) over the rows, with s the row's sum of signed errors in ulps."
        " Errors inside a row may depend on each other in any way. Events whose |z| exceeds the"
        " threshold are tested once more with one coin per distinct argument (its signed"
        " significand; of LSE, equal errors), since equal arguments round alike in every row; the"
        " larger variance counts. ± is one standard error. Thresholds are set so that without any"
        " bias each table or picture marks something once in a hundred times.",
        "note",
    ),
]
EXACT = [
    Text(
        "Every event is rounded exactly, from binary64, once. The counts of"
        " inexact events, ties, carries and overflows are exact, and so are the errors of single"
        " events (the difference of two neighboring numbers needs no rounding). The results have"
        " the same bits on every engine for plans without native accumulators.",
        "note",
        lead="What is exact.",
    ),
    Text(
        "Sums of errors, means and"
        " deviations are binary64 sums. exp and log enter an event in binary64,"
        " within 1 ulp of binary64, and exp rounds correctly to binary32 and narrower. The"
        " reference plan exact is binary64 throughout, not infinite precision. z and its threshold"
        " are statistics of these tensors; they say nothing of other inputs.",
        "note",
        lead="What is not exact.",
    ),
]


def report(
    summaries: list[Summary],
    data: dict[str, Any],
    progress: Progress = lambda _: None,
    every: bool = False,
) -> Report:
    """Return the report of all layers.

    data: trace.json;  progress: called with what is drawn;  every: whether the terminal shows the
    table of all events too
    """
    again, many = again_of(data["command"]), len(summaries) > 1
    worst, pictured = min(summaries, key=_exactness), least_exact(summaries)
    heads = int(worst.layer.q.shape[2])
    layers, brief = [], []
    for s in summaries:
        one = f"{again} --layer {shlex.quote(s.layer.name)}"
        if is_pictured := s.layer.name in pictured:
            progress(f"{s.layer.name}: pictures")
        parts: list[Part] = [Text(verdict(s).text)] if many else []
        if not is_pictured:
            text = f"Drawn are the {PICTURED} least exact layers. Pictures of this one:"
            parts.append(Text(text, "note", command=one))
        parts += _layer(s, is_pictured)
        layers.append(Section(s.layer.name if many else "", parts, name=s.layer.name))
        brief += of_layer(s, one if many else again, every)
    return Report(
        title=f"{data['plan']['name']}, {data['file']}",
        heading="How exact is this attention, and which rounding is to blame?",
        about=_about(worst, data),
        opening=_opening(summaries, worst, again),
        parts=[
            Folded("How to read this page", HOW),
            *([Section("The layers", [tables.layers(summaries)])] if many else []),
            Raw(controls([s.layer.name for s in summaries], heads)),
            *layers,
            Folded("What is exact on this page, and what is not", EXACT),
            Folded("What was run", [Code(_machine(data))]),
            Raw(SCRIPT),
        ],
        brief=brief,
        data=data,
    )


def again_of(words: Sequence[str]) -> str:
    """Return the command line that was given, without where and how its output is shown."""
    kept, skip = [], False
    for word in words:
        is_shown = word in ("--out", "--json", "--all") or word.startswith("--out=")
        if not (skip or is_shown):
            kept.append(word)
        skip = word == "--out"
    return shlex.join(kept)


def stepped(command: str, step: str) -> str:
    """Return a command with the options of its next step, without the changes these replace.

    Example:
        >>> stepped("roundscope trace x --set 'Q=bf16; K=bf16'", "--set Q=fp32")
        'roundscope trace x --set K=bf16 --set Q=fp32'
    """
    words, kept = shlex.split(command), []
    new = {w.partition("=")[0] for w in shlex.split(step) if w != "--set"}
    while words:
        word = words.pop(0)
        is_set = word == "--set" and bool(words)
        if not is_set and not word.startswith("--set="):
            kept.append(word)
            continue
        changes = [c.strip() for c in (words.pop(0) if is_set else word[6:]).split(";")]
        left = [c for c in changes if c.partition("=")[0].strip() not in new]
        kept += ["--set", "; ".join(left)] if left else []
    return f"{shlex.join(kept)} {step}".strip()


def least_exact(summaries: list[Summary]) -> set[str]:
    """Return the names of the layers of which a page has pictures, which take most of its time."""
    return {s.layer.name for s in sorted(summaries, key=_exactness)[:PICTURED]}


def _exactness(s: Summary) -> tuple[bool, float]:
    """Return what layers are sorted by, the least exact first."""
    return s.not_finite is None, -s.results[0].error


def _about(worst: Summary, data: dict[str, Any]) -> str:
    request, layer = worst.request, worst.layer
    sizes = "; ".join((tables.sizes(worst), *layer.notes))
    what = about(request.plan.name)
    return (
        f"{data['file']}: {plan_words(request)}, against {data['against']['name']}, tiles of"
        f" {data['block_q']} x {data['block_k']}{tables.call_words(request, layer)},"
        f" engine {data['engine']}. {sizes}.{' ' * bool(what)}{what}"
    )


def _opening(summaries: list[Summary], worst: Summary, again: str) -> Opening:
    """Return the verdict on the layer that is least exact, and the next step.

    The step is that of the least exact layer in which there is something to repair.
    """
    v = verdict(worst)
    first = v.accuracy
    if len(summaries) > 1:
        first = f"{worst.layer.name} is the least exact of {len(summaries)} layers. {first}"
    is_bad = any(s.biased_results or s.not_finite is not None for s in summaries)
    mood: Mood = "bad" if is_bad else "good" if all(map(stop, summaries)) else ""
    more = " ".join(x for x in (v.bias, v.causes) if x)
    if len(summaries) == 1 and (end := stop(worst)):
        return Opening(" ".join(x for x in (end, first, more) if x), mood="good")
    left = [s for s in summaries if not stop(s)]
    if not left:
        end = stop(worst).partition(":")[0]
        end = f"{end}: this holds for every layer."
        return Opening(" ".join(x for x in (end, first, more) if x), mood=mood)
    if stop(worst):
        worst = min(left, key=_exactness)
        v = verdict(worst)
    one = f"{again} --layer {shlex.quote(worst.layer.name)}" if len(summaries) > 1 else again
    step = stepped(one, v.step) if v.step else ""
    where = f" in {worst.layer.name}" if len(summaries) > 1 else ""
    return Opening(first, more, step, f"Next, to see how{where} {v.buys}", mood)


def _layer(s: Summary, is_pictured: bool) -> list[Part]:
    """Return the parts of one layer."""
    results = Section("Results", [tables.results(s), *notes(tables.results_note(s))])
    parts: list[Part] = [results]
    if s.budget is not None and s.budget.lines:
        if is_pictured:
            parts.append(Picture(*budget_picture(s, visible(s.budget))))
        rates = "Rates are NVIDIA's of dense products on an H100 SXM; sizes are those of all heads."
        promoted: list[Part] = [tables.promotions(s, s.budget), *notes(rates)]
        parts += [
            tables.whole_budget(s.budget),
            *notes(tables.budget_method(s, s.budget), tables.LEFT),
            Section("What more bits would buy, and cost", promoted),
        ]
    fire, quiet = mechanisms(s)
    drawn = [Picture(*p) for p in (*pictures(s), *fire)] if is_pictured else []
    lines = notes(*tables.folded(s), tables.legend(s))
    by_head = [r for r in s.results if r.heads.shape == s.results[0].heads.shape]
    keys = " and ".join(r.name for r in s.results if r not in by_head)
    note = notes(f"{keys} belong to key heads." if keys else "")
    parts += [
        Section("What every rounding event did", [Text(details(s)), *drawn]),
        Folded(
            "All events that round, with their formulas",
            [tables.events(s, with_formulas=True), *lines],
        ),
        Folded("Errors of every head", [tables.by_head(by_head), *note]),
    ]
    if quiet:
        parts.append(Folded("Published mechanisms of failure that do not show here", notes(*quiet)))
    return parts


def _machine(data: dict[str, Any]) -> str:
    plan = data["plan"]
    lines = [
        f"command    {' '.join(data['command'])}",
        f"versions   {' '.join(f'{k} {v}' for k, v in data['versions'].items())}",
        f"platform   {data['platform']}",
        f"seed       {data['seed']}",
        "",
        *(f"{k:10} {v}" for k, v in plan.items() if not isinstance(v, dict)),
        f"roundings  {' '.join(f'{k}={v}' for k, v in plan['roundings'].items())}",
        f"sums       {'; '.join(f'{k}: {v}' for k, v in plan['accumulators'].items())}",
    ]
    for layer in data["layers"]:
        sizes = " ".join(f"{k}={v}" for k, v in layer["shape"].items())
        lines += ["", f"{layer['name']}   scale {layer['scale']!r}   {sizes}"]
        lines += [
            f"sha256 {k:6} {v}" for part in layer["digests"].values() for k, v in part.items()
        ]
    return "\n".join(lines)


def of_layer(s: Summary, command: str = "", every: bool = False) -> list[Part]:
    """Return what the terminal shows of one layer.

    command: to which the next step adds options;  every: with the table of all events
    """
    request, layer, v = s.request, s.layer, verdict(s)
    tile = f"tile {request.block_q} x {request.block_k}{tables.call_words(request, layer)}"
    parts: list[Part] = [
        Text(f"{layer.name}: {plan_words(request)}, {tile}", "strong"),
        Text(tables.sizes(s), "note"),
        *(Text(note, "warn") for note in layer.notes),
        Text(v.text),
    ]
    if end := stop(s):
        parts.append(Text(end, "good"))
    elif v.step:
        parts.append(Text("", "strong", lead="Next:", command=stepped(command, v.step)))
        parts.append(Text(f"      to see how {v.buys}", "note"))
    parts += notes(about(request.plan.name))
    parts += [Text(""), tables.results(s), *notes(tables.results_note(s))]
    if s.budget is not None and s.budget.lines:
        title = "Error budget: % of the squared error that each event makes alone"
        seen = visible(s.budget)
        small = ", ".join(x.part.name for x in s.budget.lines if x not in seen)
        lines = [
            tables.budget_method(s, s.budget),
            f"below {100 * VISIBLE:.1g} % everywhere: {small}" if small else "",
            "what each is, and what more bits would cost a kernel on an H100, all heads:",
            *(
                f"  {x.part.name} = {x.part.formula}; {cost(request.plan, x.part, layer)}"
                for x in seen
                if len(x.part.places) == 1
            ),
        ]
        parts += [Text(""), Section(title, [tables.shares(s.budget), *notes(*lines)])]
    parts += [Text(""), Text(details(s))]
    if not every:
        return [*parts, *notes("Every rounding event: with --all, or on the page."), Text("")]
    events = tables.events(s, with_formulas=False)
    return [*parts, events, *notes(*tables.folded(s), tables.legend(s)), Text("")]

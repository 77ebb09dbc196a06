"""`targets`: which results of a run are meant by names of modules as engines for serving have them.

Names are paths of modules. Engines compute several linear layers as one (`qkv_proj`,
`gate_up_proj`), add the residual within a norm, which returns the sum too, and give names to what a
trainer has as functions (`act_fn`, `rotary_emb`, `attn`).
"""

from collections.abc import Sequence

from roundscope.operations.models.tape import Entry, Tape, refs

FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
FUNCTIONS = {"rotary_emb": "rope", "attn": "attention"}  # of the module around them
LOGITS = ("lm_head", "logits_processor", "logits")
INPUT = " input"  # behind the name of a module: what it reads first


def targets(tape: Tape, name: str, count: int = 1) -> list[list[int]]:
    """Return the values that a named result is; [] if the run has none of that name.

    Args:
        tape: The run.
        name: The path of a module; with " input" behind it what it reads is meant.
        count: How many tensors there are, such as two of a norm that adds a residual.

    Returns:
        For each tensor the values that it has side by side.
    """
    if name.endswith(INPUT):
        own = _within(tape, name.removesuffix(INPUT))
        return [[refs(own[0].arguments)[0]]] if own and refs(own[0].arguments) else []
    if name in LOGITS and tape.logits is not None:
        return [[tape.logits]]
    parent, _, last = name.rpartition(".")
    exact = [entry for entry in tape.counted if entry.module == name]
    if last in FUSED and not exact:
        parts = [_within(tape, f"{parent}.{part}".lstrip(".")) for part in FUSED[last]]
        return [[own[-1].outputs[0] for own in parts]] if all(parts) else []
    if last == "act_fn" and (down := _within(tape, f"{parent}.down_proj")):
        return [[refs(down[0].arguments)[0]]]
    if last in FUNCTIONS and not exact:
        own = [e for e in tape.counted if (e.module, e.operation) == (parent, FUNCTIONS[last])]
        return [[v] for v in own[-1].outputs[:count]] if own else []
    if not (own := exact or _within(tape, name)):
        return []
    found = [[own[-1].outputs[0]]]
    if count == 2 and own[-1].operation in ("rms_norm", "layer_norm"):
        found.append([refs(own[-1].arguments)[0]])
    return found


def _within(tape: Tape, path: str) -> list[Entry]:
    """Return the operations of a module and of those inside it."""
    own = [e for e in tape.counted if e.module == path or e.module.startswith(f"{path}.")]
    return own if path else []


def title(tape: Tape, values: Sequence[int]) -> str:
    """Return what made values, in words."""
    made = [tape.entries[tape.made_by[v]].title for v in values if v in tape.made_by]
    return " + ".join(dict.fromkeys(made)) or "an input"

"""What computes a pair of operations in either run, in words that differ where the runs do."""

from collections.abc import Callable, Sequence

from roundscope.operations.models.comparing.align import Alignment
from roundscope.operations.models.comparing.constants import apart
from roundscope.operations.models.comparing.ports import NAMES
from roundscope.operations.models.replay import Replay
from roundscope.operations.models.tape import Entry, Tape

FEW = 5  # names up to which all are told
MOST_STEPS = 8  # of an arithmetic that are told


def functions_of(entries: Sequence[Entry]) -> str:
    """Return what computed entries, each function once."""
    return summed([entry.function.removeprefix("torch.") for entry in entries])


def summed(words: Sequence[str]) -> str:
    """Return words as a sum, each once; of many the first and the last."""
    each = list(dict.fromkeys(words))
    if len(each) > FEW:
        return f"{each[0]} to {each[-1]} ({len(words)} operations)"
    return " + ".join(each)


def words_for(replay: Replay, number: int, identify: Callable[[Tape, int], str]) -> tuple[str, str]:
    """Return what computes a pair in either run, in words that differ where the runs do."""
    words: list[str] = []
    functions: list[str] = []
    types: list[str] = []
    steps: list[list[str]] = []
    own: list[list[Entry]] = []
    for name in NAMES:
        tape = replay.alignment.tape(name)
        entries = [tape.entries[n] for n in getattr(replay.pairs[number], name)[0]]
        exact = identify(tape, entries[0].number) if len(entries) == 1 else ""
        own.append(entries)
        functions.append(functions_of(entries) or _end(tape))
        words.append(exact or functions[-1])
        steps.append([x for entry in entries for x in entry.settings.get("arithmetic", [])])
        types.append(tape.values[entries[-1].outputs[0]].dtype if entries else "")
    if all(steps) and steps[0] != steps[1]:
        told = _apart_words(*steps)
        same_name = words[0] == words[1]
        words = [x if same_name else f"{w} [{x}]" for w, x in zip(words, told, strict=True)]
    if types[0] != types[1]:
        if functions[0] == functions[1] and all(text.endswith("tied") for text in words):
            words = functions  # plans of another type have other names, which tell no more
        words = [
            f"{text} in {dtype}" if dtype else text
            for text, dtype in zip(words, types, strict=True)
        ]
    elif words[0] == words[1]:
        words = [
            f"{text}{how}" for text, how in zip(words, _ways(replay.alignment, number), strict=True)
        ]
    return _with_constants(words[0], words[1], *apart(own[0], own[1]))


def _with_constants(a: str, b: str, of_a: str, of_b: str) -> tuple[str, str]:
    """Return two words with the constants that differ, which say all where the words are one."""
    if not of_a:
        return a, b
    return (of_a, of_b) if a == b else (f"{a}, {of_a}", f"{b}, {of_b}")


def _end(tape: Tape) -> str:
    """Return how a run ends behind its last operation, in words."""
    if not tape.has_default_logprobs or tape.logits is None:
        return ""
    return f"in binary64 (the default), of logits in {tape.values[tape.logits].dtype}"


def _apart_words(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """Return two sequences of steps in words, without what both begin and end with."""
    head = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    rest = min(len(a), len(b)) - head
    tail = next((i for i in range(rest) if a[-1 - i] != b[-1 - i]), rest)
    head, tail = max(head - 1, 0), max(tail - 1, 0)  # one word that both have, as a place
    told = []
    for each in (a, b):
        own = [*each[head : len(each) - tail]]
        if len(own) > MOST_STEPS:
            own = [*own[: MOST_STEPS - 1], f"... ({len(own)} steps)"]
        told.append(", ".join([*["..."] * (head > 0), *own, *["..."] * (tail > 0)]))
    return told


def _ways(alignment: Alignment, number: int) -> list[str]:
    """Return how often a pair is called, or of which shape its result is, where these differ."""
    passes, shapes = [], []
    for name in NAMES:
        calls, tape = getattr(alignment.pairs[number], name), alignment.tape(name)
        passes.append(len(calls))
        outputs = tape.entries[calls[0][-1]].outputs if calls[0] else ()
        shapes.append(tape.values[outputs[0]].shape if outputs else ())
    if passes[0] != passes[1]:
        return [", once" if n == 1 else f", in {n} forward passes" for n in passes]
    if shapes[0] != shapes[1]:
        return [f", {shape}" for shape in shapes]
    return ["", ""]

"""What `roundscope identify` says of twenty planted faults, and of stored outputs of real kernels.

python -m tests.checks.identify_faults            the faults, a table on stdout
python -m tests.checks.identify_faults --stored   the outputs in tests/golden/kernels
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from roundscope.attention import Plan, examine
from roundscope.attention.testing.calls import PARTS, Inputs, Outputs
from roundscope.tools.identify.identify import Identified, identify
from roundscope.tools.identify.search import MOST
from tests.checks.engines import normal

TOKENS, WIDTH, HEADS = 192, 32, 2
FA2 = Plan.preset("fa2-bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A planted fault.

    name      the fault in words
    x         the call as it is told to `identify`
    outputs   what the faulty kernel returned
    says      words that a right verdict has
    """

    name: str
    x: Inputs
    outputs: Outputs
    says: tuple[str, ...]

    def score(self, found: Identified) -> str:
        """Return "right", or "vague" where the fault is named among other things, or "not found".

        A verdict that claims every bit, but not of what was planted, is "another": its sentence is
        checked again here by a count of its own.
        """
        if all(word in found.verdict for word in self.says):
            return "right" if len(found.words) <= 4 else "vague"
        return "another" if "These are the numbers" in found.verdict else "not found"


def call(
    *, causal: bool = True, keys: int = TOKENS, tokens: int = TOKENS, **more: object
) -> Inputs:
    """Return a call of two heads, about N(0, 1) in BF16."""
    groups = int(more.pop("groups", HEADS))  # type: ignore[call-overload]
    q, do = normal(1, 1, tokens, HEADS, WIDTH), normal(4, 1, tokens, HEADS, WIDTH)
    k, v = normal(2, 1, keys, groups, WIDTH), normal(3, 1, keys, groups, WIDTH)
    options = {"scale": WIDTH**-0.5, "is_causal": causal, **more}
    return Inputs(q=q, k=k, v=v, do=do, **options)  # type: ignore[arg-type]


def ran(x: Inputs, plan: Plan = FA2, block_k: int = 64, *, backward: bool = False) -> Outputs:
    """Return what an emulated kernel returns."""
    do = x.do if backward else None
    got = examine(
        x.q, x.k, x.v, do, plan=plan, block_q=64, block_k=block_k, record=None, engine="numpy",
        **x.options,
    )  # fmt: skip
    names = ("out", "dq", "dk", "dv") if backward else ("out",)
    return Outputs(**{n: np.asarray(getattr(got, n)) for n in names})


def of_meaning() -> Iterator[Fault]:
    """Yield ten kernels that compute another attention than their call says."""
    x = call()
    places = np.arange(TOKENS)[:, None] - np.arange(TOKENS)

    def seen(sees: np.ndarray) -> Outputs:
        return ran(replace(x, mask=sees[None, None], is_causal=False))

    window = replace(x, window=64)
    yield Fault(
        name="window of 65", x=window, outputs=ran(replace(x, window=65)), says=("window = 65",)
    )
    yield Fault(
        name="causal by one", x=x, outputs=seen(places >= -1), says=("one key more", "fa2-bf16")
    )
    cross = call(tokens=64)
    below = np.tri(64, TOKENS, TOKENS - 64, dtype=bool)[None, None]
    yield Fault(
        name="bottom-right",
        x=cross,
        outputs=ran(replace(cross, mask=below, is_causal=False)),
        says=("aligned bottom-right", "fa2-bf16"),
    )
    full = call(causal=False)
    yield Fault(
        name="causal forgotten",
        x=x,
        outputs=ran(full),
        says=("the call is full, not causal", "fa2-bf16"),
    )
    yield Fault(
        name="scale 1/H",
        x=x,
        outputs=ran(replace(x, scale=1 / WIDTH)),
        says=("scale = 1 / H = 1/32", "fa2-bf16"),
    )
    yield Fault(
        name="softcap forgotten",
        x=replace(x, softcap=5.0),
        outputs=ran(x),
        says=("the call has no softcap", "fa2-bf16"),
    )
    sinks = np.array([1.0, 0.5], np.float32)
    yield Fault(
        name="sinks forgotten",
        x=replace(x, sinks=sinks),
        outputs=ran(x),
        says=("the call has no sinks", "fa2-bf16"),
    )
    twice = ran(x)
    yield Fault(
        name="V's scale forgotten",
        x=x,
        outputs=replace(twice, out=twice.out * 2.0),
        says=("the output is multiplied by 2", "fa2-bf16"),
    )
    ragged = call(causal=False, keys=TOKENS - 24)
    late = (np.arange(TOKENS - 24) < 128)[None, None, None]
    late = np.broadcast_to(late, (1, 1, TOKENS, TOKENS - 24))
    yield Fault(
        name="last partial tile lost",
        x=ragged,
        outputs=ran(replace(ragged, mask=late)),
        says=("are missing", "keys from 128 on"),
    )
    swapped = replace(x, k=x.k[:, :, ::-1].copy(), v=x.v[:, :, ::-1].copy())
    yield Fault(
        name="key heads reversed", x=x, outputs=ran(swapped), says=("reverse order", "fa2-bf16")
    )


def of_rounding() -> Iterator[Fault]:
    """Yield ten kernels with another arithmetic than any twin."""
    x = call()
    one = FA2.changed
    for name, plan, says in (
        ("P truncated", one("P=bf16:toward-zero", "P_B=bf16:toward-zero"), ("P=bf16:toward-zero",)),
        ("S in BF16", one("S=bf16", "S_B=bf16"), ("S=bf16",)),
        ("X in BF16", one("X=bf16", "X_B=bf16"), ("X=bf16",)),
        ("O in BF16", one("O=bf16"), ("O=bf16",)),
        ("P not cast", one("P=fp32", "P_B=fp32"), ("These are the numbers",)),
        ("tiles descending", one("key_order=descending"), ("key_order=descending",)),
    ):
        yield Fault(name=name, x=x, outputs=ran(x, plan), says=says)
    yield Fault(
        name="tiles of 96", x=x, outputs=ran(x, block_k=96), says=("These are the numbers of fa2",)
    )
    larger = float(np.nextafter(np.float32(x.scale), np.float32(1)))
    yield Fault(
        name="scale + 1 ulp",
        x=x,
        outputs=ran(replace(x, scale=larger)),
        says=("1 ulp of FP32 larger",),
    )
    yield Fault(
        name="LSE in BF16",
        x=x,
        outputs=ran(x, one("LSE=bf16"), backward=True),
        says=("LSE=bf16", "So are its gradients"),
    )
    unsaved = Plan.preset("sdpa-math").changed("saved_p=false", "S_B=fp16")
    yield Fault(
        name="P again from S_B in FP16",
        x=x,
        outputs=ran(x, unsaved, TOKENS, backward=True),
        says=("saved_p=false", "S_B=fp16"),
    )


def faults() -> dict[str, Fault]:
    """Return the twenty faults by name."""
    return {fault.name: fault for fault in (*of_meaning(), *of_rounding())}


def answered(x: Inputs, outputs: Outputs, budget: int = MOST) -> Identified:
    """Return the answer of `identify`, without progress."""
    with np.errstate(all="ignore"):
        return identify(x, outputs, lambda text: None, budget)


def _row(name: str, score: str, found: Identified) -> None:
    tried = found.forward.tried + (found.backward.tried if found.backward else 0)
    counts = f"meanings {found.meant.tried}, plans {tried}"
    print(f"| {name} | {score} | {found.verdict} | {counts} | {found.seconds:.0f} |", flush=True)


def main() -> None:
    """Print the table."""
    print("| kernel | score | verdict | tried | seconds |\n|---|---|---|---|---|", flush=True)
    if "--stored" in sys.argv:
        for name, x, outputs in stored():
            _row(name, "", answered(x, outputs))
        return
    wanted = sys.argv[1:]
    for name, fault in faults().items():
        if not wanted or name in wanted:
            found = answered(fault.x, fault.outputs)
            _row(name, fault.score(found), found)


def stored() -> Iterator[tuple[str, Inputs, Outputs]]:
    """Yield the calls whose outputs are stored: a head of layer 4, or of what a kernel runs on."""
    from roundscope.tools.tensors.files import open_tensors
    from tests.checks.kernel_outputs import GOLDEN, STORED_OF, inputs, of_one_head
    from tests.checks.kernel_twins import stored_call

    for path in sorted(GOLDEN.glob("*.safetensors")):
        calls = [(f, m) for f in STORED_OF.get(path.stem, ("layer4",)) for m in ("causal", "full")]
        with open_tensors(path) as file:
            for family, mode in calls:
                prefix = f"{family}/{mode}/"
                arrays = {n: file[prefix + n] for n in PARTS if prefix + n in file.names}
                if "out" in arrays:
                    x = of_one_head(inputs(family, causal=mode == "causal", kernel=path.stem))
                    yield f"{path.stem} {family} {mode}", x, Outputs(**arrays)
            has_inputs = "q" in file.names
        if has_inputs:
            x, arrays = stored_call(path.stem)
            yield path.stem, x, Outputs(**arrays)


if __name__ == "__main__":
    main()

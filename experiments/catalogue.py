"""Every study by name: its question, the paper of its claims, its command, and its cost.

Help texts, `reproduce` and `roundscope studies`, which prints it, read it, so it imports nothing
heavy.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from roundscope.tools.errors import UsageError
from roundscope.tools.report import terminal
from roundscope.tools.report.model import Table, Text
from roundscope.tools.report.terminal import print_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A study as the catalogue lists it.

    command  the words after `roundscope`
    paper    "arXiv NUMBER, TITLE" or "REPOSITORY #NUMBER, TITLE"; empty for a question of ours
    quick    measured seconds of --quick on 2 cores; None if not measured
    full     measured seconds of the full study on an H200; None if not measured
    seeds    the numbers of seeds of --quick and of the full study
    note     what these numbers leave out
    """

    name: str
    command: str
    question: str
    seeds: tuple[int, int]
    paper: str = ""
    quick: int | None = None
    full: int | None = None
    note: str = ""

    @property
    def number(self) -> str:
        """The paper's number, such as "arXiv 2405.02803" or "flash-attention #2694", or ""."""
        return self.paper.partition(",")[0]


GOLDEN = Entry(
    name="golden",
    command="reproduce golden",
    question="Is FlashAttention less accurate than unfused attention, and is it 10 times in BF16?",
    paper="arXiv 2405.02803, Is Flash Attention Stable?",
    quick=283,
    full=467,
    seeds=(8, 30),
    note="467 s are with --engine xla and without its trainings, which have 5 and 10 seeds",
)
LONG = Entry(
    name="long",
    command="reproduce long",
    question="Does FlashAttention's deviation grow to 8,192 tokens, and do weights drift apart?",
    paper="arXiv 2405.02803, Is Flash Attention Stable?",
    seeds=(6, 6),
    note="parts of golden at other sizes; the trainings have 5 and 4 seeds, and want a GPU",
)
QIU_YAO = Entry(
    name="qiu-yao",
    command="reproduce qiu-yao",
    question="What kills low-precision attention in training, and what cures it?",
    paper="arXiv 2510.04212, Why Low-Precision Transformer Training Fails",
    seeds=(3, 5),
    note="in full, rows of searches have 3 seeds",
)
RELEASED = Entry(
    name="released",
    command="reproduce released",
    question="Which rows of arXiv 2510.04212 stand on the arithmetic that its training runs?",
    paper="arXiv 2510.04212, Why Low-Precision Transformer Training Fails",
    full=656,
    seeds=(2, 5),
    note="at three times the rate 3 and 10 seeds",
)
MECHANISM = Entry(
    name="mechanism",
    command="reproduce mechanism",
    question="Are the updates that arXiv 2510.04212 blames alike, have their errors one sign, and"
    " do several maxima warn?",
    paper="arXiv 2510.04212, Why Low-Precision Transformer Training Fails",
    seeds=(4, 4),
)
GPT2 = Entry(
    name="gpt2",
    command="reproduce gpt2",
    question="How far does GPT-2 small's own size get on the arithmetic of arXiv 2510.04212, and"
    " what diverges until there?",
    paper="arXiv 2510.04212, Why Low-Precision Transformer Training Fails",
    seeds=(1, 1),
    note="needs a GPU in full; goes on from its checkpoints",
)
SU = Entry(
    name="su",
    command="reproduce su",
    question="Does block scaling make training diverge, and what averts it?",
    paper="arXiv 2506.20752, Characterization and Mitigation of Training Instabilities in"
    " Microscaling Formats",
    quick=610,
    full=523,
    seeds=(6, 12),
    note="interventions have 3 and 8 seeds",
)
MXFP8 = Entry(
    name="mxfp8",
    command="reproduce mxfp8",
    question="Does rounding the block scale up save MXFP8 training, and which operands need E4M3?",
    paper="arXiv 2506.08027, Recipes for Pre-training LLMs with MXFP8",
    quick=610,
    full=445,
    seeds=(5, 5),
    note="the proxy has 10 seeds",
)
FA4 = Entry(
    name="fa4",
    command="reproduce fa4",
    question="How far off is FlashAttention-4 in FP8 where its P clips, and how much too short is"
    " its output?",
    paper="flash-attention #2694, Fix fp8 P saturation in sm100 forward",
    quick=12,
    seeds=(2, 8),
    note="needs no GPU",
)
TWO_LEVEL = Entry(
    name="two-level",
    command="reproduce two-level",
    question="How much too short does FP8 attention on Hopper get over long rows, and does flushing"
    " its accumulator cure it?",
    paper="vllm-project/flash-attention #104, two-level accumulation",
    quick=12,
    seeds=(2, 8),
    note="needs no GPU",
)
ALARM = Entry(
    name="alarm",
    command="reproduce alarm",
    question="Does the drift of attention's row sums warn of a divergence before the loss shows"
    " it?",
    quick=50,
    full=560,
    seeds=(2, 4),
    note="560 s are of two processes; in the 300 steps of --quick hardly a run diverges",
)
FP4_RULES = Entry(
    name="fp4-rules",
    command="reproduce fp4-rules",
    question="Which published rules for a block of FP4 are biased, and what does no bias cost?",
    seeds=(2, 5),
    note="needs no GPU: 1,484 s in full on two cores that had other work too",
)
LOWBIT = Entry(
    name="lowbit",
    command="reproduce lowbit",
    question="Does keeping the row sums of dS at zero replace matched recomputation and a"
    " high-precision dS in attention of few bits?",
    full=1058,
    seeds=(2, 5),
    note="1058 s are of an H100, in three parts with --jobs 10 and 14",
)
TRUNCATION = Entry(
    name="truncation",
    command="reproduce truncation",
    question="What do casts toward zero, as in AMD's default builds, do to attention, and what"
    " repairs it?",
    seeds=(2, 5),
    note="without training there are 8 seeds, or 16 heads of real tensors",
)
DOSE = Entry(
    name="dose",
    command="dose",
    question="Is it the size or the sign of the rounding error that kills training?",
    quick=231,
    seeds=(5, 5),
)
BIAS = Entry(
    name="bias",
    command="dose --study bias",
    question="Does an error biased along V kill where noise of the same size does not?",
    full=144,
    seeds=(3, 5),
    note="144 s are of --seeds 0-2 steps=1000",
)
SCALING = Entry(
    name="scaling",
    command="dose --study scaling",
    question="With what does the threshold of toward zero scale?",
    full=688,
    seeds=(3, 5),
    note="688 s are of --seeds 0-2",
)
CONDITIONS = Entry(
    name="conditions",
    command="dose --study conditions",
    question="Does BF16 attention diverge where ties are common, and with how few bits does it"
    " where they are not?",
    full=293,
    seeds=(3, 5),
    note="293 s are of --seeds 0-2 steps=1000",
)
IDENTITY = Entry(
    name="identity",
    command="dose --study identity",
    question="Does an error kill because the rows of dS stop summing to zero?",
    full=151,
    seeds=(3, 5),
    note="151 s are of --seeds 0-2",
)
FORMATS = Entry(
    name="formats",
    command="proxy --study formats",
    question="Does training in block-scaled formats diverge where FP32 on the same rows does not?",
    seeds=(2, 5),
)
INTERVENTIONS = Entry(
    name="interventions",
    command="proxy --study interventions --from STEP",
    question="What, changed at a step of training, averts the divergence?",
    seeds=(2, 5),
)
ACCUMULATORS = Entry(
    name="accumulators",
    command="accumulators",
    question="Are the sums of tensor cores biased, and which way?",
    seeds=(8, 8),
    note="has no --quick and needs no GPU; 72 to 79 s of processor time",
)

KERNELS = Entry(
    name="kernels",
    command="kernels",
    question="Which real attention kernels are biased, and on which inputs?",
    full=109,
    seeds=(1, 1),
    note="heads are the sample: 48 on a GPU, 4 without, where only the kernels of JAX and of"
    " installed libraries run",
)

# run by `roundscope reproduce`
PAPERS = (
    *(GOLDEN, LONG, QIU_YAO, RELEASED, MECHANISM, GPT2, SU, MXFP8, FA4, TWO_LEVEL),
    *(ALARM, FP4_RULES, LOWBIT, TRUNCATION),
)
DOSES = (BIAS, SCALING, CONDITIONS, IDENTITY)  # run by `roundscope dose --study`
PROXIES = (FORMATS, INTERVENTIONS)  # run by `roundscope proxy --study`
STUDIES = (*PAPERS, DOSE, *DOSES, *PROXIES, ACCUMULATORS, KERNELS)


def named(name: str, known: Sequence[Entry] = STUDIES, what: str = "study") -> Entry:
    """Return the entry of that name; `what` names entries in messages. Raises UsageError."""
    from roundscope.emu.errors import unknown

    by_name = {entry.name: entry for entry in known}
    if name not in by_name:
        raise UsageError(unknown(what, name, by_name))
    return by_name[name]


def names(known: Sequence[Entry]) -> str:
    """Return the names of entries as part of a sentence: a, b or c."""
    *others, last = (entry.name for entry in known)
    return f"{', '.join(others)} or {last}"


CAPTION = (
    "Seconds as measured: --quick on two cores of a CPU, in full on an H200; -: not measured. Each "
    "writes a page, its data and its results into --out, and goes on where it stopped."
)


def show(*, as_json: bool) -> None:
    """Print every study, as a table or as JSON: the command `roundscope studies`."""
    if as_json:
        both = ("quick", "full")
        told = [(asdict(entry), dict(zip(both, entry.seeds, strict=True))) for entry in STUDIES]
        print_json([x | {"command": f"roundscope {x['command']}", "seeds": n} for x, n in told])
        return
    heads = ("roundscope", "asks", "--quick,\n2 cores", "full,\nH200", "seeds,\nboth")
    rows = []
    for entry in STUDIES:
        asks = f"{entry.question} ({entry.number})" if entry.paper else entry.question
        cost = [f"{x} s" if x is not None else "-" for x in (entry.quick, entry.full)]
        rows.append([entry.command, asks, *cost, "{}, {}".format(*entry.seeds)])
    notes = [Text(f"{entry.name}: {entry.note}") for entry in STUDIES if entry.note]
    terminal.show([Table(heads, rows), *notes, Text(CAPTION)])

"""`Config`: everything that decides a training run, with checks whose errors name the field."""

from dataclasses import asdict, dataclass
from typing import Any

from roundscope.attention.models.alarm import THRESHOLD
from roundscope.attention.plans.plan import Plan
from roundscope.tools.errors import UsageError, bad

# in place of a preset: jax.nn.dot_product_attention, the baseline of speed, with no event of ours
JAX = "jax"
XLA, PALLAS, CUDNN = "xla", "pallas", "cudnn"
WORD = 2**32
# fields that came after results were stored
LOG = "run.sqlite"  # the log of a run, in its folder
NEWER = ("engine", "drift_alarm", "parts", "gated", "llama", "optimizer")
AUTOCAST = "autocast"
ADAMW, MUON = "adamw", "muon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of a run.

    Sizes and the optimizer's numbers are nanoGPT's and have the same meaning; there are no biases,
    as with nanoGPT's bias=False.

    layers, heads, width    number of layers and heads; width of the residual stream, a multiple of
                            heads
    context                 tokens that a position sees, itself included
    vocab                   number of tokens;  batch: sequences in a step;  steps: of the whole run
    parts                   parts of the batch, a power of two: gradients are of one part at a time
                            and are added in a fixed order, on up to so many devices, with the bits
                            of one device. None: a new run has one part for each device that there
                            is, or a whole batch where arms are spread over devices
    lr, min_lr              peak and end of the cosine; an arm's own lr scales both
    warmup, decay_steps     steps of linear warm-up; the step at which the cosine ends (None: steps)
    beta1, beta2, weight_decay, clip   AdamW's numbers; decay applies to matrices only; clip: the
                                       largest global norm of the gradients, None for no clipping
    position, qk_norm, tied   whether there are learned positions, an RMS norm of q and k, and one
                              matrix for embedding and output;  mlp_ratio: MLP width / width
    gated                     whether attention's output is multiplied by the sigmoid of a linear
                              layer of its input
    llama                     Llama's layers: RMSNorm, SwiGLU and rotary positions, without learned
                              ones
    optimizer                 "adamw", or "muon" (optax.contrib.muon) for the matrices of the layers
                              and AdamW for what is left; the root mean square of Muon's steps is
                              0.2 of the rate, as AdamW's is about
    matmul                  "bf16": operands of linear layers rounded to BF16, sums FP32
                            (experiments.train.gpt.linear); "fp16"; "fp32"; "autocast": results
                            and gradients rounded to BF16 too, as PyTorch's autocast does, which is
                            faster on a GPU
    plan, changes           attention: a preset or "jax"; its changes, such as "layer=1 ->
                            plan=qiu-yao", and those of linear layers (interventions)
    sums                    "native": the device's own sums of products, fast, reproducible on one
                            kind of device only; "preset": as the preset says
    engine                  "xla", which on a CPU leaves attention to NumPy where that has the same
                            bits and is faster (sums="preset"); "pallas": attention in fused kernels
                            on a GPU, one plan for all heads of a layer, sums="preset"; "cudnn": for
                            plan "jax", in BF16 by cuDNN on a GPU
    block                   tile of queries and of keys; None: the whole context as one tile
    data                    "stdlib", "repeat", "sink" or a folder of train.bin and val.bin
    data_seed, init_seed    seeds of batches and of weights
    checkpoint_every, keep  steps between checkpoints, and how many are kept;  monitor_every: steps
                            between monitors
    drift_alarm             the share of the gradient of W_Q made by rows of dS that do not sum to
                            0, above which there is an alarm (experiments.train.run.drift); None for
                            no such alarm

    Raises UsageError naming the field, its value and the repair.
    """

    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 128
    vocab: int = 256
    batch: int = 16
    steps: int = 2000
    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 100
    decay_steps: int | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    clip: float | None = 1.0
    position: bool = True
    qk_norm: bool = False
    tied: bool = True
    mlp_ratio: int = 4
    gated: bool = False
    llama: bool = False
    optimizer: str = ADAMW
    matmul: str = "bf16"
    plan: str = "qiu-yao"
    changes: tuple[str, ...] = ()
    sums: str = "native"
    engine: str = XLA
    block: int | None = None
    data: str = "stdlib"
    data_seed: int = 0
    init_seed: int = 0
    checkpoint_every: int = 500
    keep: int = 3
    monitor_every: int = 10
    drift_alarm: float | None = THRESHOLD
    parts: int | None = None

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_attention(self)

    @property
    def head_width(self) -> int:
        """The number of features of one head, H."""
        return self.width // self.heads

    @property
    def tile(self) -> int:
        """The number of rows and columns of a tile."""
        return min(self.block or self.context, self.context)

    @property
    def cosine_end(self) -> int:
        """The step from which the learning rate stays at its end."""
        return self.steps if self.decay_steps is None else self.decay_steps


def deciding(config: Config) -> dict[str, Any]:
    """Return the fields by name, for the name of a result; without newer ones at default."""
    usual = {name: getattr(Config(), name) for name in NEWER}
    return {
        name: value
        for name, value in asdict(config).items()
        if name not in usual or value != usual[name]
    }


def unusual(config: Config) -> dict[str, Any]:
    """Return the fields not at their default, for names that survive a field added some day."""
    usual = asdict(Config())
    return {name: value for name, value in asdict(config).items() if value != usual[name]}


def _check_numbers(c: Config) -> None:
    """Check sizes and the optimizer's numbers."""
    counts = ("layers", "heads", "width", "context", "batch", "steps", "mlp_ratio")
    for name in (*counts, "checkpoint_every", "keep", "monitor_every"):
        if getattr(c, name) < 1:
            raise bad(name, getattr(c, name), "give a whole number of at least 1")
        if getattr(c, name) >= WORD // 2:
            raise bad(name, getattr(c, name), "give a whole number below 2^31")
    nearest = c.heads * max(1, round(c.width / c.heads))
    parts, batch = c.parts or 1, c.batch & -c.batch  # the largest power of two that divides it
    seed = "a seed is a whole number from 0 to 2^32 - 1"
    rate = "a decay rate is at least 0 and below 1"
    order = "give a power of two, such as 2, for one order of addition on all devices"
    one_tile = "a tile has at least one row; leave it out for one tile as large as the context"
    early = f"must end before the cosine does, at step {c.cosine_end}"
    rules = (  # field, whether its value is possible, repair
        (
            "width",
            not c.width % c.heads,
            f"must be a multiple of the {c.heads} heads; {nearest} is",
        ),
        ("vocab", 2 <= c.vocab <= 65536, "tokens are 16-bit numbers: 2 to 65536, 256 for bytes"),
        ("block", c.block is None or c.block >= 1, one_tile),
        ("parts", c.parts != 0 and parts >= 1 and not parts & (parts - 1), order),
        ("parts", not c.batch % parts, f"must divide the batch of {c.batch}; {batch} does"),
        ("drift_alarm", _is_above_0(c.drift_alarm), "give a positive share, such as 0.1, or none"),
        ("data_seed", 0 <= c.data_seed < WORD, seed),
        ("init_seed", 0 <= c.init_seed < WORD, seed),
        ("lr", 0.0 < c.lr < float("inf"), "give a positive number, such as 1e-3"),
        (
            "min_lr",
            0.0 <= c.min_lr <= c.lr,
            f"the end of the cosine lies between 0 and lr = {c.lr}",
        ),
        (
            "decay_steps",
            1 <= c.cosine_end < WORD // 2,
            "give a step from 1 to 2^31 - 1, or none for steps",
        ),
        ("warmup", 0 <= c.warmup <= c.cosine_end, f"{early}; give a smaller warmup or more steps"),
        ("beta1", 0.0 <= c.beta1 < 1.0, rate),
        ("beta2", 0.0 <= c.beta2 < 1.0, rate),
        ("weight_decay", c.weight_decay >= 0.0, "give 0 or more"),
        ("clip", _is_above_0(c.clip), "give a positive norm, or leave clipping off"),
        ("position", not (c.llama and c.position), "llama=true rotates: give position=false"),
        ("width", not c.llama or c.head_width % 2 == 0, "llama=true rotates pairs of features"),
    )
    for name, is_possible, repair in rules:
        if not is_possible:
            raise bad(name, getattr(c, name), repair)


def _is_above_0(x: float | None) -> bool:
    return x is None or x > 0.0


def _check_attention(c: Config) -> None:
    for name, known in (
        ("matmul", ("bf16", "fp16", "fp32", AUTOCAST)),
        ("optimizer", (ADAMW, MUON)),
        ("sums", ("native", "preset")),
        ("engine", (XLA, PALLAS, CUDNN)),
    ):
        if getattr(c, name) not in known:
            raise bad(name, getattr(c, name), f"use {', '.join(known[:-1])} or {known[-1]}")
    if c.engine == PALLAS and c.plan == JAX:
        own = "plan=jax is JAX's own attention, which has no fused kernel of ours; leave engine out"
        raise bad("engine", c.engine, own)
    if c.engine == CUDNN and c.plan != JAX:
        eventless = "cuDNN's attention has no events; give plan=jax with it, or engine=pallas"
        raise bad("engine", c.engine, eventless)
    if c.engine == PALLAS and c.sums != "preset":
        raise bad("sums", c.sums, "fused kernels add products as the plan says; give sums=preset")
    if c.plan == JAX:
        return
    try:
        Plan.preset(c.plan)
    except ValueError as error:
        raise UsageError(f"plan '{c.plan}': {error}") from None

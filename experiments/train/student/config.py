"""`Config`: everything that decides a run of the proxy but its arms, with checks."""

from dataclasses import dataclass

from roundscope.experiments.train.config import Config as Optimiser
from roundscope.tools.errors import bad

PHI = ("relu", "gelu", "swiglu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of a student that learns a teacher, as in arXiv 2506.20752.

    A_k = A_{k-1} + W2_k phi(W1_k LN(A_{k-1})), with a mean squared error.

    depth, width, ratio   layers, features d, hidden features / d
    phi                   relu, gelu (by erf) or swiglu: silu(gate) times up, a third matrix
    norm                  whether the student has LayerNorm (scale gamma and shift beta); the
                          teacher never has
    batch, steps          fresh rows x ~ N(0, I) in every step, none twice
    noise                 standard deviation of the noise of the targets
    lr, min_lr, warmup    peak and end of the cosine, steps of linear warm-up; Adam with beta1,
                          beta2, no decay, no clipping
    block                 numbers of a block
    seed                  that of the first arm's weights, teacher and rows
    measure_every         steps between gradients measured against FP32 at the same weights and
                          rows; 0: never

    Raises UsageError naming the field, its value and the repair.
    """

    depth: int = 4
    width: int = 512
    ratio: int = 4
    phi: str = "gelu"
    norm: bool = True
    batch: int = 2048
    steps: int = 9000
    noise: float = 1e-3
    lr: float = 6e-4
    min_lr: float = 6e-4
    warmup: int = 0
    beta1: float = 0.9
    beta2: float = 0.999
    block: int = 32
    seed: int = 0
    measure_every: int = 0

    def __post_init__(self) -> None:
        for name in ("depth", "width", "ratio", "batch", "steps", "block"):
            if getattr(self, name) < 1:
                raise bad(name, getattr(self, name), "give a whole number of at least 1")
        for name in ("width", "batch"):
            if getattr(self, name) % self.block:
                raise bad(
                    name,
                    getattr(self, name),
                    f"must be a multiple of the block of {self.block} numbers",
                )
        if self.phi not in PHI:
            raise bad("phi", self.phi, f"use {', '.join(PHI[:-1])} or {PHI[-1]}")
        if not 0.0 <= self.noise < float("inf"):
            raise bad("noise", self.noise, "a standard deviation is 0 or more")
        if self.measure_every < 0:
            raise bad("measure_every", self.measure_every, "give 0 for never, or a number of steps")
        if not 0 <= self.seed < 2**32:
            raise bad("seed", self.seed, "a seed is a whole number from 0 to 2^32 - 1")
        _ = self.optimiser

    @property
    def hidden(self) -> int:
        """The number of features between the two matrices."""
        return self.width * self.ratio

    @property
    def optimiser(self) -> Optimiser:
        """The optimizer's numbers as the trainer's Adam and rate read them; checked there."""
        return Optimiser(
            lr=self.lr,
            min_lr=self.min_lr,
            warmup=self.warmup,
            steps=self.steps,
            decay_steps=max(self.steps, self.warmup, 1),
            beta1=self.beta1,
            beta2=self.beta2,
            clip=None,
            weight_decay=0.0,
        )

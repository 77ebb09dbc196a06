"""How large the reproduction of arXiv 2405.02803 is: --quick for a CPU, full for a GPU."""

from dataclasses import dataclass

from roundscope.experiments.papers.stability_2405_02803.drift.trainings import Training
from roundscope.experiments.train.config import Config

REAL = "sample:layer4"  # the real tensors that come with Roundscope: one draw, so no interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of the studies.

    lengths   T of the length study; N = entries // T, so that every maximum is over equally many
              entries
    tile      the fixed tile of that study
    real      T of the real tensors
    many      (T, N) of the tile studies
    tiles     their block_k, the largest is T: no tiling
    bench     (T, N) of formats, controls, attribution and bias
    counts    numbers of key tiles there in the bias study
    narrow    the smallest block_k, for as many key tiles as there can be
    seeds     how many seeds a cell has up to T = plenty
    fewer     how many it has beyond
    training  what is trained for the drift of weights
    """

    name: str
    lengths: tuple[int, ...]
    entries: int
    real: tuple[int, ...]
    many: tuple[int, int]
    tiles: tuple[int, ...]
    production_tiles: tuple[int, ...]
    swaps: tuple[tuple[int, int], ...]
    squares: tuple[int, ...]
    bench: tuple[int, int]
    counts: tuple[int, ...]
    seeds: int
    fewer: int
    plenty: int
    training: Training
    tile: int = 64
    narrow: int = 16

    def repeats(self, length: int) -> int:
        """Return how many seeds a cell of T = length gets."""
        return self.seeds if length <= self.plenty else self.fewer

    def heads(self, length: int) -> int:
        """Return N of the length study."""
        return max(1, self.entries // length)


RATE = 1e-3  # constant after the warm-up: a rate that falls would end any growth
QUICK = Scale(
    name="quick",
    lengths=(128, 256, 512, 1024),
    entries=1024,
    real=(128, 256, 512),
    many=(1024, 1),
    tiles=(16, 32, 64, 128, 256, 512, 1024),
    production_tiles=(16, 64, 256, 1024),
    swaps=((32, 128), (16, 256)),
    squares=(32, 64, 128, 256),
    bench=(512, 2),
    counts=(1, 2, 4, 8, 16),
    seeds=8,
    fewer=8,
    plenty=1024,
    training=Training(
        config=Config(
            layers=2,
            heads=2,
            width=32,
            context=32,
            batch=8,
            warmup=50,
            steps=300,
            lr=RATE,
            min_lr=RATE,
        ),
        tile=8,
        seeds=5,
        pairs=("flash", "weights", "precision", "bf16"),
    ),
)

# under xla every (shape, tile, structure of plan) is one compilation of about 10 s: few shapes,
# many seeds
FULL = Scale(
    name="full",
    lengths=(256, 1024, 4096),
    entries=8192,
    real=(128, 512),
    many=(1024, 2),
    tiles=(16, 32, 64, 128, 256, 512, 1024),
    production_tiles=(16, 64),
    swaps=((32, 128),),
    squares=(32, 64, 128),
    bench=(1024, 2),
    counts=(1, 4, 16),
    seeds=30,
    fewer=6,
    plenty=1024,
    training=Training(
        config=Config(warmup=100, steps=2000, lr=RATE, min_lr=RATE), tile=32, seeds=10
    ),
)

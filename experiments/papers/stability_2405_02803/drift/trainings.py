"""Fig. 7 and 8: which trainings are run and which two are compared.

`Apart` says how far apart their weights are along the way.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from roundscope.experiments.train.config import WORD, Config, deciding
from roundscope.experiments.train.settings import Arm, Settings

OTHER = 2**31  # added to the seed of weights, and to nothing else
# what baseline-bf16 keeps in BF16
OF_FORWARD = "Q,K,V,S,SCALED,P,PV,OUT,S_B,SCALED_B,P_B"
OF_BACKWARD = "DO,DP,DS,DQ_OUT,DK_OUT,DV_OUT"
HALF = (f"site={OF_FORWARD} -> fp16", f"site={OF_BACKWARD} -> fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A way to train.

    It has attention's plan and its changes, in tiles or in one, the linear layers' operands, and
    first weights.
    """

    plan: str
    matmul: str
    changes: tuple[str, ...] = ()
    tiled: bool = False
    other_weights: bool = False


UNFUSED = "unfused"
FLASH = "fa2-bf16"
QIU_YAO = "qiu-yao"
OTHERS = "other weights"
HALVES = "fp16"
WHOLE = "fp32"
TILED = "fp32, tiled"
VERSIONS = {
    UNFUSED: Version(plan="baseline-bf16", matmul="bf16"),
    OTHERS: Version(plan="baseline-bf16", matmul="bf16", other_weights=True),
    FLASH: Version(plan="fa2-bf16", matmul="bf16", tiled=True),
    QIU_YAO: Version(plan="qiu-yao", matmul="bf16", tiled=True),
    # its backward is FP32, so that no gradient is lost below FP16's smallest number
    HALVES: Version(plan="baseline-bf16", matmul="fp16", changes=HALF),
    WHOLE: Version(plan="fp32", matmul="fp32"),
    TILED: Version(plan="fp32", matmul="fp32", tiled=True),
}
# the paper's question, its two bands, and ours: BF16 in place of FP16, another FlashAttention,
# nothing but another order of FP32 sums
PAIRS = {
    "flash": (FLASH, UNFUSED),
    "weights": (OTHERS, UNFUSED),
    "precision": (HALVES, WHOLE),
    "bf16": (UNFUSED, WHOLE),
    "qiu-yao": (QIU_YAO, UNFUSED),
    "order": (TILED, WHOLE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained.

    It has a config (plan and matmul are the version's), rows and columns of a tile, the PAIRS, and
    the number of looks after the first.
    """

    config: Config
    tile: int
    seeds: int
    pairs: tuple[str, ...] = tuple(PAIRS)
    looks: int = 20

    @property
    def steps(self) -> list[int]:
        """The numbers of steps done at which the weights are compared, 0 first."""
        return [round(self.config.steps * i / self.looks) for i in range(self.looks + 1)]

    @property
    def versions(self) -> list[str]:
        """The versions that its pairs need."""
        return [name for name in VERSIONS if any(name in PAIRS[pair] for pair in self.pairs)]

    @property
    def key(self) -> str:
        """The key: of all that decides the result but versions and device."""
        versions = {name: asdict(VERSIONS[name]) for name in self.versions}
        told = [
            asdict(self) | {"config": deciding(self.config)},
            versions,
            {pair: PAIRS[pair] for pair in self.pairs},
        ]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Two trainings of one seed at every look, each (K,).

    max_difference   the largest over all weights
    wasserstein      of the tensors' distributions, the mean over all weights
    loss, gap        mean loss of the first since the look before, nats, and by how much it is above
                     the second's
    """

    max_difference: np.ndarray
    wasserstein: np.ndarray
    loss: np.ndarray
    gap: np.ndarray


Drifts = Mapping[str, Mapping[int, Apart]]  # by pair and seed


def executables(t: Training) -> list[tuple[Settings, list[tuple[str, int]], list[int]]]:
    """Return what runs in one executable each.

    Each has settings, (version, seed) of its arms, and their seeds of weights.
    """
    alike: dict[tuple[str, str, bool], list[str]] = {}
    for name in t.versions:
        v = VERSIONS[name]
        alike.setdefault((v.plan, v.matmul, v.tiled), []).append(name)
    return [_executable(t, names) for names in alike.values()]


def _executable(t: Training, names: list[str]) -> tuple[Settings, list[tuple[str, int]], list[int]]:
    v = VERSIONS[names[0]]
    config = replace(t.config, plan=v.plan, matmul=v.matmul, block=t.tile if v.tiled else None)
    arms = [(name, seed) for name in names for seed in range(t.seeds)]
    own = [
        Arm(name=f"{name}/{seed}", changes=VERSIONS[name].changes, lr=config.lr, seed=seed)
        for name, seed in arms
    ]
    weights = [
        (config.init_seed + seed + OTHER * VERSIONS[name].other_weights) % WORD
        for name, seed in arms
    ]
    return Settings(config=config, arms=tuple(own)), arms, weights

"""The same in JAX: a GPT of sixty lines (tests/attention/jax/gpt.py) on emulated plans.

Arms of a seed, all on the same batches and from the same weights:

    healthy   fa2-bf16
    leaking   it is rounded toward zero
    cured     leaking until its alarm, from there with delta = rowsum(P dP) / rowsum(P)
    corrected leaking until its alarm, from there with `roundscope.jax.corrected`

    python -m tests.checks.watching.in_jax --out FOLDER

All seeds of an arm are one vmapped program; each has a watch of its own.
"""

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from roundscope import Plan, attend
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import data
from roundscope.experiments.train.spikes import Follow
from roundscope.jax import Watch, corrected, tap, watch
from tests.attention.jax import gpt
from tests.checks.watching.outcomes import lines, means

EVERY = 25  # steps from one look to the next


def attention_of(plan: Plan, layers: int, *, is_corrected: bool = False) -> tuple[Any, ...]:
    """Return tapped attention for each layer."""
    function: Callable[..., Array] = partial(attend, plan=plan)
    function = corrected(function) if is_corrected else function
    return tuple(tap(function, f"layers.{n}") for n in range(layers))


def initial(config: Config, seed: int) -> Any:
    """Return GPT-2's initial weights."""
    c = config
    p = gpt.init(jax.random.key(seed), c.layers, c.heads, c.width, c.context, c.vocab)
    into = 0.02 / (2 * c.layers) ** 0.5
    spread = dict.fromkeys(p, 0.02) | {"proj": into, "down": into}
    return {name: spread[name] * x / x.std() for name, x in p.items()}


def stepping(config: Config, attention: Any) -> tuple[Any, Any]:
    """Return the step of all seeds, jitted, and the optimizer."""
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(b1=config.beta1, b2=config.beta2)
    )

    def one(params: Any, state: Any, tokens: Array, number: Array) -> Any:
        loss, gradient = jax.value_and_grad(gpt.loss)(params, tokens, attention)
        updates, state = optimizer.update(gradient, state)
        rate = config.lr * jnp.minimum(1.0, (number + 1.0) / (config.warmup + 1.0))
        params = jax.tree.map(lambda p, u: p - rate.astype(p.dtype) * u, params, updates)
        return params, state, loss

    return jax.jit(jax.vmap(one)), optimizer


def take(tree: Any, n: int) -> Any:
    """Return entry n of every array."""
    return jax.tree.map(lambda x: x[n], tree)


def watched(loss: Any, log: Path | None, seed: int) -> Watch:
    """Return the watch of one seed, which says nothing."""
    path = None if log is None else log.with_name(f"{log.name}-{seed}.jsonl")
    return watch(loss, 1, on_alarm=lambda _: None, log=path)


def run(
    config: Config, attention: Any, seeds: list[int], begun: dict[int, Any], log: Path | None
) -> list[dict[str, Any]]:
    """Train seeds to the end; `begun` has (done, params, state, losses) of those that go on."""
    step, optimizer = stepping(config, attention)
    drawn = {seed: data.batches(config, seed) for seed in seeds}
    starts = []
    for seed in seeds:
        params = initial(config, seed)
        starts.append(begun.get(seed, (0, params, optimizer.init(params), [])))
    done = np.array([s[0] for s in starts])
    params = jax.tree.map(lambda *x: jnp.stack(x), *(s[1] for s in starts))
    state = jax.tree.map(lambda *x: jnp.stack(x), *(s[2] for s in starts))
    losses: list[list[float]] = [list(s[3]) for s in starts]
    loss = jax.jit(partial(gpt.loss, attention=attention))
    watches = [watched(loss, log, seed) for seed in seeds]
    for w in watches[1:]:  # one compiled program looks at all of them
        w._program, w._probe = watches[0]._program, watches[0]._probe
    shares: list[list[tuple[int, float]]] = [[] for _ in seeds]
    kept: dict[int, Any] = {}
    start = time.perf_counter()
    for n in range(config.steps - int(done.min())):
        numbers = np.minimum(done + n, config.steps - 1)
        tokens = np.stack([drawn[s].batch(int(m)) for s, m in zip(seeds, numbers, strict=True)])
        if n % EVERY == 0:
            for i, w in enumerate(watches):
                if done[i] + n >= config.steps:
                    continue
                seen = w.look(int(numbers[i]), take(params, i), tokens[i, :1])
                shares[i].append((int(numbers[i]), seen["attention/drift_history"]))
                if w.alarm is not None and seeds[i] not in kept:
                    own = take((params, state), i)
                    kept[seeds[i]] = (int(numbers[i]), *own, list(losses[i]))
        params, state, now = step(params, state, tokens, numbers.astype(np.float32))
        for i, x in enumerate(np.asarray(now)):
            if done[i] + n < config.steps:
                losses[i].append(float(x))
    found = []
    for i, seed in enumerate(seeds):
        follow = Follow(1)
        follow.add(len(losses[i]), np.array(losses[i])[:, None])
        first, alarm = int(follow.first[0]), watches[i].alarm
        found.append(
            {
                "seed": seed,
                "diverged": None if first < 0 else first,
                "alarm": None if alarm is None else alarm.step,
                "from": int(done[i]),
                "means": means(losses[i]),
                "final": float(np.mean(losses[i][-25:])),
                "shares": shares[i],
                "kept": kept.get(seed),
                "seconds": (time.perf_counter() - start) / len(seeds),
            }
        )
    return found


def main() -> None:
    """Train all arms, and write runs.json."""
    ask = ArgumentParser(description=__doc__)
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--seeds", type=int, default=10)
    ask.add_argument("--bits", type=int, default=5)
    ask.add_argument("--steps", type=int, default=1000)
    ask.add_argument("--arms", nargs="*", help="only these; cured and corrected need leaking")
    ask.add_argument("--tiny", action="store_true", help="a model for a CPU")
    asked = ask.parse_args()
    sizes: dict[str, Any] = {"layers": 4, "heads": 4, "width": 128, "context": 128, "batch": 16}
    if asked.tiny:
        sizes = {"layers": 2, "heads": 2, "width": 32, "context": 32, "batch": 8}
    config = Config(**sizes, warmup=min(100, asked.steps // 10), steps=asked.steps, lr=1e-2)
    healthy = Plan.preset("fa2-bf16")
    leaking = healthy.changed(f"OD=e8m{asked.bits - 1}:toward-zero")
    arms = {
        "healthy": attention_of(healthy, config.layers),
        "leaking": attention_of(leaking, config.layers),
        "cured": attention_of(leaking.changed("delta_from=CENTERED"), config.layers),
        "corrected": attention_of(leaking, config.layers, is_corrected=True),
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    kept: dict[int, Any] = {}
    device = jax.devices()[0].device_kind
    about = {"jax": jax.__version__, "device": device, "bits": asked.bits, **sizes,
             "steps": asked.steps, "lr": 1e-2}  # fmt: skip
    for arm, attention in arms.items():
        if asked.arms and arm not in asked.arms:
            continue
        goes_on = arm in ("cured", "corrected")
        seeds = sorted(kept) if goes_on else list(range(asked.seeds))
        if not seeds:
            continue
        found = run(config, attention, seeds, kept if goes_on else {}, asked.out / arm)
        if arm == "leaking":
            kept = {x["seed"]: x["kept"] for x in found if x["kept"] is not None}
        for x in found:
            del x["kept"]
            runs.append({"arm": arm} | x)
            loss = x["final"]
            print(
                f"seed {x['seed']} {arm}: diverged {x['diverged']}, alarm {x['alarm']},"
                f" loss {loss:.3f}, {x['seconds']:.0f} s",
                flush=True,
            )
        (asked.out / "runs.json").write_text(json.dumps({"about": about, "runs": runs}))
    print(*lines(runs), sep="\n")


if __name__ == "__main__":
    main()

"""`watch`: looks at the row sums of dS in tapped attention, in somebody's own training."""

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention.jax.correction import probed, wide
from roundscope.attention.jax.options import Facts
from roundscope.attention.jax.tapping import Call, listening, send
from roundscope.attention.models.alarm import THRESHOLD, Alarm
from roundscope.attention.models.drift import HeadNumbers, HeadTensors, head_numbers
from roundscope.attention.models.selection import Layer, heads_given, heads_of
from roundscope.attention.models.watcher import Watcher
from roundscope.emu.errors import known_arguments
from roundscope.emu.numbers import check_count, check_truth
from roundscope.emu.shown import shown

OFF = 0.02  # of its norm: how far the output with a feature of ones may be from the output


class Watch:
    """Looks at tapped attention in a training (see `watch`).

    Attributes:
        every: At which steps it looks: those that this divides.
        alarm: The first look at which the share of the drift was above the threshold, or None.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        every: int,
        heads: int | tuple[int, ...] | None,
        watcher: Watcher,
        has_aux: bool,
    ) -> None:
        self.every, self._watcher = every, watcher
        self._probe = _Probe(heads)
        gradient = jax.grad(loss, has_aux=has_aux, allow_int=True)

        def program(*arguments: Any) -> tuple[()]:
            gradient(*arguments)
            return ()

        self._program = jax.jit(program)

    def __repr__(self) -> str:
        return f"<Watch, every {self.every} steps, {self.alarm or 'no alarm'}>"

    @property
    def alarm(self) -> Alarm | None:
        return self._watcher.alarm

    def look(self, step: int, *arguments: Any) -> dict[str, float]:
        """Look at a step of the training, if it is one of those to look at.

        Args:
            step: The number of the step.
            arguments: Those of the loss, such as parameters and a batch. The first entry of the
                batch is looked at, so that a batch of one sequence is enough, and costs least.

        Returns:
            An empty dict at a step that `every` does not divide. Else numbers for a logger, name ->
            number: see `attention.models.watcher.Watcher.look`.

        Raises:
            RuntimeError: No tapped attention was differentiated.
            ValueError: Attention has an option that is not modelled, or another scale than it says.
        """
        if operator.index(step) % self.every:
            return {}
        self._probe.found.clear()
        with listening(self._probe):
            self._program(*arguments)
        jax.effects_barrier()
        if not self._probe.found:
            raise RuntimeError(
                f"step={step}: the gradient of this loss by its first argument reached no attention"
                " that `tap` returned; tap the model's attention, and give the loss that is trained"
            )
        for layer, (_, _, off) in self._probe.found.items():
            _check_same_output(layer, off, self._probe.facts)
        layers = sorted(self._probe.found, key=lambda layer: layer.number)
        return self._watcher.look(step, {layer: self._probe.found[layer][:2] for layer in layers})


@known_arguments
def watch(
    loss: Callable[..., Any],
    every: int = 100,
    *,
    heads: int | Sequence[int] | None = None,
    threshold: float | None = THRESHOLD,
    log: str | Path | None = None,
    on_alarm: Callable[[Alarm], object] | None = None,
    has_aux: bool = False,
) -> Watch:
    """Return a watch over tapped attention: does its arithmetic leak into the queries' gradient?

    In exact arithmetic the rows of dS sum to zero. A look measures how far they do not, with the
    model's own kernel, forward and backward (`attention.jax.correction`), and how large a part of
    the gradient this makes (`attention.models.drift`). It runs a jitted program of its own, which
    is compiled once for each shape of the arguments and returns only a few numbers for each head.
    The training step is not touched.

    A look costs one forward and backward of the model on the arguments that it is given, and about
    twice the attention of one sequence on top. Only the first entry of the batch is measured, so
    give it one sequence: a whole batch at every 100th step would cost 1 % and more.

    Args:
        loss: The function that is differentiated by its first argument, such as loss(params,
            batch). It may be jitted.
        every: A look is taken at steps that it divides.
        heads: Which query heads, or how many (the first ones); None for all. All heads run, these
            are compared with exact attention.
        threshold: The share of the drift above which there is an alarm, None for none.
        log: A file to which each look is appended as a line of JSON.
        on_alarm: Called once for each kind, with the `Alarm`, whose `kind` is "drift" or "gain"; by
            default it is printed to stderr.
        has_aux: Whether the loss returns (loss, anything), as in `jax.grad`.

    Returns:
        A `Watch`, whose `look(step, *arguments)` goes into the training loop.

    Raises:
        TypeError: An argument is of another type.
        ValueError: `every` is below 1, or `heads` are no heads.

    Example:
        >>> import jax
        >>> from roundscope.jax import tap, watch
        >>> attention = tap(jax.nn.dot_product_attention)
        >>> x, w = jax.random.normal(jax.random.key(0), (2, 1, 8, 2, 8))
        >>> w = watch(lambda w, x: attention(w * x, x, x, layer=0).var(), every=100)
        >>> sorted(w.look(0, x, x))[:3], w.look(1, x, x), w.alarm
        (['attention/alarm', 'attention/bias', 'attention/drift'], {}, None)
    """
    if not callable(loss):
        raise TypeError(
            f"loss={shown(loss)}: give the function that is trained, such as loss(params, x)"
        )
    check_count("every", every, 1, "give a whole number of steps, such as 100")
    check_truth("has_aux", has_aux)
    watcher = Watcher(threshold=threshold, log=log, on_alarm=on_alarm)
    return Watch(loss, operator.index(every), heads_given(heads), watcher, has_aux)


class _Probe:
    """Measures every call that is differentiated, and keeps the numbers of each layer."""

    def __init__(self, heads: int | tuple[int, ...] | None) -> None:
        self.heads, self.names = heads, dict[str, int]()
        self.found: dict[Layer, tuple[tuple[int, ...], HeadNumbers, float]] = {}
        self.facts: Facts | None = None

    def wants(self, layer: Layer) -> bool:
        """Return that every layer is wanted."""
        return True

    def hear(self, call: Call) -> None:
        """Measure a call inside the program that is traced, and send the numbers to the host."""
        if "do" not in call.tensors:
            return
        self.facts = call.facts
        heads = heads_of(self.heads, call.tensors["q"].shape[2])

        def receive(layer: Layer, found: dict[str, Any]) -> None:
            off = float(found.pop("off"))
            self.found.setdefault(layer, (heads, HeadNumbers(**found), off))

        off, numbers = _measured(call, heads)
        send(call, receive, numbers._asdict() | {"off": off})


def _measured(call: Call, heads: tuple[int, ...]) -> tuple[Array, HeadNumbers]:
    """Return how far the output with a feature of ones is off, and the numbers of heads."""
    facts = call.facts
    q, k, v, do = (call.tensors[name][:1] for name in ("q", "k", "v", "do"))
    probe = probed(
        call.run,
        q,
        k,
        v,
        do,
        {name: x[:1] for name, x in call.options.items()},
        scale=facts.scale,
        takes_scale=facts.takes_scale,
    )
    out, dq = (call.tensors[name][:1] for name in ("out", "dq"))
    own = np.array(heads)
    of_keys = own // (q.shape[2] // k.shape[2])
    mask = call.mask
    if mask is not None:
        mask = mask[0][own] if mask.shape[1] > 1 else mask[0]
    given = HeadTensors(
        q=_heads(q, own),
        k=_heads(k, of_keys),
        v=_heads(v, of_keys),
        do=_heads(do, own),
        r=wide(_heads(probe.scaled_sums, own)) / facts.scale,
        dq=_heads(dq, own),
        out=_heads(out, own),
        scale=facts.scale,
        is_causal=facts.is_causal,
        window=facts.window,
        mask=mask,
        inputs=v[0].reshape(v.shape[1], -1) if q.shape[1] == k.shape[1] else None,
    )
    return _norm(probe.out - out) / _norm(out), head_numbers(given)


def _heads(x: Array, heads: np.ndarray) -> Array:
    """Return some heads of the first entry of (B, T, N, ...), as (N, T, ...)."""
    return x[0].swapaxes(0, 1)[heads]


def _norm(x: Array) -> Array:
    return jnp.sqrt((wide(x) ** 2).sum())


def _check_same_output(layer: Layer, off: float, facts: Facts | None) -> None:
    if facts is not None and off > OFF:
        raise ValueError(
            f"layer {layer.number} ({layer.name}): with more features, {facts.implementation}"
            f" returns another output, off by {off:.2g} of its norm; its scale is not"
            f" {facts.scale:.6g}, or it treats features apart; give it an argument `scale`"
        )

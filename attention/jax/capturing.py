"""`capture`: what tapped attention is given and returns, written to a file."""

import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jaxlib.version

from roundscope.attention.jax.tapping import Call, heard_by, listening, send
from roundscope.attention.models.capture_file import (
    ENDED,
    Captured,
    Choice,
    choice_given,
    file_given,
    finished,
    numbers_given,
    write_captures,
)
from roundscope.attention.models.selection import Layer, fits
from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown


@known_arguments
@contextmanager
def capture(
    path: str | os.PathLike[str],
    *,
    layers: str | int | Sequence[int] = "*",
    heads: Iterable[int] | int | None = None,
    tokens: int | None = None,
    batch: Iterable[int] | int | None = 0,
    steps: Iterable[int] | int | None = 0,
) -> Iterator[list[Captured]]:
    """Capture tapped attention while it runs, and write it to a file at the end.

    The file has q, k, v, the mask, scale, causality and output of each call, and do, dq, dk and dv
    if the call was differentiated; see `attention.models.capture_file`. `roundscope trace`,
    `identify` and `diagnose` read it. Run without `jax.jit`, a model keeps every bit of its outputs
    and gradients. Under `jax.jit` it is compiled again, with what is captured as further outputs of
    the program, and XLA promises no equal bits of two programs.

    Jitted functions are compiled for the capture when they are first called in it, and keep their
    own program for afterwards. Programs compiled ahead of time are not heard. An exception ends the
    capture, and what was captured until then is written.

    Args:
        path: The safetensors file. Its folder must exist; a file of that name is replaced.
        layers: Which layers: "*" for all, numbers such as "0-3" or [0, 2], or a pattern of names.
        heads: Numbers of key heads, each with the query heads that share it; None for all.
        tokens: How many of the first tokens. Of a causal call the first queries and keys are kept,
            of another one the first queries with all keys; dk and dv, which sum over all queries,
            are then left out. None for all.
        batch: Numbers of entries of the batch, by default the first; None for all.
        steps: Which calls of each layer, counted from 0 within the context; by default the first;
            None for all. A call that is differentiated counts once, with its backward.

    Yields:
        A list that has the `Captured` calls at the end of the context, by step and layer.

    Raises:
        TypeError: An argument is of another type.
        ValueError: No such heads or batch entries, no tokens, an option of attention that is not
            modelled, or a path that cannot be written.
        RuntimeError: No tapped attention of these layers ran.

    Example:
        >>> import tempfile, jax
        >>> from roundscope.jax import capture, tap
        >>> attention = tap(jax.nn.dot_product_attention)
        >>> q = jax.random.normal(jax.random.key(0), (1, 4, 2, 8))
        >>> loss = lambda q: attention(q, q, q, is_causal=True, layer=0).sum()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with capture(f"{folder}/qkv.safetensors") as calls:
        ...         gradient = jax.jit(jax.grad(loss))(q)
        >>> calls[0].is_causal, calls[0].q.shape, calls[0].dq.shape
        (True, (1, 2, 4, 8), (1, 2, 4, 8))
    """
    file = file_given(path)
    recorder = _Recorder(layers, choice_given(heads, tokens, batch), numbers_given("steps", steps))
    calls: list[Captured] = []

    def write(remark: str) -> None:
        jax.effects_barrier()
        calls.extend(recorder.captured())
        if calls:
            write_captures(file, calls, _about() | ({"remark": remark} if remark else {}))

    try:
        with listening(*heard_by(), recorder):
            yield calls
    except BaseException as error:
        write(f"{ENDED} {type(error).__name__}")
        raise
    write("")
    if not calls:
        raise RuntimeError(f"nothing was captured, and no file was written: {recorder.heard()}")


class _Recorder:
    """Keeps the calls that are wanted, and counts the calls of each layer."""

    def __init__(
        self,
        layers: str | int | Sequence[int],
        choice: Choice,
        steps: tuple[int, ...] | None,
    ) -> None:
        self.layers, self.choice, self.steps = layers, choice, steps
        self.names: dict[str, int] = {}
        self.calls: Counter[Layer] = Counter()
        self.kept: list[Captured] = []

    def wants(self, layer: Layer) -> bool:
        """Return whether a layer is one of those chosen."""
        self.calls[layer] += 0  # named in the error if nothing is captured
        return fits(self.layers, layer)

    def hear(self, call: Call) -> None:
        """Send the chosen part of a call to the host."""
        q, k = call.tensors["q"], call.tensors["k"]
        shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        choice, groups = self.choice, k.shape[2]
        arrays = {
            name: choice.entries(x.swapaxes(1, 2), groups) for name, x in call.tensors.items()
        }
        if call.mask is not None:
            arrays["mask"] = choice.of_mask(call.mask, shape, groups)
        facts = call.facts

        def receive(layer: Layer, found: dict[str, Any]) -> None:
            if call.layer is None and not self.wants(layer):
                return
            step = self.calls[layer]
            self.calls[layer] += 1
            if self.steps is None or step in self.steps:
                self.kept.append(
                    Captured(
                        number=layer.number,
                        name=layer.name,
                        step=step,
                        scale=facts.scale,
                        is_causal=facts.is_causal,
                        window=facts.window,
                        implementation=facts.implementation,
                        **found,
                    )
                )

        send(call, receive, arrays)

    def captured(self) -> list[Captured]:
        """Return what was kept, by step and layer."""
        kept, self.kept = self.kept, []
        calls = [finished(call, self.choice) for call in kept]
        return sorted(calls, key=lambda call: (call.step, call.number))

    def heard(self) -> str:
        """Return what was heard of, for an error."""
        if not self.calls:
            return (
                "no function that `tap` returned was called, or its program was compiled ahead of"
                " time"
            )
        of_layers = ", ".join(f"{x.number} {x.name}: {n} calls" for x, n in self.calls.items())
        return f"layers={shown(self.layers)}, steps={self.steps}, but heard were {of_layers}"


def _about() -> dict[str, str]:
    """Return what a file says of versions and the device."""
    return {
        "framework": "jax",
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
    }

"""`Tensors`: the inputs of the cells of one call, in the form that `examine` takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roundscope.tools.sweep.conditions.inputs import Inputs


class Tensors:
    """Inputs by cell.

    Under xla each is copied to the device once, however many cells and calls share it.
    """

    def __init__(self, inputs: Sequence[Inputs]) -> None:
        own = {id(x): x for x in inputs}
        number = {key: n for n, key in enumerate(own)}
        self._own, self._places = [*own.values()], np.array([number[id(x)] for x in inputs])
        self._sent: dict[str, Any] = {}

    @property
    def first(self) -> Inputs:
        """The inputs of the first cell: all cells share everything in it but the tensors."""
        return self._own[0]

    def of(self, role: str, chosen: Sequence[int]) -> Any:
        """Return a tensor of the cells chosen, along the first axis.

        More than one cell needs xla.
        """
        if len(chosen) == 1:
            return getattr(self._own[self._places[chosen[0]]], role)
        import jax

        from roundscope.tools.sweep.measuring.on_device import taken

        with jax.enable_x64(True):
            if role not in self._sent:
                parts = [getattr(x, role) for x in self._own]
                # padded to a power of two: few shapes need few compilations
                missing = (1 << (len(parts) - 1).bit_length()) - len(parts)
                self._sent[role] = jax.device_put(np.concatenate([*parts, *parts[-1:] * missing]))
            return taken(self._sent[role], self._places[list(chosen)])

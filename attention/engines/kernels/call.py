"""What a fused kernel is made for (`Call`), and which part of each array a program sees.

A program is one run of a kernel, for one head and one tile of the head. `running` calls kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl

from roundscope.attention.plans.choices import GradientsApart
from roundscope.attention.sites import FACTORS, Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.kernels.held import FP32, FP64, WITHIN_FP32, Held, format_of
from roundscope.emu.backends.kernels.ops import types
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.sums.accumulator import Accumulator

Input = tuple[Array, pl.BlockSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a kernel is made for.

    setup   the setup of the call, without its record
    on_gpu  whether it is compiled for a GPU, not interpreted
    group   query heads of a key head
    """

    setup: Setup
    on_gpu: bool
    group: int

    def format(self, site: Site) -> str:
        """Return the name of the format in which the results of an event are held.

        It is binary64 if an injection may have changed them to any number, or if they are scaled in
        blocks.
        """
        if self.setup.plan.block(site) is not None or any(
            injection.site is site for injection in self.setup.inject
        ):
            return FP64
        return format_of(self.setup.plan[site].format)

    def stored(self, site: Site, x: Array) -> Array:
        """Return the results of an event as an array of the narrowest type that holds them.

        Reading memory limits the speed of a kernel.
        """
        return x.astype(self.dtype(site))

    def dtype(self, site: Site) -> np.dtype[Any]:
        """Return the narrowest type that holds the results of an event."""
        found: np.dtype[Any] = jnp.dtype(types(self.on_gpu)[self.format(site)])
        return found

    def left(self, site: Site | None) -> str:
        """Return the name of the format in which a kernel writes its results.

        The output is written in binary32, as callers need it. None means the output before its last
        rounding, which is in binary64.
        """
        name = FP64 if site is None else self.format(site)
        return FP32 if site is Site.OUT and name in WITHIN_FP32 else name

    @property
    def sums_in_slices(self) -> bool:
        """Return whether a tile's part of dQ, dK and dV may be added in slices of its rows.

        It may if three conditions hold. The sums are of fused multiply-adds whose event has the
        same rounding as each step, so that the event changes nothing. No tile is added up apart.
        And nothing is injected.
        """
        setup, sites = self.setup, (Site.DQ, Site.DK, Site.DV)
        formats = {self.format(x) for site in sites for x in (site, *FACTORS[site])}
        own = all(
            setup.plan.accumulator(site) == Accumulator() and setup.plan[site] == BINARY32
            for site in sites
        )
        are_whole = setup.plan.gradients_apart is GradientsApart.NONE
        return own and are_whole and FP64 not in formats and not setup.inject

    def read(self, site: Site, ref: Any, rows: Any = slice(None)) -> Held:
        """Return the results of an event, or some rows of them, from what a program sees."""
        return Held(array=ref[(rows, slice(None))[: len(ref.shape)]], format=self.format(site))

    def own(self, x: Array) -> Input:
        """Give a program (head, tile) its tile of query rows of an array (heads, rows, ...)."""
        return x, block(x, self.setup.block_q, lambda h, i: (h, i))

    def own_keys(self, x: Array) -> Input:
        """Give a program its tile of keys of an array (key heads, S, ...)."""
        return x, block(x, self.setup.block_k, lambda h, j: (h // self.group, j))

    def own_queries_of_scores(self, x: Array) -> Input:
        """Give a program its tile of queries of an array (heads, S, T), with all keys."""
        return x, pl.BlockSpec((None, x.shape[1], self.setup.block_q), lambda h, i: (h, 0, i))

    def own_keys_of_query_head(self, x: Array) -> Input:
        """Give a program its tile of keys of an array (heads, S, ...) of query heads."""
        return x, block(x, self.setup.block_k, lambda h, j: (h, j))

    def scalar(self, x: Array) -> Input:
        """Give all programs the same number, as an array (1,)."""
        return x[None], whole_array(x[None])

    def whole(self, x: Array) -> Input:
        """Give a program all keys of its key head, of an array (key heads, S, ...)."""
        return x, block(x, x.shape[1], lambda h, i: (h // self.group, 0))

    def whole_of_query_head(self, x: Array) -> Input:
        """Give a program all rows of its head, of an array (heads, rows, ...)."""
        return x, block(x, x.shape[1], lambda h, j: (h, 0))


def block(x: Any, rows: int, at: Callable[[Any, Any], tuple[Any, Any]]) -> pl.BlockSpec:
    """Return the block of `rows` rows that a program sees; at: (head, tile) -> which block."""
    return pl.BlockSpec(
        (None, rows, *x.shape[2:]), lambda h, i: (*at(h, i), *(0 for _ in x.shape[2:]))
    )


def whole_array(x: Any) -> pl.BlockSpec:
    """Return the block that gives every program the whole array."""
    return pl.BlockSpec(x.shape, lambda h, i: (0,) * x.ndim)


def held(arrays: tuple[Array, ...], formats: list[str]) -> list[Held]:
    """Return what a program carries from tile to tile, with the names of its formats."""
    return [Held(array=x, format=name) for x, name in zip(arrays, formats, strict=True)]


def wide(x: Array) -> Array:
    """Return an array in binary64, the type of all engines."""
    return x.astype(jnp.float64)

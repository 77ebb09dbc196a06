"""`tiles_added` on JAX's device: a summary of tiles is as many times as large as there are tiles, and copying it off a GPU is slow."""

from functools import partial
from typing import Any

import jax

from attention import trace
from attention.head import Setup
from attention.sites import Site

_LIKE = {site.axes: site for site in Site}  # sites of one shape share a compilation


def tiles_added(setup: Setup, site: Site, seen: Any, lead: tuple[int, ...], features: int, backward: bool) -> tuple[Any, ...]:
    """As `attention.trace.tiles_added`."""
    with jax.enable_x64(True):
        added: tuple[Any, ...] = _tiles_added(setup, _LIKE[site.axes], lead, features, backward, seen)
    return added


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _tiles_added(setup: Setup, site: Site, lead: tuple[int, ...], features: int, backward: bool, seen: Any) -> tuple[Any, ...]:
    return trace.tiles_added(setup, site, seen, lead, features, backward)

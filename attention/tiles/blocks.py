"""What a block format at a site demands of the tile sizes: no block may straddle two tiles."""

from roundscope.attention.sites import BLOCK_AXIS, Axes, Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.blocks.format import BlockFormat


def check_blocks(setup: Setup) -> None:
    """Raise ValueError where the blocks of a site's format do not divide a tile.

    P, P_B and dS are rounded tile by tile. V and dO are rounded once for the whole head, but sums
    run over their rows tile by tile. Q and K are summed over features, which no tile cuts. A last
    block that ends with its tensor is shorter, as everywhere (`emu.BlockFormat`).
    """
    for site, block in setup.plan.blocks:
        if site.axes is Axes.TS:
            sizes = (block.size, block.rows) if BLOCK_AXIS[site] == 0 else (block.rows, block.size)
            for size, extent in zip(sizes, _extents(setup), strict=True):
                _check(site, block, size, *extent, inside=True)
        elif BLOCK_AXIS[site] == 0:
            _check(site, block, block.size, *_extents(setup)[site.axes is Axes.SH], inside=False)


def _extents(setup: Setup) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
    """Return (name of the argument, rows of a tile, rows in all) of queries and of keys."""
    return ("block_q", setup.block_q, setup.queries), ("block_k", setup.block_k, setup.keys)


def _check(
    site: Site, block: BlockFormat, size: int, name: str, tile: int, total: int, *, inside: bool
) -> None:
    """Raise ValueError unless blocks of `size` fit tiles of `tile` rows, `total` in all.

    name: the argument that gives the tile's rows; inside: whether a tile must hold whole blocks,
    and not a block several whole tiles.
    """
    several = not inside and (size >= total or size % tile == 0)  # blocks of several whole tiles
    if tile < total and tile % size and not several:
        raise ValueError(
            f"{name}={tile}: {site} in {block} has blocks of {size}, which must divide the tile;"
            f" give a multiple of {size}"
        )

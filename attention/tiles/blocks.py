"""The check that tile sizes fit the block formats of a plan: no block may straddle two tiles."""

from roundscope.attention.sites import BLOCK_AXIS, Axes, Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.blocks.format import BlockFormat


def check_blocks(setup: Setup) -> None:
    """Raise ValueError where the blocks of a site's format do not divide a tile.

    P, P_B and dS are rounded tile by tile. V and dO are rounded once for the whole head, but sums
    over their rows are computed tile by tile. Q and K are summed over features, which tiles do not
    split. The last block of a tensor may be shorter (`emu.BlockFormat`).
    """
    for site, block in setup.plan.blocks:
        if site.axes is Axes.TS:
            sizes = (block.size, block.rows) if BLOCK_AXIS[site] == 0 else (block.rows, block.size)
            for size, extent in zip(sizes, _extents(setup), strict=True):
                _check(site, block, size, *extent, inside=True)
        elif BLOCK_AXIS[site] == 0:
            _check(site, block, block.size, *_extents(setup)[site.axes is Axes.SH], inside=False)


def _extents(setup: Setup) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
    """Return (argument's name, rows of a tile, rows in total) for queries and for keys."""
    return ("block_q", setup.block_q, setup.queries), ("block_k", setup.block_k, setup.keys)


def _check(
    site: Site, block: BlockFormat, size: int, name: str, tile: int, total: int, *, inside: bool
) -> None:
    """Raise ValueError unless blocks of `size` rows fit tiles of `tile` rows.

    name    the argument that gives the rows of a tile
    total   how many rows there are in total
    inside  whether every block must lie inside one tile; otherwise a block may also consist of
            several whole tiles
    """
    several = not inside and (size >= total or size % tile == 0)  # blocks of several whole tiles
    if tile < total and tile % size and not several:
        raise ValueError(
            f"{name}={tile}: {site} in {block} has blocks of {size}, which must divide the tile;"
            f" give a multiple of {size}"
        )

"""Statistics of rounding errors: `Stats`, a summary that can be merged, and its classification.

The compiled loops that fill a summary are in `emu.backends`; statistics of blocks are in
`emu.blocks.stats`.
"""

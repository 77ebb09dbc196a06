"""What roundings did, counted: `Stats`, a summary that merges, and the classes of its events.

The compiled loops that fill a summary are in `emu.backends`; statistics of blocks are in
`emu.blocks.stats`.
"""

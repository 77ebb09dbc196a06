"""One attention head as a loop over its tiles, for every engine.

`forward` and `backward` have the loops, `loops` has what both share, and `records` what they hand
to each other. `orders` gives the order of the tiles. `tile` says where a tile is and which of its
entries exist, and `sample` chooses the tiles that a trace summarizes. The equations of one tile are
in `attention.algorithm`, and `attention.engines` runs many heads.
"""

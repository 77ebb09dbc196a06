"""One attention head as a loop over its tiles, for every engine.

`forward` and `backward` have the loops, `loops` what both share, `orders` and `splits` the order in
which tiles are met, `tile` where a tile is and which of its entries exist, `blocks` what block
formats demand of tiles, and `sample` which tiles a trace looks at. The equations of one tile are in
`attention.algorithm`; arrays of many heads are the business of `attention.engines`.
"""

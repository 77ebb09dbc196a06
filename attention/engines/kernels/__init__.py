"""The fused GPU kernels: grids, memory and programs around the equations of every engine.

`engine` has the functions of an engine, `forward`, `backward` and `gradients` the kernels and their
programs, `tiles` and `work` what a program does with a tile, `call` how a kernel is called,
`record` and `summary` what a trace gets to see, and `fit` what the kernels refuse.
"""

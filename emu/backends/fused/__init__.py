"""Fused loops on a CPU: a function of NumPy arrays, traced once and compiled to one program.

`graph` traces the function, `narrow` keeps numbers in binary32 where that gives the same bits,
`schedule` cuts the graph into loops, `loops` and `sums` write them as LLVM's instructions on
vectors, and `program` compiles, keeps and calls the result.
"""

"""Operations of whole models: recorded on a tape, replayed, compared with those of another run.

tape         what a recorded run is; `tape_file` is a tape as a file
calls        the operations of a tape as calls of the catalogue
replay       a run again, with operations of the other in the places of its own
revival      the operations of a file run again
comparing    what differs between two runs, where it is made, and what it is worth
budget       which operation makes how much of the error of a step
torch, jax   recording and running models of PyTorch and of JAX
"""

"""Operations of whole models: recorded on a tape, replayed, compared with those of another run.

tape        what a recorded run is
align       which operations of two runs are the same one
replay      a run again, with operations of the other in the places of its own
shares      how much of a gap each of several changes makes
comparing   what differs between two runs, where it is made, and what it is worth
comparison  the answer to that
tape_file   a tape as a file
"""

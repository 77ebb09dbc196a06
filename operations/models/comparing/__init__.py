"""Two runs of a model, one against the other: from tapes to the answer, in no framework.

align        which operations of two runs are the same one, and `comparable`, which runs can be
tokens       which tokens are the same, `ports` which numbers, and `named` which results
differences  how far numbers are apart
shares       how much of a gap each of several changes makes
words        what computes an operation in either run
tapes        all of this for two tapes; `comparison` is the answer
"""

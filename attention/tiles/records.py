"""What a forward and a backward hand to each other: arrays of a tile, a head or all heads.

They are named tuples, so loops of every array library take them as they are. Shapes are those of a
head: T queries and S keys, in whole tiles, with H features of q and k and Hv of v. In the arrays of
all heads, heads are the first axis.
"""

from typing import NamedTuple, TypeAlias

from roundscope.emu.backends.ops import Array


class Inputs(NamedTuple):
    """What a forward reads, rounded by the events of the inputs.

    q     (T, H)
    k, v  (S, H) and (S, Hv); of all heads, those of key heads
    mask  (T, S) of bool, padded with False, or None
    sink  the logit of the head's sink, a scalar, or None
    of_scores, of_output  the factors of the head's scores and of its output, scalars, or None
          (`attention.inputs.scales`)
    bias  (T, S), padded with 0, or None
    """

    q: Array
    k: Array
    v: Array
    mask: Array | None = None
    sink: Array | None = None
    of_scores: Array | None = None
    of_output: Array | None = None
    bias: Array | None = None


class Kept(NamedTuple):
    """O in two sums (`softmax.flushed`): the second sum and its state.

    a      A, (rows, Hv)
    beta   the factor of A at the next flush, (rows,)
    tiles  how many tiles there were so far
    """

    a: Array
    beta: Array
    tiles: Array


class State(NamedTuple):
    """The state of a query tile, which each key tile updates.

    m  the maximum, (bq,)
    l  the row sum, (bq,) or its lanes (bq, 4)
    o  O, (bq, Hv)
    """

    m: Array
    l: Array
    o: Array


class FlushedState(NamedTuple):
    """The state in plans with `flushed_tiles`; kept: the second sum of O."""

    m: Array
    l: Array
    o: Array
    kept: Kept


class Last(NamedTuple):
    """The parts of O after a key tile, from which the output is computed in the last one.

    alpha  the rescaling factor of the tile, (rows,)
    o      O before it, (rows, Hv)
    pv     P V, (rows, Hv)
    """

    alpha: Array
    o: Array
    pv: Array


class PartedState(NamedTuple):
    """The state in plans with `normalized_last`."""

    m: Array
    l: Array
    o: Array
    last: Last


AnyState: TypeAlias = State | FlushedState | PartedState


def state_of(m: Array, l: Array, o: Array, *kept: Kept | Last) -> AnyState:
    """Return a state of these parts."""
    if not kept:
        return State(m, l, o)
    [more] = kept
    return PartedState(m, l, o, more) if isinstance(more, Last) else FlushedState(m, l, o, more)


class Results(NamedTuple):
    """What a forward returns.

    out   the output, (T, Hv)
    wide  the output before its last rounding, (T, Hv)
    lse   L, (T,)
    kept  m and l, (T, 2), in plans whose backward reads them (`BackwardExponent.STATE`), else None
    """

    out: Array
    wide: Array
    lse: Array
    kept: Array | None = None

    @property
    def of_rows(self) -> Array:
        """What the backward computes P from: `kept`, or else L."""
        return self.lse if self.kept is None else self.kept


class Residuals(NamedTuple):
    """What a backward gets from the forward: its inputs and its results."""

    inputs: Inputs
    results: Results


class Sums(NamedTuple):
    """The sums dQ (T, H), dK (S, H) and dV (S, Hv), to which each tile of a backward adds."""

    dq: Array
    dk: Array
    dv: Array


class BiasedSums(NamedTuple):
    """The sums in a call with a bias; bias: the gradient of its tile, (bq, bk), or of tiles."""

    dq: Array
    dk: Array
    dv: Array
    bias: Array


AnySums: TypeAlias = Sums | BiasedSums


class Gradients(NamedTuple):
    """What a backward returns: dQ (T, H), dK (S, H), dV (S, Hv) and delta (T,).

    dbias: the gradient of the head's bias, (T, S), or None in calls without one
    """

    dq: Array
    dk: Array
    dv: Array
    delta: Array
    dbias: Array | None = None


class Operands(NamedTuple):
    """What a tile of a backward reads: its part of q, k, v and dO, of L and of delta.

    In plans with `Results.kept`, `lse` is m and l.
    """

    q: Array
    k: Array
    v: Array
    do: Array
    lse: Array
    delta: Array

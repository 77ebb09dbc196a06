"""Everything that probes find of an attention kernel, a line for each of its sums.

What cannot be seen: sums of FP8 numbers, whose range has no M; the row sum of a kernel whose `out`
has few bits; S in the backward, dP and delta, which no output shows apart; how P V goes on where
its terms are rescaled by other factors than 1, which probes avoid; and what `orders` says of any
sum. What is found is the order of the probes' calls, which have no mask.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from roundscope.attention.plans.choices import KeyOrder
from roundscope.attention.sites import Site
from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.foreign.user import Kernel, Unavailable
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.testing.foreign import ForeignError
from roundscope.tools.errors import one_line
from roundscope.tools.identify.order_names import SumOrder, named_order
from roundscope.tools.identify.orders import INFINITE, Tree, Unprobed
from roundscope.tools.identify.probes import products, softmax
from roundscope.tools.identify.probes.calls import NARROW, WIDE, Calls, Range, Told, plain

Reader = Callable[[Calls, Range], tuple[Tree | None, SumOrder]]
SOFTMAX, PV, SCORES = "the softmax", "P V", "Q K^T"
FAILURES = (ForeignError, Unavailable, ImportError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What probes found of one sum.

    name   the sum
    terms  its terms in words
    order  the order of its additions; None if it was not found
    tree   the tree of its additions; None if there is none, as of an exact sum and of the softmax
    why    why it was not found
    """

    name: str
    terms: str
    order: SumOrder | None = None
    tree: Tree | None = None
    why: str = ""

    @property
    def words(self) -> str:
        """The line that is printed."""
        found = f"not found: {self.why}" if self.order is None else self.order.words
        return f"probe of {self.name} over {self.terms}: {found}"


def probed(
    kernel: Kernel, x: Inputs, tell: Told = lambda text: None, *, gradients: bool = True
) -> list[Probed]:
    """Return what probes find of the sums of a kernel.

    A probe under which the kernel fails, or gives numbers that do not count, is lost, and no other.

    Args:
        kernel: the kernel; it is called up to a few hundred times.
        x: a call of it, whose shapes and scale the probes have.
        tell: is told in words what runs.
        gradients: whether the sums of gradients are probed too.

    Example:
        >>> from roundscope.attention.testing.foreign.user import kernel_of
        >>> from roundscope.testing import draw
        >>> import numpy as np
        >>> def attention(q, k, v, *, scale, is_causal):
        ...     s = np.float32(scale) * np.einsum("btnh,bsnh->bnts", q, k)
        ...     p = np.exp(s - s.max(-1, keepdims=True))
        ...     return np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)
        >>> x = draw("gaussian", tokens=16)
        >>> found = probed(kernel_of(attention, library="numpy"), x, gradients=False)
        >>> found[0].words
        'probe of the softmax over 16 keys: whole rows, or one tile of 16 keys or more'
    """
    x = plain(x)
    try:
        kernel(x)
    except FAILURES as error:
        return [Probed(name="every sum", terms=f"{x.k.shape[1]} keys", why=_failure(error))]
    queries, keys, features = f"{x.q.shape[1]} queries", f"{x.k.shape[1]} keys", x.q.shape[3]
    readers: list[tuple[str, str, Reader]] = [
        (SOFTMAX, keys, lambda run, r: (None, softmax.tiles(run, r))),
        (PV, keys, partial(_product, products.pv, "keys")),
        (SCORES, f"{features} features", partial(_product, products.scores, "features")),
        ("the row sum", keys, softmax.row_sum),
    ]
    of_gradients: list[tuple[str, str, Reader]] = [
        ("dV", queries, partial(_product, products.dv, "queries")),
        ("dK", queries, partial(_product, products.dk, "queries")),
        ("dQ", keys, partial(_product, products.dq, "keys")),
    ]
    every = [*readers, *(of_gradients if gradients else [])]
    return [_found(name, terms, reader, kernel, x, tell) for name, terms, reader in every]


def tilings(found: Sequence[Probed]) -> list[tuple[int, KeyOrder | None]]:
    """Return (keys of a tile, order of the tiles) of the softmax, or of P V if that was not found.

    The order is None where it is neither ascending nor descending, or not known; nothing is
    returned for whole rows.
    """
    orders = [p.order for p in found if p.name in (SOFTMAX, PV) and p.order is not None][:1]
    return [(o.block, o.order) for o in orders if o.block]


def sums_of(found: Sequence[Probed]) -> dict[Site, Accumulator]:
    """Return the accumulators that P V, in a tile, and Q K^T have; those without one are left out.

    Where the softmax has no tiles, neighboring terms that are added apart are chunks.
    """
    orders = {p.name: p.order for p in found if p.order is not None}
    is_tiled = SOFTMAX not in orders or orders[SOFTMAX].block is not None
    sums = {}
    for name, site in ((PV, Site.PV), (SCORES, Site.S)):
        order = orders.get(name)
        if order is None or order.accumulator is None:
            continue
        acc = order.accumulator
        if order.block is not None and (site is Site.S or not is_tiled):
            if not order.apart or order.order is not KeyOrder.ASCENDING or acc != Accumulator():
                continue
            acc = Accumulator(order=Order.CHUNKED, chunk=order.block)
        sums[site] = acc
    return sums


def _product(
    product: products.Product, terms: str, run: Calls, r: Range
) -> tuple[Tree | None, SumOrder]:
    tree = products.tree_of_product(product, run, r)
    run.tell("looking for its name")
    order = named_order(tree, terms)
    counts = None
    if tree is not None and product is not products.scores:  # whose numbers are not read exactly
        counts = products.confirmed(product, run, r, tree)
    if counts is None:
        return tree, order
    equal, of = counts
    given = f"all {of:,}" if equal == of else f"{equal:,} of {of:,}"
    said = f"{order.words}; additions in binary32 give {given} numbers of a random call"
    return tree, replace(
        order, words=said if equal == of else f"{said}: some numbers are rounded otherwise"
    )


def _found(name: str, terms: str, reader: Reader, kernel: Kernel, x: Inputs, tell: Told) -> Probed:
    """Return what is found in a wide range of numbers, or else in that of FP16."""
    why = ""
    for r in (WIDE, NARROW):
        run = Calls(kernel, x, lambda text: tell(f"probing {name}: {text}"))
        try:
            tree, order = reader(run, r)
        except Unprobed as error:
            # in FP16 the wide range is infinite, which says nothing
            why = one_line(error) if not why or INFINITE in why else why
        except FAILURES as error:
            why = why or _failure(error)
        else:
            return Probed(name=name, terms=terms, order=order, tree=tree)
    return Probed(name=name, terms=terms, why=why)


def _failure(error: BaseException) -> str:
    said = error.words if isinstance(error, ForeignError) else one_line(error)
    return f"the kernel fails: {said[:200]}"

"""`Site`: the named rounding events of attention, in the order in which the algorithm has them.

The module also defines the sets of sites that share a property: the operands of products
(`BLOCK_AXIS`, `FACTORS`), the sums of products (`PRODUCTS`), and the sites that exist only in some
plans, calls or tiles.
"""

from enum import StrEnum

from roundscope.events.sites import SiteBase


class Axes(StrEnum):
    """Which axes the array of an event has; the text of a member names them in words.

    Example:
        >>> from roundscope.attention import Axes, Site
        >>> Site.P.axes is Axes.TS, str(Site.L.axes)
        (True, 'queries')
    """

    TS = "queries x keys"
    """One entry per score, (T, S)."""
    T = "queries"
    """One entry per query row, (T,)."""
    TH = "queries x features"
    """One entry per feature of a query, (T, H)."""
    SH = "keys x features"
    """One entry per feature of a key, (S, H)."""


class Site(SiteBase):
    """One named rounding event of attention: a place of the algorithm where a result is rounded.

    A member is a string that equals its name (`Site.P == "P"`). A function that takes a site also
    takes its name, in upper or lower case. The documentation of a member (`Site.P.__doc__`) is put
    together from the attributes below. Which sites a plan reaches depends on its fields; the
    command `roundscope sites` lists them.

    The attribute `formula` uses these names:

    - The name of another site means the rounded result of that site.
    - q, k and v are the inputs, and dO is the gradient of the output.
    - m is the running maximum, l the running row sum, and O the output before it is normalized.
    - alpha is the factor exp(m_old - m), and L is m + ln l.
    - t is the index of queries, s that of keys, and h that of features.

    Attributes:
        formula: What is rounded.
        axes: Which axes the array of the event has, a member of `Axes`.
        stage: "inputs", "forward" or "backward".
        stream: Number of the random stream from which stochastic rounding at the site draws. A head
            has 128 streams. The numbers never change, since every result of stochastic rounding
            depends on them. A new site takes the next free number, whatever its position in the
            list.
        instead: Of an event that only plans of real kernels have, the event that has its place in
            other plans; "" for all others.

    Example:
        >>> from roundscope.attention import Site
        >>> Site.P.formula, str(Site.P.axes), Site.P.stage
        ('EXP as the operand of P V', 'queries x keys', 'forward')
        >>> Site.P.__doc__
        'P: EXP as the operand of P V (queries x keys, forward).'
        >>> Site("P") is Site.P
        True
    """

    formula: str
    axes: Axes
    stage: str
    stream: int
    instead: str

    @property
    def has_columns(self) -> bool:
        """Return True if the event has one entry per score, so that its second index is a key."""
        return self.axes is Axes.TS

    Q = "Q", "q", Axes.TH, "inputs", 0
    K = "K", "k", Axes.SH, "inputs", 1
    V = "V", "v", Axes.SH, "inputs", 2
    DO = "DO", "dO", Axes.TH, "inputs", 3

    QS = "QS", "q sqrt(scale)", Axes.TH, "forward", 56, "Q"
    KS = "KS", "k sqrt(scale)", Axes.SH, "forward", 57, "K"
    KM = "KM", "k less its mean over the keys", Axes.SH, "forward", 103, "K"
    S = "S", "sum_h q k", Axes.TS, "forward", 4
    SS = "SS", "scale S, before a softcap", Axes.TS, "forward", 70, "SCALED"
    CAP = "CAP", "SS / softcap", Axes.TS, "forward", 71, "SCALED"
    TANH = "TANH", "tanh(CAP)", Axes.TS, "forward", 72, "SCALED"
    CT = "CT", "softcap TANH, a rounded score", Axes.TS, "forward", 104, "SCALED"
    SINK = "SINK", "the sink, in the units of m", Axes.T, "forward", 73, "M"
    SCALED = "SCALED", "scale S, or softcap TANH", Axes.TS, "forward", 5
    BIAS = "BIAS", "the bias of the scores, B", Axes.TS, "forward", 108, "SCALED"
    BIASED = "BIASED", "SCALED + BIAS", Axes.TS, "forward", 109, "SCALED"
    LS = "LS", "log2 e SCALED, or log2 e BIASED", Axes.TS, "forward", 37, "SCALED"
    M = "M", "max(m, rowmax S)", Axes.T, "forward", 6
    CM = "CM", "c m, c = scale log2 e", Axes.T, "forward", 38, "M"
    MO = "MO", "m - offset, or CM - offset", Axes.T, "forward", 84, "M"
    X = "X", "S - m", Axes.TS, "forward", 7
    EXP = "EXP", "exp(X)", Axes.TS, "forward", 8
    P = "P", "EXP as the operand of P V", Axes.TS, "forward", 9
    EI = "EI", "EXP INV in a register", Axes.TS, "forward", 48, "P"
    DM = "DM", "m_old - m", Axes.T, "forward", 10
    DX = "DX", "c DM", Axes.T, "forward", 39, "DM"
    ALPHA = "ALPHA", "exp(DM)", Axes.T, "forward", 11
    AL = "AL", "alpha l", Axes.T, "forward", 12
    ROWSUM = "ROWSUM", "sum_s EXP", Axes.T, "forward", 13
    L = "L", "AL + ROWSUM", Axes.T, "forward", 14
    AO = "AO", "alpha O", Axes.TH, "forward", 15
    PV = "PV", "sum_s P v", Axes.TH, "forward", 16
    O = "O", "AO + PV", Axes.TH, "forward", 17
    BETA = "BETA", "product of the ALPHA since O was flushed", Axes.T, "forward", 96, "ALPHA"
    OA = "OA", "BETA OA + AO, the sum that O is flushed into", Axes.TH, "forward", 97, "O"
    OT = "OT", "BETA OA + O, all of O", Axes.TH, "forward", 98, "O"
    LANES = "LANES", "l, its lanes added up, or as it is kept", Axes.T, "forward", 40, "L"
    SX = "SX", "SINK - m", Axes.T, "forward", 74, "L"
    SE = "SE", "exp(SX)", Axes.T, "forward", 75, "L"
    SL = "SL", "l + SE", Axes.T, "forward", 76, "L"
    INV = "INV", "1 / l", Axes.T, "forward", 18
    IA = "IA", "INV ALPHA, of the last key tile", Axes.T, "forward", 106, "INV"
    IO = "IO", "IA O, without the last key tile", Axes.TH, "forward", 107, "OUT"
    OI = "OI", "O INV in a register", Axes.TH, "forward", 44, "OUT"
    OUT = "OUT", "O INV", Axes.TH, "forward", 19
    MS = "MS", "m as it is kept", Axes.T, "forward", 53, "M"
    LN = "LN", "ln l, or c m + log2 l", Axes.T, "forward", 41, "LSE"
    LSE = "LSE", "m + ln l", Axes.T, "forward", 20
    SW = "SW", "exp(L_i - L), the weight of a split of the keys", Axes.T, "forward", 62, "LSE"
    SO = "SO", "sum_i SW O_i", Axes.TH, "forward", 63, "OUT"

    OD = "OD", "OUT (or O) as the operand of delta", Axes.TH, "backward", 21
    DOO = "DOO", "dO O", Axes.TH, "backward", 52, "DELTA"
    DELTA = "DELTA", "sum_h dO O", Axes.T, "backward", 22
    S_B = "S_B", "sum_h q k, again", Axes.TS, "backward", 23
    SS_B = "SS_B", "scale S_B, before a softcap", Axes.TS, "backward", 77, "SCALED_B"
    CAP_B = "CAP_B", "SS_B / softcap", Axes.TS, "backward", 78, "SCALED_B"
    TANH_B = "TANH_B", "tanh(CAP_B)", Axes.TS, "backward", 79, "SCALED_B"
    CT_B = "CT_B", "softcap TANH_B, a rounded score", Axes.TS, "backward", 105, "SCALED_B"
    TT = "TT", "TANH_B^2", Axes.TS, "backward", 92, "DS"
    DTANH = "DTANH", "1 - TT", Axes.TS, "backward", 80, "DS"
    KC = "KC", "scale log2 e k, the keys of S_B and DQ", Axes.SH, "backward", 95, "K"
    QB = "QB", "q as the backward reads it", Axes.TH, "backward", 117, "Q"
    KB = "KB", "k as the backward reads it", Axes.SH, "backward", 118, "K"
    VB = "VB", "v as the backward reads it", Axes.SH, "backward", 119, "V"
    DOV = "DOV", "DO as the operand of dV", Axes.TH, "backward", 120, "DO"
    SCALED_B = "SCALED_B", "scale S_B, or softcap TANH_B", Axes.TS, "backward", 24
    BIASED_B = "BIASED_B", "SCALED_B + BIAS", Axes.TS, "backward", 110, "SCALED_B"
    LS_B = "LS_B", "log2 e SCALED_B, or log2 e BIASED_B", Axes.TS, "backward", 42, "SCALED_B"
    LSE2 = "LSE2", "log2 e LSE", Axes.T, "backward", 43, "LSE"
    X_B = "X_B", "SCALED_B - LSE", Axes.TS, "backward", 25
    EXP_B = "EXP_B", "exp(X_B)", Axes.TS, "backward", 26
    P_B = "P_B", "EXP_B as the operand of dV", Axes.TS, "backward", 27
    DVP = "DVP", "sum_t P_B dO of one query tile", Axes.SH, "backward", 55, "DV"
    DV = "DV", "dV + sum_t P_B dO", Axes.SH, "backward", 28
    DP = "DP", "sum_h dO v", Axes.TS, "backward", 29
    DPD = "DPD", "DP - delta", Axes.TS, "backward", 30
    PDP = "PDP", "P dP in a register, or DPL2 EXP", Axes.TS, "backward", 49, "DS"
    LL = "LL", "l l", Axes.T, "backward", 85, "DELTA"
    INV2 = "INV2", "1 / LL", Axes.T, "backward", 86, "DELTA"
    DPL2 = "DPL2", "DP INV2", Axes.TS, "backward", 87, "DELTA"
    DPL = "DPL", "DP INV", Axes.TS, "backward", 88, "DS"
    PD = "PD", "EXP_B DPD in a register", Axes.TS, "backward", 45, "DS"
    DSC = "DSC", "EXP_B DPD, the gradient of a capped score", Axes.TS, "backward", 81, "DS"
    DCT = "DCT", "softcap DSC", Axes.TS, "backward", 89, "DS"
    DCAP = "DCAP", "DSC DTANH, or DCT DTANH", Axes.TS, "backward", 90, "DS"
    DCQ = "DCQ", "DCAP / softcap", Axes.TS, "backward", 91, "DS"
    SDS = "SDS", "scale dS, or scale P", Axes.TS, "backward", 50, "DS"
    DS = "DS", "EXP_B DPD, the operand of dQ and dK", Axes.TS, "backward", 31
    DMAX = "DMAX", "sum_s DS, which the gradient of m takes away", Axes.T, "backward", 93, "DS"
    DSM = "DSM", "DS, less DMAX at the first key that has m", Axes.TS, "backward", 94, "DS"
    DBIAS = (
        "DBIAS",
        "dS before its cast, the gradient of BIAS",
        Axes.TS,
        "backward",
        111,
        "DS",
    )
    DPQ = "DPQ", "sum_h dO v - delta, of dQ", Axes.TS, "backward", 58, "DP"
    PDQ = "PDQ", "EXP_B DPQ in a register", Axes.TS, "backward", 59, "DS"
    SDSQ = "SDSQ", "scale dS, of dQ", Axes.TS, "backward", 60, "DS"
    DSR = "DSR", "EXP_B DPD, before DSQ", Axes.TS, "backward", 102, "DS"
    DSQ = "DSQ", "DSR, or EXP_B DPQ, the operand of dQ", Axes.TS, "backward", 61, "DS"
    DQP = "DQP", "sum_s DS k of one key tile", Axes.TH, "backward", 51, "DQ"
    DQ = "DQ", "dQ + sum_s DS k", Axes.TH, "backward", 32
    DKP = "DKP", "sum_t DS q of one query tile", Axes.SH, "backward", 54, "DK"
    DK = "DK", "dK + sum_t DS q", Axes.SH, "backward", 33
    SDQ = "SDQ", "scale dQ in a register", Axes.TH, "backward", 46, "DQ_OUT"
    SDK = "SDK", "scale dK in a register", Axes.SH, "backward", 47, "DK_OUT"
    SDKH = "SDKH", "scale dK of one query head in a register", Axes.SH, "backward", 99, "DK_OUT"
    DKH = "DKH", "scale dK of one query head", Axes.SH, "backward", 100, "DK_OUT"
    DVH = "DVH", "dV of one query head", Axes.SH, "backward", 101, "DV_OUT"
    DQ_OUT = "DQ_OUT", "scale dQ", Axes.TH, "backward", 34
    DK_OUT = "DK_OUT", "scale dK", Axes.SH, "backward", 35
    DV_OUT = "DV_OUT", "dV", Axes.SH, "backward", 36
    PSINK = "PSINK", "exp(sink - L), the share of the sink", Axes.T, "backward", 82, "DELTA"
    DSINK = "DSINK", "-PSINK delta", Axes.T, "backward", 83, "DELTA"


def _named(names: str) -> frozenset[Site]:
    """Return the sites of these names, which blanks separate."""
    return frozenset(Site[name] for name in names.split())


BLOCK_AXIS = {
    **{Site.Q: 1, Site.K: 1, Site.V: 0, Site.DO: 0, Site.P: 1, Site.P_B: 0, Site.DS: 1},
    **{Site.QB: 1, Site.KB: 1, Site.VB: 0, Site.DOV: 0},
}
"""The operands of products, and for each the axis over which its first product sums.

The blocks of a block format lie along that axis. QB, KB and VB have that of Q, K and V, so that one
format gives the same numbers to both passes.
"""

FACTORS = {
    Site.S: (Site.Q, Site.K),
    Site.PV: (Site.P, Site.V),
    Site.S_B: (Site.Q, Site.K),
    Site.DV: (Site.P_B, Site.DO),
    Site.DP: (Site.DO, Site.V),
    Site.DQ: (Site.DS, Site.K),
    Site.DK: (Site.DS, Site.Q),
}
"""The products that matrix units compute, and for each the two events whose results it multiplies.

In some plans other events take the place of these two; `Plan.factors` returns those of a plan.
"""

# events that rescale the results of earlier tiles; the first tile of a row has none of them
RESCALES = _named("DM DX ALPHA AL AO BETA OA")

# events whose entries that do not exist are 0, infinite or NaN, since exp of a masked score is 0,
# and so are the sums of rows without a visible key so far; with a sink, that of padding is 2^offset
SPECIAL_IF_MISSING = RESCALES | _named("EXP P EXP_B P_B PD DS")

# binary32 registers that are cast to a result or an operand, in plans with `registers`
REGISTERS = _named("EI OI PDP PD PDQ SDQ SDK SDKH")

# events of calls with a softcap (OF_SOFTCAP), of those with capped_by=chain (OF_CHAIN) and with
# cap_apart=true (OF_CAP_APART), of calls with sinks (OF_SINKS) and with a bias (OF_BIAS)
OF_SOFTCAP = _named("SS CAP TANH SS_B CAP_B TANH_B TT DTANH DSC DCAP")
OF_CHAIN = _named("DCT DCQ")
OF_CAP_APART = _named("CT CT_B")
OF_SINKS = _named("SINK SX SE SL PSINK DSINK")
OF_BIAS = _named("BIAS BIASED BIASED_B DBIAS")

# events of plans with `normalized_last`
OF_NORMALIZED_LAST = _named("IA IO")

# events of plans that compute dS by the quotient rule
OF_QUOTIENT = _named("LL INV2 DPL2 DPL")

# events that only plans of real kernels have: those above, and further ones, such as the steps of a
# softmax in base 2 or of a row sum in lanes
OF_KERNELS = frozenset(s for s in Site if s.instead)

# events that belong to key heads, which several query heads may share
KEY_SITES = _named("K V KS KM KC KB VB SDK DK_OUT DV_OUT")

# events that only a call with a backward has: those of the backward, and its input dO
BACKWARD = frozenset(s for s in Site if s.stage == "backward") | {Site.DO}

# events that happen once for each row of a head, and not at every tile
ONCE = (
    frozenset(s for s in Site if s.stage == "inputs")
    | OF_SINKS
    | _named(
        "QS KS KM KC QB KB VB DOV SW SO OT LANES INV OI OUT MS LN LSE OD DOO DELTA SDQ SDK SDKH"
        " DKH DVH DQ_OUT DK_OUT DV_OUT"
    )
)

# events with as many features as q and k; other events with features have as many as v
QUERY_FEATURES = _named("Q K QS KS KM KC QB KB DQP DKP DQ DK SDQ SDK SDKH DKH DQ_OUT DK_OUT")

PRODUCTS = (Site.S, Site.ROWSUM, Site.PV, Site.DELTA, Site.S_B, Site.DV, Site.DP, Site.DQ, Site.DK)
"""The sites that are sums of products; a plan has an accumulator for each, in this order.

These are Q K^T (S, and S_B in the backward), the row sum (ROWSUM), P V (PV), delta (DELTA), dO V^T
(DP), and the gradients P^T dO (DV), dS K (DQ) and dS^T Q (DK).

Example:
    >>> from roundscope.attention import PRODUCTS
    >>> " ".join(PRODUCTS)
    'S ROWSUM PV DELTA S_B DV DP DQ DK'
"""


def site_named(name: Site | str) -> Site:
    """Return a site by its name, in upper or lower case.

    Raises:
        ValueError: There is no such site. The message names the nearest one.
    """
    return Site.named(name)

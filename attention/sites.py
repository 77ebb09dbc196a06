"""`Site`: the named rounding events of attention, in the order in which the algorithm meets them."""

from enum import StrEnum


class Axes(StrEnum):
    """Which entries an event has: one per score, per query row, per feature of a row."""

    TS = "queries x keys"
    T = "queries"
    TH = "queries x features"
    SH = "keys x features"


class Site(StrEnum):
    """One named rounding event. `formula`: what is rounded; `axes`: its shape; `stage`: where it stands."""

    formula: str
    axes: Axes
    stage: str

    def __new__(cls, value: str, formula: str, axes: Axes, stage: str) -> "Site":
        self = str.__new__(cls, value)
        self._value_ = value
        self.formula, self.axes, self.stage = formula, axes, stage
        return self

    Q = "Q", "q", Axes.TH, "inputs"
    K = "K", "k", Axes.SH, "inputs"
    V = "V", "v", Axes.SH, "inputs"
    DO = "DO", "dO", Axes.TH, "inputs"

    S = "S", "sum_h q k", Axes.TS, "forward"
    SCALED = "SCALED", "scale S", Axes.TS, "forward"
    M = "M", "max(m, rowmax S)", Axes.T, "forward"
    X = "X", "S - m", Axes.TS, "forward"
    EXP = "EXP", "exp(X)", Axes.TS, "forward"
    P = "P", "EXP as the operand of P V", Axes.TS, "forward"
    DM = "DM", "m_old - m", Axes.T, "forward"
    ALPHA = "ALPHA", "exp(DM)", Axes.T, "forward"
    AL = "AL", "alpha l", Axes.T, "forward"
    ROWSUM = "ROWSUM", "sum_s EXP", Axes.T, "forward"
    L = "L", "AL + ROWSUM", Axes.T, "forward"
    AO = "AO", "alpha O", Axes.TH, "forward"
    PV = "PV", "sum_s P v", Axes.TH, "forward"
    O = "O", "AO + PV", Axes.TH, "forward"
    INV = "INV", "1 / l", Axes.T, "forward"
    OUT = "OUT", "O INV", Axes.TH, "forward"
    LSE = "LSE", "m + ln l", Axes.T, "forward"

    OD = "OD", "OUT (or O) as the operand of delta", Axes.TH, "backward"
    DELTA = "DELTA", "sum_h dO O", Axes.T, "backward"
    S_B = "S_B", "sum_h q k, again", Axes.TS, "backward"
    SCALED_B = "SCALED_B", "scale S_B", Axes.TS, "backward"
    X_B = "X_B", "SCALED_B - LSE", Axes.TS, "backward"
    EXP_B = "EXP_B", "exp(X_B)", Axes.TS, "backward"
    P_B = "P_B", "EXP_B as the operand of dV", Axes.TS, "backward"
    DV = "DV", "dV + sum_t P_B dO", Axes.SH, "backward"
    DP = "DP", "sum_h dO v", Axes.TS, "backward"
    DPD = "DPD", "DP - delta", Axes.TS, "backward"
    DS = "DS", "EXP_B DPD, the operand of dQ and dK", Axes.TS, "backward"
    DQ = "DQ", "dQ + sum_s DS k", Axes.TH, "backward"
    DK = "DK", "dK + sum_t DS q", Axes.SH, "backward"
    DQ_OUT = "DQ_OUT", "scale dQ", Axes.TH, "backward"
    DK_OUT = "DK_OUT", "scale dK", Axes.SH, "backward"
    DV_OUT = "DV_OUT", "dV", Axes.SH, "backward"


# operands of products, and the axis of their first product's sum: along it lie the blocks of a block format
BLOCK_AXIS = {Site.Q: 1, Site.K: 1, Site.V: 0, Site.DO: 0, Site.P: 1, Site.P_B: 0, Site.DS: 1}

# the events whose results are multiplied with each other, of the products that matrix units compute
FACTORS = {
    Site.S: (Site.Q, Site.K), Site.PV: (Site.P, Site.V), Site.S_B: (Site.Q, Site.K), Site.DV: (Site.P_B, Site.DO),
    Site.DP: (Site.DO, Site.V), Site.DQ: (Site.DS, Site.K), Site.DK: (Site.DS, Site.Q),
}  # fmt: skip

# the sums of products, each with an accumulator of its own
PRODUCTS = (Site.S, Site.ROWSUM, Site.PV, Site.DELTA, Site.S_B, Site.DV, Site.DP, Site.DQ, Site.DK)

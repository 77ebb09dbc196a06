"""`Site`: the named rounding events of a layer with linear maps, and names for groups of them.

They are in the order in which a step reaches them.
"""

from enum import StrEnum


class Site(StrEnum):
    """One rounding event.

    formula     what is rounded;  axis: the axis along which its blocks run
    stage       forward or backward;  per_matrix: whether it exists once for each matrix

    A product x W has three forms in a step, each with two operands: y = x W, dx = g W^T, dW = x^T
    g, where g = dy. A block runs along the axis that the product sums over.
    """

    formula: str
    axis: int
    stage: str
    per_matrix: bool

    def __new__(cls, value: str, formula: str, axis: int, stage: str, per_matrix: bool) -> "Site":
        self = str.__new__(cls, value)
        self._value_ = value
        self.formula, self.axis, self.stage, self.per_matrix = formula, axis, stage, per_matrix
        return self

    GAMMA = "GAMMA", "gamma, the scale of LayerNorm", -1, "forward", False
    LN = "LN", "gamma xhat + beta", -1, "forward", False
    X = "X", "x as the operand of x W", -1, "forward", True
    W = "W", "W as the operand of x W", 0, "forward", True
    Y = "Y", "sum x W", -1, "forward", True
    PHI = "PHI", "phi(h)", -1, "forward", False

    G_X = "G_X", "g as the operand of g W^T", -1, "backward", True
    W_X = "W_X", "W as the operand of g W^T", 1, "backward", True
    DX = "DX", "sum g W^T", -1, "backward", True
    G_W = "G_W", "g as the operand of x^T g", 0, "backward", True
    X_W = "X_W", "x as the operand of x^T g", 0, "backward", True
    DW = "DW", "sum x^T g", 0, "backward", True
    DPHI = "DPHI", "dphi(h), what leaves the activation function backward", -1, "backward", False
    DLN = "DLN", "what leaves LayerNorm backward", -1, "backward", False


FORWARD = (Site.X, Site.W)
BACKWARD = (Site.G_X, Site.W_X, Site.G_W, Site.X_W)
GROUPS: dict[str, tuple[Site, ...]] = {
    "all": tuple(Site),
    "operands": (*FORWARD, *BACKWARD),
    "forward": FORWARD,
    "backward": BACKWARD,
    "weights": (Site.W, Site.W_X),
    "activations": (Site.X, Site.X_W),
    "gradients": (Site.G_X, Site.G_W),
    "outputs": (Site.Y, Site.DX, Site.DW),
    "norm": (Site.GAMMA, Site.LN, Site.DLN),
    "phi": (Site.PHI, Site.DPHI),
}
"""Words for several events; forward and backward: the operands of these products."""

INDEX = {site: i for i, site in enumerate(Site)}

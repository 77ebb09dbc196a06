"""The error of a call that the fused kernels do not run."""


class NotFused(ValueError):
    """The fused kernels do not run a call, which the XLA engine runs.

    Attributes:
        reason: What they do not run.
        joint: What stands between the reason and the other engine.
    """

    def __init__(self, reason: str, joint: str = "; ") -> None:
        super().__init__(reason, joint)
        self.reason, self.joint = reason, joint

    def __str__(self) -> str:
        return self.spelled("engine='xla'")

    def spelled(self, other: str) -> str:
        """Return the message, with the other engine as it is written where the caller is."""
        return f"{self.reason}{self.joint}use {other}, which gives the same bits"

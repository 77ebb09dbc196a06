"""The operations by name; attention has calls of its own (`roundscope.attention`)."""

from roundscope.operations.adamw import ADAMW
from roundscope.operations.embedding import EMBEDDING
from roundscope.operations.gated import SILU, SILU_MUL
from roundscope.operations.gelu import GELU, GELU_TANH
from roundscope.operations.layer_norm import LAYER_NORM
from roundscope.operations.linear import LINEAR
from roundscope.operations.losses import CROSS_ENTROPY, LOG_SOFTMAX
from roundscope.operations.operation import Operation
from roundscope.operations.residual import ADD
from roundscope.operations.rms_norm import RMS_NORM
from roundscope.operations.rope import ROPE
from roundscope.operations.rope_table import ROPE_TABLE
from roundscope.operations.softmax import SOFTMAX

OPERATIONS: dict[str, Operation] = {
    own.name: own
    for own in (
        EMBEDDING,
        RMS_NORM,
        LAYER_NORM,
        LINEAR,
        ROPE_TABLE,
        ROPE,
        SILU,
        SILU_MUL,
        GELU,
        GELU_TANH,
        ADD,
        SOFTMAX,
        LOG_SOFTMAX,
        CROSS_ENTROPY,
        ADAMW,
    )
}
"""The operations by name."""

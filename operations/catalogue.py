"""The operations by name; attention has calls of its own (`roundscope.attention`)."""

from roundscope.operations.definitions.adamw import ADAMW
from roundscope.operations.definitions.embedding import EMBEDDING
from roundscope.operations.definitions.gated import SILU, SILU_MUL
from roundscope.operations.definitions.gelu import GELU, GELU_TANH
from roundscope.operations.definitions.layer_norm import LAYER_NORM
from roundscope.operations.definitions.linear import LINEAR
from roundscope.operations.definitions.losses import CROSS_ENTROPY, LOG_SOFTMAX
from roundscope.operations.definitions.residual import ADD
from roundscope.operations.definitions.rms_norm import RMS_NORM
from roundscope.operations.definitions.rope import ROPE
from roundscope.operations.definitions.rope_table import ROPE_TABLE
from roundscope.operations.definitions.softmax import SOFTMAX
from roundscope.operations.operation import Operation

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

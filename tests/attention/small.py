"""A small attention with all that a shape can have, for tests of injections and traces: two batch
entries, key heads of two query heads.
"""

from roundscope.attention import Plan, examine
from tests.checks.engines import normal

B, T, S, N, G, H = 2, 24, 32, 4, 2, 8
INPUTS = [
    normal(110 + i, *shape)
    for i, shape in enumerate([(B, T, N, H), (B, S, G, H), (B, S, G, H), (B, T, N, H)])
]


def run(plan="qiu-yao", inject=(), *, blocks=(8, 8), inputs=INPUTS, **options):
    plan = Plan.preset(plan) if isinstance(plan, str) else plan
    return examine(
        *inputs,
        plan=plan,
        block_q=blocks[0],
        block_k=blocks[1],
        inject=inject,
        **{"engine": "numpy"} | options,
    )

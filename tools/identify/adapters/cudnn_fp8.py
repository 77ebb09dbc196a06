"""cuDNN's fused attention in FP8, `sdpa_fp8` and `sdpa_fp8_backward` of nvidia-cudnn-frontend.

q, k, v, P, the output, dO and the gradients are E4M3. The scales are those of the call, one for a
tensor, or 1; a call with others than `scale_s`, of P, has no backward here.
"""

from functools import partial
from typing import Any

import cudnn
import torch
from torch import Tensor

from roundscope.attention.inputs.scales import stored_operands
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.torch_call import array, tensor

FP8, FP32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
FORWARD = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
BACKWARD = (
    *("descale_q", "descale_k", "descale_v", "descale_o", "descale_dO", "descale_s", "descale_dP"),
    *("scale_s", "scale_dQ", "scale_dK", "scale_dV", "scale_dP"),
)


def fp8(x: Inputs, scale_s: float = 1.0) -> Outputs:
    """Return the outputs of both kernels; scale_s: the factor of P before its cast."""
    given = dict(x.scales or {})
    q, k, v, do = (
        tensor(a, torch.float32, "BTNH").to(torch.float8_e4m3fn)
        for a in (*stored_operands(x.q, x.k, x.v, given), x.do)
    )
    scales = {"scale_s": scale_s} | {name: float(a.flat[0]) for name, a in given.items()}
    scales["descale_s"] = 1.0 / scales["scale_s"]
    mask = {"right_bound": 0} if x.is_causal else {}
    mask |= {"diagonal_alignment": cudnn.diagonal_alignment.TOP_LEFT}
    options = {"attn_scale": x.scale, **mask}

    graph = _Graph(scales)
    own = {n: graph.given(a) for n, a in (("q", q), ("k", k), ("v", v))}
    own |= {n: graph.scale(n) for n in FORWARD}
    made = graph.graph.sdpa_fp8(**own, generate_stats=True, **options)
    out = graph.result(made[0], (*q.shape[:3], v.shape[3]), FP8)
    stats = graph.stats(made[1], q)
    graph.amax(*made[2:])
    graph.run()
    if given.keys() - {"scale_s"}:
        return Outputs(out=array(out.float(), "BTNH"), lse=stats[..., 0].cpu().numpy())

    graph = _Graph(scales)
    named = {"q": q, "k": k, "v": v, "o": out, "dO": do}
    own = {n: graph.given(a) for n, a in named.items()} | {n: graph.scale(n) for n in BACKWARD}
    made = graph.graph.sdpa_fp8_backward(**own, stats=graph.rows(stats), **options)
    dq, dk, dv = (graph.result(m, a.shape, FP8) for m, a in zip(made[:3], (q, k, v), strict=True))
    graph.amax(*made[3:])
    graph.run()
    names = ("out", "dq", "dk", "dv")
    results = {n: array(a.float(), "BTNH") for n, a in zip(names, (out, dq, dk, dv), strict=True)}
    return Outputs(**results, lse=stats[..., 0].cpu().numpy())


class _Graph:
    """A graph of cuDNN's operations, and the memory of its tensors."""

    def __init__(self, scales: dict[str, float]) -> None:
        self.scales, self.memory = scales, {}  # type: ignore[var-annotated]
        self.graph = cudnn.pygraph(
            io_data_type=FP8, intermediate_data_type=FP32, compute_data_type=FP32
        )

    def given(self, x: Tensor) -> Any:
        """Return the tensor of an array (B, T, N, H), whose axes cuDNN has as (B, N, T, H)."""
        return self._of(x.transpose(1, 2), FP8)

    def rows(self, x: Tensor) -> Any:
        """Return the tensor of numbers of rows, (B, N, T, 1)."""
        return self._of(x, FP32)

    def scale(self, name: str) -> Any:
        """Return the tensor of a scale."""
        return self._of(torch.full((1, 1, 1, 1), self.scales.get(name, 1.0), device="cuda"), FP32)

    def _of(self, x: Tensor, kind: Any) -> Any:
        made = self.graph.tensor(dim=tuple(x.shape), stride=x.stride(), data_type=kind)
        self.memory[made] = x
        return made

    def result(self, made: Any, shape: tuple[int, ...], kind: Any) -> Tensor:
        """Return the array (B, T, N, H) of a result."""
        x = torch.empty(shape, dtype=torch.float8_e4m3fn, device="cuda")
        self._leaves(made, x.transpose(1, 2), kind)
        return x

    def stats(self, made: Any, q: Tensor) -> Tensor:
        """Return the array (B, N, T, 1) of the logarithms of the row sums."""
        x = torch.empty((q.shape[0], q.shape[2], q.shape[1], 1), device="cuda")
        self._leaves(made, x, FP32)
        return x

    def amax(self, *made: Any) -> None:
        """Give the largest magnitudes, which nobody reads, their memory."""
        for one in made:
            self._leaves(one, torch.zeros((1, 1, 1, 1), device="cuda"), FP32)

    def _leaves(self, made: Any, x: Tensor, kind: Any) -> None:
        made.set_output(True).set_dim(list(x.shape)).set_stride(list(x.stride()))
        made.set_data_type(kind)
        self.memory[made] = x

    def run(self) -> None:
        """Build the graph and run it."""
        self.graph.build([cudnn.heur_mode.A])
        space = torch.empty(self.graph.get_workspace_size(), dtype=torch.uint8, device="cuda")
        self.graph.execute(self.memory, space)
        torch.cuda.synchronize()


fp8_256 = partial(fp8, scale_s=256.0)

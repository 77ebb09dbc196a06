"""Libraries that compute on a CPU and are neither PyTorch nor JAX; forwards alone."""

from importlib import import_module
from typing import Any

import numpy as np

from .calls import EPS, FEATURES, HEADS, SCALE, SINGLE, TOKENS, TYPES, WIDE, Arrays, Kernel


def _forward(x: Arrays, *, heads_first: bool = False) -> Arrays:
    """Return the inputs of a forward, in attention (B, N, T, H) if wanted."""
    own = {name: a for name, a in x.items() if name != "do"}
    return {n: np.ascontiguousarray(a.swapaxes(1, 2)) if heads_first else a for n, a in own.items()}


def _mlx(operation: str) -> Kernel:
    def run(x: Arrays, kind: str) -> Arrays:
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        given = _forward(x, heads_first=operation == "attention")
        own = {name: mx.array(a).astype(getattr(mx, TYPES[kind])) for name, a in given.items()}
        if operation == "attention":
            mask = mx.triu(mx.full((TOKENS, TOKENS), -float("inf")), k=1)
            out = mx.fast.scaled_dot_product_attention(
                *own.values(), scale=SCALE, mask=mask.astype(own["q"].dtype)
            ).transpose(0, 2, 1, 3)
        elif operation == "rms_norm":
            out = mx.fast.rms_norm(own["x"], own["weight"], EPS[operation])
        elif operation == "layer_norm":
            out = mx.fast.layer_norm(own["x"], own["weight"], own["bias"], EPS[operation])
        elif operation == "softmax":
            out = mx.softmax(own["x"], axis=-1)
        elif operation == "silu_mul":
            out = own["gate"] * mx.sigmoid(own["gate"]) * own["up"]
        else:
            out = own["x"] * (1 + mx.erf(own["x"] / 2**0.5)) / 2
        return {"out": np.array(out.astype(mx.float32))}

    return run


def _onnx(operation: str) -> Kernel:
    """An operator in ONNX Runtime, as a model of one node; attention is its own operator."""
    nodes: dict[str, tuple[str, dict[str, Any]]] = {
        "attention": (
            "MultiHeadAttention",
            {"domain": "com.microsoft", "num_heads": HEADS, "scale": SCALE, "unidirectional": 1},
        ),
        "rms_norm": ("SimplifiedLayerNormalization", {"epsilon": EPS["rms_norm"], "axis": -1}),
        "layer_norm": ("LayerNormalization", {"epsilon": EPS["layer_norm"], "axis": -1}),
        "gelu": ("Gelu", {"domain": "com.microsoft"}),
        "softmax": ("Softmax", {"axis": -1}),
    }

    def run(x: Arrays, kind: str) -> Arrays:
        import onnxruntime
        from onnx import TensorProto, helper

        own, (name, options) = _forward(x), nodes[operation]
        shape = next(iter(own.values())).shape
        if operation == "attention":
            own = {n: a.reshape(1, TOKENS, HEADS * FEATURES) for n, a in own.items()}

        def told(name: str, a: np.ndarray) -> Any:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape)

        first = next(iter(own.values()))
        graph = helper.make_graph(
            [helper.make_node(name, list(own), ["out"], **options)],
            "one",
            [told(n, a) for n, a in own.items()],
            [told("out", first)],
        )
        sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=sets, ir_version=8)
        alone = onnxruntime.SessionOptions()
        alone.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), alone, providers=["CPUExecutionProvider"]
        )
        return {"out": session.run(["out"], own)[0].reshape(shape)}

    return run


def _operators() -> Any:
    """Return OpenVINO's operators, which releases before 2025 have elsewhere."""
    try:
        return import_module("openvino.opset13")
    except ModuleNotFoundError:
        return import_module("openvino.runtime.opset13")


def _openvino(operation: str) -> Kernel:
    """An operator of OpenVINO's plugin for CPUs, told to compute in FP32."""

    def run(x: Arrays, kind: str) -> Arrays:
        import openvino

        op = _operators()

        given = _forward(x, heads_first=operation == "attention")
        own = {name: op.parameter(a.shape, np.float32, name) for name, a in given.items()}
        if operation == "attention":
            out = op.scaled_dot_product_attention(*own.values(), causal=True)
        elif operation == "softmax":
            out = op.softmax(own["x"], 1)
        elif operation == "gelu":
            out = op.gelu(own["x"], "erf")
        else:
            axes = op.constant(np.array([1], np.int64))
            normal = op.mvn(own["x"], axes, True, EPS[operation], "inside_sqrt")
            out = op.add(op.multiply(normal, own["weight"]), own["bias"])
        model = openvino.Model([out], list(own.values()))
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        run = openvino.Core().compile_model(model, "CPU", options)
        found = np.array(run(list(given.values()))[0])
        return {"out": found.swapaxes(1, 2) if operation == "attention" else found}

    return run


KERNELS = {  # name -> library, operation, device, types, function
    "mlx-attention": ("mlx", "attention", "cpu", WIDE, _mlx("attention")),
    "mlx-rms-norm": ("mlx", "rms_norm", "cpu", WIDE, _mlx("rms_norm")),
    "mlx-layer-norm": ("mlx", "layer_norm", "cpu", WIDE, _mlx("layer_norm")),
    "mlx-softmax": ("mlx", "softmax", "cpu", WIDE, _mlx("softmax")),
    "mlx-silu-mul": ("mlx", "silu_mul", "cpu", WIDE, _mlx("silu_mul")),
    "mlx-gelu": ("mlx", "gelu", "cpu", WIDE, _mlx("gelu")),
    "onnx-attention": ("onnxruntime", "attention", "cpu", SINGLE, _onnx("attention")),
    "onnx-rms-norm": ("onnxruntime", "rms_norm", "cpu", SINGLE, _onnx("rms_norm")),
    "onnx-layer-norm": ("onnxruntime", "layer_norm", "cpu", SINGLE, _onnx("layer_norm")),
    "onnx-softmax": ("onnxruntime", "softmax", "cpu", SINGLE, _onnx("softmax")),
    "onnx-gelu": ("onnxruntime", "gelu", "cpu", SINGLE, _onnx("gelu")),
    "openvino-attention": ("openvino", "attention", "cpu", SINGLE, _openvino("attention")),
    "openvino-layer-norm": ("openvino", "layer_norm", "cpu", SINGLE, _openvino("layer_norm")),
    "openvino-softmax": ("openvino", "softmax", "cpu", SINGLE, _openvino("softmax")),
    "openvino-gelu": ("openvino", "gelu", "cpu", SINGLE, _openvino("gelu")),
}

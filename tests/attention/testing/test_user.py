"""Users' functions as kernels: their library, their names of arguments, layouts and types."""

import functools
import inspect
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from roundscope.attention.testing.exact import exact
from roundscope.attention.testing.families import draw
from roundscope.attention.testing.foreign.user import (
    function_named,
    in_time,
    kernel_of,
    library_of,
    takes,
)
from roundscope.emu.testing.foreign import ForeignError
from roundscope.testing import (
    assert_as_good_as,
    assert_deterministic,
    assert_invariant,
    assert_rounds_as,
)

X = draw("gaussian", batch=2, tokens=6, heads=4, key_heads=2, features=8, is_causal=True)
FLAT = draw("gaussian", batch=2, tokens=6, heads=3, features=8)
WANT = exact(X)


def attention(q, k, v, *, scale, is_causal, mask=None):
    """Attention in NumPy, (B, T, N, H)."""
    k, v = (np.repeat(a, q.shape[2] // a.shape[2], axis=2) for a in (k, v))
    s = scale * np.einsum("btnh,bsnh->bnts", q, k)
    sees = np.tri(*s.shape[2:], dtype=bool) if is_causal else np.ones(s.shape[2:], bool)
    s = np.where(sees if mask is None else sees & mask, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)


def module(source, name="a_users_kernels"):
    """A module of a user, with this source."""
    made = ModuleType(name)
    sys.modules[name] = made
    exec(source, vars(made))
    return made


def function_of(imports):
    """A user's function in a module with these imports."""
    return module(f"{imports}\ndef attention(q, k, v, *, scale, is_causal): ...\n").attention


@pytest.mark.parametrize(
    ("imports", "library"),
    [
        ("", "numpy"),
        ("import numpy as np", "numpy"),
        ("import torch", "torch"),
        ("import torch.nn.functional as F", "torch"),
        ("from torch.nn import functional", "torch"),
        ("from torch import Tensor", "torch"),
        ("from torch.nn.functional import scaled_dot_product_attention as sdpa", "torch"),
        ("import jax", "jax"),
        ("import jax.numpy as jnp", "jax"),
        ("from jax import Array", "jax"),
        ("from flax import nnx", "jax"),
        ("import torch\nimport jax", "jax"),
    ],
)
def test_the_library_is_that_of_the_module(imports, library):
    """NumPy arrays for a function of PyTorch, whose error says nothing of the reason."""
    function = function_of(imports)
    assert library_of(function) == library
    assert library_of(functools.partial(functools.partial(function), is_causal=True)) == library


def test_the_library_of_wrapped_functions():
    """The library of a wrapper's module, such as this test's, in place of the function's."""
    function = function_of("import torch")

    @functools.wraps(function)
    def wrapper(*args, **options): ...

    class Callable:
        def __call__(self, q, k, v, *, scale, is_causal): ...

    assert library_of(wrapper) == "torch"
    assert library_of(Callable()) == "numpy"


def test_the_library_of_functions_of_jax():
    """A compiled function of JAX that is given NumPy arrays."""
    jax = pytest.importorskip("jax")
    assert library_of(jax.nn.dot_product_attention) == "jax"
    assert library_of(jax.jit(function_of(""))) == "numpy"
    assert library_of(jax.jit(function_of("import jax"))) == "jax"
    assert library_of(functools.partial(jax.jit(jax.nn.dot_product_attention))) == "jax"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler
def test_the_library_of_functions_of_torch():
    """A function of C, a module's or a compiled one of PyTorch that is given NumPy arrays."""
    torch = pytest.importorskip("torch")
    assert library_of(torch.nn.functional.scaled_dot_product_attention) == "torch"
    assert library_of(torch.compile(function_of("import torch"))) == "torch"

    assert library_of(torch.compile(torch.nn.Identity())) == "torch"


@pytest.mark.parametrize("scale", ["scale", "softmax_scale", "sm_scale"])
@pytest.mark.parametrize("causal", ["is_causal", "causal"])
def test_names_of_arguments(scale, causal):
    """A kernel whose scale or mask has another name, and is not given to it."""
    source = f"def named(q, k, v, {scale}, {causal}=False):\n"
    made = module(f"{source}    return of(q, k, v, scale={scale}, is_causal={causal})\n")
    made.of = attention
    out = kernel_of(made.named, library="numpy")(X).out
    np.testing.assert_allclose(out, WANT.out, rtol=1e-4, atol=1e-5)


def test_a_function_that_tells_no_names():
    """A wrapper with keywords only, which is refused or gets none."""
    kernel = kernel_of(lambda q, k, v, **given: attention(q, k, v, **given), library="numpy")
    np.testing.assert_allclose(kernel(X).out, WANT.out, rtol=1e-4, atol=1e-5)
    assert not takes(kernel, "mask")


def test_a_name_of_a_kernel():
    """A function that is found only if it is imported first."""
    kernel = kernel_of(f"{__name__}:attention", library="numpy")
    np.testing.assert_allclose(kernel(X).out, WANT.out, rtol=1e-4, atol=1e-5)
    assert function_named("os:path.join") is sys.modules["os"].path.join


def test_a_partial_function():
    """A kernel with an argument of its own, fixed."""

    def sided(q, k, v, block, *, scale, is_causal):
        assert block == 4
        return attention(q, k, v, scale=scale, is_causal=is_causal)

    kernel = kernel_of(functools.partial(sided, block=4), library="numpy")
    np.testing.assert_allclose(kernel(X).out, WANT.out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        ("no_such_module:f", {}, "kernel=no_such_module:f: No module named 'no_such_module'; name"),
        (f"{__name__}:nothing", {}, f"kernel={__name__}:nothing: unknown function 'nothing'"),
        ("math", {}, "kernel=math: module 'math' has no attribute ''; name a module and"),
        (":f", {}, "kernel=:f: "),
        (lambda q, k, v: q, {}, "kernel=<lambda>: takes no scale or is_causal; add the keyword"),
        (lambda q, k, v, causal: q, {}, "kernel=<lambda>: takes no scale; add the keyword"),
        (attention, {"library": "cupy"}, "unknown library cupy; did you mean"),
        (attention, {"layout": "NHTB"}, "unknown layout NHTB; did you mean"),
        (attention, {"dtype": "float8"}, "unknown dtype float8; did you mean"),
    ],
)
def test_wrong_arguments_end_in_one_line(kernel, options, message):
    """A traceback where a name or an option is wrong."""
    with pytest.raises(ValueError) as error:
        kernel_of(kernel, **options)
    assert str(error.value).replace("'", "").startswith(message.replace("'", ""))
    assert "\n" not in str(error.value)


def test_what_is_no_function_is_refused():
    """A number that fails at the first call."""
    with pytest.raises(TypeError, match=r"^kernel: 3, must be a function, or a name as"):
        kernel_of(3)


def test_a_kernel_of_numpy_without_gradients():
    """Gradients that a function of NumPy arrays cannot have."""
    found = kernel_of(attention, library="numpy")(X)
    assert found.dq is None and found.out.dtype == np.float32
    kernel = kernel_of(lambda q, k, v, scale, is_causal: (WANT.out, "sums"), library="numpy")
    np.testing.assert_array_equal(kernel(X).out, WANT.out.astype(np.float32))


@pytest.mark.parametrize("name", ["do", "dout", "grad_out"])
def test_a_kernel_with_its_own_backward(name):
    """Gradients in another order, or a kernel with a backward of which only the output is seen."""
    source = f"def both(q, k, v, {name}=None, *, scale, is_causal):\n"
    made = module(f"{source}    return of({name})\n")
    made.of = lambda do: WANT.out if do is None else (WANT.out, WANT.dq, WANT.dk, do[:, :, :2])
    found = kernel_of(made.both, library="numpy")(X)
    np.testing.assert_array_equal(found.dk, WANT.dk.astype(np.float32))
    np.testing.assert_array_equal(found.dv, X.do[:, :, :2])
    assert kernel_of(made.both, library="numpy", backward=False)(X).dq is None


def test_a_kernel_in_another_layout():
    """Arrays whose axes are not those that the kernel takes, forward or backward."""

    def turned(q, k, v, do, *, scale, is_causal):
        assert q.shape == (2, 4, 6, 8) and k.shape == (2, 2, 6, 8)
        assert all(a.flags.c_contiguous for a in (q, k, v, do))
        q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))
        out = attention(q, k, v, scale=scale, is_causal=is_causal)
        return tuple(a.swapaxes(1, 2) for a in (out, WANT.dq, WANT.dk, WANT.dv))

    found = kernel_of(turned, library="numpy", layout="bnth")(X)
    np.testing.assert_allclose(found.out, WANT.out, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.dk, WANT.dk.astype(np.float32))


def test_a_kernel_that_writes_into_its_arguments():
    """Inputs that a kernel changed, on which the plan is then compared with it."""

    def scaled(q, k, v, *, scale, is_causal):
        q *= scale
        return attention(q, k, v, scale=1.0, is_causal=is_causal)

    before = FLAT.q.copy()
    with pytest.raises(ForeignError, match="changes its input q in place"):
        kernel_of(scaled, library="numpy")(FLAT)
    np.testing.assert_array_equal(FLAT.q, before)


@pytest.mark.parametrize("layout", ["BTNH", "BNTH"])
def test_a_kernel_of_torch_that_writes_into_its_arguments(layout):
    """Inputs of float32, whose memory a tensor can share."""
    pytest.importorskip("torch")
    before = FLAT.q.copy()
    options = {"library": "torch", "dtype": "float32", "layout": layout, "backward": False}
    with pytest.raises(ForeignError, match="changes its input q in place"):
        kernel_of(lambda q, k, v, scale, is_causal: q.zero_(), **options)(FLAT)
    np.testing.assert_array_equal(FLAT.q, before)


STRANGE = {
    "None": (lambda q: None, "returned None"),
    "a text": (lambda q: "x", "returned a str"),
    "whole numbers": (lambda q: q.astype(int), "returned an array of int64"),
    "complex numbers": (lambda q: q.astype("c8"), "returned a complex array"),
    "a masked array": (np.ma.array, "returned a masked array"),
    "an axis too few": (np.ravel, "returned shape (288,), must have four axes"),
    "fewer tokens": (lambda q: q[:, :3], "of shape (2, 3, 3, 8) as"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_results_that_are_none(what):
    """A result of another kind that is converted, broadcast, or cut, and then passes."""
    made, said = STRANGE[what]
    kernel = kernel_of(lambda q, k, v, scale, is_causal: made(q), library="numpy")
    with pytest.raises(ForeignError) as found:
        kernel(FLAT)
    assert said in str(found.value) and not found.value.is_refusal


def test_every_assertion_is_told_of_an_exit():
    """A test that passes since the kernel, or the cast, ends the process with code 0."""

    def exits(*given, scale=None, is_causal=None):
        raise SystemExit(0)

    options = {"library": "numpy"}
    for ask in (
        lambda: assert_as_good_as(exits, "fa2", "gaussian", tokens=8, features=8, **options),
        lambda: assert_deterministic(exits, FLAT, **options),
        lambda: assert_invariant(exits, "batch", FLAT, **options),
        lambda: assert_rounds_as(exits, "bf16", inputs=[1.0]),
    ):
        with pytest.raises(ForeignError, match="ends the process"):
            ask()


def test_a_time_of_a_kernel_keeps_what_it_takes():
    """A kernel with --timeout of which no mask is asked, or that hangs in its second call."""
    kernel = in_time(kernel_of(attention, library="numpy"), 60.0)
    assert takes(kernel, "mask") and not takes(kernel, "do")
    np.testing.assert_allclose(kernel(X).out, WANT.out, rtol=1e-4, atol=1e-5)


def test_a_mask_is_given_by_the_kernels_name():
    """A mask that the kernel does not get."""
    from dataclasses import replace

    def masked(q, k, v, scale, causal, attn_mask=None):
        return attention(q, k, v, scale=scale, is_causal=causal, mask=attn_mask)

    kernel = kernel_of(masked, library="numpy")
    assert takes(kernel, "mask") and not takes(kernel_of(masked), "do")
    x = replace(X, is_causal=False, mask=np.tri(6, dtype=bool)[None, None])
    np.testing.assert_allclose(kernel(x).out, exact(x).out, rtol=1e-4, atol=1e-5)


def test_jax_gives_gradients():
    """A wrong gradient, type, layout or mask of a function of JAX arrays."""
    jax = pytest.importorskip("jax")
    seen = []

    def called(query, key, value, *, scale, is_causal):
        seen.append((str(query.dtype), query.shape))
        return jax.nn.dot_product_attention(query, key, value, scale=scale, is_causal=is_causal)

    found = kernel_of(called, library="jax", dtype="float32")(X)
    for name, got in found.named():
        np.testing.assert_allclose(got, getattr(WANT, name), rtol=1e-3, atol=1e-4, err_msg=name)

    def first(q, k, v, *, scale, is_causal):
        seen.append((str(q.dtype), q.shape))
        return q, "sums"

    found = kernel_of(first, library="jax", dtype="float16", layout="BNTH", backward=False)(X)
    np.testing.assert_array_equal(found.out, X.q.astype(np.float16))
    assert seen[0] == ("float32", (2, 6, 4, 8))
    assert seen[-1] == ("float16", (2, 4, 6, 8))


def test_torch_gives_gradients():
    """A wrong gradient, type or layout of a function of tensors."""
    torch = pytest.importorskip("torch")
    seen, want = [], exact(FLAT)

    def called(q, k, v, *, softmax_scale, causal):
        seen.append((str(q.dtype), tuple(q.shape), q.is_contiguous()))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return sdpa(q, k, v, scale=softmax_scale, is_causal=causal), None

    found = kernel_of(called, library="torch", dtype="float32")(FLAT)
    for name, got in found.named():
        np.testing.assert_allclose(got, getattr(want, name), rtol=1e-3, atol=1e-4, err_msg=name)
    kernel_of(called, library="torch", dtype="float16", backward=False)(FLAT)
    assert seen == [("torch.float32", (2, 3, 6, 8), True), ("torch.float16", (2, 3, 6, 8), True)]
    direct = kernel_of(torch.nn.functional.scaled_dot_product_attention, dtype="float32")
    np.testing.assert_allclose(direct(FLAT).dv, want.dv, rtol=1e-3, atol=1e-4)


def test_torch_without_a_graph_gives_no_gradients():
    """A kernel of the forward only that ends in an error of PyTorch."""
    torch = pytest.importorskip("torch")

    def forward(q, k, v, *, scale, is_causal):
        with torch.no_grad():
            return q * scale

    assert kernel_of(forward, library="torch")(FLAT).dq is None


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_own_backwards_of_the_libraries(library):
    """A kernel with a backward of its own that is differentiated instead."""
    pytest.importorskip(library)

    def both(q, k, v, do, *, scale, is_causal):
        return q, q * 2, k * 3, do

    found = kernel_of(both, library=library)(FLAT)
    np.testing.assert_array_equal(found.dq, 2 * FLAT.q)
    np.testing.assert_array_equal(found.dv, FLAT.do)


def test_what_is_known_of_torchs_flash_on_a_cpu_is_said_of_it_alone():
    """Where it is less exact than its plan; not of what is written out, nor of a mistake."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional

    def flash(q, k, v, *, scale, is_causal):
        return functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=is_causal)

    def eager(q, k, v, *, scale, is_causal):
        s = (q @ k.mT * scale).masked_fill(torch.ones(96, 96, dtype=torch.bool).triu(1), -torch.inf)
        return (s.softmax(-1).float() * 1.001).to(q.dtype) @ v

    def wrong(q, k, v, *, scale, is_causal):
        return flash(q, k, v, scale=2 * scale, is_causal=is_causal)

    told = {}
    for kernel in (flash, eager, wrong):
        with pytest.raises(AssertionError) as raised:
            assert_as_good_as(kernel, "fa2", "gaussian", is_causal=True, tokens=96, library="torch")
        told[kernel] = "flash kernel for CPUs" in str(raised.value)
    assert told == {flash: True, eager: False, wrong: False}


@pytest.mark.parametrize(
    ("name", "default", "causal", "full"),
    [("sliding_window", None, 5, 5), ("window_size", (-1, -1), (4, 0), (4, 4))],
)
def test_a_window_is_given_by_the_function_s_own_name(name, default, causal, full):
    """A window that is lost, or is given in another library's meaning."""
    told = []

    def own(q, k, v, *, scale, is_causal, **more):
        told.append(more[name])
        return q

    keyword = inspect.Parameter.KEYWORD_ONLY
    given = [p for p in inspect.signature(own).parameters.values() if p.name != "more"]
    own.__signature__ = inspect.Signature(
        [*given, inspect.Parameter(name, keyword, default=default)]
    )
    kernel = kernel_of(own, library="numpy")
    for is_causal in (True, False):
        kernel(replace(X, window=5, is_causal=is_causal))
    assert told == [causal, full]

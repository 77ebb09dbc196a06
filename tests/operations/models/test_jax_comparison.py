"""Comparing two runs of a tiny Llama of JAX: the operation that makes them differ, and no other."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.jax import Side, across, capture, compare
from roundscope.operations.models.comparing.align import Incomparable
from roundscope.operations.models.jax.recording import record, run_again
from roundscope.operations.models.jax.written import read_steps
from roundscope.operations.models.replay import same
from tests.operations.models import jax_small as small

WEIGHTS, IDS = small.parameters(), small.tokens()


@pytest.fixture(autouse=True)
def promotion():
    """The one that users have, and JAX's own attention needs."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def side(function=small.llama, ids=IDS, **of):
    return Side(function, ids, WEIGHTS, **of)


def made_here(found):
    return {row.operation for row in found.rows if row.made == "here"}


def test_equal_runs_are_equal():
    """Whose operations are all known, and give the bits of the function itself."""
    found = compare((small.llama, WEIGHTS, IDS), (small.llama, WEIGHTS, IDS))
    assert found.equal and not found.groups and found.unknown == 0
    # the embedding, a table, two layers of 2 norms, 7 linear, 2 rope, attention, 2 adds, silu, mul
    count = 2 + 2 * 16 + 2
    assert found.sentence == (
        f"The two runs are equal: {count} operations, 31 log-probabilities, every bit."
    )
    tape = record(side())
    assert same(tape.numpy(tape.logits), np.asarray(small.llama(WEIGHTS, IDS)))
    made = {e.module: e.operation for e in tape.counted if e.module.endswith(("down", "_norm"))}
    kinds = ("input_norm", "rms_norm"), ("post_norm", "rms_norm"), ("down", "linear")
    assert made == {f"layers.{i}.{name}": kind for i in range(2) for name, kind in kinds}


PAIRS = {
    "rms_norm": {"norm": small.late_rms_norm},
    "rope_table": {"table": small.BF16},
    "add": {"residual": small.FP32},
    "attention": {"attention": small.eager_attention},
    "linear": {"down": small.split_linear},
    "linear fp8": {"down": small.fp8_linear},
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_culprit_is_named_alone(name):
    other = small.changed(**PAIRS[name])
    found = compare(side(), side(other))
    assert made_here(found) == {name.split()[0]}
    (group,) = found.groups
    assert group.share == pytest.approx(1, abs=1e-12) and abs(found.left) < 1e-12
    assert group.a != group.b
    x, y = (small.exact_logprobs(f(WEIGHTS, IDS), IDS) for f in (small.llama, other))
    np.testing.assert_allclose(found.gap, y - x, rtol=0, atol=1e-12)


def test_shares_of_two_culprits_are_those_of_the_models():
    """Shapley's values, from four models with one change, both or none."""
    norm, split = {"norm": small.late_rms_norm}, {"down": small.split_linear}
    none, one, two, both = (
        small.exact_logprobs(small.llama(WEIGHTS, IDS, **of), IDS)
        for of in ({}, norm, split, norm | split)
    )
    gap = both - none
    worth = [float((x - none) @ gap / (gap @ gap)) for x in (one, two)]
    of_norm = (worth[0] + 1 - worth[1]) / 2
    found = compare(side(), side(small.changed(**norm, **split)))
    shares = {group.name: group for group in found.groups}
    assert set(shares) == {"rms_norm", "linear down"}
    assert shares["rms_norm"].share == pytest.approx(of_norm, abs=1e-9)
    assert shares["rms_norm"].alone == pytest.approx(worth[0], abs=1e-9)
    assert shares["linear down"].share == pytest.approx(1 - of_norm, abs=1e-9)


def test_what_either_side_does_is_told():
    found = compare(side(), side(small.changed(norm=small.late_rms_norm)))
    (group,) = found.groups
    assert group.a == "rms_norm [..., mul, to bfloat16, mul]"
    assert group.b == "late_rms_norm [..., mul, to float32, mul, to bfloat16]"


def test_log_softmax_in_bf16():
    sides = [side(logprobs=small.log_softmax(dtype)) for dtype in (small.FP32, small.BF16)]
    found = compare(*sides)
    assert made_here(found) == {"log_softmax"} and found.kl == 0 and found.unknown == 0
    ids, logits = IDS, small.llama(WEIGHTS, IDS)
    x, y = (np.asarray(s.logprobs(logits, ids)[0], np.float64) for s in sides)
    np.testing.assert_array_equal(found.gap, y - x)


@pytest.mark.thorough
def test_a_batch_of_which_the_run_is_a_row():
    ids = small.tokens(3)
    found = compare(side(), side(ids=ids))
    assert made_here(found) <= {"attention", "linear"} and abs(found.left) < 1e-12


def test_other_tokens_and_weights_are_refused():
    with pytest.raises(Incomparable, match=r"tokens: .*first differ in row 0 at token 3"):
        compare(side(), side(ids=IDS.at[0, 3].set(IDS[0, 3] ^ 1)))
    other = WEIGHTS | {"norm": WEIGHTS["norm"] + 2}
    with pytest.raises(Incomparable, match="1 of 21 parameters differ, norm most, by up to 2"):
        compare(side(), Side(small.llama, IDS, other))


def test_a_jitted_run_has_one_operation_more_where_it_differs():
    """What XLA does across operations is put in, and is nothing without excess precision."""
    compiled = jax.jit(small.llama)
    found = compare(side(), side(compiled))
    x, y = (small.exact_logprobs(f(WEIGHTS, IDS), IDS) for f in (small.llama, compiled))
    np.testing.assert_allclose(found.gap, y - x, rtol=0, atol=1e-12)
    assert abs(found.left) < 1e-12
    if (x != y).any():
        assert "whole_program" in made_here(found)


@pytest.mark.thorough
def test_what_xla_does_across_operations_is_behind_sums_of_the_residual():
    """And is that norms read them before they are rounded, as a model without it shows."""
    strict = {"xla_allow_excess_precision": False}
    compiled = np.asarray(jax.jit(small.llama)(WEIGHTS, IDS))
    by_hand = jax.jit(small.jitted_by_hand, compiler_options=strict)(WEIGHTS, IDS)
    assert same(compiled, np.asarray(by_hand))
    found = across(side())
    assert list(found) == ["add"] and found["add"].share == pytest.approx(1)
    assert across(side(compiler_options=strict)) == {}


@pytest.mark.thorough
def test_one_token_after_the_other():
    ids = IDS[:, :6]
    whole = Side(lambda weights, ids: small.decoded(weights, ids, [])[0], ids, WEIGHTS)
    found = compare(whole, Side(small.decoded, ids, WEIGHTS, run=small.by_token))
    assert len(found.rows) == 36 and abs(found.left) < 1e-12
    assert made_here(found) <= {"attention", "linear"}


def test_a_file_equals_its_run_and_gives_the_shares_of_the_runs(tmp_path):
    other = small.changed(norm=small.late_rms_norm, down=small.split_linear)
    paths = {f: tmp_path / f"{i}.safetensors" for i, f in enumerate((small.llama, other))}
    for function, path in paths.items():
        with capture(path, what="operations") as run:
            logits = run(function, WEIGHTS, IDS)
        assert same(np.asarray(logits), np.asarray(function(WEIGHTS, IDS)))
    assert compare(paths[small.llama], side()).equal
    found, true = compare(*paths.values()), compare(side(), side(other))
    assert not found.notes[1:] and abs(found.left) < 1e-12
    for one, two in zip(found.groups, true.groups, strict=True):
        assert (one.name, one.a, one.b) == (two.name, two.a, two.b)
        assert one.share == pytest.approx(two.share, abs=1e-9)


def test_a_file_has_no_options_of_xla_that_write_files(tmp_path):
    tape = record(Side(lambda x: x * 2.0, {"x": IDS[0] / 2}))
    (entry,) = tape.counted
    text = entry.settings["program"].replace('"options": null', '"options": {"xla_dump_to": "."}')
    assert read_steps(entry.settings["program"])
    with pytest.raises(ValueError, match=r"has options of XLA: .*xla_dump_to"):
        read_steps(text)


def test_every_equation_is_the_same_from_its_text():
    """Of a model with most kinds of parameters: gathers, products, reductions, FP8, integers."""
    function = small.changed(down=small.fp8_linear, attention=small.eager_attention)
    tape = record(side(function, logprobs=small.log_softmax(small.BF16)))
    for entry in tape.entries:
        steps, inputs, outputs, options = read_steps(entry.settings["program"])
        args = [tape.values[x.value].array for x in entry.arguments[0]]
        again = run_again(steps, options, inputs, outputs, args, {})
        for v, x in zip(entry.outputs, again, strict=True):
            assert same(tape.numpy(v), tape.arrays.numpy(x)), entry.title


def test_modules_of_flax_are_named_by_class_and_path():
    """Of linen and of nnx, with the eps of RMSNorm changed in one of them."""
    nnx, linen = pytest.importorskip("flax.nnx"), pytest.importorskip("flax.linen")

    class Block(linen.Module):
        eps: float = 1e-6

        @linen.compact
        def __call__(self, x):
            h = linen.RMSNorm(name="norm", dtype=small.BF16, epsilon=self.eps)(x)
            h = linen.MultiHeadDotProductAttention(2, dtype=small.BF16, name="attn")(h)
            return x + linen.silu(linen.Dense(16, dtype=small.BF16, name="up")(h))

    class Twin(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.norm = nnx.RMSNorm(16, dtype=small.BF16, rngs=rngs)
            self.attn = nnx.MultiHeadAttention(2, 16, dtype=small.BF16, decode=False, rngs=rngs)
            self.up = nnx.Linear(16, 16, dtype=small.BF16, rngs=rngs)

        def __call__(self, x):
            return x + nnx.silu(self.up(self.attn(self.norm(x))))

    x = jax.random.normal(jax.random.key(1), (1, 8, 16), small.BF16)
    block = Block()
    weights = block.init(jax.random.key(0), x)
    named = {
        "norm": "rms_norm",
        **{f"attn.{name}": "linear" for name in ("query", "key", "value", "out")},
        "up": "linear",
    }
    for tape in (record(Side(block, {"x": x}, weights)), record(Side(Twin(), {"x": x}))):
        made = {e.module: e.operation for e in tape.counted if e.module in named}
        assert made == named
        others = {e.operation for e in tape.counted if e.module not in named}
        assert others == {"attention", "silu", "add"}
    found = compare((block, weights, {"x": x}), (Block(eps=1e-2), weights, {"x": x}))
    assert made_here(found) == {"rms_norm"} and "add 1e-06" in found.groups[0].a


def test_a_scan_over_layers_is_taken_apart():
    stack = jax.tree.map(lambda *xs: jnp.stack(xs), *WEIGHTS["layers"])
    weights = {"stack": {"norm": stack["input_norm"], "q": stack["q"]}}
    x = jax.random.normal(jax.random.key(1), (1, 8, small.WIDTH), small.BF16)

    def model(weights, x, norm=small.rms_norm):
        def layer(h, own):
            return h + small.linear(norm(h, own["norm"]), own["q"]), None

        return jax.lax.scan(layer, x, weights["stack"])[0]

    found = compare(
        (model, weights, {"x": x}), (partial(model, norm=small.late_rms_norm), weights, {"x": x})
    )
    titles = ["rms_norm stack.norm[0]", "linear stack.q[0]", "add [0]"]
    assert [row.title for row in found.rows][:3] == titles
    made = {row.title for row in found.rows if row.made == "here"} - {"whole_program"}
    assert made == {"rms_norm stack.norm[0]", "rms_norm stack.norm[1]"}


def loop(p, x):
    return jax.lax.while_loop(lambda y: jnp.max(y) < 9, lambda y: y @ p["w"] + 1, x)


def with_a_scalar(p, x):
    return {"loss": jnp.sum(x), "logits": x @ p["w"]}


def without_numbers(p, x):
    return jnp.log(-jnp.abs(x)) @ p["w"]


def with_random_numbers(p, x):
    key = jax.random.key(3)
    return (x + jax.random.normal(key, x.shape, x.dtype)) @ p["w"]


@pytest.mark.parametrize("function", [loop, with_a_scalar, without_numbers, with_random_numbers])
def test_odd_functions_equal_themselves_and_their_files(function, tmp_path):
    """A loop that is not taken apart, a result without axes, results that are NaN, and a key."""
    p = {"w": jnp.eye(4, dtype=small.BF16)}
    x = {"x": jnp.ones((2, 4), small.BF16)}
    path = tmp_path / "run.safetensors"
    with capture(path, what="operations") as run:
        run(function, p, x)
    assert compare(path, (function, p, x)).equal
    assert (
        function is with_random_numbers
        or compare((function, p, x), (jax.jit(function), p, x)).equal
    )


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (lambda: ("model", IDS), TypeError, "must be .function, inputs., .function, parameters"),
        (lambda: (small.llama, WEIGHTS, IDS[0]), ValueError, r"tokens must be of shape .B, T."),
        (lambda: (lambda x: x, [1.0]), TypeError, "inputs .1.0.: must be an array or a dictionary"),
        (lambda: (lambda x: x.no_such, IDS), ValueError, "a: the function raised AttributeError"),
        (lambda: (lambda x: {}, IDS), ValueError, "returned no array of numbers"),
        (
            lambda: side(logprobs=lambda logits, ids: logits),
            ValueError,
            r"array \(1, 31\), of",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(given, error, text):
    with pytest.raises(error, match=text):
        compare(given(), side())

"""identify on calls captured in a model: under their own mask, causality, scale and softcap."""

from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import Plan, examine
from roundscope.attention.models.capture_file import Captured, write_captures
from roundscope.tools.errors import UsageError
from roundscope.tools.identify.identify import Kind, identify
from roundscope.tools.identify.options import IdentifyOptions
from roundscope.tools.identify.reading import read
from roundscope.tools.tensors.layers import read_layers, sample_path

T = 96
SCALE = 0.15  # not the usual one
FIELDS = ("out", "dq", "dk", "dv")


def returned(plan, heads=4, key_heads=2, **call):
    """What an emulated kernel of that plan is given and returns, as a capture has it."""
    [layer] = read_layers(sample_path(), layer="layer4")
    q, do = (x[:1, :T, :heads] for x in (layer.q, layer.do))
    k, v = (x[:1, :T, :key_heads] for x in (layer.k, layer.v))
    more = {"scale": SCALE, "record": None, "engine": "numpy", "block_q": T, "block_k": T}
    got = examine(q, k, v, do, plan=plan, **more, **call)
    arrays = {"q": q, "k": k, "v": v, "do": do} | {n: getattr(got, n) for n in FIELDS}
    arrays = {n: np.asarray(x, np.float32).swapaxes(1, 2) for n, x in arrays.items()}
    said = {"is_causal": False} | call
    return Captured(number=2, name="h.2", scale=SCALE, **arrays, **said)


def padded(heads=4, blind=0):
    """A mask of each head, with keys that padding closes, and first queries that see none."""
    mask = np.random.default_rng(0).random((1, heads, T, T)) < 0.8
    mask[..., 5], mask[..., 70:] = True, False
    mask[:, :, :blind] = False
    return mask


@pytest.fixture
def path(tmp_path):
    return tmp_path / "captured.safetensors"


def found(path, **options):
    call = read(IdentifyOptions(source=str(path), **options))
    return call, identify(call.x, call.outputs, lambda text: None)


CALLS = [
    {"is_causal": True},
    {"mask": padded()},
    {"mask": padded(1), "is_causal": True},
    {"is_causal": True, "softcap": 20.0},
    {"is_causal": True, "window": 24},
]


@pytest.mark.parametrize("call", CALLS, ids=["causal", "mask", "both", "softcap", "window"])
def test_a_plan_is_named_under_the_call_of_its_layer(call, path):
    """The bits of a plan are those of its own mask, scale and causality alone; the gradients too.

    The second key head has a mask of its own where there is one for each head.
    """
    plan = Plan.preset("baseline-bf16@hopper")
    write_captures(path, [returned(plan, **call)], {})
    call, result = found(path, head=1)
    assert result.kind is Kind.SAME and plan.name in {result.base, result.plan, *result.ties}
    assert {part.near.equal for part in result.parts.values()} == {1.0}
    assert "h.2" in call.notes[0] and "scale 0.15" in call.about


@pytest.mark.parametrize("is_silent", [True, False])
def test_queries_that_see_no_key_are_left_out(is_silent, path):
    """What a model returns there is its own choice: here 7, and infinite gradients. It enters dk
    and dv, unless do is 0 there.
    """
    made = returned(Plan.preset("baseline-bf16@hopper"), mask=padded(blind=9), is_causal=False)
    for name in ("out", "dq"):
        getattr(made, name)[:, :, :9] = 7.0 if name == "out" else np.inf
    if is_silent:
        made.do[:, :, :9] = 0.0
    else:
        made.dk[:] += 1.0
    write_captures(path, [made], {})
    call, result = found(path, head=0)
    assert call.x.q.shape[1] == T - 9 and call.outputs.dq.shape[1] == T - 9
    assert "masked, without 9 queries that see no key" in call.about
    assert ("and without dk and dv" in call.about) is not is_silent
    assert result.kind is Kind.SAME
    names = {"out", "dq", "dk", "dv"} if is_silent else {"out", "dq"}
    assert {n: part.near.equal for n, part in result.parts.items()} == dict.fromkeys(names, 1.0)


def test_a_causal_call_keeps_its_places_without_its_first_queries(path):
    mask = padded(1)
    mask[..., :9] = False  # so that queries 0 to 4 see no key below themselves
    mask[..., 5] = False
    made = returned(Plan.preset("baseline-bf16@hopper"), mask=mask, is_causal=True)
    write_captures(path, [made], {})
    call, result = found(path)
    blind = int((~(mask[0, 0] & np.tri(T, dtype=bool)).any(-1)).sum())
    assert blind >= 9 and call.x.q.shape[1] == T - blind and not call.x.is_causal
    assert result.parts["out"].near.equal == 1.0


def test_what_cannot_be_identified_is_refused(path):
    made = returned(Plan.preset("baseline-bf16"), is_causal=True)
    write_captures(path, [replace(made, dropout=0.1)], {})
    with pytest.raises(UsageError, match=r"metadata dropout '0\.1'.*model\.eval\(\)"):
        read(IdentifyOptions(source=str(path)))
    write_captures(path, [replace(made, mask=np.ones((T, T), np.float32))], {})
    with pytest.raises(UsageError, match="bias"):
        read(IdentifyOptions(source=str(path)))
    write_captures(path, [replace(made, mask=np.zeros((T, T), bool))], {})
    with pytest.raises(UsageError, match="no query sees a key"):
        read(IdentifyOptions(source=str(path)))


def test_one_layer_is_chosen_from_many(path):
    made = returned(Plan.preset("baseline-bf16"), is_causal=True)
    write_captures(path, [replace(made, number=n) for n in range(10)], {})
    with pytest.raises(UsageError, match=r"has 10 layers, layers.0, .* and 2 more; choose one"):
        read(IdentifyOptions(source=str(path)))
    assert "layers.7" in read(IdentifyOptions(source=str(path), layer="7")).about


@pytest.mark.parametrize(
    ("implementation", "family"),
    [("eager", ("baseline-bf16", "eager")), ("math", ("sdpa-math", "fp32"))],
)
def test_the_attention_of_a_model_of_transformers_is_named(implementation, family, path):
    """Whose matrices a CPU multiplies in its own order, so that some last bits are its own."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from roundscope.attention.torch import capture
    from tests.attention.torch.models import batch, pretrained

    model = pretrained("llama", "eager" if implementation == "eager" else "sdpa").bfloat16()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), capture(model, path):
        model(batch(1, 48))
    call, result = found(path, layer="1", head=1)
    assert call.about.startswith("captured.safetensors, layers.1, ")
    assert call.notes[0].startswith("model.layers.1.self_attn")
    assert implementation in call.notes[0] and "causal, scale" in call.about
    assert result.kind in (Kind.SAME, Kind.NEAR), result.verdict
    assert result.base.partition("@")[0] in family, result.verdict

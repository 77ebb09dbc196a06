"""`correct`: exact gradients from a kernel whose delta errs, and outputs whose bits stay."""

from dataclasses import replace

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from roundscope.attention.models.selection import Layer
from roundscope.attention.torch.call import Call
from roundscope.attention.torch.calls import intercept
from roundscope.attention.torch.correction import correct, corrected
from roundscope.attention.torch.watching import watch
from tests.attention.torch.biased import Biased, Gpt, loss_of, tokens, with_biased_kernel


def gradients(model, **options):
    loss_of(model, tokens(**options)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def furthest(one, two):
    return max(float((one[n] - two[n]).norm() / two[n].norm()) for n in two)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_a_wrong_delta_is_corrected_to_the_last_bits(key_heads, masked):
    """In binary64, with a kernel that is exact but for delta, whatever its error."""
    masks = torch.rand(3, 1, 20, 20, generator=torch.Generator().manual_seed(1)) < 0.6
    masks[..., 0] = True

    def model():
        made = Gpt(key_heads=key_heads).double()
        for block in made.blocks:
            block.attention.mask = masks if masked else None
        return made

    exact, biased, cured = (gradients(m) for m in (model(), *_biased(model)))
    assert furthest(biased, exact) > 0.1
    assert furthest(cured, exact) < 1e-12


def _biased(model):
    """A model with the biased kernel, and one whose gradients are corrected as well."""
    models = model(), model()
    for one in models:
        with_biased_kernel(one)
    correct(models[1])
    return models


@pytest.mark.parametrize("widths", [(8, 8), (8, 24), (24, 8), (7, 5)])
def test_widths_of_queries_and_values(widths):
    """Values that are wider or narrower than the queries, and widths that are no multiple of 8."""
    random = torch.Generator().manual_seed(0)
    (h, hv), double = widths, torch.float64
    q, k, v, do = (
        torch.randn(2, *shape, generator=random, dtype=double, requires_grad=True)
        for shape in ((4, 12, h), (2, 9, h), (2, 9, hv), (4, 12, hv))
    )
    error, seen = torch.randn(2, 4, 12, generator=random).double(), torch.ones(12, 9).bool()

    def gradients_with(error, handler):
        def run(q, k, v):
            return Biased.apply(q, k, v, seen, 0.3, error, False)

        call = Call(
            layer=Layer(name="a", number=0), q=q, k=k, v=v, mask=None, is_causal=False, scale=0.3,
            dropout=0.0, run=run,
        )  # fmt: skip
        return torch.autograd.grad(handler(call), (q, k, v), do)

    exact = gradients_with(torch.zeros_like(error), lambda call: call.run(call.q, call.k, call.v))
    for found, right in zip(gradients_with(error, corrected), exact, strict=True):
        torch.testing.assert_close(found, right, rtol=0.0, atol=1e-12 * float(right.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_keep_their_bits(dtype):
    model = Gpt().to(dtype)
    out = model(tokens()[:, :-1])
    with correct(model, "layers.1"):
        assert torch.equal(model(tokens()[:, :-1]), out)
        with torch.no_grad():
            assert torch.equal(model(tokens()[:, :-1]), out)
    assert torch.equal(model(tokens()[:, :-1]), out)


def test_an_exact_kernel_keeps_its_gradients():
    model = Gpt().double()
    exact = gradients(model)
    model.zero_grad()
    with correct(model):
        assert furthest(gradients(model), exact) < 1e-13


def test_the_bias_of_a_kernel_in_bf16():
    """PyTorch's own kernel where O rounds to one side, in rows whose V and dO have one sign.

    The error of dQ along P K, row by row, is what r makes there. Of what is taken out, three
    roundings to BF16 stay: of r, of P K and of dQ. So 3 * 2^-9 of it can, and no more does.
    """
    random = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(1, 4, 256, 64, generator=random) for _ in range(4))
    toward = F.normalize(torch.randn(1, 4, 1, 64, generator=random), dim=-1)
    q, k = q + 8.0 * toward, 0.5 * k
    k[:, :, ::64] = 24.0 * toward  # equal keys that share the maximum of most rows
    low = [x.bfloat16() for x in (q, k, -1.0 - v.abs(), 1.0 + do.abs())]

    def grad(tensors, handler):
        q, k, v, do = (x.detach().clone().requires_grad_() for x in tensors)

        def run(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.125)

        call = Call(
            layer=Layer(name="a", number=0), q=q, k=k, v=v, mask=None, is_causal=True, scale=0.125,
            dropout=0.0, run=run,
        )  # fmt: skip
        return torch.autograd.grad(handler(call), q, do)[0].double()

    wide = [x.double() for x in low]
    exact = grad(wide, lambda call: call.run(call.q, call.k, call.v))
    pk = F.scaled_dot_product_attention(*wide[:2], wide[1], is_causal=True, scale=0.125)
    along = {}
    for handler in (lambda call: call.run(call.q, call.k, call.v), corrected):
        error = grad(low, handler) - exact
        along[handler is corrected] = (error * pk).sum(-1) / (pk * pk).sum(-1)
    assert along[False].mean() > 5.0 * along[False].std() / along[False].numel() ** 0.5  # biased
    assert along[True].square().mean().sqrt() < 3 * 2.0**-9 * along[False].square().mean().sqrt()


def test_watch_sees_the_correction():
    """Watched behind the correction, the share falls to that of binary64's roundings."""
    shares = []
    for is_corrected in (False, True):
        model = Gpt().double()
        with_biased_kernel(model)
        if is_corrected:
            correct(model)
        with watch(model) as w:
            loss_of(model, tokens()).backward()
            shares.append(w.numbers()["attention/drift"])
    assert shares[0] > 1e-2 and shares[1] < 1e-12


def test_removed_it_is_gone():
    model = Gpt()
    plain = gradients(model)
    model.zero_grad()
    correct(model).remove()
    again = gradients(model)
    assert all(torch.equal(again[n], plain[n]) for n in plain)


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpointing(is_reentrant):
    kinds = None, lambda block, x: checkpoint(block, x, use_reentrant=is_reentrant)
    found = []
    for kind in kinds:
        model = Gpt(checkpoint=kind).double()
        with_biased_kernel(model)
        correct(model)
        found.append(gradients(model))
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


# dynamo asks for it, and hides the warning, unless warnings are errors
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model():
    exact = gradients(Gpt().double())
    torch._dynamo.reset()
    model = Gpt().double()
    with_biased_kernel(model)
    correct(model)
    compiled = torch.compile(model, backend="eager")
    loss_of(compiled, tokens()).backward()
    assert furthest({n: p.grad for n, p in model.named_parameters()}, exact) < 1e-12
    torch._dynamo.reset()


def test_autocast():
    """The backward runs outside of the block of autocast, in the types that the call had."""
    found = []
    for is_corrected in (False, True):
        model = Gpt()
        if is_corrected:
            correct(model)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, tokens())
        loss.backward()
        found.append({n: p.grad for n, p in model.named_parameters()})
    assert 0.0 < furthest(found[1], found[0]) < 0.05


@pytest.mark.parametrize(("change", "message"), [
    ({"dropout": 0.5}, "drops 0.5 of the weights"),
    ({"softcap": 30.0}, "has softcap"),
    ({"sinks": torch.ones(4)}, "has sinks"),
    ({"mask": torch.zeros(20, 20, requires_grad=True)}, "its mask has a gradient"),
])  # fmt: skip
def test_calls_that_cannot_be_corrected(change, message):
    model = Gpt(layers=1)
    with (
        intercept(model, lambda call: corrected(replace(call, **change))),
        pytest.raises(ValueError, match=rf"layer 0 \(blocks.0.attention\): {message}"),
    ):
        loss_of(model, tokens())


def test_layers_that_there_are_not():
    with pytest.raises(ValueError, match=r"layers='layers.9'"):
        correct(Gpt(), "layers.9")

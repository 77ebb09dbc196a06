"""docs/howto/bring-your-model.md: its code and its commands run as they stand there."""

import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from roundscope.attention.models import log as logs
from roundscope.experiments.cli import main as cli
from roundscope.tools.tensors.layers import read_layers
from tests.attention.flax import transformer
from tests.attention.jax import gpt
from tests.attention.torch.biased import Gpt, loss_of, tokens, with_biased_kernel
from tests.attention.torch.dit import dit

PAGE = (Path(__file__).parents[1] / "docs" / "howto" / "bring-your-model.md").read_text("utf-8")
LONGEST = 10  # lines of code in a block
LIBRARIES = ("PyTorch", "transformers", "diffusers", "flax", "JAX")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
SHOWN = re.compile(r"^    (These are the numbers of .*?)\n\n", re.M | re.S)


def section(title):
    """The text under a heading."""
    [text] = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return text


def of_torch(layers=2, length=64, dtype=torch.bfloat16):
    """A small GPT of PyTorch, and what the page has of a user."""
    model = Gpt(layers=layers).to(dtype)
    return {
        "model": model,
        "loss_of": loss_of,
        "batch": tokens(length=length),
        "batches": [tokens(seed=n, length=length) for n in range(3)],
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "logger": {},
    }


def of_jax():
    batch = np.random.default_rng(0).integers(0, gpt.VOCABULARY, (2, gpt.CONTEXT + 1))
    params = gpt.init(jax.random.key(0))
    return {"loss": gpt.loss, "params": params, "batch": jax.numpy.asarray(batch, "int32")}


NAMES = {
    "PyTorch": of_torch,
    "transformers": dict,
    "diffusers": lambda: {
        "dit": dit(layers=1),
        "noisy": torch.randn(2, 1, 4, 4),
        "labels": torch.tensor([3, 7]),
    },
    "flax": lambda: {
        "model": transformer.Transformer(),
        "loss": transformer.loss,
        "batch": transformer.tokens(),
    },
    "JAX": of_jax,
}


@pytest.fixture(autouse=True)
def _one_thread():
    """Models this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def commands(monkeypatch, capsys):
    """Runs the command lines of a block, and returns what they print."""
    dot = b"\x89PNG\r\n\x1a\n"
    monkeypatch.setattr(
        "roundscope.tools.report.pictures.png",
        lambda figure, software=None: dot + (software or "").encode(),
    )

    def run(text):
        printed = []
        for line in text.splitlines():
            name, *words = shlex.split(line, comments=True)
            assert name == "roundscope"
            with pytest.raises(SystemExit) as stop:
                cli.main(words)
            out, err = capsys.readouterr()
            assert not stop.value.code, f"{line}\n{out}{err}"
            printed.append(out)
        return printed

    return run


@pytest.fixture
def ran(tmp_path, monkeypatch, commands):
    """Runs a section, its code and its commands in order: its names, and what was printed."""
    monkeypatch.chdir(tmp_path)

    def run(title):
        names, printed = NAMES[title](), []
        for kind, text in BLOCK.findall(section(title)):
            if kind == "sh":
                printed += commands(text)
            else:
                exec(compile(text, f"{title} of the page", "exec"), names)
        return names, printed

    return run


def test_every_block_is_short_and_stands_under_a_library():
    """A block that no test runs, or that grew."""
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == sum(len(BLOCK.findall(section(title))) for title in LIBRARIES)
    assert {kind for kind, _ in blocks} == {"python", "sh"}
    assert PAGE.count("```") == 2 * len(blocks)
    for kind, text in blocks:
        assert kind == "sh" or 0 < len(text.strip().splitlines()) <= LONGEST, text


def test_torch(ran, tmp_path):
    """In BF16 on SDPA's math, whose twin is sdpa-math."""
    with sdpa_kernel(SDPBackend.MATH):
        names, (identified, traced, watched) = ran("PyTorch")
    layers = read_layers(tmp_path / "qkv.safetensors")
    assert [(x.name, x.is_causal, x.q.shape) for x in layers] == [
        (f"layers.{n}", True, (1, 64, 4, 8)) for n in range(2)
    ]
    # torch's FP32 sums have an order that depends on the processor, and so has the plan
    assert identified.startswith("These are the numbers of ")
    assert "all 2,048 numbers of out are equal" in " ".join(identified.split())
    assert "layers.0" in traced and "layers.1" in traced
    assert "1 look, steps 0 to 0" in watched and (tmp_path / "watch.png").exists()
    assert names["logger"]["attention/drift"] < 0.1 and names["watched"].alarm is None
    names["watched"].remove()
    assert not any("forward" in module.__dict__ for module in names["model"].modules())


def test_transformers(ran):
    """The verdict that the page shows is the one that is printed."""
    pytest.importorskip("transformers")
    names, [identified] = ran("transformers")
    [sentence] = SHOWN.findall(section("transformers"))
    assert " ".join(identified.split()).startswith(" ".join(sentence.split()))
    assert names["gpt2"].dtype == torch.bfloat16


@pytest.mark.thorough
def test_diffusers(ran, tmp_path):
    """With a transformer whose modules are like those of the library."""
    names, [swept] = ran("diffusers")
    assert [call.step for call in names["calls"]] == [0, 1, 2]
    assert "6 cells" in swept and (tmp_path / "dit.sqlite").is_file()


@pytest.mark.thorough
def test_flax(ran, tmp_path):
    names, (traced, watched) = ran("flax")
    assert "layers.0.attention" in traced and "1 look, steps 0 to 0" in watched
    assert names["numbers"]["attention/drift"] < 1e-3
    assert len(read_layers(tmp_path / "flax.safetensors")) == 2
    leaves = [jax.tree.leaves(names[which]) for which in ("own", "cured")]
    assert all(np.isfinite(x).all() for of in leaves for x in of)
    assert any((x != y).any() for x, y in zip(*leaves, strict=True))


@pytest.mark.thorough
def test_jax(ran, tmp_path):
    names, (traced, watched) = ran("JAX")
    assert "layers.0" in traced and "1 look, steps 0 to 0" in watched
    assert names["numbers"]["attention/drift"] < 1e-3
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(names["gradient"]))
    assert len(read_layers(tmp_path / "jax.safetensors")) == 2


def test_the_loop_of_the_page_cures_at_its_alarm(tmp_path, monkeypatch):
    """A kernel whose delta errs: an alarm at the third look, and afterwards no drift."""
    monkeypatch.chdir(tmp_path)
    blocks = [text for kind, text in BLOCK.findall(section("PyTorch")) if kind == "python"]
    [loop] = [text for text in blocks if "watch(model, every=100" in text]
    names = of_torch(length=20, dtype=torch.float32)
    names |= {"batches": [names["batch"]] * 31}
    with_biased_kernel(names["model"], 0.03, is_relative=True)
    exec(loop.replace("every=100", "every=10"), names)
    looks = logs.read(tmp_path / "watch.jsonl")
    assert [look.step for look in looks] == [0, 10, 20, 30]
    assert [look.alarm is not None for look in looks] == [False, False, True, False]
    assert share(looks[2]) > 0.1 and share(looks[3]) < 1e-6


def share(look):
    """The share of the drift of one look alone."""
    drift, gradient = (
        sum(sum(getattr(own.numbers, name)) for own in look.layers)
        for name in ("drift", "gradient")
    )
    return drift / gradient

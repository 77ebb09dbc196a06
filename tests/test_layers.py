"""The house: emu <- attention <- experiments, and nothing heavy behind a light import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {"emu": {"emu"}, "attention": {"emu", "attention"}, "experiments": {"emu", "attention", "experiments"}}
OURS = {*MAY_IMPORT, "tests"}


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(path.relative_to(ROOT).parts[0] if node.level else (node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_go_one_way(layer):
    """A layer that reaches up, or into the tests."""
    files = list((ROOT / layer).rglob("*.py"))
    assert files
    for path in files:
        assert imported(path) & OURS <= MAY_IMPORT[layer], path


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import emu", ("jax", "numba", "scipy", "matplotlib")),
        ("import attention", ("jax", "numba", "scipy", "matplotlib")),
        ("import attention; attention.Plan.preset('qiu-yao')", ("jax", "numba")),
        ("import attention.xla_engine, attention.differentiable, emu.xla, emu.xla_ops", ("numba", "experiments")),
        ("import attention.numpy_engine, emu.numpy_ops", ("jax", "experiments")),
        ("import tests.gpu_check", ("jax", "numba", "rich", "pytest")),
    ],
)
def test_light_imports_stay_light(statement, absent):
    """A slow start of the command, or numba needed on a GPU machine that has none."""
    code = f"import sys; {statement}; print(*sorted({set(absent)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

"""The layers, from emu up to experiments; no modules that import each other in a circle; nothing
heavy behind a light import.
"""

import ast
import subprocess
import sys
from pathlib import Path

import grimp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "emu": {"emu"},
    "events": {"emu", "events"},
    "attention": {"emu", "events", "attention"},
    "operations": {"emu", "events", "attention", "operations"},
    "tools": {"emu", "events", "attention", "operations", "tools"},
    "experiments": {"emu", "events", "attention", "operations", "tools", "experiments"},
}
OURS = {*MAY_IMPORT, "tests"}
# runs without Roundscope in environments of old releases, by imports of its own files alone
APART = ROOT / "experiments" / "questions" / "kernels" / "passport" / "writer"


def imported(path: Path) -> set[str]:
    """The layers that a file imports, anywhere in it, and the top-level name of whatever else it
    imports.
    """
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level and path.parent == APART:
                continue
            assert not node.level, f"{path}: imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.removeprefix("roundscope.").partition(".")[0] for name in names}


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_go_one_way(layer):
    """A layer that reaches up, or into the tests."""
    files = list((ROOT / layer).rglob("*.py"))
    assert files
    for path in files:
        assert imported(path) & OURS <= MAY_IMPORT[layer], path


def test_what_runs_without_roundscope_imports_none_of_it():
    """An import that ends the writer of results in an environment of an old release."""
    files = list(APART.glob("*.py"))
    assert files and not [path for path in files if imported(path) & {*OURS, "roundscope"}]


def circles(package: str) -> str:
    """The groups of modules of a package that import each other in circles, and the lines that do,
    at the start of a module or inside a function; imports for annotations alone do not count.
    """
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    modules = sorted(graph.modules)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in modules}
    matrix = np.array([[other in imported[module] for other in modules] for module in modules])
    _, group = connected_components(matrix, connection="strong")
    lines = []
    for n in np.flatnonzero(np.bincount(group) > 1):
        own = [modules[i] for i in np.flatnonzero(group == n)]
        lines.append(f"{len(own)} modules import each other in circles: {' '.join(own)}")
        lines += [
            f"  {x['importer']}:{x['line_number']}: {x['line_contents']}"
            for module in own
            for other in sorted(imported[module] & {*own})
            for x in graph.get_import_details(importer=module, imported=other)
        ]
    return "\n".join(lines)


def test_no_modules_import_each_other_in_a_circle():
    """Files of which none can be read or moved without the others, hidden by an import inside a
    function.
    """
    if found := circles("roundscope"):
        pytest.fail(found, pytrace=False)


def test_circles_are_found(tmp_path, monkeypatch):
    """A check that finds no circle anywhere, or one where a module is imported from outside the
    circle, or imports the other only for its annotations.
    """
    package = tmp_path / "planted_circle"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "first": "import planted_circle.second\n",
        "second": "def f():\n    from planted_circle import first\n",
        "third": "import planted_circle.second\n",
        "fourth": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    import planted_circle.fifth\n",
        "fifth": "import planted_circle.fourth\n",
    }.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert circles("planted_circle").splitlines() == [
        "2 modules import each other in circles: planted_circle.first planted_circle.second",
        "  planted_circle.first:1: import planted_circle.second",
        "  planted_circle.second:2: from planted_circle import first",
    ]


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import roundscope.emu", ("jax", "numba", "scipy", "matplotlib", "torch")),
        ("import roundscope.attention", ("jax", "numba", "scipy", "matplotlib", "torch", "flax")),
        ("import roundscope.torch", ("jax", "numba", "matplotlib", "transformers")),
        ("import roundscope.jax", ("numba", "matplotlib", "flax", "torch")),
        ("import roundscope.attention as a; a.Plan.preset('qiu-yao')", ("jax", "numba")),
        ("import roundscope", ("jax", "numba", "numpy", "roundscope.attention")),
        (
            "import roundscope.testing",
            ("jax", "numba", "torch", "hypothesis", "pytest", "numpy", "roundscope.attention"),
        ),
        (
            "import roundscope.testing.plugin",
            ("jax", "numba", "torch", "hypothesis", "numpy", "roundscope.testing.options"),
        ),
        (
            "import roundscope.attention.engines.xla, roundscope.attention.differentiable",
            ("numba", "roundscope.experiments"),
        ),
        (
            "import roundscope.emu.backends.xla.rounding, roundscope.emu.backends.xla.ops",
            ("numba", "roundscope.experiments"),
        ),
        (
            "import roundscope.attention.engines.numpy, roundscope.emu.backends.numba.ops",
            ("jax", "roundscope.experiments"),
        ),
        ("import roundscope.attention.engines.numpy", ("numba", "scipy")),
        ("import tests.checks.gpu_check", ("jax", "numba", "rich", "pytest")),
        (
            "import roundscope.experiments.catalogue",
            ("jax", "numba", "numpy", "matplotlib", "rich"),
        ),
    ],
)
def test_light_imports_stay_light(statement, absent):
    """A slow start of the command, or numba needed on a GPU machine that has none."""
    code = f"import sys; {statement}; print(*sorted({set(absent)!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


FOREIGN = "raise ImportError('the module of another project')\n"


def test_own_modules_of_our_names_are_in_nobodys_way(tmp_path):
    """A user's attention.py, or a folder of our name beside the script, found in place of ours."""
    (tmp_path / "attention.py").write_text(FOREIGN)
    for name in ("emu", "tools", "experiments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(FOREIGN)
    code = (
        "import roundscope; roundscope.Plan.preset('fa2-bf16'); import"
        " roundscope.experiments.cli.main, roundscope.attention.engines.numpy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_of_attention_is_one_of_roundscope():
    import roundscope
    from roundscope import attention

    assert set(attention.__all__) < set(roundscope.__all__)
    assert all(getattr(roundscope, name) is getattr(attention, name) for name in attention.__all__)


def test_every_folder_says_what_lives_there():
    """A folder whose first lines a newcomer reads in vain."""
    for layer in MAY_IMPORT:
        for folder in {path.parent for path in (ROOT / layer).rglob("*.py")}:
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


@pytest.mark.parametrize("package", ["emu", "attention"])
def test_no_public_name_shadows_a_module(package):
    """`import roundscope.attention.attend as module` gave a function."""
    public = __import__(f"roundscope.{package}", fromlist=["__all__"]).__all__
    modules = {p.stem for p in (ROOT / package).iterdir() if p.suffix == ".py" or p.is_dir()}
    assert modules and not modules & set(public)

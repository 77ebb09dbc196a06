"""The size of the house, by layer: python -m tests.checks.size. `make lint` prints it.

lines       of source;  longest: of its longest file
folder      the most modules that one folder holds, without __init__.py
one reader  modules that a single other module imports
used once   share of its functions and methods whose name is read once: in its module, if it begins
            with _, else in all of the source
"""

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
LAYERS = ("emu", "events", "attention", "operations", "tools", "experiments")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    """Print the table."""
    graph = grimp.build_graph("roundscope")
    paths = {layer: list((ROOT / layer).rglob("*.py")) for layer in LAYERS}
    texts = {path: path.read_text() for each in paths.values() for path in each}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    used = {path: Counter(names_used(tree)) for path, tree in trees.items()}
    everywhere = sum(used.values(), Counter[str]())
    print(f"{'':12} {'lines':>7} {'longest':>8} {'folder':>7} {'one reader':>11} {'used once':>10}")
    for layer, own in paths.items():
        lines = [texts[path].count("\n") for path in own]
        folders = Counter(path.parent for path in own if path.name != "__init__.py")
        modules = [m for m in graph.modules if m.startswith(f"roundscope.{layer}.")]
        single = sum(len(graph.find_modules_that_directly_import(m)) == 1 for m in modules)
        reads = [
            (used[path] if name.startswith("_") else everywhere)[name]
            for path in own
            for name in functions_of(trees[path])
        ]
        once = reads.count(1) / len(reads)
        print(
            f"{layer:12} {sum(lines):7,} {max(lines):8} {max(folders.values()):7}"
            f" {single:11} {once:10.0%}"
        )


def names_used(tree: ast.AST) -> Iterable[str]:
    """Yield every name that is read in a module, alone or behind a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def functions_of(tree: ast.AST) -> Iterable[str]:
    """Yield the names of the functions and methods of a module, without those of Python."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and not node.name.startswith("__"):
            yield node.name


if __name__ == "__main__":
    main()

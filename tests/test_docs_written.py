"""What programs write into pages of the documentation: tables from the code, outputs of cells."""

import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest

import roundscope

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))
pages = importlib.import_module("generated.pages")
printed = importlib.import_module("printed")

PARTS = sorted(pages.parts())
NOTEBOOKS = [p for p in sorted(DOCS.rglob("*.md")) if "\nkernelspec:" in p.read_text()[:400]]


@pytest.mark.parametrize(("page", "name"), PARTS, ids=[name for _, name in PARTS])
def test_a_part_made_from_the_code_is_current(page, name):
    """An option, a plan, a format that changed since its table was written."""
    library = name.removeprefix("roundscope.").removesuffix(".rst")
    if library in ("torch", "flax"):
        pytest.importorskip(library)
    same = pages.text(name) in page.read_text(encoding="utf-8")
    assert same, f"{page.relative_to(DOCS)}: {name} is not current: make reference"


def test_every_table_and_every_package_is_on_a_page():
    """A table that no page has; a package whose names stand nowhere; a part that lost its end."""
    names = {name for _, name in PARTS}
    for module in (pages.tables, pages.commands):
        own = {
            n for n, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__
        }
        functions = {n for n in own if not n.startswith("_") and callable(getattr(module, n))}
        assert functions - {"command_line"} <= names
    assert {f"roundscope.{n}" for n in ("emu", "operations", "testing", "torch", "jax")} < names
    text = "".join(p.read_text(encoding="utf-8") for p in DOCS.rglob("*.md"))
    own = [name for page, name in PARTS if page.suffix == ".md"]
    assert text.count("<!-- made from the code: ") == text.count("<!-- end of ") == len(own)


def test_the_reference_reads_without_a_build():
    """A page of directives alone, which a reader of the repository sees as nothing."""
    text = (DOCS / "reference" / "attention.rst").read_text(encoding="utf-8")
    own = text.split("\nroundscope.attend\n")[1].split("\nroundscope.examine\n")[0]
    takes = list(inspect.signature(roundscope.attend).parameters)
    assert [n for n in takes if f"\n``{n}``\n    " not in own] == [] and "block_q=128" in own
    assert "made from the code" not in pages.without(text) and "autofunction" in pages.without(text)


def test_a_changed_part_is_written_anew_and_nothing_else():
    page, name = next(x for x in PARTS if x[0].suffix == ".md")
    text = page.read_text(encoding="utf-8")
    begin = f"<!-- made from the code: {name} -->\n"
    assert pages.renewed(text.replace(begin, f"{begin}stale\n")) == text == pages.renewed(text)


def test_what_code_hosts_do_not_know_is_not_in_the_tables():
    """A role of MyST, which a reader of the repository sees as braces."""
    assert [name for page, name in PARTS if re.search(r"\{[a-z:]+\}`", pages.text(name))] == []


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_a_cell_printed_is_of_that_cell(page):
    """A cell that was changed after its output was kept; a block that lost its cell."""
    text = page.read_text(encoding="utf-8")
    cells = list(printed.CELL.finditer(text))
    stale = [c["text"] for c in cells if c["block"] and c["digest"] != printed.digest(c["text"])]
    name = page.relative_to(DOCS).with_suffix("")
    assert stale == [], f"make printed PAGES={name}"
    assert text.count("{printed} ") == sum(bool(c["block"]) for c in cells)
    assert not re.search(
        r"(?<![\w.])/(?:tmp|home|root|work)/", "".join(c["block"] or "" for c in cells)
    )


def _notebook(*cells):
    return {
        "cells": [
            {"cell_type": "code", "source": source, "metadata": {"tags": tags}, "outputs": outputs}
            for source, tags, outputs in cells
        ]
    }


def test_outputs_are_written_under_their_cells_once():
    """Text, a value, a figure and nothing; old blocks go; escape codes and trailing blanks too."""
    sources = "print(1)", "x", "plot()", "y = 1", "print('hidden')"
    page = "# T\n\n" + "".join(
        f"```{{code-cell}}\n:tags: [a]\n{s}\n```\n\nWords.\n\n" for s in sources
    )
    out = {"output_type": "stream", "name": "stdout", "text": ["\x1b[1m1 \x1b[0m\n", "```\n"]}
    value = {"output_type": "execute_result", "data": {"text/plain": ["5"]}}
    figure = {"output_type": "display_data", "data": {"image/png": "iVBOR", "text/plain": "<F>"}}
    notebook = _notebook(
        (sources[0], [], [out]),
        (sources[1], [], [value]),
        (sources[2], [], [figure]),
        (sources[3], [], []),
        (sources[4], ["remove-output"], [out]),
    )
    once = printed.renewed(page, notebook)
    blocks = [c["block"] for c in printed.CELL.finditer(once)]
    assert [b and b.splitlines()[1:-1] for b in blocks] == [
        ["1", "```"],
        ["5"],
        [printed.FIGURE],
        None,
        None,
    ]
    assert printed.renewed(once, json.loads(json.dumps(notebook))) == once
    stripped = printed.CELL.sub(lambda c: c["cell"], once)
    assert stripped == page
    with pytest.raises(ValueError, match="another cell"):
        printed.renewed(page.replace("print(1)", "print(2)"), notebook)


def test_every_test_that_a_page_of_notes_names_exists():
    """A complaint whose test was renamed or taken away, so that nothing holds what was repaired."""
    text = (DOCS / "notes" / "new-users.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    sources = {f: (DOCS.parent / f).read_text(encoding="utf-8") for f, _ in named}
    missing = [(f, name) for f, name in named if name and f"def {name}(" not in sources[f]]
    assert len(named) > 100 and missing == []

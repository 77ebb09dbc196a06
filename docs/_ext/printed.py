"""What the cells of a page printed, kept under them for readers of the repository: `{printed}`.

The built page shows what its cells print when it is built, and leaves these blocks out. `make
printed` writes them from the pages that were built last; each has the digest of the cell above it,
by which a test notices a cell that was changed since. As an extension of Sphinx this module has the
directive.

    make printed                          # every page, after it has built them
    make printed PAGES='howto/sweep'      # these alone, which it runs by themselves
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
EXECUTED = DOCS.parent / "build" / "jupyter_execute"
CELL = re.compile(
    r"^(?P<cell>```\{code-cell\}[^\n]*\n(?P<text>.*?)^```\n)(?:\n(?P<block>(?P<fence>`{3,})\{printed\}"
    r" ?(?P<digest>\w*)\n.*?^(?P=fence)\n))?",
    re.M | re.S,
)
OPTIONS = re.compile(r"\A---\n.*?^---\n", re.M | re.S)
FIGURE = "(a figure, which the built page shows)"
HIDDEN = {"remove-cell", "remove-output"}
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def digest(cell: str) -> str:
    """Return the digest of the text of a cell, its options left out."""
    cell = OPTIONS.sub("", cell)
    lines = [line for line in cell.splitlines() if not line.startswith(":")]
    return hashlib.sha256("\n".join(lines).strip().encode()).hexdigest()[:8]


def renewed(page: str, notebook: dict[str, Any]) -> str:
    """Return a page with what the cells of its executed notebook printed under each of them."""
    cells = iter([cell for cell in notebook["cells"] if cell["cell_type"] == "code"])

    def with_block(found: re.Match[str]) -> str:
        cell = next(cells)
        if digest("".join(cell["source"])) != digest(found["text"]):
            raise ValueError(f"another cell was executed: build the page again\n{found['text']}")
        text = printed(cell)
        if not text:
            return found["cell"]
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        return f"{found['cell']}\n{fence}{{printed}} {digest(found['text'])}\n{text}\n{fence}\n"

    return CELL.sub(with_block, page)


def printed(cell: dict[str, Any]) -> str:
    """Return what a cell printed and returned, as text; nothing if its page hides that."""
    if HIDDEN & set(cell["metadata"].get("tags", ())):
        return ""
    texts = []
    has_printed = False  # MyST-NB merges all that was printed into the first, and leaves the others
    for output in cell["outputs"]:
        data = output.get("data", {})
        if output["output_type"] == "stream" and output["name"] == "stdout":
            texts += [] if has_printed else ["".join(output["text"])]
            has_printed = True
        elif any(kind.startswith("image/") for kind in data):
            texts.append(f"{FIGURE}\n")
        elif "text/plain" in data:
            texts.append("".join(data["text/plain"]) + "\n")
    lines = ESCAPES.sub("", "".join(texts)).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def setup(app: Any) -> dict[str, bool]:
    """Register the directive, which puts nothing on the page."""
    from sphinx.util.docutils import SphinxDirective

    class Printed(SphinxDirective):
        has_content, optional_arguments = True, 1

        def run(self) -> list[Any]:
            return []

    app.add_directive("printed", Printed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def executed(page: str) -> dict[str, Any]:
    """Build a site of one page, such as "howto/sweep", and return its executed notebook."""
    with tempfile.TemporaryDirectory() as folder:
        docs = Path(folder) / "docs"
        (docs / page).parent.mkdir(parents=True)
        for name in ("_ext", "_static", "images"):
            (docs / name).symlink_to(DOCS / name)
        for name in ("conf.py", f"{page}.md"):
            (docs / name).write_bytes((DOCS / name).read_bytes())
        (docs / "index.md").write_text(f"# Page\n\n```{{toctree}}\n{page}\n```\n")
        out = Path(folder) / "build" / "docs"
        # its links lead nowhere here, and warnings about them are of no use
        build = [sys.executable, "-m", "sphinx", "-Q", "-D", "nb_execution_mode=force", docs, out]
        subprocess.run(build, check=True)
        return dict(json.loads((out.parent / "jupyter_execute" / f"{page}.ipynb").read_text()))


def main(pages: list[str]) -> None:
    """Write the blocks of these pages, or of every page that was built."""
    found = sorted(p.relative_to(EXECUTED).with_suffix("") for p in EXECUTED.rglob("*.ipynb"))
    for name in map(str, pages or found):
        page = DOCS / f"{name}.md"
        old = page.read_text(encoding="utf-8")
        notebook = executed(name) if pages else json.loads((EXECUTED / f"{name}.ipynb").read_text())
        new = renewed(old, notebook)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"written: docs/{name}.md")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The documentation, as far as it can be checked without building it: pages, links, commands."""

import ast
import re
from pathlib import Path

import pytest
import typer.main

from roundscope import __all__ as of_roundscope
from roundscope.experiments.cli.main import DEBUG, app
from roundscope.testing import __all__ as of_testing

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*") if p.suffix in (".md", ".rst"))
TEXTS = [*PAGES, *sorted(ROOT.glob("*.md"))]
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.M | re.S)
FENCED = re.compile(r"^ *(`{3,})[^\n]*\n.*?^ *\1", re.M | re.S)
LINK = re.compile(r"(?<!\\)\]\((?!https?:|mailto:)([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
LABEL = re.compile(r"^\(([\w-]+)\)=$", re.M)
NAMED = re.compile(r"(?<![\w./-])docs/[\w./-]*\w")
COMMAND = re.compile(r"(?<!from )(?:^|(?<=[\s!(]))roundscope ((?:--)?[a-z][\w-]*)\b([^`|#\n]*)")
OPTION = re.compile(r"(?<![\w-])(--?[a-z][\w-]*)")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def children(page: Path) -> set[Path]:
    """The pages in the tables of contents of a page."""
    lines = "\n".join(TOCTREE.findall(text_of(page))).splitlines()
    names = [line.strip() for line in lines if line.strip() and not line.strip().startswith(":")]
    entries = [re.sub(r".*<(.*)>", r"\1", name) for name in names]
    return {
        (found.parent / found.name).resolve()
        for entry in entries
        for suffix in (".md", ".rst")
        for found in page.parent.glob(entry.removeprefix("/") + suffix)
    }


def test_every_page_is_in_a_table_of_contents():
    """A page that nobody finds."""
    reached, new = set(), {DOCS / "index.md"}
    while new:
        reached |= new
        new = {child for page in new for child in children(page)} - reached
    assert [named(page) for page in PAGES if page not in reached] == []


@pytest.mark.parametrize("page", [p for p in PAGES if TOCTREE.search(text_of(p))], ids=named)
def test_an_index_has_links_that_a_code_host_shows(page):
    """A list of bare words, which the built site alone turns into links."""
    trees = TOCTREE.findall(text_of(page))
    assert all(tree.startswith(":hidden:") for tree in trees)
    links = {
        (page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(text_of(page))
    }
    assert [named(p) for p in children(page) - links] == []


BUILT_ALONE = re.compile(
    r"^ *:{3,}\{[\w-]+\}.*|^ *`{3,}\{(?!toctree|code-cell|printed|eval-rst)[\w-]+\}.*"
    r"|\{[a-z:-]+\}(?=`)",
    re.M,
)
DIRECTIVE = re.compile(r"^\.\. [\w:-]+:: .*|:[a-z]+:`[^`]+`", re.M)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_has_nothing_that_only_the_built_site_understands(page):
    """Cards, badges and roles, which a reader of the repository sees as braces and colons."""
    form = BUILT_ALONE if page.suffix == ".md" else DIRECTIVE
    text = text_of(page).partition("\n.. what the built site has instead:\n")[0]
    assert form.findall(text) == []


def slug(heading: str) -> str:
    """The anchor that MyST and GitHub give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    text = FENCED.sub("", text_of(path))
    return {slug(heading) for heading in HEADING.findall(text)} | set(LABEL.findall(text))


@pytest.mark.parametrize("path", [p for p in TEXTS if p.suffix == ".md"], ids=named)
def test_links_lead_somewhere(path):
    """A file that was moved, a heading that was written anew."""
    prose = re.sub(r"`[^`\n]*`", "``", FENCED.sub("", text_of(path)))
    broken = []
    for link in LINK.findall(prose):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists():
            broken.append(link)
        elif anchor and target.suffix == ".md":
            broken += [link] * (anchor not in anchors(target))
    assert broken == []


def test_pages_that_the_sources_name_exist():
    """A message that sends a user to a page of an older version."""
    folders = (
        "emu",
        "events",
        "attention",
        "operations",
        "tools",
        "experiments",
        "roundscope",
        "tests",
        "docs/_ext",
    )
    files = [p for folder in folders for p in (ROOT / folder).rglob("*.py")]
    files += [ROOT / "Makefile", ROOT / "pyproject.toml", *TEXTS]
    missing = {
        (named(path), name)
        for path in files
        if path.name != "CHANGELOG.md"
        for name in NAMED.findall(text_of(path))
        if not (ROOT / name).exists() and not name.startswith("docs/_build")
    }
    assert missing == set()


COMMANDS = typer.main.get_command(app).commands
OF_ALL = {"--help", "-h"}


def options(verb: str) -> set[str]:
    return {name for p in COMMANDS[verb].params for name in (*p.opts, *p.secondary_opts)} | OF_ALL


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_commands_and_options_that_a_page_names_exist(path):
    """A command that was renamed, an option that a user tries in vain."""
    text = re.sub(r"\\\n\s*", " ", text_of(path))
    wrong = []
    for verb, rest in COMMAND.findall("\n".join(code_of(text))):
        if verb.startswith("--"):
            wrong += [verb] * (verb not in OF_ALL | {"--version", DEBUG})
        elif verb not in COMMANDS:
            wrong.append(verb)
        else:
            wrong += [f"{verb} {o}" for o in OPTION.findall(rest) if o not in options(verb)]
    assert wrong == []


def code_of(text: str) -> list[str]:
    """The lines of a page's code, without lines that import, and its code in running text."""
    fenced = [match.group() for match in FENCED.finditer(text)]
    inline = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCED.sub("", text))
    indented = re.findall(r"^ {4}(.*)$", FENCED.sub("", text), re.M)
    lines = [line for block in (*fenced, *indented) for line in block.splitlines()]
    return [*(line for line in lines if "import roundscope" not in line), *inline]


NOT_READ_FIRST = ("notes", "gallery", "runs")
PROSE = [
    p for p in PAGES if p.suffix == ".md" and p.relative_to(DOCS).parts[0] not in NOT_READ_FIRST
]
JARGON = re.compile(r"\b(?:twin|arm|carrier|sham|launch|atom)s?\b")


def prose(text: str) -> str:
    """The running text of a page: no head of a notebook, code, heading, table, comment, link."""
    text = re.sub(r"\A---\n.*?\n---\n", "", FENCED.sub("", text), flags=re.S)
    text = re.sub(r"<!-- made from the code: (\S+) -->.*?<!-- end of \1 -->", "", text, flags=re.S)
    text = re.sub(r"^(?:#| {4}|\||\().*$", "", text, flags=re.M)
    return re.sub(r"!?\[[^\]]*\]\([^)]*\)|`[^`\n]*`", "", text)


@pytest.mark.parametrize("path", PROSE, ids=named)
def test_words_of_ours_lead_to_the_glossary(path):
    """A twin, an arm, a carrier on a page that says nowhere what that is."""
    used = sorted(set(JARGON.findall(prose(text_of(path)))))
    assert not used or path.name == "glossary.md" or "glossary.md)" in text_of(path), used


def first_sentence(text: str) -> str:
    """The first sentence below a page's heading; of the gallery, the answer's."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    found = re.search(
        r"^# [^\n]*\n+(?:\[(?:.*?)\n\n    .*?\n\n)?(.*?)(?:\n\n|\Z)", text, re.S | re.M
    )
    assert found is not None
    return re.split(r"(?<=[^A-Z][.?!:])\**\s+(?=[\"A-Z`*\[\d])", " ".join(found[1].split()))[0]


@pytest.mark.parametrize("path", [p for p in PAGES if p.suffix == ".md"], ids=named)
def test_the_first_sentence_of_a_page_is_short(path):
    """147 words that define A, A', B and C in brackets, before anybody knows what is asked."""
    assert len(first_sentence(text_of(path)).split()) < 30, first_sentence(text_of(path))


def exported(path: Path) -> list[str]:
    """The names in __all__ of a module that is not imported, since its library may be missing."""
    [value] = [
        node.value
        for node in ast.parse(text_of(path)).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return ast.literal_eval(value)


def test_the_reference_has_every_public_name():
    """A function that only its source documents."""
    pages = "\n".join(text_of(p) for p in (DOCS / "reference").glob("*.rst"))
    names = [f"roundscope.{name}" for name in of_roundscope]
    names += [f"roundscope.testing.{name}" for name in of_testing]
    for library in ("torch", "jax", "flax"):
        names += [
            f"roundscope.{library}.{name}"
            for name in exported(ROOT / "attention" / library / "__init__.py")
        ]
    aside = {"roundscope.__version__", "roundscope.attention", "roundscope.Stabiliser"}
    missing = [n for n in names if not re.search(rf"^ {{3}}\.\. .*:: {re.escape(n)}$", pages, re.M)]
    assert set(missing) - aside == set()


def _listed(docstring):
    """The names that the list of attributes of a class has, in either of its two forms."""
    _, google, rest = docstring.partition("Attributes:")
    form = r"^    (\w+(?:, \w+)*): " if google else r"^(\w+(?:, \w+)*)  +\S"
    return [name for m in re.finditer(form, rest or docstring, re.M) for name in m[1].split(", ")]


def test_lists_of_attributes_name_what_their_classes_have():
    """A field that was renamed or taken away, and stands in the docstring; a text that was filled
    anew, so that a word of a sentence stands where a name was.
    """
    lists, wrong = 0, []
    folders = ("emu", "events", "attention", "operations", "tools", "experiments")
    for path in (p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and (names := _listed(ast.get_docstring(node) or "")):
                own = {
                    getattr(x, "name", getattr(x, "attr", getattr(x, "id", "")))
                    for x in ast.walk(node)
                }
                lists += 1
                wrong += [(path.name, node.name, name) for name in names if name not in own]
    assert lists > 150 and not wrong

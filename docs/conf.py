"""Sphinx's settings for the documentation: `make docs`.

Pages are Markdown (MyST). A page that begins with a jupytext header is a notebook: its cells run
when the documentation is built, each page in an empty folder that is deleted afterwards, with
`roundscope` on the path. What they printed is kept under build/, until a cell or the source code
changes.
"""

import hashlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

import roundscope

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "_ext"))
from generated.pages import without  # noqa: E402

# so that `!roundscope` in a cell is the program of the environment that builds
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# the kernel of that environment, whatever else is installed for this user
os.environ["JUPYTER_PATH"] = str(Path(__file__).parent / "_ext" / "jupyter")
os.environ["PYTHONSTARTUP"] = str(Path(__file__).parent / "_ext" / "startup.py")


def digest_of_sources() -> str:
    """Return a digest of the package's source, without which stored outputs could be stale."""
    folders = ("emu", "events", "attention", "operations", "tools", "experiments", "roundscope")
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


project = "Roundscope"
release = roundscope.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "markup",
    "printed",
    "mathml",
]
exclude_patterns = ["_ext"]
# quotation marks stay as they are, since texts quote commands
smartquotes_action = "D"
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", r".*"),  # names in single backquotes of docstrings
    ("py:class", r"(?!roundscope\.).*|.*\.comparison\.State|.*\.tape\.Tape"),
    ("py:exc", r"unittest\.SkipTest"),
]

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

logging.getLogger("traitlets").setLevel(logging.WARNING)
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks" / digest_of_sources())
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 600
nb_merge_streams = True

# names in single backquotes of docstrings: links where there is one, else code
default_role = "py:obj"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_admonition_for_examples = False
python_use_unqualified_type_names = True

copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_math_renderer = "mathml"
html_title = "Roundscope"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["roundscope.css"]
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1f66ad",
        "color-brand-content": "#1f66ad",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7db8ee",
        "color-brand-content": "#7db8ee",
    },
}


def setup(app: Any) -> None:
    """Leave out the text of directives that pages of the reference have for the repository."""

    def read(_: Any, page: str, source: list[str]) -> None:
        if Path(app.env.doc2path(page)).suffix == ".rst":
            source[0] = without(source[0])

    app.connect("source-read", read)

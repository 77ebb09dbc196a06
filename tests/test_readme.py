"""README.md: its length, and its Python, which prints the table that stands below it."""

import contextlib
import io
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")


def test_it_stays_short():
    assert len(TEXT.splitlines()) <= 100


def test_its_python_prints_the_table_below_it(monkeypatch):
    """Numbers that an older version printed."""
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (table,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == table

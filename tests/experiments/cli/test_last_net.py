"""What the command line prints where something happens that no code of ours expects, and what it
does where its streams are closed or take ASCII alone.
"""

import os
import subprocess
import sys

import pytest

from roundscope.experiments.cli import main as cli

BROKEN = """
from roundscope.experiments.cli import main
def app(**options):
    raise KeyError("no table \\x1b[2J of cells")
main.app = app
main.main({words})
"""
ENV = dict(os.environ)
RUN = [sys.executable, "-m", "roundscope"]


def of(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("words", [["formats"], ["formats", "--debug"]])
def test_an_unexpected_error_is_one_line(words):
    """A traceback where nobody asked for it, or none where somebody did; a raw escape code."""
    done = of(BROKEN.format(words=words))
    *before, line = done.stderr.splitlines()
    assert done.returncode == 3 and "\x1b" not in line
    assert line.startswith("roundscope: formats met an error that it does not know, KeyError: ")
    assert "please report it with what  roundscope --debug ...  prints" in line
    assert ("Traceback (most recent call last):" in before) is ("--debug" in words)


def test_a_library_of_an_extra_is_named_with_its_extra(tmp_path):
    """A fault of Roundscope where nothing but a library is missing."""
    code = (
        "import sys; sys.modules['optax'] = None\n"
        "from roundscope.experiments.cli.main import main\n"
        f"main(['train', 'steps=1', '--out', '{tmp_path}/run'])"
    )
    done = of(code)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "roundscope: train needs optax: run  pip install 'roundscope[train]'"
    )


def test_tests_fail_where_one_is_caught(monkeypatch):
    """A fault that tests do not see since the net prints a line about it."""

    def app(**options):
        raise KeyError("x")

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(AssertionError, match="roundscope formats: an unexpected error"):
        cli.main(["formats"])


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(closed):
    """An AttributeError of None; or an end at once, with a code of failure and no word."""
    line = f"'{sys.executable}' -m roundscope formats bf16 {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert ("bf16" in done.stdout) is (">&-" not in closed.split())


def test_a_stream_of_ascii_takes_every_line():
    """UnicodeEncodeError in the middle of a table."""
    options = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*RUN, "explain", "1.001", "--to", "bf16"], capture_output=True, env=ENV | options
    )
    assert done.returncode == 0, done.stderr


def test_pictures_are_ours_whatever_the_settings_of_matplotlib(tmp_path):
    """A trace that ends at its pictures since the user's own are set with LaTeX, or in a window."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    code = (
        "from roundscope.experiments.cli import main; main.main = lambda: None\n"
        "from roundscope.__main__ import process; process()\n"
        "import roundscope.tools.report.pictures\n"
        "import matplotlib; print(matplotlib.rcParams['text.usetex'])"
    )
    options = {"cwd": tmp_path, "env": ENV | {"MPLBACKEND": "bogus"}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)
    assert done.stdout == "False\n", done.stderr


def test_a_platform_that_is_not_there(monkeypatch, capsys):
    """A traceback of JAX, which does not say which setting is meant."""
    code = compile("raise AssertionError", "/lib/jax/_src/xla_bridge.py", "exec")
    monkeypatch.setattr(cli, "app", lambda **options: exec(code))
    monkeypatch.setenv("JAX_PLATFORMS", "bogus")
    with pytest.raises(SystemExit) as stop:
        cli.main(["trace"])
    assert stop.value.code == 2 and "JAX_PLATFORMS=bogus: " in capsys.readouterr().err

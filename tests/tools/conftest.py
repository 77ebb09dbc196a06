"""The command line in this process; and pictures, half a second of matplotlib each: tests of words
build every figure, those marked `pictures` draw it too.
"""

import base64

import pytest

from roundscope.experiments.cli import main as cli

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


@pytest.fixture(autouse=True)
def _drawn_only_where_marked(request, monkeypatch):
    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr(
            "roundscope.tools.report.pictures.png",
            lambda figure, software=None: DOT + (software or "").encode(),
        )
        monkeypatch.setattr("roundscope.tools.report.pictures.svg", lambda *a: "<svg ></svg>")


@pytest.fixture
def roundscope(capsys):
    """Runs the command line: (exit code, stdout, stderr)."""

    def of(*words):
        with pytest.raises(SystemExit) as stop:
            cli.main([*map(str, words)])
        out = capsys.readouterr()
        return stop.value.code or 0, out.out, out.err

    return of

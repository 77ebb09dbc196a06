"""Half a second is what matplotlib needs to draw one picture: tests of words build every figure, those marked `pictures` draw it too."""

import base64

import pytest

DOT = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")


@pytest.fixture(autouse=True)
def _drawn_only_where_marked(request, monkeypatch):
    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr("experiments.plots.png", lambda figure: DOT)

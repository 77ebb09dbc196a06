"""The fixtures of the tests of the tools: the command line in this process, and pictures."""

from tests.tools.conftest import _drawn_only_where_marked, roundscope

__all__ = ["_drawn_only_where_marked", "roundscope"]

"""The pytest plugin: options for `pytest --pyargs roundscope.testing.attention`.

pytest imports it in every project of an environment that has Roundscope. It therefore imports
nothing but pytest, and adds options only if `roundscope.testing.attention` is among the arguments.
"""

import pytest

MODULE = "roundscope.testing.attention"
FILE = "/roundscope/testing/attention.py"


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Add the options of the test module, after those of conftest.py files."""
    del parser
    if any(is_module(argument) for argument in args):
        from roundscope.testing import options

        early_config.pluginmanager.register(options, options.__name__)


def is_module(argument: str) -> bool:
    """Return whether an argument of pytest names the test module, or a test of it."""
    place = argument.partition("::")[0]
    return place == MODULE or ("/" + place.replace("\\", "/")).endswith(FILE)

"""The pytest plugin: projects that do not use it see nothing of it."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from roundscope.testing.plugin import is_module
from tests.testing.processes import MODULE, ROOT, pytest_in


def test_an_installation_announces_the_plugin_to_pytest():
    """A plugin that `pip install roundscope` leaves unknown to pytest."""
    (found,) = entry_points(group="pytest11", name="roundscope")
    assert found.value == "roundscope.testing.plugin"


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (MODULE, True),
        (f"{MODULE}::test_edges", True),
        ("/x/site-packages/roundscope/testing/attention.py", True),
        ("roundscope/testing/attention.py::test_edges", True),
        ("roundscope.testing.plugin", False),
        ("roundscope.testing.attention_of_mine", False),
        ("my/roundscope.testing.attention.py", False),
        ("tests/testing/attention.py", False),
        ("--kernel=roundscope.testing.attention", False),
    ],
)
def test_the_plugin_wakes_for_its_test_module_alone(argument, expected):
    """Options that appear in a project with a similar name, or not where they are needed."""
    assert is_module(argument) == expected


def test_help_of_another_project_is_unchanged(tmp_path):
    """An option, a group or a line in the help of every project of the environment."""
    with_plugin, without = pytest_in(tmp_path, "--help"), pytest_in(tmp_path, "--help", plugins=())
    assert with_plugin.returncode == without.returncode == 0, with_plugin.stderr
    assert with_plugin.stdout == without.stdout
    assert "--kernel" in pytest_in(tmp_path, "--pyargs", MODULE, "--help").stdout


def test_a_project_may_have_an_option_of_the_same_name(tmp_path):
    """A project with its own --kernel that pytest refuses to start."""
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--kernel')\n"
    )
    (tmp_path / "test_own.py").write_text(
        "def test_own(request):\n    assert request.config.getoption('--kernel') == 'mine'\n"
    )
    done = pytest_in(tmp_path, "--kernel", "mine")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    done = pytest_in(tmp_path, "--pyargs", MODULE, "--kernel", "easy:kernel")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "a conftest.py has an option of the same name" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_plugin_imports_nothing_heavy():
    """A start of pytest that is slower for everybody."""
    code = (
        "import sys, pytest; before = set(sys.modules); import roundscope.testing.plugin;"
        " print(*sorted(set(sys.modules) - before))"
    )
    found = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()
    assert found == ["roundscope", "roundscope.testing", "roundscope.testing.plugin"]

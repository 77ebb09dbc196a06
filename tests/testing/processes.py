"""pytest in a process of its own, with the plugin of Roundscope."""

import os
import subprocess
import sys
from pathlib import Path

MODULE = "roundscope.testing.attention"
ROOT = str(Path(__file__).parents[2])


def pytest_in(
    folder: Path, *words: str, plugins: tuple[str, ...] = ("roundscope.testing.plugin",)
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder with these plugins and no others."""
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ROOT, "PYTEST_ADDOPTS": ""}
    loaded = [word for name in ("no:cacheprovider", *plugins) for word in ("-p", name)]
    command = (sys.executable, "-m", "pytest", *loaded, *words)
    return subprocess.run(
        command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False
    )

"""Code that no package has, read from the file in which somebody keeps it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_of(name: str, file: Path) -> ModuleType:
    """Return the module that a file of Python is, under a name of ours in `sys.modules`, where
    compilers look for its source.

    Args:
        name: what it is called.
        file: the file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

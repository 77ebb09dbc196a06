"""Code that no package has, imported from a file that the user names."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_of(name: str, file: Path) -> ModuleType:
    """Return a file of Python as a module, under a name of ours in `sys.modules`.

    Compilers look there for the source of a function.

    Args:
        name: the name of the module.
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

"""Modules by the names that they had until version 0.2: found under their new ones, with a warning.

They are kept for one release. The old and the new name are one module.
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

HERE = "roundscope.experiments."
TOOLS = (
    *("bench", "check", "look", "report", "results", "sweep", "tensors", "trace", "watch"),
    *("compile_cache", "errors", "signals", "toml_file"),
)
# first words of a name, old (behind roundscope.experiments) -> new (behind roundscope)
MOVED = {
    **{name: f"tools.{name}" for name in TOOLS},
    "check.cast_command": "tools.check_cast.command",
    "check.cast_data": "tools.check_cast.command",
    "check.cast_page": "tools.check_cast.command",
    **{f"diagnose.{n}": f"tools.diagnose.{n}" for n in ("replay", "report", "search", "tensors")},
    "diagnose.command": "tools.diagnose.command",
    "kernels": "tools.identify",
    "cli.options": "tools.options",
    "studies.failure": "experiments.papers.failure_2510_04212",
    "studies.released": "experiments.papers.released_2510_04212",
    "studies.stability": "experiments.papers.stability_2405_02803",
    "studies.microscaling": "experiments.papers.microscaling_2506_20752",
    "studies.mxfp8": "experiments.papers.mxfp8_2506_08027",
    **{f"studies.{name}": f"experiments.papers.{name}" for name in ("fa4", "two_level")},
    **{
        f"studies.{name}": f"experiments.questions.{name}"
        for name in ("alarm", "dose", "kernels", "proxy", "tensor_cores")
    },
    "studies": "experiments",
}


def new_name(name: str) -> str | None:
    """Return the name that a module has now, None where it has not moved.

    Example:
        >>> new_name("roundscope.experiments.trace.run")
        'roundscope.tools.trace.run'
    """
    words = name.removeprefix(HERE).split(".") if name.startswith(HERE) else []
    for end in range(len(words), 0, -1):
        if start := MOVED.get(".".join(words[:end])):
            return ".".join(["roundscope", start, *words[end:]])
    return None


class _Moved:
    """Finds a module by its old name: a finder and loader, without importlib.abc, which is slow."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if new_name(name) is None else ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = str(new_name(spec.name))
        warnings.warn(f"{spec.name} is {name} now", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(name)
        spec.loader_state = module.__spec__  # which the import machinery replaces
        return module

    def exec_module(self, module: ModuleType) -> None:
        own = module.__spec__
        assert own is not None
        module.__spec__ = own.loader_state


def find_moved_modules() -> None:
    """Let old names be imported, once in a process."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())  # else a folder would give a second module

"""A change of a model that can be taken back, as a context manager for any library."""

from types import TracebackType
from typing import Self


class Removable:
    """A change of a model, until `remove` is called; a context manager that does so at its end."""

    def remove(self) -> None:
        """Take the change back. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.remove()

"""`Kept`: a process's memory of values between calls."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count
from threading import Lock
from typing import Any


class Kept:
    """Values up to a total number of bytes, each under one or more keys.

    When there are more, the least recently used are dropped; the newest always stays. Threads may
    share it.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes, self._numbers = limit, 0, count()
        self._kept: OrderedDict[int, tuple[Any, int, tuple[Hashable, ...]]] = OrderedDict()
        self._number: dict[Hashable, int] = {}
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """Return the value under a key, or None."""
        with self._lock:
            if key not in self._number:
                return None
            self._kept.move_to_end(self._number[key])
            return self._kept[self._number[key]][0]

    def put(self, keys: Sequence[Hashable], value: Any, size: int) -> None:
        """Keep a value of `size` bytes under these keys.

        What they held before is dropped, with all its keys.
        """
        with self._lock:
            for old in {self._number[key] for key in keys if key in self._number}:
                self._drop(old)
            number = next(self._numbers)
            self._kept[number] = value, size, tuple(keys)
            self._number |= dict.fromkeys(keys, number)
            self.bytes += size
            while self.bytes > self.limit and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))

    def _drop(self, number: int) -> None:
        _, size, keys = self._kept.pop(number)
        self.bytes -= size
        for key in keys:
            del self._number[key]

"""Work that waits more than it computes, done at once in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

#: So many at a time.
_THREADS = 8


def at_once(calls: Iterable[Callable[[], object]]) -> None:
    """Makes the calls. All are over when it returns or raises; it raises what the first of them that fails does."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for made in [pool.submit(call) for call in calls]:
            made.result()


@contextmanager
def meanwhile(calls: Iterable[Callable[[], object]]) -> Iterator[None]:
    """Makes the calls while other work is done. All is over in the end; it raises what the other work does, or they."""
    with ThreadPoolExecutor(_THREADS) as pool:
        made = [pool.submit(call) for call in calls]
        yield
        for each in made:
            each.result()


class lazy(Generic[T]):  # noqa: N801 - it is used as a decorator
    """A property that is computed once; another thread that asks waits. Python 3.11's own makes all objects' wait."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Any: whatever has the property."""
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, of: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, of: object, owner: type) -> T: ...
    def __get__(self, of: object | None, owner: type) -> T | lazy[T]:
        if of is None:
            return self
        with of.__dict__.setdefault(f"_{self._name}_computing", RLock()):
            if self._name not in of.__dict__:
                of.__dict__[self._name] = self._compute(of)
        found: T = of.__dict__[self._name]
        return found

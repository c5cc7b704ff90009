"""Work in threads: what is computed once, and what is done meanwhile."""

from __future__ import annotations

from functools import partial
from threading import Barrier, Event

import pytest

from changeglot.at_once import at_once, lazy, meanwhile


class Slow:
    """Counts how often its property is computed."""

    def __init__(self, may_go_on: Event | Barrier) -> None:
        self.may_go_on, self.times = may_go_on, 0

    @lazy
    def found(self) -> int:
        self.times += 1
        self.may_go_on.wait(10)
        return self.times

    @lazy
    def failing(self) -> int:
        self.times += 1
        raise ValueError(f"time {self.times}")


def test_what_several_threads_ask_for_is_computed_once_and_of_two_objects_at_once() -> None:
    # Each is computed only when the other is being computed too.
    both = Barrier(2)
    one, other = Slow(both), Slow(both)
    at_once(partial(getattr, each, "found") for each in (one, other, one, other))
    assert (one.found, other.found, one.times, other.times) == (1, 1, 1, 1)


def test_what_failed_is_computed_again() -> None:
    slow = Slow(Event())
    for time in (1, 2):
        with pytest.raises(ValueError, match=f"time {time}"):
            _ = slow.failing


def test_what_is_done_meanwhile_is_waited_for_where_it_is_needed_and_over_in_the_end() -> None:
    begun, end = Event(), Event()
    slow, later = Slow(end), []

    def look() -> None:
        begun.set()
        later.append(slow.found)

    with meanwhile([look]):
        assert begun.wait(10)
        end.set()
        assert slow.found == 1
    assert (later, slow.times) == ([1], 1)


def test_what_fails_meanwhile_is_raised_unless_the_work_itself_fails() -> None:
    def fail() -> None:
        raise ValueError("meanwhile")

    with pytest.raises(ValueError, match="meanwhile"), meanwhile([fail]):
        pass
    with pytest.raises(KeyError), meanwhile([fail]):
        raise KeyError

"""What is read in a thread of its own: in its order, with its error, and out of Ctrl-C's way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator

import pytest

from fabfile.remote.fleet import apart


def test_what_is_read_apart_comes_in_its_order_with_its_error() -> None:
    def lines() -> Generator[int, None, None]:
        yield from range(1000)
        raise OSError("the connection broke")

    got = []
    with pytest.raises(OSError, match="broke"):
        for number in apart(lines()):
            got.append(number)
    assert got == list(range(1000))
    assert list(apart(letter for letter in "abc")) == ["a", "b", "c"]


def test_ctrl_c_leaves_no_lock_of_what_is_read_apart() -> None:
    """At any moment of a reader that takes its lock as paramiko does, outside of `try`."""
    lock, ended = threading.Lock(), threading.Event()

    def lines() -> Generator[int, None, None]:
        try:
            while True:
                lock.acquire()
                try:
                    number = sum(range(5))
                finally:
                    lock.release()
                yield number
        finally:
            ended.set()

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for trial in range(300):
            ended.clear()
            with pytest.raises(KeyboardInterrupt):  # the timer is started in here: on a busy machine it fires at once
                signal.setitimer(signal.ITIMER_REAL, 0.001 + trial * 0.00001)
                for _ in apart(lines()):
                    pass
            assert lock.acquire(timeout=5), f"trial {trial}"
            lock.release()
            assert ended.wait(5), "the reader ends with whom it read for"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

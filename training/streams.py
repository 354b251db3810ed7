"""Streams in bounded memory: `map` over a pool of threads, in order; items in groups of a size; items made ahead."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int, ahead: int
) -> Generator[Result, None, None]:
    """Yield `work(item)` in the order of the items; at most `ahead` of them are queued, in work or waiting to be
    yielded. Closing it stops the threads."""
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def grouped(items: Iterable[Item], size: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Lists of items in a row, of as few items as add up to the size `limit`; the last may be smaller."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group


def made_ahead(items: Iterator[Item], ahead: int) -> Generator[Item, None, None]:
    """The same items, made by a thread; up to `ahead` of them wait. An exception comes where the items end. Closing it
    stops the thread after the item that it makes."""
    ready = queue.Queue[tuple[Item, ...] | BaseException](ahead)
    stopped = threading.Event()

    def put(item: tuple[Item, ...] | BaseException) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return

    def make() -> None:
        try:
            for item in items:
                put((item,))
                if stopped.is_set():
                    return
            put(())
        except BaseException as error:  # noqa: BLE001 (raised where the items are used)
            put(error)

    threading.Thread(target=make, name="ahead", daemon=True).start()
    try:
        while found := ready.get():
            if isinstance(found, BaseException):
                raise found
            yield found[0]
    finally:
        stopped.set()

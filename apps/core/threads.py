"""Short work in threads, for async code: look-ups in the database above all.

A thread, and with it a database connection, is held while the work runs and not a moment longer; of as many as wait
at the same time, only a few work at the same time.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connection

T = TypeVar("T")

# Python works on one at a time anyway; the others wait for the database.
_AT_ONCE: Final = 4
_gates: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()


async def in_thread(work: Callable[[], T]) -> T:
    """Run something that blocks, with its own database connection, and give the connection back."""
    gate = _gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE))
    async with gate, ThreadSensitiveContext():
        return await sync_to_async(_tidied)(work)


def _tidied(work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        if not connection.in_atomic_block:  # else it is of a synchronous caller, whose thread this is
            connection.close()

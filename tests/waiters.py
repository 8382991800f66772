"""Seeing from outside that somebody waits."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import redis
from anyio.to_thread import run_sync
from django.conf import settings
from django.db import connection

from apps.digests.signals import inbox_topic
from apps.principals.tenancy import Caller


async def later(caller: Caller, action: Callable[[], Awaitable[Any]]) -> None:
    """Do something as soon as somebody waits for the caller's inbox."""
    await until_heard(inbox_topic(caller.principal_id))
    await action()


async def until_heard(topic: str) -> None:
    """Return when somebody waits for this cue: what its process listens to, Redis knows.

    A process that has listened once goes on for a while, so a test waits for one topic once.
    """
    channel = f"gatehouse:cue:{topic}"
    with redis.Redis.from_url(settings.REDIS_URL) as broker:
        while not (await run_sync(broker.pubsub_numsub, channel))[0][1]:
            await anyio.sleep(0.02)


def until_somebody_waits_for_this_transaction(waiting: int = 1) -> None:
    """Until so many wait for a lock that this transaction holds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute(
                "select count(distinct pid) from pg_locks"
                " where not granted and pg_backend_pid() = any(pg_blocking_pids(pid))"
            )
            if cursor.fetchone()[0] >= waiting:
                return
    raise AssertionError("nobody waits")

"""Listening to MCP servers: one that says `tools/list_changed` is asked at once.

One process listens at a time, on one stream for each server. What it misses is found when discovery asks the server
again, at the latest after the source's usual pause.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Final

from django.db import connections
from django.db.models import F, Q
from mcp import Client
from mcp.types import ToolListChangedNotification
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from apps.core import mcp_client
from apps.core.outbound import CallFailed
from apps.principals.tenancy import acting_as_system
from apps.workers import services
from apps.workers.models import Reach, SourceEntry

logger = logging.getLogger(__name__)

MOST_STREAMS: Final = 200
_LOOK_SECONDS: Final = 2.0
"""How often to look for servers that have come or gone."""
_STREAM: Final = timedelta(minutes=10)
"""How long a stream lasts, so that one that has died unnoticed is replaced."""
_STREAM_BYTES: Final = 1024 * 1024
_PING_SECONDS: Final = 30.0
_LEAST_PAUSE: Final = 5.0
"""Between two notices of one server, and before its stream is opened again."""
_LONGEST_PAUSE: Final = 300.0


def listen(*, until: Callable[[], bool]) -> None:
    """Listen to the servers that discovery asks, until told to stop. Opens its own transactions, each a short one."""
    with ThreadPoolExecutor(1, thread_name_prefix="listening") as database:
        try:
            asyncio.run(_listen(until, database))
        finally:
            database.submit(connections.close_all).result()


async def _listen(until: Callable[[], bool], database: ThreadPoolExecutor) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    streams: dict[tuple[int, str], asyncio.Task[None]] = {}
    changed: set[int] = set()

    def tell(entry_id: int) -> None:
        changed.add(entry_id)
        told.set()

    while not until():
        wanted = await loop.run_in_executor(database, servers)
        for stream in streams.values():
            if stream.done():
                stream.result()  # it ends by a defect only, which the log shall show
        for gone in streams.keys() - wanted:
            streams.pop(gone).cancel()
        for new in wanted - streams.keys():
            streams[new] = asyncio.create_task(_follow(new[1], partial(tell, new[0])))
        with suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), _LOOK_SECONDS)
        told.clear()
        if changed:
            entries = frozenset(changed)
            changed.clear()
            await loop.run_in_executor(database, services.ask_now, entries)


def servers() -> set[tuple[int, str]]:
    """The servers to listen to: the keys of their entries, with their endpoints. Approved ones come first."""
    with acting_as_system("servers to listen to"):
        found = SourceEntry.objects.filter(
            source__enabled=True,
            source__principal__disabled_at=None,
            worker__isnull=False,
            worker__unregistered_at=None,
        ).exclude(Q(worker__reach=Reach.DOWN) | Q(stated__has_key="tools"))
        first = found.order_by(F("worker__approved_at").desc(nulls_last=True), "id")[:MOST_STREAMS]
        return {(entry.pk, entry.stated["endpoint"]) for entry in first}


async def _follow(endpoint: str, tell: Callable[[], None]) -> None:
    """Keep a stream to a server. Tell when its tools have changed, or may have changed between two streams."""
    pause, is_first = _LEAST_PAUSE, True
    while True:
        began = monotonic()
        try:
            await _hear(endpoint, tell, is_first=is_first)
        except CallFailed as fault:
            logger.debug("the stream of %s has ended: %s", endpoint, fault)
        is_first = False
        pause = _LEAST_PAUSE if monotonic() - began > _PING_SECONDS else min(2 * pause, _LONGEST_PAUSE)
        await asyncio.sleep(pause)


async def _hear(endpoint: str, tell: Callable[[], None], *, is_first: bool) -> None:
    """Hear a server until its stream ends, or it turns out that it never tells of changes.

    :raises CallFailed: one of its kinds.
    """
    changed = asyncio.Event()

    async def take(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async def dialogue(client: Client) -> None:
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        if not is_first:
            tell()
        if client.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            async with client.listen(tools_list_changed=True) as stream:
                async for _ in stream:
                    tell()
                    await asyncio.sleep(_LEAST_PAUSE)
            return
        await client.list_tools()  # some servers tell only the sessions that have asked
        while True:
            try:
                await asyncio.wait_for(changed.wait(), _PING_SECONDS)
            except TimeoutError:
                await client.session.send_ping()  # a session that is over is replaced
            else:
                changed.clear()
                tell()
                await asyncio.sleep(_LEAST_PAUSE)

    await mcp_client.talk(endpoint, dialogue, deadline=_STREAM, max_answer_bytes=_STREAM_BYTES, on_message=take)

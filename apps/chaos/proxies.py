"""Two small TCP proxies on the loopback address: one that can stop forwarding, one that never forwards an answer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

_CHUNK: Final = 65_536

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


class Loop:
    """A thread that runs the proxies."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def serve(self, serve: Callable[[Streams], Awaitable[None]]) -> int:
        """Serve connections to a free port of the loopback address; returns the port."""
        return asyncio.run_coroutine_threadsafe(self._serve(serve), self.loop).result()

    async def _serve(self, serve: Callable[[Streams], Awaitable[None]]) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with suppress(OSError):
                    await serve((reader, writer))
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def call(self, act: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(act)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(timeout=10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)
        self.loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class HalfOpen:
    """Forwards both ways until it is told to stop; connections then stay open and nothing comes through them."""

    def __init__(self, loop: Loop, connect: Connect) -> None:
        self._loop, self._connect = loop, connect
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = loop.serve(self._serve)

    def stop_forwarding(self) -> None:
        self._loop.call(self._flows.clear)

    def forward(self, *, reset: bool) -> None:
        """Forward again; connections of the silent time are reset, or hear what was held back."""
        if reset:
            self._loop.call(self._reset)
        self._loop.call(self._flows.set)

    def _reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, client: Streams) -> None:
        server = await self._connect()
        mine = {client[1], server[1]}
        self._writers |= mine
        pumps = [
            asyncio.ensure_future(self._pump(client[0], server[1])),
            asyncio.ensure_future(self._pump(server[0], client[1])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers -= mine
            server[1].transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._flows.wait()
            writer.write(chunk)
            await writer.drain()


class Swallower:
    """Forwards a request, waits until it is being answered, and breaks the connection: the answer is lost."""

    def __init__(self, loop: Loop, connect: Connect) -> None:
        self._connect = connect
        self.port = loop.serve(self._serve)

    async def _serve(self, client: Streams) -> None:
        reader, writer = await self._connect()
        forwarding = asyncio.ensure_future(_forward(client[0], writer))
        try:
            await reader.read(1)
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
            writer.transport.abort()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()

"""Speaking MCP, of whatever revision, with an endpoint that somebody named.

The endpoint's address is checked, the checked address is the one connected to, nothing else is followed, and what it
sends is bounded in time and size. Call it outside of transactions.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import httpx2
from mcp import Client, MCPError
from mcp.client.session import ElicitationFnT, MessageHandlerFnT
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT, CallToolResult, Implementation
from pydantic import ValidationError

from apps.core.outbound import (
    CallFailed,
    Disconnected,
    GivenUp,
    NotMCP,
    PinnedTransport,
    Refused,
    TimedOut,
    guard,
    legible,
)

_CONNECT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.2
_CLIENT: Final = Implementation(name="gatehouse", version="1")

T = TypeVar("T")


class Wire(PinnedTransport):
    """The wire of one conversation, which remembers whether HTTP itself has refused. A gateway's error is no refusal: the
    request may have been carried out behind it.
    """

    refused_by_http = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        self.refused_by_http = response.is_client_error
        # What was packed against our word stays packed: nothing grows behind the count of what arrives.
        response.headers.pop("Content-Encoding", None)
        return response


async def talk(
    endpoint: str,
    dialogue: Callable[[Client], Awaitable[T]],
    *,
    deadline: timedelta,
    max_answer_bytes: int,
    canceled: Callable[[], bool] | None = None,
    on_message: MessageHandlerFnT | None = None,
    on_question: ElicitationFnT | None = None,
) -> T:
    """Connect, hold a dialogue and hang up, all of it by the deadline.

    :param max_answer_bytes: of all answers together.
    :param canceled: asked a few times a second whether to give up.
    :param on_message: takes what the server sends without being asked.
    :param on_question: answers what the server asks; without it, the server is told that nobody can be asked.
    :raises CallFailed: one of its kinds.
    """
    wire: Wire | None = None
    seconds = deadline.total_seconds()
    try:
        with anyio.fail_after(seconds):
            address = await anyio.to_thread.run_sync(guard, endpoint, abandon_on_cancel=True)
            wire = Wire(address=address, url=httpx2.URL(endpoint), max_bytes=max_answer_bytes)
            client = connected(endpoint, wire, seconds=seconds, on_message=on_message, on_question=on_question)
            found = await _unless_canceled(_speak(client, dialogue), canceled)
    except GivenUp:
        raise
    except Exception as exc:  # the SDK lets whatever broke its streams through, alone or in a group
        raise (wire and wire.fault) or _named(exc, seconds, by_http=wire is not None and wire.refused_by_http) from exc
    if wire.fault is not None:
        raise wire.fault
    return found


async def _speak(connecting: AbstractAsyncContextManager[Client], dialogue: Callable[[Client], Awaitable[T]]) -> T:
    async with connecting as client:
        return await dialogue(client)


async def _unless_canceled(speaking: Coroutine[Any, Any, T], canceled: Callable[[], bool] | None) -> T:
    if canceled is None:
        return await speaking
    task = asyncio.ensure_future(speaking)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            if canceled():
                raise GivenUp("The call was canceled.")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


@asynccontextmanager
async def connected(
    endpoint: str,
    wire: Wire,
    *,
    seconds: float,
    on_message: MessageHandlerFnT | None = None,
    on_question: ElicitationFnT | None = None,
) -> AsyncIterator[Client]:
    """A client over this wire that has agreed on a revision with the server. It holds no answer against a schema."""
    timeout = httpx2.Timeout(seconds, connect=min(_CONNECT_SECONDS, seconds))
    # No ambient proxy and no compression: what arrives is what is counted.
    http = httpx2.AsyncClient(transport=wire, timeout=timeout, headers={"Accept-Encoding": "identity"})
    async with http:
        transport = streamable_http_client(endpoint, http_client=http, max_sse_event_size=wire.max_bytes)
        async with Client(
            transport, client_info=_CLIENT, cache=None, message_handler=on_message, elicitation_callback=on_question
        ) as client:
            client.session.validate_tool_result = _taken_as_it_is  # type: ignore[method-assign]  # the SDK has no switch
            yield client


async def _taken_as_it_is(name: str, result: CallToolResult) -> None:
    """In place of the SDK's check of an answer, which asks the endpoint for a schema and runs its patterns on the event
    loop: one that backtracks without end would outlast every deadline.
    """


def know(client: Client, tool: str, schema: Mapping[str, Any]) -> None:
    """Tell a client the schema of a tool that it has not listed: some params are sent as headers too."""
    if find_invalid_x_mcp_header(schema) is None:
        client.session._x_mcp_header_maps[tool] = x_mcp_header_map(schema)  # noqa: SLF001  # the SDK has no other way


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """What has broken a conversation, out of the groups that task groups make of it."""
    if isinstance(exc, BaseExceptionGroup):
        for part in exc.exceptions:
            yield from leaves(part)
    else:
        yield exc


def _named(exc: BaseException, seconds: float, *, by_http: bool) -> CallFailed:
    found = list(leaves(exc))
    for leaf in found:
        if isinstance(leaf, CallFailed):
            return leaf
        if isinstance(leaf, MCPError):
            return _from_protocol(leaf, by_http=by_http)
    for kinds, fault, sentence in _BROKEN:
        if any(isinstance(leaf, kinds) for leaf in found):
            return fault(sentence.format(seconds))
    return NotMCP(f"What answers there can't be used: {legible(str(found[0])) or type(found[0]).__name__}")


_BROKEN: Final[tuple[tuple[tuple[type[BaseException], ...], type[CallFailed], str], ...]] = (
    ((TimeoutError, httpx2.TimeoutException), TimedOut, "No whole answer within {:g} s."),
    ((ValidationError,), NotMCP, "What answers there is not MCP."),
    ((httpx2.HTTPError, OSError, anyio.ClosedResourceError), Disconnected, "The connection broke."),
)


def _from_protocol(error: MCPError, *, by_http: bool) -> CallFailed:
    if error.code == REQUEST_TIMEOUT:
        return TimedOut("No answer in time.")
    if error.code == CONNECTION_CLOSED:
        return Disconnected("The other side closed the connection.")
    # The SDK gives the code of a defect to refusals by HTTP as well.
    broke = error.code == INTERNAL_ERROR and not by_http
    hint = ". Is the address right? Most end in /mcp" if by_http and error.message == "Not Found" else ""
    return Refused(f"The endpoint refuses: {legible(error.message)}{hint}", mcp_code=error.code, broke=broke)

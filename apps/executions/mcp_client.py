"""One call of one tool on a worker's endpoint, over MCP's Streamable HTTP.

The endpoint is an address that somebody registered. So it is checked, the checked address is the one connected to,
nothing else is followed, and the answer is bounded in time and size. Call it outside of transactions.
"""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import anyio
import httpx2
from mcp import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    REQUEST_TIMEOUT,
    CallToolResult,
    TextContent,
)
from pydantic import ValidationError

from apps.core import strict_json
from apps.core.mcp_client import Wire, connected, leaves, legible
from apps.core.outbound import AnswerTooLarge as TooLarge
from apps.core.outbound import CallFailed, Disconnected, Redirected, Unreachable, UnresolvedHost, guard
from apps.executions.errors import (
    AnswerTooLarge,
    CallCanceled,
    PayloadTooLarge,
    WorkerBroke,
    WorkerCallFailed,
    WorkerDisconnected,
    WorkerRedirected,
    WorkerRefused,
    WorkerTimedOut,
    WorkerUnintelligible,
    WorkerUnreachable,
)

_LOOK_SECONDS: Final = 0.2

Progress = Callable[[float | None, str | None], None]
"""Told how far a call has come, in percent where the worker says of how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a tool answered: its structured content, else its text wrapped as `{"text": …}`.

    The payload can be stored; the text has passed no check.
    """

    payload: dict[str, Any]
    text: str


def check_size(params: Mapping[str, Any], most: int) -> None:
    """:raises PayloadTooLarge: if the parameters are longer, in bytes of the JSON that is sent."""
    size = strict_json.size(params)
    if size > most:
        raise PayloadTooLarge(f"The parameters are {size} bytes; the worker accepts {most}.")


def call_tool(
    *,
    endpoint: str,
    tool_name: str,
    params: Mapping[str, Any],
    deadline: timedelta,
    max_params_bytes: int,
    max_answer_bytes: int,
    on_progress: Progress | None = None,
    canceled: Callable[[], bool] | None = None,
) -> Answer:
    """Call the tool and wait for its answer.

    :raises ForbiddenEndpoint: if this deployment does not call that address.
    :raises WorkerCallFailed: one of its kinds, each saying whether the tool may have run.
    """
    check_size(params, max_params_bytes)
    wire = Wire(address=_checked(endpoint), url=httpx2.URL(endpoint), max_bytes=max_answer_bytes)
    call = _Call(endpoint, tool_name, dict(params), deadline.total_seconds(), on_progress, canceled)
    try:
        result = asyncio.run(_run(call, wire))
    except WorkerCallFailed:
        raise
    except Exception as exc:  # the SDK lets whatever broke its streams through, alone or in a group
        raise _named(exc, wire, tool_name) from exc
    if (broke := _broke(wire)) is not None:
        raise broke
    return _answer(result, tool_name)


def _checked(endpoint: str) -> str:
    try:
        return guard(endpoint)
    except UnresolvedHost as refusal:
        raise WorkerUnreachable(refusal.detail) from refusal


@dataclass(frozen=True, slots=True)
class _Call:
    endpoint: str
    tool_name: str
    params: dict[str, Any]
    seconds: float
    on_progress: Progress | None
    canceled: Callable[[], bool] | None


async def _run(call: _Call, wire: Wire) -> CallToolResult:
    try:
        with anyio.fail_after(call.seconds):
            if call.canceled is None:
                return await _speak(call, wire)
            return await _unless_canceled(call, call.canceled, wire)
    except TimeoutError as exc:
        raise WorkerTimedOut(f"{call.tool_name} did not answer within {call.seconds:g} s.") from exc


async def _unless_canceled(call: _Call, canceled: Callable[[], bool], wire: Wire) -> CallToolResult:
    speaking = asyncio.ensure_future(_speak(call, wire))
    try:
        while not speaking.done():
            await asyncio.wait({speaking}, timeout=_LOOK_SECONDS)
            if canceled():
                raise CallCanceled(f"The call of {call.tool_name} was canceled.")
        return speaking.result()
    finally:
        if not speaking.done():
            speaking.cancel()
            await asyncio.wait({speaking})


async def _speak(call: _Call, wire: Wire) -> CallToolResult:
    async with connected(call.endpoint, wire, seconds=call.seconds) as client:
        return await client.call_tool(call.tool_name, call.params, progress_callback=_progress(call.on_progress))


def _progress(told: Progress | None) -> Any:
    if told is None:
        return None

    async def forward(progress: float, total: float | None, message: str | None) -> None:
        # The listener may write to the database, which must not happen on the event loop.
        await asyncio.to_thread(told, _percent(progress, total), None if message is None else legible(message))

    return forward


def _percent(progress: float, total: float | None) -> float | None:
    share = progress / total if total else math.nan
    return max(0.0, min(100.0, 100.0 * share)) if math.isfinite(share) else None


def _broke(wire: Wire) -> WorkerCallFailed | None:
    """What broke the wire first, in the words of this app."""
    return None if wire.fault is None else _ON_THE_WIRE[type(wire.fault)](str(wire.fault))


_ON_THE_WIRE: Final[Mapping[type[CallFailed], type[WorkerCallFailed]]] = {
    Unreachable: WorkerUnreachable,
    Disconnected: WorkerDisconnected,
    Redirected: WorkerRedirected,
    TooLarge: AnswerTooLarge,
}


def _named(exc: BaseException, wire: Wire, tool_name: str) -> WorkerCallFailed:
    """What broke a call, in the words of this app."""
    if (broke := _broke(wire)) is not None:
        return broke
    found = list(leaves(exc))
    for leaf in found:
        if isinstance(leaf, WorkerCallFailed):
            return leaf
        if isinstance(leaf, MCPError):
            return _from_protocol(leaf, wire, tool_name)
    for kinds, refusal, sentence in _BROKEN:
        if any(isinstance(leaf, kinds) for leaf in found):
            return refusal(sentence.format(tool_name))
    return WorkerUnintelligible(f"The worker's answer to {tool_name} can't be used: {legible(str(found[0]))}")


_BROKEN: Final[tuple[tuple[tuple[type[BaseException], ...], type[WorkerCallFailed], str], ...]] = (
    ((httpx2.TimeoutException,), WorkerTimedOut, "{} did not answer in time."),
    ((ValidationError,), WorkerUnintelligible, "The worker's answer to {} is not MCP."),
    (
        (httpx2.HTTPError, OSError, anyio.ClosedResourceError),
        WorkerDisconnected,
        "The connection broke during {}.",
    ),
)


def _from_protocol(error: MCPError, wire: Wire, tool_name: str) -> WorkerCallFailed:
    if error.code == REQUEST_TIMEOUT:
        return WorkerTimedOut(f"{tool_name} did not answer in time.")
    if error.code == CONNECTION_CLOSED:
        return WorkerDisconnected(f"The worker closed the connection during {tool_name}.")
    if error.code == INTERNAL_ERROR and not wire.refused_by_http:  # the SDK gives this code to HTTP's refusals as well
        return WorkerBroke(f"{tool_name} broke inside the worker: {legible(error.message)}")
    return WorkerRefused(f"The worker refused {tool_name}: {legible(error.message)}", mcp_code=error.code)


def _answer(result: CallToolResult, tool_name: str) -> Answer:
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error and text == f"Error executing tool {tool_name}":  # the SDK's words for what no tool has raised
        raise WorkerBroke(f"{tool_name} broke inside the worker, which does not say why.")
    if result.is_error:
        raise WorkerRefused(f"{tool_name}: {legible(text) or 'the tool failed without a message.'}")
    structured = result.structured_content
    if structured is None:
        structured = _decoded(text)
    try:
        strict_json.check(structured)
    except strict_json.UnstorableJSON as fault:
        raise WorkerUnintelligible(
            f"The worker's answer to {tool_name} can't be kept: {legible(fault.detail)}"
        ) from fault
    return Answer(payload=structured, text=text)


def _decoded(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}
    return found if isinstance(found, dict) else {"result": found}

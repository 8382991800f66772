"""Tools: the declared operations, as they are listed and called."""

import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar

from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    ProgressNotification,
    ProgressNotificationParams,
    ProgressToken,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel
from rest_framework.exceptions import APIException

from apps.core import operations, strict_json
from apps.core.errors import DomainError, Forbidden, TooLarge, near
from apps.core.ids import BadCursor, decode_cursor, encode_cursor
from apps.core.notifications import Wait, check_place, in_thread
from apps.core.operations import Operation, Reply
from apps.core.schemas import json_schema, parse
from apps.mcp.protocol import Exchange, Frames, ProtocolError, Streamed

# How long a client may go without asking for the list again; it changes with a release or the token's scopes.
LIST_TTL_MS: Final = 60_000
# Many clients read the first page only, so it holds all that there is today.
PAGE: Final = 200
_DEFAULT_MAX_BODY: Final = 524_288
# What the message around the arguments may take.
_ENVELOPE: Final = 16_384

# Where the members of a refusal stand in a result's `_meta`.
REFUSAL: Final = "gatehouse/refusal"

T = TypeVar("T")


def page(
    items: Sequence[T], key: Callable[[T], str], cursor: str | None, *, size: int = PAGE
) -> tuple[list[T], str | None]:
    """A page of a list that lives in memory, in the order of the key, and the cursor of the next page.

    :raises ProtocolError: if the cursor is not one of ours.
    """
    after = None
    if cursor is not None:
        try:
            (after,) = decode_cursor(cursor, str)
        except BadCursor as exc:
            raise ProtocolError(INVALID_PARAMS, exc.detail) from exc
    rest = [item for item in sorted(items, key=key) if after is None or key(item) > str(after)]
    shown = rest[:size]
    return shown, encode_cursor(key(shown[-1])) if len(rest) > size else None


def list_tools(exchange: Exchange, params: PaginatedRequestParams | None) -> ListToolsResult:
    """What this caller may call."""
    visible = [tool for tool in tools() if tool.visible_to(exchange.caller)]
    shown, following = page(visible, lambda tool: tool.name, params.cursor if params else None)
    return ListToolsResult(tools=[describe(tool) for tool in shown], next_cursor=following, ttl_ms=LIST_TTL_MS)


def call_tool(exchange: Exchange, params: CallToolRequestParams) -> CallToolResult | Streamed:
    """Run an operation. What it refuses is a result that says how to mend the call; one that waits streams its result.

    :raises ProtocolError: if there is no such tool.
    """
    declared = next((tool for tool in tools() if tool.name == params.name), None)
    if declared is None:
        names = [tool.name for tool in tools() if tool.visible_to(exchange.caller)]
        raise ProtocolError(INVALID_PARAMS, f"Unknown tool: {params.name[:100]}.{near(params.name, names)}")
    try:
        operations.permit(declared, exchange.caller)
        if exchange.body_size > max_body(declared) + _ENVELOPE:
            raise TooLarge(f"The arguments of {declared.name} are over {max_body(declared)} bytes.")
        arguments = params.arguments or {}
        strict_json.check(arguments)
        given = parse(declared.input, arguments)
        if declared.waits and (patience := declared.patience(given)):
            check_place(exchange.caller)
            look = partial(_look, exchange, declared)
            wait = Wait(declared.waits, exchange.caller, given, look)
            return Streamed(partial(_waited, declared, wait, patience, (params.meta or {}).get("progress_token")))
        return _succeeded(declared, operations.call(declared, exchange.caller, given))
    except DomainError as exc:
        return refused(exc)


async def _look(exchange: Exchange, declared: Operation, given: BaseModel) -> Reply:
    """The answer at this moment, to whom the credential stands for at this moment."""
    return await in_thread(lambda: operations.answer(declared, exchange.credential, lambda _: given))


async def _waited(declared: Operation, wait: Wait, patience: float, token: ProgressToken | None) -> Frames:
    """The result of a tool after a wait, as the end of a stream; before it its progress, if the client gave a token."""
    try:
        async with aclosing(wait.answer(patience)) as answers:
            async for reply in answers:
                if isinstance(reply, Reply):
                    yield _succeeded(declared, reply)
                elif reply is None:
                    yield None
                elif token is not None:
                    progress = ProgressNotificationParams(
                        progress_token=token, progress=reply.done, total=reply.total, message=reply.message
                    )
                    yield ProgressNotification(params=progress)
    except DomainError as exc:
        yield refused(exc)
    except APIException:  # only the credential is asked for again
        yield refused(Forbidden("The token is not valid any more."))


def tools() -> list[Operation]:
    return [declared for declared in operations.all_operations() if declared.tool]


def max_body(declared: Operation) -> int:
    """How many bytes a tool's arguments may take: as many as its largest route's body."""
    return max((route.max_body for route in declared.routes), default=_DEFAULT_MAX_BODY)


def max_body_of_any() -> int:
    return max((max_body(tool) for tool in tools()), default=_DEFAULT_MAX_BODY) + _ENVELOPE


def describe(declared: Operation) -> Tool:
    """A tool as it is listed."""
    return Tool(
        name=declared.name,
        title=declared.title,
        description=declared.description,
        input_schema=json_schema(declared.input, "validation"),
        output_schema=json_schema(declared.output, "serialization"),
        annotations=ToolAnnotations(
            title=declared.title,
            read_only_hint=declared.read_only,
            destructive_hint=declared.destructive,
            idempotent_hint=declared.idempotent,
            # What manages its own transactions does so because it calls out.
            open_world_hint=declared.own_transactions,
        ),
    )


def _succeeded(declared: Operation, reply: Reply) -> CallToolResult:
    # "Nothing" has a status of its own over HTTP; here it is the output with none of its members.
    output = reply.output if reply.output is not None else declared.output()
    content = output.model_dump(mode="json")
    return CallToolResult(
        content=[TextContent(text=json.dumps(content, ensure_ascii=False))], structured_content=content
    )


def refused(exc: DomainError) -> CallToolResult:
    """A refusal that the model can read and act on: the sentence, the places, what to do.

    The structured content of a tool has the shape that the tool declares, which clients check. A program finds the
    members of a refusal in its `_meta`.
    """
    errors = [{"pointer": error.pointer, "message": error.message} for error in exc.errors]
    places = [f"- {error.pointer or '/'}: {error.message}" for error in exc.errors]
    members = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in exc.extra.items()]
    document: dict[str, Any] = {"code": exc.code, "detail": exc.detail, "errors": errors, **exc.extra}
    return CallToolResult(
        content=[TextContent(text="\n".join([f"{exc.code}: {exc.detail}", *places, *members, exc.mending]))],
        is_error=True,
        _meta={REFUSAL: document},
    )

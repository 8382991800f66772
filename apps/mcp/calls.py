"""Tools: the declared operations, as they are listed and called."""

import json
from collections.abc import Collection, Mapping
from contextlib import aclosing, suppress
from functools import lru_cache, partial
from typing import Annotated, Any, Final

from django.core import signing
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    ProgressNotification,
    ProgressNotificationParams,
    ProgressToken,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel, Field
from rest_framework.exceptions import APIException

from apps.core import operations, strict_json
from apps.core.errors import DomainError, Forbidden, NotFound, TooLarge, near
from apps.core.notifications import MustWait, Wait, check_place, in_thread
from apps.core.operations import Asks, BaseCaller, Operation, Reply
from apps.core.schemas import Input, Text, json_schema, parse
from apps.mcp import tasks
from apps.mcp.asking import Question, Unanswered, elicit
from apps.mcp.protocol import Exchange, Frames, ProtocolError, Streamed
from apps.mcp.tasks import TaskState
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller

# How long a client may go without asking for the list again; it changes with a release or the token's scopes.
LIST_TTL_MS: Final = 60_000
_DEFAULT_MAX_BODY: Final = 524_288
# What the message around the arguments may take.
_ENVELOPE: Final = 16_384

# The name of a form in an `input_required` result, and for what its state is signed.
_FORM: Final = "form"
_STATE: Final = "mcp request state"

# Where the members of a refusal stand in a result's `_meta`.
REFUSAL: Final = "gatehouse/refusal"
# What an address asks for with `?tools=` to be listed every tool.
ALL: Final = "all"


def refuse_cursor(params: PaginatedRequestParams | None) -> None:
    """Refuse every cursor: each list is one page, since many clients read no other.

    :raises ProtocolError: if there is one.
    """
    if params is not None and params.cursor is not None:
        raise ProtocolError(INVALID_PARAMS, "This is no cursor of this list, which is one page.")


def list_tools(exchange: Exchange, params: PaginatedRequestParams | None) -> ListToolsResult:
    """The tools of the caller's role, and those of the groups that the address asks for.

    :raises ProtocolError: if there is no such group.
    """
    refuse_cursor(params)
    wanted = {name.strip() for name in exchange.groups.split(",")} - {""}
    known = {group for tool in tools() for group in tool.groups}
    if unknown := wanted - known - {ALL}:
        message = f"Unknown tools: {', '.join(sorted(unknown))}. There are {ALL}, {', '.join(sorted(known))}."
        raise ProtocolError(INVALID_PARAMS, message[:1000])
    listed = [CALL_TOOL, *map(describe, listed_to(exchange.caller, wanted))]
    return ListToolsResult(tools=sorted(listed, key=lambda tool: tool.name), ttl_ms=LIST_TTL_MS)


def listed_to(caller: Caller, wanted: Collection[str] = ()) -> list[Operation]:
    """Those of the tools that a caller may call which are listed to it."""
    role = "worker" if caller.kind == Kind.WORKER else "agent"
    return [tool for tool in offered(caller) if ALL in wanted or role in tool.listed_for or tool.groups & set(wanted)]


def call_tool(
    exchange: Exchange, params: CallToolRequestParams
) -> CallToolResult | InputRequiredResult | TaskState | Streamed:
    """Run an operation. What it refuses is a result that says how to mend the call; one that waits streams its result.

    What it needs to know from a person it asks, if the client can show a form: newer ones by a result that the next
    call answers, older ones on the stream.

    :raises ProtocolError: if there is no such tool.
    """
    name, arguments = params.name, params.arguments or {}
    try:
        if name == CALL_TOOL.name:
            strict_json.check(arguments)
            within = parse(CallTool, arguments)
            name, arguments = within.name, within.arguments
        declared = operations.named(name)
        if declared is None or not declared.tool:
            names = [tool.name for tool in tools() if tool.visible_to(exchange.caller)]
            unknown = f"Unknown tool: {name[:100]}.{near(name, names)} find_tools finds one by what it is for."
            if params.name != CALL_TOOL.name:
                raise ProtocolError(INVALID_PARAMS, unknown)
            raise NotFound(unknown, code="unknown_tool")
        read = partial(_read, exchange, declared, arguments)
        if declared.asks and exchange.envelope.can_elicit:
            operations.permit(declared, exchange.caller)
            return _asked(exchange, declared, declared.asks, read(exchange.caller), params)
        return _done(exchange, declared, operations.answer(declared, exchange.credential, read))
    except MustWait as asks:
        try:
            check_place(exchange.caller)
        except DomainError as exc:
            return refused(exc)
        token = (params.meta or {}).get("progress_token")
        return Streamed(partial(_waited, asks.declared, asks.wait, token))
    except DomainError as exc:
        return refused(exc)


def _read(exchange: Exchange, declared: Operation, arguments: Any, caller: BaseCaller) -> BaseModel:
    """The input of a caller who may call."""
    exchange.known = caller  # type: ignore[assignment]  # ours is the only caller
    if exchange.body_size > max_body(declared) + _ENVELOPE:
        raise TooLarge(f"The arguments of {declared.name} are over {max_body(declared)} bytes.")
    strict_json.check(arguments)
    given = parse(declared.input, arguments)
    if declared.waits and declared.patience(given):
        raise MustWait(declared, Wait(declared.waits, caller, given, partial(_look, exchange, declared)))
    return given


def _asked(
    exchange: Exchange, declared: Operation, asks: Asks, given: BaseModel, params: CallToolRequestParams
) -> CallToolResult | InputRequiredResult | TaskState | Streamed:
    """The result of a tool, or the form that comes before it."""
    caller, modern, said, about = exchange.caller, exchange.envelope.modern, None, ""
    if modern and params.request_state is not None:
        said = (params.input_responses or {}).get(_FORM)
        values = (said.content or {}) if isinstance(said, ElicitResult) and said.action == "accept" else None
        about = _unsealed(params.request_state, declared, caller)
        reply = Reply(asks.go_on(caller, given, about, values), status=0)
    else:
        reply = operations.call(declared, caller, given)
    wanted = asks.questionnaire(reply.output)
    if wanted is None or (said is not None and wanted.about == about):  # nobody gave an answer
        return _done(exchange, declared, reply)
    if not modern:
        return Streamed(partial(_asked_on_the_stream, exchange, declared, asks, given, reply))
    state = signing.dumps([caller.principal_id, declared.name, wanted.about], salt=_STATE)
    return InputRequiredResult(input_requests={_FORM: elicit(wanted.text, wanted.fields)}, request_state=state)


def _unsealed(state: str, declared: Operation, caller: Caller) -> str:
    """What a form was about, by the state that came with it."""
    try:
        principal_id, name, about = signing.loads(state, salt=_STATE)
    except signing.BadSignature:
        principal_id, name, about = None, None, ""
    if (principal_id, name) != (caller.principal_id, declared.name):
        raise ProtocolError(INVALID_PARAMS, "The requestState is not one that this tool gave to this caller.")
    return str(about)


async def _asked_on_the_stream(
    exchange: Exchange, declared: Operation, asks: Asks, given: BaseModel, reply: Reply
) -> Frames:
    """Ask until there is nothing more to ask, or nobody answers; then the result, as the end of the stream."""

    def go_on(about: str, values: Mapping[str, Any]) -> BaseModel:
        caller = exchange.credential.caller()
        operations.permit(declared, caller)
        return asks.go_on(caller, given, about, values)

    try:
        about = ""
        with suppress(Unanswered):
            while (wanted := asks.questionnaire(reply.output)) and wanted.about != about:
                about = wanted.about
                question = Question(exchange, elicit(wanted.text, wanted.fields))
                async with aclosing(question.asked()) as asked:
                    async for sent in asked:
                        yield sent
                if not isinstance(question.answer, ElicitResult) or question.answer.action != "accept":
                    break
                reply = Reply(await in_thread(partial(go_on, about, question.answer.content or {})), status=0)
        yield _succeeded(declared, reply)
    except DomainError as exc:
        yield refused(exc)
    except APIException:  # as below
        yield refused(Forbidden("The token is not valid any more."))


async def _look(exchange: Exchange, declared: Operation, given: BaseModel) -> Reply:
    """The answer at this moment, to whom the credential stands for at this moment."""
    return await in_thread(lambda: operations.answer(declared, exchange.credential, lambda _: given))


async def _waited(declared: Operation, wait: Wait, token: ProgressToken | None) -> Frames:
    """The result of a tool after a wait, as the end of a stream; before it its progress, if the client gave a token."""
    try:
        async with aclosing(wait.answer(declared.patience(wait.given))) as answers:
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


def offered(caller: Caller | None = None) -> list[Operation]:
    """The tools that a caller may call, or all."""
    return [tool for tool in tools() if caller is None or tool.visible_to(caller)]


def max_body(declared: Operation) -> int:
    """How many bytes a tool's arguments may take: as many as its largest route's body."""
    return max((route.max_body for route in declared.routes), default=_DEFAULT_MAX_BODY)


@lru_cache(maxsize=1)
def max_body_of_any() -> int:
    return max((max_body(tool) for tool in tools()), default=_DEFAULT_MAX_BODY) + _ENVELOPE


def describe(tool: Operation) -> Tool:
    """A tool as it is listed."""
    return Tool(
        name=tool.name,
        title=tool.title,
        description=description(tool),
        input_schema=asked(json_schema(tool.input, "validation")),
        output_schema=outline(json_schema(tool.output, "serialization")),
        # What the protocol assumes of a tool without a hint is not said. What manages its own transactions calls out.
        annotations=ToolAnnotations(
            read_only_hint=tool.read_only or None,
            destructive_hint=None if tool.destructive else False,
            idempotent_hint=tool.idempotent or None,
            open_world_hint=None if tool.opens_transactions else False,
        ),
    )


def description(tool: Operation) -> str:
    """When to use it, one example, and what to do after a refusal that does not say so itself."""
    example = json.dumps(tool.example, ensure_ascii=False)
    refused = f"\nIf refused: {tool.after_refusal}" if tool.after_refusal else ""
    return f"{tool.description}\nExample: {example}{refused}"


def asked(node: Any) -> Any:
    """A schema of an input without what a caller need not know: that null is taken for what may be left out, and which
    characters a name may not hold.
    """
    if isinstance(node, list):
        return [asked(one) for one in node]
    if not isinstance(node, dict):
        return node
    if "anyOf" in node and node.get("default", node) is None:
        options = [option for option in node["anyOf"] if option != {"type": "null"}]
        rest = {name: value for name, value in node.items() if name not in {"anyOf", "default"}}
        node = {**(options[0] if len(options) == 1 else {"anyOf": options}), **rest}
    return {name: asked(value) for name, value in node.items() if name != "pattern" or not isinstance(value, str)}


def outline(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The members of an output and their types, which is what a client plans with; None if there are none."""
    members = {name: types for name, member in schema["properties"].items() if (types := _types(member))}
    return {"type": "object", "properties": members} if members else None


def _types(schema: Mapping[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return {"anyOf": [_types(one) for one in schema["anyOf"]]}
    return {"type": schema["type"]} if "type" in schema else {}


class CallTool(Input):
    name: Annotated[Text, Field(min_length=1, max_length=100)]
    """As find_tools answers it."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """As its input_schema says."""


# Not an operation: it calls one, and answers as that one does.
CALL_TOOL: Final = Tool(
    name="call_tool",
    title="Call a tool that is not listed",
    description=(
        "Call any tool of this server by its name, listed or not, once find_tools has shown its arguments.\n"
        'Example: {"name": "cancel_task", "arguments": {"task_id": "task_7"}}\n'
        "If refused: the refusal is that of the tool called. An unknown name is found with find_tools."
    ),
    input_schema=json_schema(CallTool, "validation"),
    annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True),
)


def _done(exchange: Exchange, declared: Operation, reply: Reply) -> CallToolResult | TaskState:
    """The result, or the task that will have it, for a client that knows tasks."""
    ref = declared.under_way(reply.output) if tasks.is_declared(exchange) else None
    if ref:
        with suppress(Forbidden):  # it may call, but not look
            return tasks.begun(exchange, ref)
    return _succeeded(declared, reply)


def _succeeded(declared: Operation, reply: Reply) -> CallToolResult:
    # "Nothing" has a status of its own over HTTP; here it is the output with none of its members.
    output = reply.output if reply.output is not None else declared.output()
    return tasks.result_of(output.model_dump(mode="json"))


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

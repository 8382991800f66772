"""The methods that this server answers, by name."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.db.models import QuerySet
from mcp_types import (
    INVALID_PARAMS,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    CompletionsCapability,
    DiscoverResult,
    EmptyResult,
    InitializeRequestParams,
    InitializeResult,
    LoggingCapability,
    PromptReference,
    PromptsCapability,
    ResourcesCapability,
    Result,
    ServerCapabilities,
    ToolsCapability,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from apps.core import operations
from apps.digests import selectors as digests
from apps.mcp import calls, prompts, resources, subscriptions, tasks
from apps.mcp.protocol import SERVER, Exchange, ProtocolError, Streamed, read_params, unknown_method
from apps.memory import selectors as memory
from apps.principals.tenancy import Caller
from apps.workers.models import Offer, Worker

INSTRUCTIONS: Final = (
    "Gatehouse gives you an inbox, a task queue and a planner that outlive this conversation. Begin with "
    "memory_bootstrap: it says what happened while you were away. Hand work out with carry_out_request or queue_task, "
    "go on with other things, and read the receipts that come back with read_inbox; ack_through tells what you have "
    "taken note of. The list of tools is short: find_tools finds the others, and call_tool calls them."
)

Method = Callable[[Exchange, Any], Result | Streamed]


def answer(exchange: Exchange, table: Mapping[str, Method]) -> Result | Streamed:
    """Let the method that a request names answer it.

    :raises ProtocolError: if there is none, or its parameters have not its shape.
    """
    method = table.get(exchange.envelope.method)
    is_of_extension = exchange.envelope.modern and exchange.envelope.method in tasks.METHODS
    params = exchange.envelope.params if is_of_extension else read_params(exchange.envelope)
    if method is None:
        raise unknown_method(exchange.envelope)
    return method(exchange, params)


def initialize(exchange: Exchange, params: InitializeRequestParams) -> InitializeResult:
    """The handshake of older revisions. It agrees on one and leaves nothing behind."""
    known = params.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
    return InitializeResult(
        protocol_version=params.protocol_version if known else LATEST_HANDSHAKE_VERSION,
        capabilities=_capabilities(subscribe=False, logging=LoggingCapability()),
        server_info=SERVER,
        instructions=INSTRUCTIONS,
    )


def discover(exchange: Exchange, params: object) -> DiscoverResult:
    return DiscoverResult(
        supported_versions=list(MODERN_PROTOCOL_VERSIONS),
        capabilities=_capabilities(subscribe=True).model_copy(
            update={"extensions": {tasks.EXTENSION: dict[str, Any]()}}
        ),
        instructions=INSTRUCTIONS,
        ttl_ms=calls.LIST_TTL_MS,
    )


def _capabilities(*, subscribe: bool, logging: LoggingCapability | None = None) -> ServerCapabilities:
    return ServerCapabilities(
        tools=ToolsCapability(list_changed=False),
        resources=ResourcesCapability(subscribe=subscribe, list_changed=False),
        prompts=PromptsCapability(list_changed=False),
        completions=CompletionsCapability(),
        logging=logging,
    )


def acknowledge(exchange: Exchange, params: object) -> EmptyResult:
    """`ping`, and `logging/setLevel`: there is nothing to keep, and this server sends no log messages."""
    return EmptyResult()


_MOST_COMPLETIONS: Final = 100
_MOST_LOOKED_AT: Final = 1_000


def _column(rows: Callable[[Caller], QuerySet[Any]], column: str) -> Callable[[Caller, str], list[str]]:
    def from_here_on(caller: Caller, typed: str) -> list[str]:
        found = rows(caller).filter(**{f"{column}__gte": typed}).order_by(column).values_list(column, flat=True)
        return list(found.distinct()[:_MOST_LOOKED_AT])

    return from_here_on


def _entries(caller: Caller, _: str) -> list[str]:
    return [entry.ref for entry in digests.newest_entries(caller.principal_id, limit=_MOST_COMPLETIONS).entries]


# For the names of variables and arguments: whose callers are shown the values, and where these are.
_VALUES: Final[Mapping[str, tuple[str, Callable[[Caller, str], list[str]]]]] = {
    "ref": ("read_inbox", _entries),
    "worker_id": ("list_workers", _column(lambda _: Worker.objects.registered(), "worker_id")),
    "tool": ("list_workers", _column(lambda _: Offer.objects.filter(withdrawn_at=None), "name")),
    "subject_id": ("get_subject", _column(memory.known_to, "key")),
}


def complete(exchange: Exchange, params: CompleteRequestParams) -> CompleteResult:
    """Values that begin with what was typed; none for free text.

    :raises ProtocolError: if there is no such prompt, template or variable.
    """
    caller, typed = exchange.caller, params.argument.value
    if isinstance(params.ref, PromptReference):
        known = {name: name for name in prompts.named(params.ref.name).arguments}
    else:
        known = resources.variables(params.ref.uri)
    if params.argument.name not in known:
        raise ProtocolError(INVALID_PARAMS, f"Unknown argument: {params.argument.name[:100]}")
    listed, values = _VALUES.get(known[params.argument.name], (None, None))
    fitting: list[str] = []
    if listed and values and "\x00" not in typed and operations.find(listed).visible_to(caller):
        with caller.acting():
            fitting = [value for value in values(caller, typed) if value.startswith(typed)]
    shown = fitting[:_MOST_COMPLETIONS]
    return CompleteResult(completion=Completion(values=shown, has_more=len(fitting) > len(shown)))


METHODS: Final[Mapping[str, Method]] = {
    "initialize": initialize,
    "ping": acknowledge,
    "logging/setLevel": acknowledge,
    "server/discover": discover,
    "tools/list": calls.list_tools,
    "tools/call": calls.call_tool,
    "resources/list": resources.list_resources,
    "resources/templates/list": resources.list_templates,
    "resources/read": resources.read,
    "resources/subscribe": subscriptions.subscribe,
    "resources/unsubscribe": subscriptions.subscribe,
    "subscriptions/listen": subscriptions.listen,
    "prompts/list": prompts.list_prompts,
    "prompts/get": prompts.get,
    "completion/complete": complete,
    **tasks.METHODS,
}

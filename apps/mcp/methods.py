"""The methods that this server answers, by name."""

from collections.abc import Callable, Mapping
from typing import Any, Final

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

from apps.core.errors import DomainError
from apps.mcp import calls, prompts, resources, subscriptions, tasks
from apps.mcp.protocol import SERVER, Exchange, ProtocolError, Streamed, read_params, unknown_method
from apps.mcp.resources import Completions
from apps.principals.tenancy import Caller

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


def complete(exchange: Exchange, params: CompleteRequestParams) -> CompleteResult:
    """Values that begin with what was typed. Prompts take free text, for which there is nothing to offer.

    :raises ProtocolError: if there is no such prompt, template or variable.
    """
    source: Completions | None = None
    if isinstance(params.ref, PromptReference):
        known = [name for name, _ in prompts.named(params.ref.name).required]
    else:
        uri = params.ref.uri
        address = next((address for address in resources.ADDRESSES if address.uri == uri), None)
        if address is None:
            raise ProtocolError(INVALID_PARAMS, f"Unknown resource template: {uri[:100]}")
        known, source = list(address.template.variable_names), address.completions
    if params.argument.name not in known:
        raise ProtocolError(INVALID_PARAMS, f"Unknown argument: {params.argument.name[:100]}")
    values = _listed(exchange.caller, source) if source else []
    fitting = [value for value in values if value.startswith(params.argument.value)]
    shown = fitting[:_MOST_COMPLETIONS]
    return CompleteResult(
        completion=Completion(values=shown, total=len(fitting), has_more=len(fitting) > _MOST_COMPLETIONS)
    )


def _listed(caller: Caller, source: Completions) -> list[str]:
    """The first page of a list; nothing if the caller may not read it."""
    found = resources.reader(source.route)
    if found is None:
        return []
    try:
        content: Any = resources.read_with(found, caller, {})
    except DomainError:
        return []
    return [str(item[source.value]) for item in content.get(source.items, []) if source.value in item]


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

"""Resources: what agents read by address. Each is a URI over a GET route, and so over one operation."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mcp.shared.uri_template import UriTemplate
from mcp_types import (
    INVALID_PARAMS,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from apps.core import operations
from apps.core.errors import DomainError, NotFound
from apps.core.operations import Operation
from apps.core.schemas import parse_strings
from apps.digests import selectors as digests
from apps.digests.services import inbox_topic
from apps.mcp.calls import LIST_TTL_MS, page
from apps.mcp.protocol import Exchange, ProtocolError, refused
from apps.principals.tenancy import Caller
from apps.tasks.signals import task_topic

_JSON: Final = "application/json"
# What revisions with a handshake call a resource that is not there.
_RESOURCE_NOT_FOUND: Final = -32002


@dataclass(frozen=True, slots=True)
class Address:
    """A URI, or a template of them, and the route that answers it; its variables are the route's, in order."""

    uri: str
    route: str
    name: str
    title: str
    description: str
    topic: Callable[[Caller, str], str] | None = None
    """Of the caller and the first variable: the topic that is notified of a change."""
    waits: Callable[[Caller], bool] | None = None
    """Whether something in it waits for its reader."""
    template: UriTemplate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", UriTemplate.parse(self.uri))

    @property
    def concrete(self) -> bool:
        return not self.template.variables


def _has_unread(caller: Caller) -> bool:
    with caller.acting():
        return digests.unread_counts(caller.principal_id).visible > 0


ADDRESSES: Final = (
    Address(
        "inbox://me",
        "/api/v1/inbox",
        "inbox",
        "Your inbox",
        "Entries that wait for you, newest state first.",
        topic=lambda caller, _: inbox_topic(caller.principal_id),
        waits=_has_unread,
    ),
    Address(
        "inbox://me/entries/{ref}",
        "/api/v1/inbox/entries/{}",
        "inbox_entry",
        "One inbox entry",
        "An entry of your inbox by its ref (ent_42).",
    ),
    Address("receipt://{id}", "/api/v1/receipts/{}", "receipt", "A receipt", "A receipt by receipt_id or uuid."),
    Address(
        "task://{id}",
        "/api/v1/tasks/{}",
        "task",
        "A task",
        "The state of a task by its id (task_7).",
        topic=lambda caller, task: task_topic(caller.tenant_id, task),
    ),
    Address(
        "task://{id}/result",
        "/api/v1/tasks/{}/result",
        "task_result",
        "A task's result",
        "What a finished task gave.",
    ),
    Address(
        "envelope://{subject_id}",
        "/api/v1/subjects/{}/envelope",
        "memory_envelope",
        "A memory envelope",
        "What is known of a subject (USER:42), as it stands at this moment.",
    ),
    Address("plan://{id}", "/api/v1/plans/{}", "plan", "A plan", "A delegation plan with its steps."),
    Address(
        "worker://{id}/manifest",
        "/api/v1/workers/{}/manifest",
        "worker_manifest",
        "Manifest of an MCP worker",
        "What an MCP worker can do: its tools with their schemas.",
    ),
)


@dataclass(frozen=True, slots=True)
class Reader:
    """The operation behind a route, and the names that the route's parameters have in its input."""

    declared: Operation
    parameters: tuple[str, ...]


def list_resources(exchange: Exchange, params: PaginatedRequestParams | None) -> ListResourcesResult:
    shown, following = _page(exchange.caller, params, concrete=True)
    resources = [Resource(uri=address.uri, **_described(address)) for address in shown]
    return ListResourcesResult(resources=resources, next_cursor=following, ttl_ms=LIST_TTL_MS)


def list_templates(exchange: Exchange, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    shown, following = _page(exchange.caller, params, concrete=False)
    templates = [ResourceTemplate(uri_template=address.uri, **_described(address)) for address in shown]
    return ListResourceTemplatesResult(resource_templates=templates, next_cursor=following, ttl_ms=LIST_TTL_MS)


def _page(caller: Caller, params: PaginatedRequestParams | None, *, concrete: bool) -> tuple[list[Address], str | None]:
    """Those of the addresses that the caller may read."""
    readable = [
        address
        for address in ADDRESSES
        if address.concrete == concrete
        and (found := reader(address.route)) is not None
        and found.declared.visible_to(caller)
    ]
    return page(readable, lambda address: address.uri, params.cursor if params else None)


def _described(address: Address) -> dict[str, Any]:
    return {
        "name": address.name,
        "title": address.title,
        "description": address.description,
        "mime_type": _JSON,
    }


def variables(uri: str) -> dict[str, str]:
    """The variables of a template, and what the operation behind it calls each.

    :raises ProtocolError: if there is no such template.
    """
    address = next((address for address in ADDRESSES if address.uri == uri), None)
    found = reader(address.route) if address else None
    if address is None or found is None:
        raise ProtocolError(INVALID_PARAMS, f"Unknown resource template: {uri[:100]}")
    return dict(zip(address.template.variable_names, found.parameters, strict=True))


def read(exchange: Exchange, params: ReadResourceRequestParams) -> ReadResourceResult:
    """The present content of a resource. It may change at any time, so nobody may keep it.

    :raises ProtocolError: if there is no such resource for this caller.
    """
    try:
        content = _content(exchange.caller, params.uri)
    except DomainError as exc:
        raise _fault(exchange, params.uri, exc) from exc
    text = json.dumps(content, ensure_ascii=False)
    return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type=_JSON, text=text)])


def check(exchange: Exchange, uri: str) -> None:
    """:raises ProtocolError: if there is no such resource for this caller."""
    try:
        _content(exchange.caller, uri)
    except DomainError as exc:
        raise _fault(exchange, uri, exc) from exc


def topic(caller: Caller, uri: str) -> str | None:
    """The topic that is notified when a resource changes; None if there is none, or the caller may not read it."""
    for address in ADDRESSES:
        variables = address.template.match(uri)
        if variables is None or address.topic is None:
            continue
        try:
            _check(address, caller, uri)
        except DomainError:
            return None
        return address.topic(caller, str(next(iter(variables.values()), "")))
    return None


def waits(caller: Caller, uri: str) -> bool:
    """Whether something in a resource waits for its reader already."""
    return any(address.waits(caller) for address in ADDRESSES if address.uri == uri and address.waits)


def _check(address: Address, caller: Caller, uri: str) -> None:
    """Refuse a caller who may not read the resource. One with a fixed address is not read for it: reading marks entries."""
    found = reader(address.route)
    if address.concrete and found is not None:
        operations.permit(found.declared, caller)
    else:
        _content(caller, uri)


def _content(caller: Caller, uri: str) -> Any:
    for address in ADDRESSES:
        variables = address.template.match(uri)
        found = reader(address.route)
        if variables is not None and found is not None:
            values = dict(zip(found.parameters, variables.values(), strict=True))
            return read_with(found, caller, values)
    raise NotFound("There is no resource at this address.")


def read_with(found: Reader, caller: Caller, values: Mapping[str, Any]) -> Any:
    """What an operation answers to values that came as text, as JSON."""
    operations.permit(found.declared, caller)
    reply = operations.call(found.declared, caller, parse_strings(found.declared.input, values))
    return reply.output.model_dump(mode="json") if reply.output is not None else {}


def reader(route: str) -> Reader | None:
    """The operation that answers GET at a route; parameters are written `{}`."""
    for declared in operations.all_operations():
        for candidate in declared.routes:
            if candidate.method == "GET" and re.sub(r"{\w+}", "{}", candidate.path) == route:
                return Reader(declared, candidate.parameters)
    return None


def _fault(exchange: Exchange, uri: str, exc: DomainError) -> ProtocolError:
    fault = refused(exc, uri=uri)
    if isinstance(exc, NotFound) and not exchange.envelope.modern:
        fault.code = _RESOURCE_NOT_FOUND
    return fault

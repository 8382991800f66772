"""Resources: what agents read by address. Each is a URI over a GET route, and so over one operation."""

import json
from collections.abc import Callable
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
from apps.mcp.calls import LIST_TTL_MS, refuse_cursor
from apps.mcp.protocol import Exchange, ProtocolError, refused
from apps.principals.tenancy import Caller
from apps.tasks.signals import task_topic

_JSON: Final = "application/json"
# What revisions with a handshake call a resource that is not there.
_RESOURCE_NOT_FOUND: Final = -32002


@dataclass(frozen=True, slots=True)
class Address:
    """A URI, or a template of them, and the operation that answers it; its variables are its GET route's, in order."""

    uri: str
    operation: str
    name: str
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

    @property
    def declared(self) -> Operation:
        return operations.find(self.operation)

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the operation calls the variables."""
        return next(route.parameters for route in self.declared.routes if route.method == "GET")


def _has_unread(caller: Caller) -> bool:
    with caller.acting():
        return digests.unread_counts(caller.principal_id).visible > 0


ADDRESSES: Final = (
    Address(
        "inbox://me",
        "read_inbox",
        "inbox",
        topic=lambda caller, _: inbox_topic(caller.principal_id),
        waits=_has_unread,
    ),
    Address("inbox://me/entries/{ref}", "get_entry", "inbox_entry"),
    Address("receipt://{id}", "get_receipt", "receipt"),
    Address("task://{id}", "check_task_status", "task", topic=lambda caller, task: task_topic(caller.tenant_id, task)),
    Address("task://{id}/result", "fetch_task_result", "task_result"),
    Address("envelope://{subject_id}", "get_memory_envelope", "memory_envelope"),
    Address("plan://{id}", "get_plan", "plan"),
    Address("worker://{id}/manifest", "get_worker_manifest", "worker_manifest"),
)


def list_resources(exchange: Exchange, params: PaginatedRequestParams | None) -> ListResourcesResult:
    resources = [Resource(uri=one.uri, **_described(one)) for one in _readable(exchange.caller, params) if one.concrete]
    return ListResourcesResult(resources=resources, ttl_ms=LIST_TTL_MS)


def list_templates(exchange: Exchange, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    readable = [one for one in _readable(exchange.caller, params) if not one.concrete]
    templates = [ResourceTemplate(uri_template=one.uri, **_described(one)) for one in readable]
    return ListResourceTemplatesResult(resource_templates=templates, ttl_ms=LIST_TTL_MS)


def _readable(caller: Caller, params: PaginatedRequestParams | None) -> list[Address]:
    refuse_cursor(params)
    return [address for address in ADDRESSES if address.declared.visible_to(caller)]


def _described(address: Address) -> dict[str, Any]:
    return {
        "name": address.name,
        "title": address.declared.title,
        "description": address.declared.description,
        "mime_type": _JSON,
    }


def variables(uri: str) -> dict[str, str]:
    """The variables of a template, and what the operation behind it calls each.

    :raises ProtocolError: if there is no such template.
    """
    address = next((address for address in ADDRESSES if address.uri == uri), None)
    if address is None:
        raise ProtocolError(INVALID_PARAMS, f"Unknown resource template: {uri[:100]}")
    return dict(zip(address.template.variable_names, address.parameters, strict=True))


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
    if address.concrete:
        operations.permit(address.declared, caller)
    else:
        _content(caller, uri)


def _content(caller: Caller, uri: str) -> Any:
    for address in ADDRESSES:
        variables = address.template.match(uri)
        if variables is not None:
            declared = address.declared
            operations.permit(declared, caller)
            values = dict(zip(address.parameters, variables.values(), strict=True))
            reply = operations.call(declared, caller, parse_strings(declared.input, values))
            return reply.output.model_dump(mode="json") if reply.output is not None else {}
    raise NotFound("There is no resource at this address.")


def _fault(exchange: Exchange, uri: str, exc: DomainError) -> ProtocolError:
    fault = refused(exc, uri=uri)
    if isinstance(exc, NotFound) and not exchange.envelope.modern:
        fault.code = _RESOURCE_NOT_FOUND
    return fault

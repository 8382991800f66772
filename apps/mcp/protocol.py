"""JSON-RPC and the two eras of the protocol: from a body to a request, from an outcome to a body.

Pure: no database, no HTTP objects. The types and the ladder of checks are those of the official package.
"""

import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
    unsupported_protocol_version_rejection,
)
from mcp_types import (
    DEFAULT_NEGOTIATED_VERSION,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    Implementation,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    Notification,
    RequestId,
    Result,
    methods,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from apps.core import strict_json
from apps.core.errors import DomainError, RateLimited, Unavailable
from apps.core.operations import Credential
from apps.core.schemas import refusal
from apps.principals.tenancy import Caller
from config import VERSION

Frame = JSONRPCRequest | JSONRPCNotification
Answer = JSONRPCResponse | JSONRPCError

# Those that it reads of a request.
HEADERS: Final = (MCP_PROTOCOL_VERSION_HEADER, MCP_METHOD_HEADER, MCP_NAME_HEADER, MCP_SESSION_ID_HEADER)

# How the session id of a client of an older revision ends that can elicit: nothing else is kept of its handshake.
_ELICITS: Final = "-elicits"

# The package knows the names of no extension's methods.
_NAMED_BY_TASK: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

SERVER: Final = Implementation(name="gatehouse", title="Gatehouse", version=VERSION)
_SERVER_INFO: Final = {SERVER_INFO_META_KEY: SERVER.model_dump(by_alias=True, exclude_none=True)}


class ProtocolError(Exception):
    """A JSON-RPC error: the call itself is at fault, not what it asks for."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message as it came, before anybody looked at what it asks for."""

    id: RequestId | None
    """None: a notification, which nobody answers."""
    method: str
    params: Mapping[str, Any] | None
    version: str
    capabilities: Mapping[str, Any]
    """What the client says it can do: by its session id, or on revisions that say so with every request, in full."""

    @property
    def modern(self) -> bool:
        return self.version in MODERN_PROTOCOL_VERSIONS

    @property
    def can_elicit(self) -> bool:
        """Whether the client can show a form to a person."""
        said = self.capabilities.get("elicitation")
        known = self.modern or ("elicitation/create", self.version) in methods.SERVER_REQUESTS
        return known and isinstance(said, dict) and (not said or "form" in said)


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request in the hands of its method."""

    envelope: Envelope
    body_size: int
    credential: Credential
    """What the request presented: who goes on after a wait, calls by it again."""
    known: Caller | None = None
    """Who that is, once somebody has looked."""
    groups: str = ""
    """The groups of tools that the address asks to be listed, as `?tools=memory,plans`."""

    @property
    def caller(self) -> Caller:
        """:raises rest_framework.exceptions.APIException: if the credential is not valid."""
        if self.known is None:
            self.known = self.credential.caller()  # type: ignore[assignment]  # ours is the only caller
        return self.known  # type: ignore[return-value]  # as above


Frames = AsyncGenerator[Notification[Any, Any] | JSONRPCRequest | Result | None, None]


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer that takes its time: notifications and requests, at last a result. None keeps the stream from looking dead.

    It runs outside the request's transaction and holds no database connection.
    """

    frames: Callable[[], Frames]


def decode(body: bytes) -> dict[str, Any]:
    """The one message in a body.

    :raises ProtocolError: if it is not JSON, or not one JSON object.
    """
    try:
        message = strict_json.decode(body)
    except (strict_json.NotJSON, strict_json.UnstorableJSON) as exc:
        raise ProtocolError(PARSE_ERROR, f"Parse error: {exc.detail}") from exc
    if not isinstance(message, dict):
        # Batches were part of one early revision only, and no client needs them.
        raise ProtocolError(INVALID_REQUEST, "The body must be a single JSON-RPC request or notification.")
    return message


def read_frame(message: Mapping[str, Any]) -> Frame | Answer:
    """The JSON-RPC frame of a message.

    :raises ProtocolError: if it is neither a request, a notification nor an answer to a request of the server's.
    """
    # The presence of members tells them apart, not which of them happens to validate.
    kind: type[Frame | Answer] = JSONRPCRequest if "id" in message else JSONRPCNotification
    if "method" not in message and not {"result", "error"}.isdisjoint(message):
        kind = JSONRPCError if "error" in message else JSONRPCResponse
    try:
        strict_json.check({name: value for name, value in message.items() if name != "params"})
        return kind.model_validate(message)
    except (ValidationError, strict_json.UnstorableJSON) as exc:
        raise ProtocolError(
            INVALID_REQUEST, "The body must be a single JSON-RPC request or notification.", data=_faults(exc)
        ) from exc


def open_envelope(frame: Frame, message: Mapping[str, Any], headers: Mapping[str, str]) -> Envelope:
    """Find out which revision a message speaks, and whether it keeps its rules.

    :param headers: by lower-case name.
    :raises ProtocolError: naming the first thing that is wrong.
    """
    if _is_modern(message, headers):
        return _open_modern(frame, message, headers)
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
    return Envelope(
        id=getattr(frame, "id", None),
        method=frame.method,
        params=frame.params,
        # The handshake itself is what agrees on a revision.
        version=LATEST_HANDSHAKE_VERSION if frame.method == "initialize" else version,
        capabilities={"elicitation": {}} if headers.get(MCP_SESSION_ID_HEADER, "").endswith(_ELICITS) else {},
    )


def session_id(envelope: Envelope) -> str | None:
    """The id for a client whose handshake says that it can elicit; it says so with each request then."""
    said = (envelope.params or {}).get("capabilities") if envelope.method == "initialize" else None
    elicits = isinstance(said, dict) and replace(envelope, capabilities=said).can_elicit
    return f"{secrets.token_hex(16)}{_ELICITS}" if elicits else None


def _is_modern(message: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    """Whether either the header or the message claims a revision without handshake.

    What claims an unknown revision is judged by the newer rules, which can say so.
    """
    header = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    if header is not None and header not in HANDSHAKE_PROTOCOL_VERSIONS:
        return True
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return (
        isinstance(meta, dict)
        and PROTOCOL_VERSION_META_KEY in meta
        and meta[PROTOCOL_VERSION_META_KEY] not in HANDSHAKE_PROTOCOL_VERSIONS
        and message.get("method") != "initialize"
    )


def _open_modern(frame: Frame, message: Mapping[str, Any], headers: Mapping[str, str]) -> Envelope:
    if isinstance(frame, JSONRPCNotification):
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER, "")
        if (rejection := unsupported_protocol_version_rejection(version)) is not None:
            raise ProtocolError(rejection.code, rejection.message, rejection.data)
        return Envelope(id=None, method=frame.method, params=frame.params, version=version, capabilities={})
    verdict = classify_inbound_request(message, headers=headers)
    if isinstance(verdict, InboundLadderRejection):
        raise ProtocolError(verdict.code, verdict.message, verdict.data)
    named = (frame.params or {}).get("taskId") if frame.method in _NAMED_BY_TASK else None
    if named is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != named:
        raise ProtocolError(HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} must be the task's id.")
    capabilities = verdict.client_capabilities
    return Envelope(
        id=frame.id,
        method=frame.method,
        params=frame.params,
        version=verdict.protocol_version,
        capabilities=capabilities if isinstance(capabilities, dict) else {},
    )


def read_params(envelope: Envelope) -> Any:
    """The parameters of a method of the specification, typed.

    :raises ProtocolError: if the revision has no such method, or the parameters have not its shape.
    """
    try:
        strict_json.check({name: value for name, value in (envelope.params or {}).items() if name != "arguments"})
        return methods.parse_client_request(envelope.method, envelope.version, envelope.params).params
    except KeyError:
        raise unknown_method(envelope) from None
    except (ValidationError, strict_json.UnstorableJSON) as exc:
        raise ProtocolError(INVALID_PARAMS, "Invalid request parameters", data=_faults(exc)) from exc


def refused(exc: DomainError, **data: Any) -> ProtocolError:
    """A refusal as an error, for methods that have no other way to refuse."""
    code = INTERNAL_ERROR if isinstance(exc, RateLimited | Unavailable) else INVALID_PARAMS
    return ProtocolError(code, exc.detail, data={**data, "code": exc.code})


def unknown_method(envelope: Envelope) -> ProtocolError:
    return ProtocolError(METHOD_NOT_FOUND, "Method not found", data=envelope.method)


def _faults(exc: ValidationError | strict_json.UnstorableJSON) -> list[dict[str, str]]:
    errors = refusal(exc).errors if isinstance(exc, ValidationError) else exc.errors
    return [{"pointer": error.pointer, "message": error.message} for error in errors[:5]]


def answer(envelope: Envelope, result: Result) -> dict[str, Any]:
    """The body that carries a result, in the shape of the request's revision."""
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    if envelope.modern:
        dumped.setdefault("resultType", "complete")
        dumped["_meta"] = _SERVER_INFO | (dumped.get("_meta") or {})
    elif envelope.method in methods.SPEC_CLIENT_METHODS:
        dumped = methods.serialize_server_result(envelope.method, envelope.version, dumped)
    return {"jsonrpc": "2.0", "id": envelope.id, "result": dumped}


def frame(envelope: Envelope, sent: Notification[Any, Any] | JSONRPCRequest | Result | None) -> bytes:
    """One event of a stream."""
    if sent is None:
        return b": heartbeat\r\n\r\n"
    if not isinstance(sent, Result):
        body = {"jsonrpc": "2.0", **sent.model_dump(by_alias=True, mode="json", exclude_none=True)}
    else:
        body = answer(envelope, sent)
    return event(body)


def event(body: Mapping[str, Any]) -> bytes:
    """A message as a server-sent event."""
    return f"event: message\r\ndata: {json.dumps(body)}\r\n\r\n".encode()


def error(request_id: RequestId | None, fault: ProtocolError) -> dict[str, Any]:
    """The body that carries an error. An id that could not be read is null."""
    members = {"code": fault.code, "message": fault.message}
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "error": members if fault.data is None else members | {"data": fault.data},
    }


def status_of(fault: ProtocolError, envelope: Envelope | None) -> int:
    """The HTTP status of an error. Older revisions answer whatever got as far as a method with 200."""
    if envelope is not None and not envelope.modern:
        return 200
    return ERROR_CODE_HTTP_STATUS.get(fault.code, 200)


def defect(trace_id: str) -> ProtocolError:
    """What a caller hears of an unexpected exception: where to look, nothing else."""
    return ProtocolError(
        INTERNAL_ERROR,
        "This is a defect of the server; the trace id finds it in the logs.",
        data={"trace_id": trace_id},
    )

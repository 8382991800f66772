import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import ClassVar, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.request import validate_host
from django.http.response import HttpResponseBase
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse
from opentelemetry.trace import SpanKind
from pydantic_core import to_json
from rest_framework.exceptions import APIException, PermissionDenied, UnsupportedMediaType

from apps.core import tracing
from apps.core.problems import trace_id
from apps.core.views import TokenView, body_within
from apps.mcp import asking, calls, methods, protocol
from apps.mcp.methods import Method
from apps.mcp.protocol import Exchange, ProtocolError, Streamed

logger = logging.getLogger(__name__)

# The headers that the protocol reads, and where Django keeps them: to build `request.headers` takes longer than a call.
_HEADERS: Final = {name: f"HTTP_{name.upper().replace('-', '_')}" for name in protocol.HEADERS}


class EndpointView(TokenView):
    """`/mcp`: one message in, one answer out, in JSON whatever the client accepts.

    A client that opens a stream with `GET` must be answered 405, not 406: a 406 leaves some clients without a tool.
    """

    http_method_names = ["post", "options"]
    schema = None
    methods: ClassVar[Mapping[str, Method]] = methods.METHODS

    def post(self, request: HttpRequest) -> HttpResponseBase:
        """Declares the method to DRF; :meth:`answer` answers it."""
        return self.answer(request)

    def answer(self, request: HttpRequest, **_: str) -> HttpResponseBase:
        credential = self.credential(request)
        refuse_foreign_origin(request)
        body = body_within(request, calls.max_body_of_any())
        if body and request.content_type != "application/json":
            raise UnsupportedMediaType(request.content_type or "")
        frame = envelope = None
        try:
            message = protocol.decode(body)
            frame = protocol.read_frame(message)
            if isinstance(frame, JSONRPCResponse | JSONRPCError):
                asking.hand_over(credential.caller(), frame)  # type: ignore[arg-type]  # ours is the only caller
                return HttpResponse(status=202)
            headers = {name: request.META[key] for name, key in _HEADERS.items() if key in request.META}
            envelope = protocol.open_envelope(frame, message, headers)
            if envelope.id is None:
                credential.caller()
                return HttpResponse(status=202)
            exchange = Exchange(
                envelope=envelope,
                body_size=len(body),
                credential=credential,
                groups=",".join(request.GET.getlist("tools")) if request.META["QUERY_STRING"] else "",
            )
            if envelope.method != "tools/call":  # which finds it out by the beginning of its transaction
                exchange.known = credential.caller()  # type: ignore[assignment]  # as above
            response = self._answer(exchange)
        except ProtocolError as fault:
            credential.caller()  # who is nobody learns nothing else
            request_id = frame.id if isinstance(frame, JSONRPCRequest) else None
            return JsonResponse(protocol.error(request_id, fault), status=protocol.status_of(fault, envelope))
        request.user = exchange.caller  # type: ignore[assignment]  # for the log; nobody unknown is answered
        return response

    def _answer(self, exchange: Exchange) -> HttpResponseBase:
        # An agent with OpenTelemetry names its trace in the message (SEP-414), and seldom in a header of HTTP.
        meta = (exchange.envelope.params or {}).get("_meta")
        traced: AbstractContextManager[object] = nullcontext()
        if isinstance(meta, dict) and "traceparent" in meta:
            traced = tracing.span(exchange.envelope.method, meta, SpanKind.SERVER)
        try:
            with traced:
                outcome = methods.answer(exchange, self.methods)
        except (ProtocolError, APIException):
            raise
        except Exception as exc:  # a defect is answered as an error of its request, and logged as itself
            logger.exception("mcp_method_failed", extra={"method": exchange.envelope.method})
            raise protocol.defect(trace_id()) from exc
        if not isinstance(outcome, Streamed):
            body = to_json(protocol.answer(exchange.envelope, outcome))
            response = HttpResponse(body, content_type="application/json")
            if session_id := protocol.session_id(exchange.envelope):
                response[MCP_SESSION_ID_HEADER] = session_id
            return response
        return StreamingHttpResponse(
            _events(exchange, outcome, trace_id()),
            content_type="text/event-stream",
            headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
        )


async def _events(exchange: Exchange, outcome: Streamed, trace: str) -> AsyncIterator[bytes]:
    envelope = exchange.envelope
    async with aclosing(outcome.frames()) as frames:
        try:
            async for sent in frames:
                yield protocol.frame(envelope, sent)
        except Exception:  # the status is long sent: the stream itself must say that it ends here
            logger.exception("mcp_stream_failed", extra={"method": envelope.method})
            yield protocol.event(protocol.error(envelope.id, protocol.defect(trace)))


def refuse_foreign_origin(request: HttpRequest) -> None:
    """Refuse what a page of another site sends through its reader's browser (DNS rebinding).

    The middleware has checked the Host header; a browser names the page's own host in Origin.

    :raises PermissionDenied: if Origin is neither a host of this deployment nor a trusted origin.
    """
    origin = request.META.get("HTTP_ORIGIN")
    if origin is None or origin in settings.CSRF_TRUSTED_ORIGINS:
        return
    named = [host for host in settings.ALLOWED_HOSTS if host != "*"]
    try:
        hostname = urlsplit(origin).hostname or ""
    except ValueError:
        hostname = ""
    if not validate_host(f"[{hostname}]" if ":" in hostname else hostname, named):
        raise PermissionDenied("Requests from this origin are not answered.")

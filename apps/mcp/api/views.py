import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.conf import settings
from django.db import connection
from django.http import StreamingHttpResponse
from django.http.request import validate_host
from mcp_types import JSONRPCRequest
from rest_framework.exceptions import NotAuthenticated, PermissionDenied
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core.api.parsers import RawJSONParser
from apps.core.api.problems import trace_id
from apps.core.http import caller_of, renewed
from apps.core.operations import Acting
from apps.mcp import calls, methods, protocol
from apps.mcp.methods import Method
from apps.mcp.protocol import Exchange, ProtocolError, Streamed
from apps.principals.tenancy import Caller

logger = logging.getLogger(__name__)


class AlwaysJSON(BaseContentNegotiation):
    """Answers every `Accept` header in JSON.

    A client that opens a stream with `GET` and `Accept: text/event-stream` must hear that there is none (405);
    a 406 in its place leaves some clients without a single tool.
    """

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser | None:
        media_type = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        first = next(iter(renderers))
        return first, str(first.media_type)


class EndpointView(APIView):
    """`/mcp`: one message in, one answer out."""

    http_method_names = ["post"]
    content_negotiation_class = AlwaysJSON
    parser_classes = [RawJSONParser]
    schema = None
    methods: ClassVar[Mapping[str, Method]] = methods.METHODS

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        refuse_foreign_origin(request)

    def max_body_of(self, method: str) -> int:
        return calls.max_body_of_any()

    def post(self, request: Request) -> Response | StreamingHttpResponse:
        body = _body(request)
        http_request = request._request  # noqa: SLF001  # DRF's request has no public way to it
        frame = envelope = None
        try:
            message = protocol.decode(body)
            frame = protocol.read_frame(message)
            headers = {name.lower(): value for name, value in request.headers.items()}
            envelope = protocol.open_envelope(frame, message, headers)
            if envelope.id is None:
                return Response(status=202)
            exchange = Exchange(
                caller=_own(caller_of(request)),
                envelope=envelope,
                body_size=len(body),
                renewed=lambda: _own(renewed(self, http_request)),
            )
            return self._answer(exchange)
        except ProtocolError as fault:
            request_id = frame.id if isinstance(frame, JSONRPCRequest) else None
            return Response(protocol.error(request_id, fault), status=protocol.status_of(fault, envelope))

    def _answer(self, exchange: Exchange) -> Response | StreamingHttpResponse:
        try:
            outcome = methods.answer(exchange, self.methods)
            if isinstance(outcome, Streamed):
                return _stream(exchange, outcome)
            return Response(protocol.answer(exchange.envelope, outcome))
        except ProtocolError:
            raise
        except Exception as exc:  # a defect must reach the caller as an answer to its request, and the log as itself
            logger.exception("mcp_method_failed", extra={"method": exchange.envelope.method})
            raise protocol.defect(trace_id()) from exc


def _own(caller: Acting) -> Caller:
    if not isinstance(caller, Caller):
        raise NotAuthenticated
    return caller


def _stream(exchange: Exchange, outcome: Streamed) -> StreamingHttpResponse:
    """The answer as server-sent events.

    The connection goes back first: a stream that kept it would starve the pool, one client after the other.
    """
    connection.close()
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


def _body(request: Request) -> bytes:
    data: Any = request.data
    # Without a content type there is no body either, and nothing was parsed.
    return data if isinstance(data, bytes) else b""


def refuse_foreign_origin(request: Request) -> None:
    """Refuse what a page of another site sends through its reader's browser (DNS rebinding).

    The middleware has checked the Host header; a browser names the page's own host in Origin.

    :raises PermissionDenied: if Origin is neither a host of this deployment nor a trusted origin.
    """
    origin = request.headers.get("Origin")
    if origin is None or origin in settings.CSRF_TRUSTED_ORIGINS:
        return
    named = [host for host in settings.ALLOWED_HOSTS if host != "*"]
    try:
        hostname = urlsplit(origin).hostname or ""
    except ValueError:
        hostname = ""
    if not validate_host(f"[{hostname}]" if ":" in hostname else hostname, named):
        raise PermissionDenied("Requests from this origin are not answered.")

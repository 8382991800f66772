"""Who asked for what, for the log; not in which words."""

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from inspect import iscoroutinefunction
from ipaddress import ip_address
from typing import Any, Final

import structlog
from django.conf import settings
from django.http import HttpRequest
from django.utils.encoding import escape_uri_path
from django_structlog.middlewares import RequestMiddleware
from opentelemetry.trace import Span, SpanKind

from apps.core import tracing
from apps.core.views import PendingResponse, on_loop
from apps.principals.tenancy import Caller
from config.logs import is_routine

logger = logging.getLogger("django_structlog.middlewares.request")
_LEVELS: Final = {4: logging.WARNING, 5: logging.ERROR}


def client_address(request: HttpRequest) -> str | None:
    """Who asks, as the outermost of our proxies saw it; whoever connects to us, where no proxy says it.

    Each proxy appends to `X-Forwarded-For`, so our proxies' words are the last ones. All before them is the client's.
    """
    proxies: int = settings.PROXIES
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
    if 0 < proxies <= len(forwarded):
        with suppress(ValueError):
            return str(ip_address(forwarded[-proxies].strip()))
    seen: str | None = request.META.get("REMOTE_ADDR")
    return seen


class RequestLog(RequestMiddleware):
    """Logs with each line who asked, by `client_address`.

    A query string may hold anybody's words, so it is not logged. The request id is that of the trace, which goes on
    from the header `traceparent`.
    """

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        self._is_async = iscoroutinefunction(get_response)

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return super().__call__(request)
        with tracing.span(request.method or "", _carrier(request), SpanKind.SERVER) as span:
            self.prepare(request)
            response = self.get_response(request)
            self.handle_response(request, response)
            _describe(span, request, response)
        return response

    async def __acall__(self, request: HttpRequest) -> Any:
        with tracing.span(request.method or "", _carrier(request), SpanKind.SERVER) as span:
            response = await super().__acall__(request)
            _describe(span, request, response)
        return response

    def prepare(self, request: HttpRequest) -> None:
        structlog.contextvars.bind_contextvars(ip=client_address(request))

    def handle_response(self, request: HttpRequest, response: Any) -> None:
        if isinstance(response, PendingResponse) and response.is_pending:
            # Logged with the status that it will have.
            response.when_ready.append(partial(self._finished, request, response))
            if not on_loop(request):  # there each request has a context of its own
                structlog.contextvars.clear_contextvars()
        elif response.streaming or hasattr(request, "session") or hasattr(request, "_raised_exception"):
            super().handle_response(request, response)
        else:
            self._finished(request, response)

    def _finished(self, request: HttpRequest, response: Any) -> None:
        """The line of a client with a token, in a fraction of the time that structlog's processors take for it."""
        level = _LEVELS.get(response.status_code // 100, logging.INFO)
        asked = self.format_request(request)
        if logger.isEnabledFor(level) and not (level == logging.INFO and is_routine(asked)):
            who = getattr(request, "user", None)
            line: dict[str, Any] = {**structlog.contextvars.get_contextvars()}
            line |= {"code": response.status_code, "request": asked}
            if isinstance(who, Caller):
                line |= {"tenant": who.tenant_slug, "principal": who.name}
            line |= {"event": "request_finished", "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z")}
            line |= {"logger": logger.name, "level": logging.getLevelName(level).lower()}
            logger.handle(logging.LogRecord(logger.name, level, __file__, 0, line, (), None))
        structlog.contextvars.clear_contextvars()

    @staticmethod
    def format_request(request: HttpRequest) -> str:
        return f"{request.method} {escape_uri_path(request.path)}"


def _carrier(request: HttpRequest) -> dict[str, str]:
    return {name: request.META.get(f"HTTP_{name.upper()}", "") for name in ("traceparent", "tracestate")}


def _describe(span: Span, request: HttpRequest, response: Any) -> None:
    if not span.is_recording():
        return
    route = getattr(request.resolver_match, "route", "")
    span.update_name(f"{request.method} /{route}")
    span.set_attribute("http.response.status_code", response.status_code)

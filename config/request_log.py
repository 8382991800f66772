"""Who asked for what, for the log; not in which words."""

from functools import partial
from inspect import iscoroutinefunction
from typing import Any

import structlog
from django.conf import settings
from django.http import HttpRequest
from django_structlog.middlewares import RequestMiddleware
from opentelemetry.trace import Span, SpanKind

from apps.core import tracing
from apps.core.views import PendingResponse, is_on_loop


class RequestLog(RequestMiddleware):
    """Logs with each line who asked: the address, as the proxies before us give it, as many as there are.

    A query string may hold anybody's words, so it is not logged. The request id is that of the trace, which goes on
    from the header `traceparent`.
    """

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self.get_response):
            return super().__call__(request)
        with tracing.span(request.method or "", _carrier(request), SpanKind.SERVER) as span:
            response = super().__call__(request)
            _describe(span, request, response)
        return response

    async def __acall__(self, request: HttpRequest) -> Any:
        with tracing.span(request.method or "", _carrier(request), SpanKind.SERVER) as span:
            response = await super().__acall__(request)
            _describe(span, request, response)
        return response

    def handle_response(self, request: HttpRequest, response: Any) -> None:
        if isinstance(response, PendingResponse) and response.is_pending:
            # Logged with the status that it will have.
            response.when_ready.append(partial(super().handle_response, request, response))
            if not is_on_loop(request):  # there each request has a context of its own
                structlog.contextvars.clear_contextvars()
        else:
            super().handle_response(request, response)

    @staticmethod
    def format_request(request: HttpRequest) -> str:
        return f"{request.method} {request.get_full_path().partition('?')[0]}"

    @staticmethod
    def bind_ip(request: HttpRequest) -> None:
        proxies: int = settings.AXES_IPWARE_PROXY_COUNT
        forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "") if proxies else ""
        addresses = [address.strip() for address in forwarded.split(",") if address.strip()]
        is_behind = len(addresses) >= proxies > 0
        address = addresses[-proxies] if is_behind else request.META.get("REMOTE_ADDR")
        structlog.contextvars.bind_contextvars(ip=address, request_id=tracing.trace_id())


def _carrier(request: HttpRequest) -> dict[str, str]:
    return {name: request.META.get(f"HTTP_{name.upper()}", "") for name in ("traceparent", "tracestate")}


def _describe(span: Span, request: HttpRequest, response: Any) -> None:
    route = getattr(request.resolver_match, "route", "")
    span.update_name(f"{request.method} /{route}")
    span.set_attribute("http.response.status_code", response.status_code)

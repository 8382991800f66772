"""Who asked for what, for the log; not in which words."""

import structlog
from django.conf import settings
from django.http import HttpRequest
from django_structlog.middlewares import RequestMiddleware


class RequestLog(RequestMiddleware):
    """Says with each line who asked: the address, and what the proxies before us say of it, as many as there are.

    What stands behind the question mark may be anybody's words.
    """

    @staticmethod
    def format_request(request: HttpRequest) -> str:
        return f"{request.method} {request.get_full_path().partition('?')[0]}"

    @staticmethod
    def bind_ip(request: HttpRequest) -> None:
        proxies: int = settings.AXES_IPWARE_PROXY_COUNT
        told = request.META.get("HTTP_X_FORWARDED_FOR", "") if proxies else ""
        addresses = [address.strip() for address in told.split(",") if address.strip()]
        is_behind = len(addresses) >= proxies > 0
        address = addresses[-proxies] if is_behind else request.META.get("REMOTE_ADDR")
        structlog.contextvars.bind_contextvars(ip=address)

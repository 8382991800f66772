"""Refusals over HTTP: RFC 9457 problem documents."""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import structlog
from django.core.exceptions import DisallowedHost, PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from rest_framework import exceptions

from apps.core.errors import DomainError, RateLimited
from apps.core.sql import DatabaseAway, is_away

logger = logging.getLogger(__name__)

TITLES: Final = {
    400: "Malformed request",
    401: "No valid credential",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    422: "Invalid request",
    429: "Too many requests",
    500: "Defect",
    503: "Unavailable",
}


def trace_id() -> str:
    """The id under which this request stands in the logs."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))


def problem(status: int, code: str, detail: str, members: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """An RFC 9457 document. Further members can't stand in for its own."""
    return {
        **members,
        "type": f"urn:gatehouse:problem:{code}",
        "title": TITLES.get(status, "Refused"),
        "status": status,
        "code": code,
        "detail": detail,
        "errors": members.get("errors", []),
        "trace_id": trace_id(),
    }


def handle(exc: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """DRF's exception handler: every anticipated exception becomes a document, the others stay defects."""
    view = context.get("view")
    service = getattr(view, "manner", "problem") == "service"
    if isinstance(exc, OperationalError | InterfaceError) and is_away(exc):
        logger.error("the database does not answer", exc_info=exc)
        exc = DatabaseAway("The database does not answer just now. Try again.")
    if isinstance(exc, DomainError):
        headers = {"Retry-After": str(exc.retry_after)} if isinstance(exc, RateLimited) else {}
        errors = [{"pointer": error.pointer, "message": error.message} for error in exc.errors]
        return _respond(exc.status, exc.code, exc.detail, {**exc.extra, "errors": errors}, headers, service=service)
    if isinstance(exc, PermissionDenied):
        exc = exceptions.PermissionDenied()
    if not isinstance(exc, exceptions.APIException):
        return None
    if service and exc.status_code in {401, 403}:
        # One body for every fault of a service credential: nothing can be learned from trying.
        return _respond(403, "invalid_service_token", "Invalid service token", {}, {}, service=True)
    headers = {}
    if (challenge := getattr(exc, "auth_header", None)) is not None:
        headers["WWW-Authenticate"] = challenge
    if (wait := getattr(exc, "wait", None)) is not None:
        headers["Retry-After"] = str(int(wait) + 1)
    if isinstance(exc, exceptions.MethodNotAllowed) and view is not None:
        headers["Allow"] = ", ".join(view.allowed_methods)
    detail = f"{exc.detail}{_MENDING.get(type(exc), '')}"
    return _respond(exc.status_code, str(exc.default_code), detail, {}, headers, service=service)


def _respond(
    status: int, code: str, detail: str, members: Mapping[str, Any], headers: Mapping[str, str], *, service: bool
) -> HttpResponse:
    if service:
        document = {**members, "error": code, "message": detail}
        if not document.get("errors"):
            document.pop("errors", None)
        return JsonResponse(document, status=status, headers=headers)
    document = problem(status, code, detail, members)
    return JsonResponse(document, status=status, headers=headers, content_type="application/problem+json")


_MENDING: Final[dict[type[exceptions.APIException], str]] = {
    exceptions.NotAuthenticated: " Send a token in a header: Authorization: Bearer TOKEN.",
    exceptions.UnsupportedMediaType: " Send JSON, with the header Content-Type: application/json.",
}


def not_found(request: HttpRequest, exception: Exception) -> JsonResponse:
    """The project's 404."""
    document = problem(404, "not_found", "There is nothing at this address.")
    return JsonResponse(document, status=404, content_type="application/problem+json")


def bad_request(request: HttpRequest, exception: Exception) -> JsonResponse:
    """The project's 400, for what is refused before it reaches a view."""
    code, detail = "malformed", "The request is malformed."
    if isinstance(exception, DisallowedHost):
        code, detail = "unknown_host", "The Host header names no host of this server; GATEHOUSE_HOSTS lists them."
    return JsonResponse(problem(400, code, detail), status=400, content_type="application/problem+json")


def defect(request: HttpRequest) -> JsonResponse:
    """The project's 500: says nothing but where to look."""
    document = problem(500, "defect", "This is a defect of the server; the trace id finds it in the logs.")
    return JsonResponse(document, status=500, content_type="application/problem+json")

"""Refusals over HTTP: RFC 9457 problem documents, mapped by family in this one place."""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import structlog
from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.urls import Resolver404, resolve
from rest_framework import exceptions
from rest_framework.response import Response

from apps.core.errors import (
    Conflict,
    DomainError,
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    RateLimited,
    TooLarge,
    Unavailable,
)
from apps.core.retries import DatabaseAway, is_away

logger = logging.getLogger(__name__)

STATUS_OF_FAMILY: Final[dict[type[DomainError], int]] = {
    NotFound: 404,
    Forbidden: 403,
    Conflict: 409,
    Invalid: 422,
    Malformed: 400,
    TooLarge: 413,
    RateLimited: 429,
    Unavailable: 503,
}
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


def status_of(refusal: DomainError) -> int:
    """The HTTP status of a refusal's family."""
    return next(status for family, status in STATUS_OF_FAMILY.items() if isinstance(refusal, family))


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


def handle(exc: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler: every anticipated exception becomes a document, the others stay defects."""
    view = context.get("view")
    service = view is not None and getattr(view, "manner", "problem") == "service"
    if isinstance(exc, OperationalError | InterfaceError) and is_away(exc):
        logger.error("the database does not answer", exc_info=exc)
        exc = DatabaseAway("The database does not answer just now. Try again.")
    if isinstance(exc, DomainError):
        return _answer_refusal(exc, service=service)
    if isinstance(exc, Http404):
        exc = exceptions.NotFound()
    if isinstance(exc, PermissionDenied):
        exc = exceptions.PermissionDenied()
    if isinstance(exc, RequestDataTooBig):
        exc = _BodyTooLarge()
    if isinstance(exc, exceptions.APIException):
        return _answer_framework(exc, service=service)
    return None


class _BodyTooLarge(exceptions.APIException):
    status_code = 413
    default_code = "body_too_large"
    default_detail = "The body is over the limit."


def _answer_refusal(exc: DomainError, *, service: bool) -> Response:
    status = status_of(exc)
    headers = {"Retry-After": str(exc.retry_after)} if isinstance(exc, RateLimited) else {}
    errors = [{"pointer": error.pointer, "message": error.message} for error in exc.errors]
    if service and isinstance(exc, Forbidden):
        return _faulty_credential()
    if service:
        document = {**exc.extra, "error": exc.code, "message": exc.detail}
        return Response(document | ({"errors": errors} if errors else {}), status=status, headers=headers)
    document = problem(status, exc.code, exc.detail, {**exc.extra, "errors": errors})
    return Response(document, status=status, headers=headers, content_type="application/problem+json")


def _faulty_credential() -> Response:
    """One body for every fault of a service credential: nothing can be learned from trying."""
    return Response({"error": "invalid_service_token", "message": "Invalid service token"}, status=403)


_MENDING: Final[dict[type[exceptions.APIException], str]] = {
    exceptions.NotAuthenticated: " Send a token in a header: Authorization: Bearer TOKEN.",
    exceptions.UnsupportedMediaType: " Send JSON, with the header Content-Type: application/json.",
}


def _answer_framework(exc: exceptions.APIException, *, service: bool) -> Response:
    if service and exc.status_code in {401, 403}:
        return _faulty_credential()
    code, detail = str(exc.default_code), f"{exc.detail}{_MENDING.get(type(exc), '')}"
    headers = {}
    if (challenge := getattr(exc, "auth_header", None)) is not None:
        headers["WWW-Authenticate"] = challenge
    if (wait := getattr(exc, "wait", None)) is not None:
        headers["Retry-After"] = str(int(wait) + 1)
    if service:
        return Response({"error": code, "message": detail}, status=exc.status_code, headers=headers)
    document = problem(exc.status_code, code, detail)
    return Response(document, status=exc.status_code, headers=headers, content_type="application/problem+json")


def not_found(request: HttpRequest, exception: Exception) -> JsonResponse:
    """The project's 404."""
    detail = "There is nothing at this address."
    if request.path_info.endswith("/") and _leads_somewhere(request.path_info.rstrip("/")):
        detail = "There is nothing at this address; without the slash at its end there is."
    document = problem(404, "not_found", detail)
    return JsonResponse(document, status=404, content_type="application/problem+json")


def _leads_somewhere(path: str) -> bool:
    try:
        resolve(path)
    except Resolver404:
        return False
    return True


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

from collections.abc import Mapping
from typing import IO, Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from apps.core import strict_json
from apps.core.errors import TooLarge


class BodyTooLarge(TooLarge):
    """The request's body is over the limit of this route."""

    code = "body_too_large"


def has_body(request: Request) -> bool:
    """Whether the request carries a body, which a chunked one does without naming a length.

    DRF reads bodies of a known length only, so the length is put where it looks.
    """
    if request.META.get("CONTENT_LENGTH") in {None, ""}:
        # The framework has no public way to the raw body; this reads it once and keeps it, bounded by the setting.
        request.META["CONTENT_LENGTH"] = str(len(request._request.body))  # noqa: SLF001
    return bool(request.META["CONTENT_LENGTH"] != "0")


def body_within(request: HttpRequest, limit: int) -> bytes:
    """A request's body.

    :raises BodyTooLarge: if it is over so many bytes.
    """
    try:
        body = request.body  # read from the stream once and kept, bounded by the setting
    except RequestDataTooBig as exc:
        raise BodyTooLarge(f"The body is over {limit} bytes.") from exc
    if len(body) > limit:
        raise BodyTooLarge(f"The body is over {limit} bytes.")
    return body


class RawJSONParser(BaseParser):
    """The bytes of a JSON body, for a view that has its own words for what is wrong with them."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        context = parser_context or {}
        request = context["request"]
        # DRF's request has no public way to the raw body.
        return body_within(request._request, context["view"].max_body_of(request.method))  # noqa: SLF001


class StrictJSONParser(RawJSONParser):
    """JSON that the database can hold; see :mod:`apps.core.strict_json`."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        return strict_json.loads(super().parse(stream, media_type, parser_context))

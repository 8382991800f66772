from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from pydantic import BaseModel, TypeAdapter, ValidationError
from rest_framework.exceptions import NotAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import operations, strict_json
from apps.core.api.parsers import body_within, has_body
from apps.core.errors import FieldError, Invalid, Malformed, pointer_to
from apps.core.http import caller_of
from apps.core.operations import Acting, Credential, Operation, Route
from apps.core.schemas import parse, parse_strings, parse_text

_JSON: Final = "application/json"


class OperationView(APIView):
    """All operations of one path. Parses, makes one call, renders.

    A plain request (see :func:`_is_plain`) is answered without what DRF does for all the others. It is answered as DRF
    would have it answered; there is one way of reading a token, of permission, of parsing, of refusing.
    """

    declared: ClassVar[Mapping[str, tuple[Operation, Route]]] = {}
    """By HTTP method."""

    def dispatch(self, request: HttpRequest, *args: Any, **path: str) -> HttpResponseBase:
        found = self.declared.get(request.method or "")
        if found is None or not _is_plain(request, found[1]):
            return super().dispatch(request, *args, **path)
        try:
            reply, route = self._answer_plainly(request, *found, path), found[1]
        except Exception as exc:  # noqa: BLE001  # DRF's handler raises what it does not know
            return self._refused(self.handle_exception(exc))
        headers = self.default_response_headers
        if reply.output is None:
            bare = HttpResponse(status=reply.status, headers=headers)
            del bare["Content-Type"]
            return bare
        content = reply.output.model_dump_json().encode()
        return HttpResponse(
            _for_scripts(content), content_type=_JSON, status=reply.status or route.status, headers=headers
        )

    def _answer_plainly(
        self, request: HttpRequest, declared: Operation, route: Route, path: Mapping[str, str]
    ) -> operations.Reply:
        def read(caller: Acting) -> BaseModel:
            request.user = caller  # type: ignore[assignment]  # as DRF leaves it for the log
            if route.method in _WITHOUT_BODY:
                return parse_strings(declared.input, from_url(declared, request.META["QUERY_STRING"], path))
            if path or not (body := body_within(request, route.max_body)):
                return parse(declared.input, _with_path(declared, _document(request, route), path))
            _object(strict_json.loads(body))
            return parse_text(declared.input, body)

        return operations.answer(declared, self._credential(request), read)

    def _credential(self, request: HttpRequest) -> Credential:
        for authentication in self.get_authenticators():
            presented: Credential | None = authentication.presented(request)  # type: ignore[attr-defined]  # all of ours have it
            if presented is not None:
                return presented
        raise NotAuthenticated

    def _refused(self, answer: Response) -> HttpResponse:
        """A refusal in the words of DRF's handler, rendered."""
        content = JSONRenderer().render(answer.data)
        rendered = HttpResponse(content, content_type=answer.content_type or _JSON, status=answer.status_code)
        for name, value in {**answer.headers, **self.default_response_headers}.items():
            if name != "Content-Type":
                rendered[name] = value
        return rendered

    @property
    def manner(self) -> str:
        return next(iter(self.declared.values()))[1].manner

    def max_body_of(self, method: str) -> int:
        return self.declared[method][1].max_body

    def answer(self, request: Request, **path: str) -> Response:
        # A HEAD is answered as the GET whose headers it asks for.
        declared, route = self.declared["GET" if request.method == "HEAD" else request.method or ""]
        caller = caller_of(request)
        operations.permit(declared, caller)
        if route.method in _WITHOUT_BODY:
            given = parse_strings(declared.input, from_url(declared, request.META["QUERY_STRING"], path))
        else:
            given = parse(declared.input, from_body(declared, request, path))
        reply = operations.call(declared, caller, given)
        if reply.output is None:
            return Response(status=reply.status)
        return Response(reply.output.model_dump(mode="json"), status=reply.status or route.status)


_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})
_PLAIN_ACCEPTS: Final = frozenset({"*/*", _JSON})


def _is_plain(request: HttpRequest, route: Route) -> bool:
    """Whether there is nothing to negotiate, and nothing to find out about a body: what clients send almost always."""
    sent = request.META
    if sent.get("HTTP_ACCEPT", "*/*") not in _PLAIN_ACCEPTS:
        return False
    # DRF takes a wish for a format from the address too, whatever the method.
    if sent.get("QUERY_STRING") and "format" in request.GET:
        return False
    if route.method in _WITHOUT_BODY:
        return True
    length: str = sent.get("CONTENT_LENGTH", "")
    return length == "0" or (length.isdecimal() and request.content_type == _JSON)


def _document(request: HttpRequest, route: Route) -> dict[str, Any]:
    body = body_within(request, route.max_body)
    return _object(strict_json.loads(body)) if body else {}


def _object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise Invalid("The body must be a JSON object.")
    return document


def _for_scripts(content: bytes) -> bytes:
    """As DRF writes it: without the two characters that JSON may hold as they are and JavaScript may not."""
    return content.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def from_url(declared: Operation, query: str, path: Mapping[str, str]) -> dict[str, Any]:
    """Query and path as one mapping; the members of a list repeat its name, and nothing else may.

    :raises Malformed: if the query can't be read as text.
    :raises Invalid: if a parameter comes more than once.
    """
    given: dict[str, Any] = {}
    lists = _lists(declared.input)
    for name, value in _parameters(query):
        if name in lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            pointer = pointer_to(name)
            raise Invalid(f"{pointer}: Given more than once.", errors=[FieldError(pointer, "Given more than once.")])
        else:
            given[name] = value
    return {**given, **path}


_MOST_PARAMETERS: Final = 1000


def _parameters(query: str) -> list[tuple[str, str]]:
    # Django's own reading puts another character in the place of bytes that are none.
    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except UnicodeDecodeError as exc:
        raise Malformed("The query is not UTF-8.") from exc
    except ValueError as exc:
        raise Malformed(f"The query has more than {_MOST_PARAMETERS} parameters.") from exc


def from_body(declared: Operation, request: Request, path: Mapping[str, str]) -> dict[str, Any]:
    """The body's members, and the path's, which stand over them. A missing body is an empty one."""
    return _with_path(declared, _object(request.data if has_body(request) else {}), path)


def _with_path(declared: Operation, document: dict[str, Any], path: Mapping[str, str]) -> dict[str, Any]:
    return {**document, **{name: _typed(declared.input, name, text) for name, text in path.items()}}


@cache
def _lists(model: type[BaseModel]) -> frozenset[str]:
    properties = model.model_json_schema().get("properties", {})
    return frozenset(
        name
        for name, schema in properties.items()
        if any(one.get("type") == "array" for one in [schema, *schema.get("anyOf", [])])
    )


def _typed(model: type[BaseModel], name: str, text: str) -> Any:
    """A path parameter as the type that the input gives it, where the text can be read so."""
    try:
        return _reader(model, name).validate_strings(text)
    except ValidationError:
        return text


@cache
def _reader(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    return TypeAdapter(model.model_fields[name].annotation or str)

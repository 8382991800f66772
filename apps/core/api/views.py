from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import operations
from apps.core.api.parsers import has_body
from apps.core.errors import Invalid
from apps.core.http import caller_of
from apps.core.operations import Operation, Route
from apps.core.schemas import parse, parse_strings


class OperationView(APIView):
    """All operations of one path. Parses, makes one call, renders."""

    declared: ClassVar[Mapping[str, tuple[Operation, Route]]] = {}
    """By HTTP method."""

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
        if route.method in {"GET", "DELETE"}:
            given = parse_strings(declared.input, from_url(declared, request, path))
        else:
            given = parse(declared.input, from_body(declared, request, path))
        reply = operations.call(declared, caller, given)
        if reply.output is None:
            return Response(status=reply.status)
        return Response(reply.output.model_dump(mode="json"), status=reply.status or route.status)


def from_url(declared: Operation, request: Request, path: Mapping[str, str]) -> dict[str, Any]:
    """Query and path as one mapping; the members of a list repeat its name."""
    query: dict[str, Any] = {
        name: request.query_params.getlist(name) if name in _lists(declared.input) else value
        for name, value in request.query_params.items()
    }
    return {**query, **path}


def from_body(declared: Operation, request: Request, path: Mapping[str, str]) -> dict[str, Any]:
    """The body's members, and the path's, which stand over them. A missing body is an empty one."""
    body = request.data if has_body(request) else {}
    if not isinstance(body, dict):
        raise Invalid("The body must be a JSON object.")
    return {**body, **{name: _typed(declared.input, name, text) for name, text in path.items()}}


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
    reader: TypeAdapter[Any] = TypeAdapter(model.model_fields[name].annotation or str)
    try:
        return reader.validate_strings(text)
    except ValidationError:
        return text

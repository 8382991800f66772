from collections.abc import Mapping
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import operations
from apps.core.errors import Invalid
from apps.core.operations import Operation, Route
from apps.core.schemas import Input, parse, parse_strings


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
        declared, route = self.declared[request.method or ""]
        given = (
            parse_strings(declared.input, _from_url(declared, request, path))
            if route.method
            in {
                "GET",
                "DELETE",
            }
            else parse(declared.input, _from_body(declared, request, path))
        )
        reply = operations.call(declared, request.user, given)
        if reply.output is None:
            return Response(status=reply.status)
        return Response(reply.output.model_dump(mode="json"), status=reply.status or route.status)


def _from_url(declared: Operation, request: Request, path: Mapping[str, str]) -> dict[str, Any]:
    """Query and path as one mapping; a list's member may be repeated."""
    lists = (
        {
            name
            for name, schema in declared.input.model_json_schema()["properties"].items()
            if schema.get("type") == "array" or any(one.get("type") == "array" for one in schema.get("anyOf", []))
        }
        if declared.input.model_fields
        else set()
    )
    query = {
        name: request.query_params.getlist(name) if name in lists else request.query_params[name]
        for name in request.query_params
    }
    return {**query, **path}


def _from_body(declared: Operation, request: Request, path: Mapping[str, str]) -> dict[str, Any]:
    """The body's members, and the path's, which stand over them. A missing body is an empty one."""
    body = request.data if request.META.get("CONTENT_LENGTH") not in {None, "", "0"} else {}
    if not isinstance(body, dict):
        raise Invalid("The body must be a JSON object.")
    typed = parse_strings(_only(declared.input, tuple(path)), path).model_dump(mode="json") if path else {}
    return {**body, **typed}


def _only(model: type[Any], names: tuple[str, ...]) -> type[Input]:
    """The part of an input that stands in the path."""
    fields = {name: (model.model_fields[name].annotation, model.model_fields[name]) for name in names}
    from pydantic import create_model  # noqa: PLC0415

    return create_model(f"{model.__name__}Path", __base__=Input, **fields)  # type: ignore[call-overload]

"""OpenAPI from the registry."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from pydantic import BaseModel, GetJsonSchemaHandler, create_model
from pydantic_core import CoreSchema

from apps.core.operations import Operation, Route
from apps.core.problems import TITLES
from apps.core.schemas import Output, json_schema
from apps.core.views import OperationView


class FieldProblem(Output):
    pointer: str
    message: str


class ProblemDetails(Output):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldProblem]
    trace_id: str


class ServiceRefusal(Output):
    """A refusal of the service-to-service routes."""

    error: str
    message: str


_REFUSALS = {"GET": (400, 401, 403, 404, 422, 503), "DELETE": (400, 401, 403, 404, 409, 422, 503)}
_WRITE_REFUSALS = (400, 401, 403, 404, 409, 413, 415, 422, 429, 503)
_NO_CONTENT = 204


class OperationSchema(AutoSchema):
    """Describes operations; leaves other views to drf-spectacular."""

    def _declared(self) -> tuple[Operation, Route] | None:
        return self.view.declared.get(self.method) if isinstance(self.view, OperationView) else None

    def get_operation_id(self) -> str:
        """The operation's name at its first route; elsewhere with a suffix that tells the routes apart."""
        if (declared := self._declared()) is None:
            return super().get_operation_id()
        operation, route = declared
        if route == operation.routes[0]:
            return operation.name
        return f"{operation.name}_door" if route.manner == "service" else f"{operation.name}_{route.method.lower()}"

    def get_tags(self) -> list[str]:
        declared = self._declared()
        return [declared[0].app] if declared else super().get_tags()

    def get_summary(self) -> str | None:
        declared = self._declared()
        return declared[0].title if declared else super().get_summary()

    def get_description(self) -> str:  # type: ignore[override]  # drf-spectacular's own form, without arguments
        declared = self._declared()
        return declared[0].description if declared else super().get_description()

    def get_override_parameters(self) -> list[Any]:
        if (declared := self._declared()) is None:
            return []
        operation, route = declared
        schema = json_schema(operation.input, "validation")
        members = {name: _as_text(member) for name, member in schema["properties"].items()}
        return [
            OpenApiParameter(
                name=name,
                type={key: value for key, value in member.items() if key != "description"},
                location="path" if name in route.parameters else "query",
                required=name in schema.get("required", []),
                description=member.get("description", ""),
            )
            for name, member in members.items()
            # An object can't be written into an address; whoever needs it sends a body.
            if name in route.parameters or (not _takes_body(route) and member.get("type") != "object")
        ]

    def get_request_serializer(self) -> Any:
        declared = self._declared()
        return _body(declared[0].input, declared[1].parameters) if declared and _takes_body(declared[1]) else None

    def get_response_serializers(self) -> Any:
        if (declared := self._declared()) is None:
            return super().get_response_serializers()
        operation, route = declared
        refusals = set(_REFUSALS.get(route.method, _WRITE_REFUSALS))
        if operation.waits:
            refusals.add(429)
        if not operation.read_only:
            # A read that marks what it showed depends on the present state, too.
            refusals.add(409)
        shape, media_type = ProblemDetails, "application/problem+json"
        if route.manner == "service":
            shape, media_type = ServiceRefusal, "application/json"  # type: ignore[assignment]  # another shape
        responses: dict[Any, OpenApiResponse] = {
            (str(status), media_type): OpenApiResponse(shape, description=TITLES[status]) for status in sorted(refusals)
        }
        media_type, output, description = "application/json", operation.output, "Done"
        if operation.streams:
            event = _event(operation.output, operation.streams.event)
            media_type, output, description = "text/event-stream", event, "Events"
        for status in (route.status, *route.also):
            if status == _NO_CONTENT:
                responses[str(status)] = OpenApiResponse(description="Nothing to answer")
            else:
                responses[str(status), media_type] = OpenApiResponse(output, description=description)
        return responses


def _as_text(member: Mapping[str, Any]) -> dict[str, Any]:
    """A member's schema where the value stands in an address: it is left out, never null."""
    choices = [choice for choice in member.get("anyOf", []) if choice.get("type") != "null"]
    rest = {key: value for key, value in member.items() if key != "anyOf" and (key, value) != ("default", None)}
    if not choices:
        return rest
    return rest | (choices[0] if len(choices) == 1 else {"anyOf": choices})


def _takes_body(route: Route) -> bool:
    return route.method not in {"GET", "DELETE"}


class _AsText:
    """Of a member: it is sent as the text of a JSON document."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "contentMediaType": "application/json", "contentSchema": handler(core_schema)}


@cache
def _event(output: type[BaseModel], name: str) -> type[BaseModel]:
    """A server-sent event of a stream."""
    data: Any = Annotated[output, _AsText()]
    members: dict[str, Any] = {"event": (Literal[name], ...), "id": (str, ...), "data": (data, ...)}
    return create_model(f"{output.__name__.removesuffix('Output')}Event", __base__=Output, **members)


@cache
def _body(model: type[BaseModel], in_path: tuple[str, ...]) -> type[BaseModel]:
    """A body's model: the input less the parameters of the path."""
    if not in_path:
        return model
    members: dict[str, Any] = {
        name: (member.annotation, member) for name, member in model.model_fields.items() if name not in in_path
    }
    return create_model(f"{model.__name__}Body", __config__=model.model_config, __doc__=model.__doc__, **members)

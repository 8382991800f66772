"""OpenAPI from the registry."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from pydantic import BaseModel, GetJsonSchemaHandler, create_model
from pydantic_core import CoreSchema

from apps.core import json_schema
from apps.core.api.problems import TITLES
from apps.core.api.views import OperationView
from apps.core.operations import Operation, Route
from apps.core.schemas import Output


class FieldProblem(Output):
    pointer: str
    message: str


class Problem(Output):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldProblem]
    trace_id: str


class ServiceRefusal(Output):
    """How the service-to-service doors refuse."""

    error: str
    message: str


_REFUSALS = {"GET": (400, 401, 403, 404, 422, 503), "DELETE": (400, 401, 403, 404, 409, 422, 503)}
_NO_CONTENT = 204
_CONFLICT = 409
_WAITING_REFUSALS = (429,)
_WRITE_REFUSALS = (400, 401, 403, 404, 409, 413, 415, 422, 429, 503)


class OperationSchema(AutoSchema):
    """Describes operations; leaves other views to drf-spectacular."""

    def _declared(self) -> tuple[Operation, Route] | None:
        return self.view.declared.get(self.method) if isinstance(self.view, OperationView) else None

    def get_operation_id(self) -> str:
        declared = self._declared()
        return _operation_id(*declared) if declared else super().get_operation_id()

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
        declared = self._declared()
        if declared is None:
            return []
        operation, route = declared
        schema = json_schema.of(operation.input, "validation")
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
        if declared is None or not _takes_body(declared[1]):
            return None
        return _body(declared[0].input, declared[1].parameters)

    def get_response_serializers(self) -> Any:
        declared = self._declared()
        if declared is None:
            return super().get_response_serializers()
        operation, route = declared
        refusal = ServiceRefusal if route.manner == "service" else Problem
        media_type = "application/json" if route.manner == "service" else "application/problem+json"
        refusals = _refusals(operation, route)
        described = {
            (str(status), media_type): OpenApiResponse(refusal, description=TITLES[status]) for status in refusals
        }
        form, output, description = "application/json", operation.output, "Done"
        if operation.streams:
            form, output, description = "text/event-stream", _event(operation.output, operation.streams.event), "Events"
        done: dict[Any, OpenApiResponse] = {
            (str(status), form): OpenApiResponse(output, description=description)
            for status in (route.status, *route.also)
            if status != _NO_CONTENT
        }
        if _NO_CONTENT in route.also:
            done[str(_NO_CONTENT)] = OpenApiResponse(description="Nothing to answer")
        return done | described


def _refusals(operation: Operation, route: Route) -> tuple[int, ...]:
    common = _REFUSALS.get(route.method, _WRITE_REFUSALS)
    # What is read and notes that it was depends on how far the thing is.
    depends = () if operation.read_only or _CONFLICT in common else (_CONFLICT,)
    return common + depends + (_WAITING_REFUSALS if operation.waits else ())


def _operation_id(declared: Operation, route: Route) -> str:
    """The operation's name at its first route; elsewhere with what tells the route apart."""
    if route == declared.routes[0]:
        return declared.name
    return f"{declared.name}_door" if route.manner == "service" else f"{declared.name}_{route.method.lower()}"


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
    """A body's model: the input less what stands in the path."""
    if not in_path:
        return model
    members: dict[str, Any] = {
        name: (member.annotation, member) for name, member in model.model_fields.items() if name not in in_path
    }
    return create_model(f"{model.__name__}Body", __config__=model.model_config, __doc__=model.__doc__, **members)

"""OpenAPI from the registry."""

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from pydantic import BaseModel

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


class SeedRefusal(Output):
    """How the service-to-service doors refuse."""

    error: str
    message: str


_REFUSALS = {"GET": (400, 401, 403, 404, 422), "DELETE": (400, 401, 403, 404, 409, 422)}
_WRITE_REFUSALS = (400, 401, 403, 404, 409, 413, 415, 422, 429)


class OperationSchema(AutoSchema):
    """Describes operations; leaves other views to drf-spectacular."""

    def _declared(self) -> tuple[Operation, Route] | None:
        return self.view.declared.get(self.method) if isinstance(self.view, OperationView) else None

    def get_operation_id(self) -> str:
        declared = self._declared()
        return f"{declared[0].name}{self._suffix(declared[1])}" if declared else super().get_operation_id()

    def _suffix(self, route: Route) -> str:
        return "" if route.path.startswith("/api/") else "_door"

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
        if declared is None or declared[1].method not in {"GET", "DELETE"}:
            return []
        properties = declared[0].input.model_json_schema().get("properties", {})
        required = declared[0].input.model_json_schema().get("required", [])
        return [
            OpenApiParameter(name=name, type=schema, location="query", required=name in required)
            for name, schema in properties.items()
            if name not in declared[1].parameters
        ]

    def get_request_serializer(self) -> Any:
        declared = self._declared()
        if declared is None or declared[1].method in {"GET", "DELETE"}:
            return None
        return without(declared[0].input, declared[1].parameters)

    def get_response_serializers(self) -> Any:
        declared = self._declared()
        if declared is None:
            return None
        operation, route = declared
        refusal = SeedRefusal if route.manner == "seed" else Problem
        refusals = _REFUSALS.get(route.method, _WRITE_REFUSALS)
        return {str(route.status): operation.output} | {
            (str(status), "application/json" if route.manner == "seed" else "application/problem+json"): refusal
            for status in refusals
        }


def without(model: type[BaseModel], names: tuple[str, ...]) -> type[BaseModel]:
    """A body's model: the input less what stands in the path."""
    if not names:
        return model
    from pydantic import create_model  # noqa: PLC0415

    fields = {name: (info.annotation, info) for name, info in model.model_fields.items() if name not in names}
    return create_model(f"{model.__name__}Body", __doc__=model.__doc__, **fields)  # type: ignore[call-overload, no-any-return]

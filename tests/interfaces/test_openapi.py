"""The OpenAPI document: valid, complete, and served with its browser from local files."""

import io
import json
from collections import Counter
from typing import Any, Final, get_args

import jsonschema_rs
import pytest
from django.core.management import call_command
from django.test import Client
from pydantic import BaseModel

from apps.core.operations import Operation, Route
from apps.core.schemas import parse
from clients.python import generate
from tests.interfaces.asking import ROUTED, each_route


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    written = io.StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", "--format", "openapi-json", stdout=written)
    read: dict[str, Any] = json.loads(written.getvalue())
    return read


def test_document_is_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert set(document["components"]["securitySchemes"]) == {"bearer", "serviceToken"}


@each_route()
def test_every_route_is_described(document: dict[str, Any], declared: Operation, route: Route) -> None:
    described = document["paths"][route.path][route.method.lower()]

    assert described["operationId"].startswith(declared.name)
    assert described["description"] == declared.description
    in_path = {one["name"] for one in described.get("parameters", []) if one["in"] == "path"}
    assert in_path == set(route.parameters)
    asked = in_path | {one["name"] for one in described.get("parameters", []) if one["in"] == "query"}
    asked |= set(_members(document, described))
    assert asked <= set(declared.input.model_fields)
    assert {name for name, member in declared.input.model_fields.items() if member.is_required()} <= asked
    assert described["security"] == [{"bearer": []}, {"serviceToken": []}]
    assert {str(status) for status in (route.status, *route.also)} <= set(described["responses"])
    assert {"401", "403"} & set(described["responses"])


def _members(document: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    body = described.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    name = body.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"].get(name, body).get("properties", {})
    return found


def test_shapes_of_the_client_are_current(document: dict[str, Any]) -> None:
    stale = [path.name for path, text in generate.shapes(document).items() if path.read_text() != text]
    assert not stale, "Run: .venv/bin/python -m clients.python.generate"


def test_every_schema_is_json_schema(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


def test_document_and_browser_are_served_locally(db: None) -> None:
    assert Client().get("/api/schema/").status_code == 200
    page = Client().get("/api/docs/").content.decode()
    assert "cdn" not in page
    assert "/static/drf_spectacular_sidecar/" in page


def _models(annotation: Any, found: set[type[BaseModel]]) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in found:
        found.add(annotation)
        for member in annotation.model_fields.values():
            _models(member.annotation, found)
    for argument in get_args(annotation):
        _models(argument, found)
    return found


MODELS: Final = {
    model for declared, _ in ROUTED for one in (declared.input, declared.output) for model in _models(one, set())
}


def test_each_component_is_one_class() -> None:
    classes = Counter(model.__name__ for model in MODELS)
    assert [name for name, count in classes.items() if count > 1] == []


def test_documented_examples_are_accepted_by_their_model() -> None:
    for model in MODELS:
        for example in model.model_json_schema().get("examples", ()):
            parse(model, example)

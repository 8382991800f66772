"""What a tool's params take, by their schemas, names and descriptions."""

from datetime import UTC, datetime
from typing import Any

import pytest

from apps.plans.catalogue import Tool
from apps.plans.local.params import Param, coerced, fits, params_of
from apps.plans.local.values import Kind, read

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
TEXT = {"type": "string"}
NUMBER = {"type": "number"}
INTEGER = {"type": "integer"}
DAY = {"type": "string", "format": "date"}


def params(schema: dict[str, Any], description: str = "") -> dict[str, Param]:
    tool = Tool(uid="t", name="tool", description=description, input_schema=schema, output_schema={})
    return {param.name: param for param in params_of(tool)}


def param(name: str, schema: dict[str, Any], *siblings: str) -> Param:
    return params({"properties": {name: schema, **dict.fromkeys(siblings, TEXT)}})[name]


def given(one: Param, text: str) -> list[tuple[float, Any]]:
    """How well each value of a text fits a param and what it becomes there, best first."""
    scored = [(fits(one, value), coerced(one, value)) for value in read(text, NOW).found if fits(one, value)]
    return sorted(scored, key=lambda pair: -pair[0])


@pytest.mark.parametrize(
    ("name", "schema", "role", "kind"),
    [
        ("contact", {"type": "string", "format": "email"}, "email", Kind.EMAIL),
        ("file_path", TEXT, "path", Kind.PATH),
        ("page_id", TEXT, "id", Kind.UUID),
        ("branch", TEXT, "slug", Kind.ID),
        ("perPage", INTEGER, "knob", Kind.INTEGER),
        ("duration_hours", NUMBER, "duration", Kind.DURATION),
        ("timeout_ms", INTEGER, "duration", Kind.DURATION),
        ("to", {"type": "string", "description": "Language to translate into"}, "language", Kind.LANGUAGE),
        ("sku", {"type": "string", "description": "e.g. +15551234567"}, "id", Kind.PHONE),
        ("spot", {"type": "string", "examples": ["about-us"]}, "other", Kind.SLUG),
        ("recipients", {"type": "array", "items": TEXT}, "email", Kind.EMAIL),
        ("head", INTEGER, "knob", Kind.INTEGER),
        ("head", TEXT, "slug", Kind.SLUG),
        ("file_name", TEXT, "path", Kind.FILE),
        ("insured_value_eur", NUMBER, "money", Kind.INTEGER),
        ("games", {"type": "integer", "description": "Number of games won"}, "number", Kind.INTEGER),
    ],
)
def test_role_and_kinds(name: str, schema: dict[str, Any], role: str, kind: Kind) -> None:
    one = param(name, schema)
    assert one.role == role
    assert kind in one.kinds


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["open", "in_progress", None]}, {"open": "open", "in progress": "in_progress"}),
        ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}], "default": None}, {"a": "a", "b": "b"}),
        ({"$ref": "#/$defs/State"}, {"on": "on", "off": "off"}),
        ({"type": "array", "items": {"$ref": "#/$defs/State"}}, {"on": "on", "off": "off"}),
        ({"enum": ["get", "get_diff", "get_files"]}, {"get": "get", "diff": "get_diff", "file": "get_files"}),
        ({"enum": ["AT", "DE"]}, {"austria": "AT", "germani": "DE"}),
        ({"enum": ["de", "fr"]}, {"german": "de", "french": "fr"}),
    ],
)
def test_choices(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    one = params({"properties": {"x": schema}, "$defs": {"State": {"type": "string", "enum": ["on", "off"]}}})["x"]
    assert expected.items() <= one.choices.items()
    assert one.role == "choice"


@pytest.mark.parametrize(
    ("name", "description", "unit"),
    [
        ("timeout_ms", "", "millisecond"),
        ("min_amount", "", ""),
        ("radius", "Radius of the search, in meters", "m"),
        ("max_c", "", "C"),
        ("distance_m", "", "m"),
        ("top_k", "", ""),
    ],
)
def test_unit(name: str, description: str, unit: str) -> None:
    assert param(name, {"type": "integer", "description": description}).unit == unit


def test_journey_begins_at_a_departure_and_a_stay_at_an_arrival() -> None:
    journeys = [(f"departure{end}", f"arrival{end}", TEXT) for end in ("", "_airport", "_station")]
    stays = [(f"arrival{end}", f"departure{end}", DAY) for end in ("", "_date")]
    for first, second, schema in (*journeys, *stays):
        assert (param(first, schema, second).side, param(second, schema, first).side) == ("start", "end")
    assert param("departure_date", DAY, "arrival_city", "departure_city", "return_date").side == "start"


def test_args_section_describes_params() -> None:
    text = "Send a message.\n\n    Args:\n        to: Email of the recipient\n        wait: How long to wait, in seconds\n    "
    one = params({"properties": {"to": TEXT, "wait": INTEGER}}, text)
    assert "recipi" in one["to"].cues
    assert one["wait"].unit == "second"


@pytest.mark.parametrize(
    ("name", "schema", "siblings", "text", "value"),
    [
        ("owner", TEXT, ["repo"], "acme/shop", "acme"),
        ("repo", TEXT, ["owner"], "acme/shop", "shop"),
        ("repo", TEXT, [], "acme/shop", "acme/shop"),
        ("database", TEXT, ["collection"], "shop.orders", "shop"),
        ("width", INTEGER, ["height"], "640x480", 640),
        ("duration_hours", NUMBER, [], "90 minutes", 1.5),
        ("retention_days", INTEGER, [], "two weeks", 14),
        ("page_id", TEXT, [], "12", "12"),
        ("pull_number", INTEGER, [], "#42", 42),
        ("start", {"type": "string", "format": "date-time"}, [], "since Monday", "2026-11-23T00:00:00Z"),
        ("start_date", DAY, [], "last week", "2026-11-16"),
        ("due_date", DAY, [], "by Friday at 9", "2026-11-27"),
        ("paid_on", DAY, [], "on Friday", "2026-11-20"),
        ("until", {"type": "string", "format": "time"}, [], "2 pm", "14:00:00Z"),
        ("emails", {"type": "array", "items": TEXT}, [], "a@b.example", ["a@b.example"]),
        ("assignee", TEXT, [], "@ann", "ann"),
        ("country", {"enum": ["AT", "DE"]}, [], "Austria", "AT"),
        ("filter", {"type": "object"}, [], 'with {"a": 1}', {"a": 1}),
    ],
)
def test_best_value(name: str, schema: dict[str, Any], siblings: list[str], text: str, value: object) -> None:
    assert given(param(name, schema, *siblings), text)[0][1] == value


@pytest.mark.parametrize(
    ("name", "schema", "text"),
    [
        ("limit", {"type": "integer", "minimum": 1, "maximum": 100}, "500 results"),
        ("key", {"type": "string", "pattern": "^[A-Z]+-\\d+$"}, "c_17"),
        ("state", {"enum": ["open", "closed"]}, "c_17"),
        ("password", TEXT, "'abc'"),
        ("after", {"type": "string", "description": "Cursor of the page before"}, "acme/shop"),
        ("count", INTEGER, "2026-01-01"),
        ("filter", {"type": "object"}, "{'a': 1} since last week"),
    ],
)
def test_unfit_values(name: str, schema: dict[str, Any], text: str) -> None:
    assert given(param(name, schema), text) == []


def test_other_end_of_a_range_does_not_fit() -> None:
    price = param("max_price", INTEGER)
    assert given(price, "between 10 and 20") == [(1.0, 20)]
    assert given(param("limit", INTEGER), "between 10 and 20")[0][0] < 0.5


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"properties": {"a": {"$ref": "#/nowhere"}, "b": True, "c": {"type": ["null", "string"]}}},
        {"properties": {"a": {"pattern": "(["}, "b": {"anyOf": 3}, "": {}}},
        {"properties": {"a": {"items": {"enum": [None]}, "type": "array"}, "b": {"type": "array", "items": [TEXT]}}},
        {"properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 1}]}}},
    ],
)
def test_odd_schemas_are_read(schema: dict[str, Any]) -> None:
    for one in params(schema).values():
        for value in read("a_1 'b' 3 acme/shop tomorrow at 9", NOW).found:
            if fits(one, value):
                coerced(one, value)

"""Inputs and outputs: JSON that can be stored, strict reading with every fault's place, schemas, cursors."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import jsonschema_rs
import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field

from apps.core import foreign_schemas, operations, strict_json
from apps.core.errors import FieldError, Invalid, TooLarge
from apps.core.ids import BadCursor, decode_position, encode_cursor
from apps.core.operations import Operation
from apps.core.schemas import Empty, Input, Moment, NewName, Text, json_schema, parse, parse_strings
from apps.core.strict_json import NotJSON, UnstorableJSON
from apps.mcp import calls
from tests.mcp.samples import Shapes


class Bounds(Input):
    max_total_cost: float | None = None


class Wish(Input):
    intent: Annotated[Text, Field(min_length=1, max_length=5)]
    names: Annotated[list[Text], Field(max_length=2)] = Field(default_factory=list)
    budget: Bounds | None = None
    more: list[Bounds] = Field(default_factory=list)
    name: NewName = "x"
    count: int = 1
    words: dict[str, int] = Field(default_factory=dict)
    text: Annotated[str, Field(max_length=16_384)] = ""


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"intent": "x", "count": "5"}, FieldError("/count", "Input should be a valid integer")),
        ({"intent": "x", "count": True}, FieldError("/count", "Input should be a valid integer")),
        ({"intent": "x", "count": 1.5}, FieldError("/count", "Input should be a valid integer")),
        ({"intent": "x", "words": {"a/b~c": "x"}}, FieldError("/words/a~1b~0c", "Input should be a valid integer")),
        ({"intent": ""}, FieldError("/intent", "String should have at least 1 character")),
        ({"intent": "longer"}, FieldError("/intent", "String should have at most 5 characters")),
        (
            {"intent": "x", "names": ["a", "b", "c"]},
            FieldError("/names", "List should have at most 2 items after validation, not 3"),
        ),
        ({"intent": "a\x00"}, FieldError("/intent", "holds a NUL character")),
        ({"intent": "x", "name": "a/b"}, FieldError("/name", "can't stand in an address: no slash, not . or ..")),
        ({"intent": "x", "buget": {}}, FieldError("/buget", "Unknown field. Did you mean budget?")),
        (
            {"intent": "x", "budget": {"max_totl_cost": 1}},
            FieldError("/budget/max_totl_cost", "Unknown field. Did you mean max_total_cost?"),
        ),
        (
            {"intent": "x", "more": [{"max_totl_cost": 1}]},
            FieldError("/more/0/max_totl_cost", "Unknown field. Did you mean max_total_cost?"),
        ),
        (
            {"intent": "x", "currency": 1},
            FieldError("/currency", f"Unknown field. The known ones are {', '.join(sorted(Wish.model_fields))}."),
        ),
    ],
)
def test_fault_has_a_fitting_message(given: dict[str, object], fault: FieldError) -> None:
    with pytest.raises(Invalid) as caught:
        parse(Wish, given)
    assert caught.value.errors == (fault,)


def test_text_may_be_read_as_a_number() -> None:
    assert parse_strings(Wish, {"intent": "x", "count": "5"}).count == 5
    with pytest.raises(Invalid):
        parse_strings(Wish, {"intent": "x", "count": "five"})


def test_long_text_alone_is_too_large() -> None:
    with pytest.raises(TooLarge):
        parse(Wish, {"intent": "x", "text": "x" * 16_385})
    with pytest.raises(Invalid):
        parse(Wish, {"intent": "x", "text": "x" * 16_385, "count": "5"})


def test_foreign_reference_is_not_fetched() -> None:
    assert "not a place within it" in str(foreign_schemas.fault_of_schema({"$ref": "http://127.0.0.1:9/a.json"}))
    assert "meta-schema" in str(foreign_schemas.fault_of_schema({"$schema": "http://127.0.0.1:9/a.json"}))
    assert foreign_schemas.fault_of_schema({"type": 5}) is not None
    assert foreign_schemas.fault_of_schema({"type": "object"}) is None


def test_fault_pointers_are_escaped() -> None:
    schema = {"type": "object", "properties": {"a/b": {"type": "integer"}}}
    found = foreign_schemas.faults({"a/b": "x"}, schema, under="params")
    assert found == [FieldError("/params/a~1b", '"x" is not of type "integer"')]


def _doubling(levels: int) -> dict[str, object]:
    """A schema of a few lines that looks at one place two to the power of `levels` times."""
    definitions: dict[str, object] = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)
    }
    return {"allOf": [{"$ref": "#/$defs/d0"}], "$defs": definitions | {f"d{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    "schema",
    [
        _doubling(40),
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"allOf": [{"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": {"$ref": "#"}}}]},
        {"patternProperties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}},
        {"properties": {f"p{number}": {"$ref": "#"} for number in range(20_000)}},
        {"properties": {f"p{number}": True for number in range(90_000)}, "additionalProperties": {"$ref": "#"}},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}},
        {"$dynamicRef": "#/$defs/a", "$defs": {"a": {}}},
    ],
)
def test_schema_of_unbounded_cost_is_refused(schema: dict[str, object]) -> None:
    assert foreign_schemas.fault_of_schema(schema) is not None


@pytest.mark.parametrize(
    "schema",
    [
        _doubling(8),
        {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}},
        {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}},
        {"properties": {f"p{number}": {"$ref": "#"} for number in range(1_000)}},
        {"properties": {f"p{number}": {"type": "string"} for number in range(20_000)}},
        {"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}], "$defs": {"a/b": {"type": "string"}}},
    ],
)
def test_recursive_and_union_schemas_are_accepted(schema: dict[str, object]) -> None:
    assert foreign_schemas.fault_of_schema(schema) is None


def test_schemas_share_a_budget_of_recursion() -> None:
    leading_back = {"properties": {f"p{number}": {"$ref": "#"} for number in range(1_000)}}
    effort = foreign_schemas.Effort()

    found = [foreign_schemas.fault_of_schema(leading_back, effort=effort) for _ in range(5)]

    assert found[0] is None
    assert found[-1] == "it refers to itself in too many places"
    assert foreign_schemas.fault_of_schema({"properties": {"a": {"type": "string"}}}, effort=effort) is None


def test_moment_is_read_from_json_and_text() -> None:
    class Timed(Input):
        at: Moment
        then: Moment | None = None

    expected = datetime(2026, 1, 3, 20, 15, tzinfo=UTC)
    for text in ("2026-01-03T20:15:00Z", "2026-01-03T21:15:00+01:00"):
        for read in (parse, parse_strings):
            found = read(Timed, {"at": text, "then": text})
            assert (found.at, found.then) == (expected, expected)
    # PostgreSQL knows fewer offsets than may be written.
    assert parse(Timed, {"at": "2026-01-04T20:14:00+23:59"}).at.utcoffset() == timedelta(0)
    beyond = ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00")
    for wrong in (1767471300, True, None, "", "soon", *beyond, "-1", "1700000000", "2026-01-03T20:15:00"):
        with pytest.raises(Invalid) as caught:
            parse(Timed, {"at": wrong})
        assert [error.pointer for error in caught.value.errors] == ["/at"]


TOOLS = [declared for declared in operations.all_operations() if declared.tool]


def test_input_without_members_is_an_empty_object() -> None:
    schema = json_schema(Empty, "validation")
    assert schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_references_are_inlined() -> None:
    schema = json_schema(Shapes, "validation")

    assert schema["properties"]["leaf"]["properties"]["name"] == {"type": "string", "description": "What it is called."}
    assert schema["properties"]["leaf"]["description"] == "A leaf."
    assert schema["properties"]["title"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert schema["properties"]["options"] == {"type": "object", "additionalProperties": {"type": "string"}}
    jsonschema_rs.meta.validate(schema)


@pytest.mark.parametrize("declared", TOOLS, ids=lambda declared: declared.name)
def test_every_tool_has_valid_schemas(declared: Operation) -> None:
    shown = calls.describe(declared)

    assert shown.title
    assert shown.description
    for schema in (shown.input_schema, shown.output_schema):
        if schema is None:
            continue
        assert schema["type"] == "object"
        jsonschema_rs.meta.validate(schema)
        text = json.dumps(schema)
        assert '"type": [' not in text, "nullable is written as anyOf: some dialects know no list of types"
    for name, member in shown.input_schema["properties"].items():
        assert member, f"{name} says nothing of what it takes"


OF_OTHER_LISTS = [encode_cursor(*key) for key in ((-1,), (2**63,), ("7",), (True,), (1, 2), ())]


@pytest.mark.parametrize("cursor", ["", "nonsense", "é", "W10", "bnVsbA", *OF_OTHER_LISTS])
def test_cursor_that_is_no_position_of_this_list_is_refused(cursor: str) -> None:
    with pytest.raises(BadCursor):
        decode_position(cursor)


def test_position_is_read_back() -> None:
    assert decode_position(encode_cursor(2**63 - 1)) == 2**63 - 1


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("body", "refusal", "pointer"),
    [
        (b"{", NotJSON, None),
        (b"\xff", NotJSON, None),
        (b'{"a": 1, "a": 2}', NotJSON, None),
        (b'{"a": NaN}', UnstorableJSON, None),
        (b'{"a": -Infinity}', UnstorableJSON, None),
        (b'{"a": 1e999}', UnstorableJSON, "/a"),
        (b'{"a": [0, "\\u0000"]}', UnstorableJSON, "/a/1"),
        (b'{"a\\u0000": 1}', UnstorableJSON, ""),
        (b'{"a/b": {"~": "\\ud800"}}', UnstorableJSON, "/a~1b/~0"),
        (b'{"a": 9223372036854775808}', UnstorableJSON, "/a"),
        (b'{"a": ' + b"9" * 400 + b"}", UnstorableJSON, "/a"),
        (b'{"a": 18446744073709551616}', UnstorableJSON, "/a"),
        (b'{"a": 1e64}', UnstorableJSON, "/a"),
        (b'{"a": [-1e300]}', UnstorableJSON, "/a/0"),
        (b'{"a": 9e-65}', UnstorableJSON, "/a"),
        (b'{"a": 5e-324}', UnstorableJSON, "/a"),
        (b"[" * 33 + b"]" * 33, UnstorableJSON, "/0" * 32),
        (b"[" * 200_000, UnstorableJSON, None),
    ],
)
def test_unstorable_json_is_refused_with_its_place(
    body: bytes, refusal: type[NotJSON | UnstorableJSON], pointer: str | None
) -> None:
    with pytest.raises(refusal) as caught:
        strict_json.loads(body)
    assert [error.pointer for error in caught.value.errors] == ([] if pointer is None else [pointer])


@pytest.mark.parametrize("number", [1e20, -1e23, 9.999999999999999e63, 1e-64, -0.0, 2.0**63, 12345678901234567890.0])
def test_stored_number_is_accepted_again(db: None, number: float) -> None:
    strict_json.check(number)
    with connection.cursor() as cursor:
        cursor.execute("select %s::jsonb", [json.dumps([number])])
        assert float(strict_json.loads(cursor.fetchone()[0].encode())[0]) == number


def test_thirty_two_levels_are_accepted() -> None:
    assert strict_json.loads(b"[" * 32 + b"]" * 32)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(document=_ANY)
def test_accepted_document_is_stored_unchanged(db: None, document: Any) -> None:
    try:
        strict_json.check(document)
    except UnstorableJSON:
        return
    with connection.cursor() as cursor:
        cursor.execute("select %s::jsonb", [json.dumps(document)])
        came_back = cursor.fetchone()[0]
    strict_json.loads(came_back.encode())
    # jsonb writes 1e20 as an integer; as a double it is the same number.
    assert json.loads(came_back, parse_int=float) == json.loads(json.dumps(document), parse_int=float)


def test_neighbouring_large_integers_differ_in_digest() -> None:
    assert strict_json.digest(2**53) != strict_json.digest(2**53 + 1)


def _reversed(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _reversed(document[key]) for key in reversed(document)}
    if isinstance(document, list):
        return [_reversed(value) for value in document]
    return document


@given(document=_ANY)
def test_digest_ignores_the_order_of_keys(document: Any) -> None:
    try:
        strict_json.check(document)
    except UnstorableJSON:
        return
    digest = strict_json.digest(document)
    assert len(digest) == 32
    assert digest == strict_json.digest(_reversed(document))

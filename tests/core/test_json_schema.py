"""What tools show of their operations' schemas."""

import json

import jsonschema_rs
import pytest

from apps.core import json_schema, operations
from apps.core.operations import Operation
from apps.core.schemas import Empty
from apps.mcp import calls
from tests.mcp.samples import Shapes

TOOLS = [declared for declared in operations.all_operations() if declared.tool]


def test_input_without_members_is_an_empty_object() -> None:
    schema = json_schema.of(Empty, "validation")
    assert schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_references_are_inlined_unless_recursive() -> None:
    schema = json_schema.of(Shapes, "validation")

    assert schema["properties"]["leaf"]["properties"]["name"] == {
        "type": "string",
        "description": "What it is called.",
    }
    assert schema["properties"]["leaf"]["description"] == "A leaf."
    assert schema["properties"]["title"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert schema["properties"]["options"] == {"type": "object", "additionalProperties": {"type": "string"}}
    assert set(schema["$defs"]) == {"Branch"}
    jsonschema_rs.meta.validate(schema)
    jsonschema_rs.Draft202012Validator(schema).validate(
        {"leaf": {"name": "a"}, "branch": {"children": [{"children": []}]}}
    )


@pytest.mark.parametrize("declared", TOOLS, ids=lambda declared: declared.name)
def test_every_tool_has_valid_schemas(declared: Operation) -> None:
    shown = calls.describe(declared)

    assert shown.title
    assert shown.description
    for schema in (shown.input_schema, shown.output_schema):
        assert schema is not None
        assert schema["type"] == "object"
        jsonschema_rs.meta.validate(schema)
        text = json.dumps(schema)
        assert '"type": [' not in text, "nullable is written as anyOf: some dialects know no list of types"
    for name, member in shown.input_schema["properties"].items():
        assert member, f"{name} says nothing of what it takes"


def test_page_begins_after_the_last_name() -> None:
    names = ["d", "a", "c", "b"]
    first, cursor = calls.page(names, str, None, size=2)
    second, end = calls.page(names, str, cursor, size=2)
    assert (first, second, end) == (["a", "b"], ["c", "d"], None)

"""From JSON to typed inputs: strict, and every fault with its place."""

from typing import Annotated

import pytest
from pydantic import Field

from apps.core import foreign_schemas
from apps.core.errors import FieldError, Invalid, TooLarge
from apps.core.schemas import Input, parse, parse_strings


class Example(Input):
    count: int = 1
    words: dict[str, int] = Field(default_factory=dict)
    text: Annotated[str, Field(max_length=16_384)] = ""
    name: Annotated[str, Field(max_length=5)] = ""


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"count": "5"}, "/count"),
        ({"count": True}, "/count"),
        ({"count": 1.5}, "/count"),
        ({"other": 1}, "/other"),
        ({"words": {"a/b~c": "x"}}, "/words/a~1b~0c"),
        ({"name": "x" * 6}, "/name"),
    ],
)
def test_json_is_read_strictly_and_faults_are_placed(given: dict[str, object], pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(Example, given)
    assert [error.pointer for error in caught.value.errors] == [pointer]


def test_what_came_as_text_may_be_a_number() -> None:
    assert parse_strings(Example, {"count": "5"}).count == 5
    with pytest.raises(Invalid):
        parse_strings(Example, {"count": "five"})


def test_a_long_text_is_too_large_unless_something_else_is_wrong_too() -> None:
    with pytest.raises(TooLarge):
        parse(Example, {"text": "x" * 16_385})
    with pytest.raises(Invalid):
        parse(Example, {"text": "x" * 16_385, "count": "5"})


def test_a_schema_that_refers_elsewhere_is_not_fetched() -> None:
    assert "not fetched" in str(foreign_schemas.fault_of_schema({"$ref": "http://127.0.0.1:9/schema.json"}))
    assert foreign_schemas.fault_of_schema({"type": 5}) is not None
    assert foreign_schemas.fault_of_schema({"type": "object"}) is None


def test_faults_of_a_document_have_escaped_pointers() -> None:
    schema = {"type": "object", "properties": {"a/b": {"type": "integer"}}}
    found = foreign_schemas.faults({"a/b": "x"}, schema, under="params")
    assert found == [FieldError("/params/a~1b", '"x" is not of type "integer"')]

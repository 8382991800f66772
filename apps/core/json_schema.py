"""The JSON Schemas that tools and routes show: those of the operations, in the plain dialect that every client reads.

References are written out, titles that only repeat a name are dropped, and an object without members says so.
Pure.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel

_NAMED = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})


@cache
def of(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """The schema of an input (`validation`) or an output (`serialization`). Shared: not to be changed.

    :raises ValueError: if the model is not an object, which is all that an operation may take or give.
    """
    raw = model.model_json_schema(mode=mode)
    definitions = raw.pop("$defs", {})
    recursive = {name for name in definitions if _reaches(name, name, definitions, set())}
    schema: dict[str, Any] = _plain(raw, definitions, recursive)
    if schema.get("type") != "object":
        raise ValueError(f"{model.__name__} is not an object.")
    schema.pop("description", None)
    schema.setdefault("properties", {})
    if recursive:
        schema["$defs"] = {name: _plain(definitions[name], definitions, recursive) for name in sorted(recursive)}
    return schema


def _plain(node: Any, definitions: Mapping[str, Any], recursive: set[str]) -> Any:
    """A schema without titles and with references written out, except those that lead back to themselves."""
    if isinstance(node, list):
        return [_plain(item, definitions, recursive) for item in node]
    if not isinstance(node, dict):
        return node
    target = _target(node)
    if target is not None and target not in recursive:
        siblings = {name: value for name, value in node.items() if name != "$ref"}
        return _plain({**definitions[target], **siblings}, definitions, recursive)
    return {
        name: {inner: _plain(value[inner], definitions, recursive) for inner in value}
        if name in _NAMED
        else value
        if name in {"default", "const", "enum", "examples", "required"}
        else _plain(value, definitions, recursive)
        for name, value in node.items()
        if name != "title"
    }


def _reaches(start: str, wanted: str, definitions: Mapping[str, Any], seen: set[str]) -> bool:
    found = _targets(definitions[start]) - seen
    return wanted in found or any(_reaches(name, wanted, definitions, seen | found) for name in found)


def _targets(node: Any) -> set[str]:
    """The definitions that a schema refers to directly."""
    if isinstance(node, list):
        return set().union(*map(_targets, node))
    if not isinstance(node, dict):
        return set()
    target = _target(node)
    return set().union({target} if target else set(), *map(_targets, node.values()))


def _target(node: Mapping[str, Any]) -> str | None:
    reference = node.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else None

"""References between steps, `{{step-1.files}}`: found in values, and typed by what they point at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from apps.core.errors import pointer_to
from apps.plans.catalogue import listed, meant, types_of
from apps.plans.shapes import OPENING, REFERENCE, RESULT_POINTER, RESULT_TEXT, place_in_list

_BRANCHES: Final = ("anyOf", "oneOf", "allOf")
_HOPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One reference: where it stands, which step and path it names, and whether it is the whole value.

    Without a path it is malformed: an opening of a reference that is none, or a reference in the name of a member.
    """

    pointer: str
    step_id: str = ""
    path: tuple[str, ...] = ()
    whole: bool = False


def write(step_id: str, *path: str) -> str:
    """Return the text of a reference."""
    return f"{OPENING}{step_id}.{'.'.join(path)}}}}}"


def within(value: Any, pointer: str = "") -> Iterator[Reference]:
    """Find every reference in a JSON value."""
    if isinstance(value, str) and OPENING in value:
        found = list(REFERENCE.finditer(value))
        for match in found:
            path = tuple(match[2].split("."))
            yield Reference(pointer=pointer, step_id=match[1], path=path, whole=match[0] == value)
        if value.count(OPENING) != len(found):
            yield Reference(pointer=pointer)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if OPENING in name and REFERENCE.search(name):
                yield Reference(pointer=pointer + pointer_to(name))
            yield from within(item, pointer + pointer_to(name))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from within(item, f"{pointer}/{position}")


def resolve(output_schema: Mapping[str, Any], path: tuple[str, ...]) -> Any | None:
    """Return the schema of what a path names in a tool's output, or None if the tool does not declare it."""
    if path in ((RESULT_POINTER,), (RESULT_TEXT,)):
        return (output_schema.get("properties") or {}).get(path[0], {"type": "string"})
    return member(output_schema, path)


def member(root: Mapping[str, Any], path: Sequence[str]) -> Any | None:
    """Return the schema of a member of what a schema describes, named by its path, or None if the schema does not tell of it."""
    here: Any = root
    for part in path:
        here = _child(here, part, root)
        if here is None:
            return None
    return _followed(here, root)


def _child(schema: Any, part: str, root: Mapping[str, Any]) -> Any | None:
    schema = _followed(schema, root)
    if not isinstance(schema, Mapping):
        return None
    own = _own_child(schema, part)
    if own is not None:
        return own
    branches = (branch for name in _BRANCHES for branch in listed(schema.get(name)))
    found = [child for branch in branches if (child := _child(branch, part, root)) is not None]
    return found[0] if len(found) == 1 else {"anyOf": [_followed(one, root) for one in found]} if found else None


def _own_child(schema: Mapping[str, Any], part: str) -> Any | None:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and part in properties:
        return properties[part]
    if (place := place_in_list(part)) is not None and "array" in types_of(schema):
        first = listed(schema.get("prefixItems"))
        return first[place] if place < len(first) else schema.get("items", {})
    others = schema.get("additionalProperties")
    return others if isinstance(others, Mapping) else None


def _followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a local `$ref` leads to; what leads nowhere, or in a circle, tells nothing."""
    for _ in range(_HOPS):
        target = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(target, str):
            return schema
        schema = meant(target, root) if target.startswith("#/") else {}
    return {}

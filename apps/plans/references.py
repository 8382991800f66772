"""References between steps, `{{step-1.files}}`: found in values, and typed by what they point at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apps.core.errors import pointer_to
from apps.plans.catalogue import types_of
from apps.plans.shapes import OPENING, REFERENCE, RESULT_POINTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One reference: where it stands, which step and path it names, and whether it is the whole value."""

    pointer: str
    step_id: str
    path: tuple[str, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Malformed:
    """An opening of a reference that is none."""

    pointer: str


def write(step_id: str, *path: str) -> str:
    """Return the text of a reference."""
    return f"{OPENING}{step_id}.{'.'.join(path)}}}}}"


def within(value: Any, pointer: str = "") -> Iterator[Reference | Malformed]:
    """Find every reference in a JSON value."""
    if isinstance(value, str):
        yield from _in_text(value, pointer)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from within(item, pointer + pointer_to(name))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from within(item, f"{pointer}/{position}")


def _in_text(text: str, pointer: str) -> Iterator[Reference | Malformed]:
    if OPENING not in text:
        return
    found = list(REFERENCE.finditer(text))
    for match in found:
        path = tuple(match[2].split("."))
        yield Reference(pointer=pointer, step_id=match[1], path=path, whole=match[0] == text)
    if text.count(OPENING) != len(found):
        yield Malformed(pointer)


def resolve(output_schema: Mapping[str, Any], path: tuple[str, ...]) -> Any | None:
    """Return the schema of what a path names in a tool's output, or None if the tool does not declare it."""
    if path == (RESULT_POINTER,):
        return (output_schema.get("properties") or {}).get(RESULT_POINTER, {"type": "string"})
    here: Any = output_schema
    for part in path:
        here = _child(here, part)
        if here is None:
            return None
    return here


def _child(schema: Any, part: str) -> Any | None:
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and part in properties:
        return properties[part]
    if part.isdecimal() and "array" in types_of(schema):
        return schema.get("items", {})
    return None

"""JSON documents against the JSON Schemas that others gave us. A schema is data: what it refers to is never fetched."""

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Never
from urllib.parse import unquote

import jsonschema_rs

from apps.core.errors import FieldError, pointer_to
from apps.core.strict_json import MAX_DEPTH

MOST_FAULTS: Final = 20
MOST_LOOKS: Final = 20_000
MOST_RETURNS: Final = 200_000
_LONGEST_MESSAGE: Final = 300


class Effort:
    """What it may cost to judge schemas that came together. Reading each of their places once is free; a schema that leads
    back to itself is read again for every level of a document.
    """

    def __init__(self) -> None:
        self._left = MOST_RETURNS

    def spend(self, places: int) -> None:
        self._left -= places
        if self._left < 0:
            raise _TooCostly


def fault_of_schema(schema: Mapping[str, Any], *, effort: Effort | None = None) -> str | None:
    """Why this document can't be used as a schema; None if it can.

    A schema is judged by the document that costs it most: one place may be looked at `MOST_LOOKS` times.

    :param effort: what is left of it for all schemas that came together; None: this one came alone.
    """
    try:
        if _Cost(schema, effort or Effort()).looks(schema, MAX_DEPTH) > MOST_LOOKS:
            return "it may look at one place of a document too many times"
    except (_Endless, RecursionError):
        return "it refers to itself without end"
    except _TooCostly:
        return "it refers to itself in too many places"
    except LookupError as exc:
        return f"it refers to {str(exc)[:100]}, which is not a place within it"
    try:
        _validator(json.dumps(schema, sort_keys=True))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as exc:
        return str(exc).splitlines()[0][:_LONGEST_MESSAGE]
    return None


def faults(document: Mapping[str, Any], schema: Mapping[str, Any], *, under: str) -> list[FieldError]:
    """Where a document does not fit a usable schema, twenty places at the most, with pointers below `/<under>`."""
    found = _validator(json.dumps(schema, sort_keys=True)).iter_errors(dict(document))
    return [
        FieldError(pointer_to(under, *fault.instance_path), fault.message[:_LONGEST_MESSAGE])
        for fault in islice(found, MOST_FAULTS)
    ]


# Keywords whose schemas judge the same place as the schema that holds them.
_SAME_PLACE: Final = ("allOf", "anyOf", "oneOf")
_SAME_PLACE_ALONE: Final = ("not", "if", "then", "else")
# Keywords whose schemas judge parts of that place: several of one object judge different parts …
_APART: Final = ("properties",)
# … and these may judge the same part again.
_OVERLAPPING: Final = ("patternProperties", "dependentSchemas")
_OVERLAPPING_ALONE: Final = (
    "additionalProperties",
    "items",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
# Keywords that may hold several schemas.
_SEVERAL: Final = frozenset({*_SAME_PLACE, *_APART, *_OVERLAPPING, "prefixItems", "items"})


class _Endless(ValueError):
    """A schema that leads back to itself at the same place."""


class _TooCostly(ValueError):
    """Schemas that take too long to be judged."""


class _Cost:
    """How often a schema may look at one place of a document, at the worst."""

    def __init__(self, root: Mapping[str, Any], effort: Effort) -> None:
        self._root = root
        self._effort = effort
        self._read: set[int] = set()
        self._known: dict[tuple[int, int], int] = {}
        self._open: set[tuple[int, int]] = set()

    def looks(self, schema: Any, depth: int) -> int:
        """:raises LookupError: for a reference that is not a pointer within the document."""
        if not isinstance(schema, dict) or depth == 0:
            return 1
        key = (id(schema), depth)
        if key in self._open:
            raise _Endless
        if key not in self._known:
            if id(schema) in self._read:
                self._effort.spend(
                    1 + sum(len(several) for word in _SEVERAL if isinstance(several := schema.get(word), dict | list))
                )
            self._read.add(id(schema))
            self._open.add(key)
            self._known[key] = min(self._here(schema, depth) + self._below(schema, depth - 1), MOST_LOOKS + 1)
            self._open.remove(key)
        return self._known[key]

    def _here(self, schema: Mapping[str, Any], depth: int) -> int:
        total = 1
        if "$ref" in schema:
            total += self.looks(self._target(schema["$ref"]), depth)
        for word in {"$dynamicRef", "$recursiveRef"} & schema.keys():
            raise LookupError(word)
        total += sum(self.looks(schema[word], depth) for word in _SAME_PLACE_ALONE if word in schema)
        listed = (schema[word] for word in _SAME_PLACE if isinstance(schema.get(word), list))
        return total + sum(self.looks(one, depth) for several in listed for one in several)

    def _below(self, schema: Mapping[str, Any], depth: int) -> int:
        total = 0
        for word in _APART:
            total += max((self.looks(one, depth) for one in _values(schema.get(word))), default=0)
        prefix = schema.get("prefixItems")
        total += max((self.looks(one, depth) for one in prefix), default=0) if isinstance(prefix, list) else 0
        total += sum(self.looks(one, depth) for word in _OVERLAPPING for one in _values(schema.get(word)))
        items = schema.get("items")
        total += sum(self.looks(one, depth) for one in items) if isinstance(items, list) else 0
        return total + sum(self.looks(schema[word], depth) for word in _OVERLAPPING_ALONE if word in schema)

    def _target(self, reference: Any) -> Any:
        if reference != "#" and not str(reference).startswith("#/"):
            raise LookupError(str(reference))
        place: Any = self._root
        for part in str(reference)[1:].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                place = place[int(name)] if isinstance(place, list) else place[name]
            except (LookupError, TypeError, ValueError):
                raise LookupError(str(reference)) from None
        return place


def _values(named: Any) -> list[Any]:
    return list(named.values()) if isinstance(named, dict) else []


@lru_cache(maxsize=512)
def _validator(schema: str) -> Any:
    return jsonschema_rs.validator_for(json.loads(schema), retriever=_never_fetched)


def _never_fetched(uri: str) -> Never:
    raise ValueError(f"{uri} is elsewhere, and schemas are not fetched")

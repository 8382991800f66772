"""JSON documents against JSON Schemas that clients sent. A schema is data: its references are never fetched."""

import json
from collections.abc import Iterator, Mapping
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

# Keywords whose schemas apply to the same place of a document as the schema that holds them; their costs add up.
_SAME_PLACE: Final = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
# Keywords whose schemas each apply to another part of that place, so that the dearest one counts; and others, whose
# schemas may apply to the same part.
_APART: Final = frozenset({"properties", "prefixItems"})
_OVERLAPPING: Final = frozenset(
    {
        *("patternProperties", "dependentSchemas", "additionalProperties", "items", "contains", "propertyNames"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})


class _Refused(ValueError):
    """Why a schema can't be used."""


class Effort:
    """The cost of checking schemas that came together. To read a place again, as recursion does, costs effort."""

    def __init__(self) -> None:
        self._left = MOST_RETURNS

    def spend(self, places: int) -> None:
        self._left -= places
        if self._left < 0:
            raise _Refused("it refers to itself in too many places")


def fault_of_schema(schema: Mapping[str, Any], *, effort: Effort | None = None) -> str | None:
    """Why this document can't be used as a schema; None if it can.

    A schema may look at one place of a document `MOST_LOOKS` times, at worst.

    :param effort: what is left of it for all schemas that came together; None: this one came alone.
    """
    try:
        if _Cost(schema, effort or Effort()).looks(schema, MAX_DEPTH) > MOST_LOOKS:
            return "it may look at one place of a document too many times"
        validator(schema)
    except RecursionError:
        return "it refers to itself without end"
    except (_Refused, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as exc:
        return str(exc).splitlines()[0][:_LONGEST_MESSAGE]
    return None


def faults(document: Mapping[str, Any], schema: Mapping[str, Any], *, under: str) -> list[FieldError]:
    """Where a document does not fit a usable schema, twenty places at the most, with pointers below `/<under>`."""
    found = validator(schema).iter_errors(dict(document))
    return [
        FieldError(pointer_to(under, *fault.instance_path), fault.message[:_LONGEST_MESSAGE])
        for fault in islice(found, MOST_FAULTS)
    ]


class _Cost:
    """How often a schema may look at one place of a document, at worst."""

    def __init__(self, root: Mapping[str, Any], effort: Effort) -> None:
        self._root = root
        self._effort = effort
        self._read: set[int] = set()
        self._known: dict[tuple[int, int], int] = {}
        self._open: set[tuple[int, int]] = set()

    def looks(self, schema: Any, depth: int) -> int:
        """:raises _Refused: for a reference without end, or to something else than a place within the document."""
        if not isinstance(schema, dict) or depth == 0:
            return 1
        key = (id(schema), depth)
        if key in self._open:
            raise _Refused("it refers to itself without end")
        if key not in self._known:
            if id(schema) in self._read:
                self._effort.spend(1 + sum(len(value) for value in schema.values() if isinstance(value, dict | list)))
            self._read.add(id(schema))
            self._open.add(key)
            self._known[key] = min(self._counted(schema, depth), MOST_LOOKS + 1)
            self._open.remove(key)
        return self._known[key]

    def _counted(self, schema: Mapping[str, Any], depth: int) -> int:
        total = 1
        for word, value in schema.items():
            if word == "$ref":
                total += self.looks(self._target(str(value)), depth)
            elif word in {"$dynamicRef", "$recursiveRef"}:
                raise _Refused(f"it refers to {word}, which is not a place within it")
            elif word in _SAME_PLACE:
                total += sum(self.looks(one, depth) for one in _schemas(word, value))
            elif word in _APART:
                total += max((self.looks(one, depth - 1) for one in _schemas(word, value)), default=0)
            elif word in _OVERLAPPING:
                total += sum(self.looks(one, depth - 1) for one in _schemas(word, value))
        return total

    def _target(self, reference: str) -> Any:
        elsewhere = _Refused(f"it refers to {reference[:100]}, which is not a place within it")
        if reference != "#" and not reference.startswith("#/"):
            raise elsewhere
        found: Any = self._root
        for part in reference[1:].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (LookupError, TypeError, ValueError):
                raise elsewhere from None
        return found


def _schemas(word: str, value: Any) -> Iterator[Any]:
    """The schemas that a keyword holds: by name, in a list, or one."""
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict) and word in _NAMED:
        yield from value.values()
    elif word not in _NAMED:
        yield value


def validator(schema: Mapping[str, Any], *, formats: bool = False) -> jsonschema_rs.Validator:
    """The compiled validator of a schema, which fetches nothing.

    :param formats: whether it checks `format` too.
    :raises ValueError: if this is no schema.
    """
    return _compiled(json.dumps(schema, sort_keys=True), formats)


@lru_cache(maxsize=8192)
def _compiled(schema: str, formats: bool) -> jsonschema_rs.Validator:  # noqa: FBT001  # a key of the cache
    return jsonschema_rs.validator_for(json.loads(schema), retriever=_never_fetched, validate_formats=formats)


def _never_fetched(uri: str) -> Never:
    raise ValueError(f"{uri} is elsewhere, and schemas are not fetched")

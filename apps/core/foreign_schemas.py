"""JSON documents against the JSON Schemas that others gave us. A schema is data: what it refers to is never fetched."""

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Never

import jsonschema_rs

from apps.core.errors import FieldError, pointer_to

MOST_FAULTS: Final = 20
_LONGEST_MESSAGE: Final = 300


def fault_of_schema(schema: Mapping[str, Any]) -> str | None:
    """Why this document can't be used as a schema; None if it can."""
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


@lru_cache(maxsize=512)
def _validator(schema: str) -> Any:
    return jsonschema_rs.validator_for(json.loads(schema), retriever=_never_fetched)


def _never_fetched(uri: str) -> Never:
    raise ValueError(f"{uri} is elsewhere, and schemas are not fetched")

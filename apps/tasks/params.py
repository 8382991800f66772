"""Parameters against the JSON Schema of their type. Schemas are data: what they refer to is never fetched."""

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Never

import jsonschema_rs

from apps.core.errors import FieldError
from apps.tasks.errors import InvalidParams, InvalidSchema, ParamsTooLarge

MAX_PARAMS_BYTES: Final = 262_144
_MAX_FAULTS: Final = 20


def check_schema(schema: Mapping[str, Any]) -> None:
    """:raises InvalidSchema: if the document can't be used as a schema."""
    try:
        _validator(json.dumps(schema, sort_keys=True))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as exc:
        message = str(exc).splitlines()[0][:300]
        raise InvalidSchema(
            f"This is no usable JSON Schema: {message}", errors=[FieldError("/params_schema", message)]
        ) from exc


def check_params(params: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Refuse parameters that do not fit.

    :raises InvalidParams: with a pointer to each fault.
    :raises ParamsTooLarge: if they are over 256 KiB as JSON.
    """
    size = len(json.dumps(params, ensure_ascii=False).encode())
    if size > MAX_PARAMS_BYTES:
        raise ParamsTooLarge(f"The params are {size} bytes, {MAX_PARAMS_BYTES} are allowed.")
    faults = islice(_validator(json.dumps(schema, sort_keys=True)).iter_errors(params), _MAX_FAULTS)
    errors = [
        FieldError("".join(f"/{_escape(str(part))}" for part in ("params", *fault.instance_path)), fault.message[:300])
        for fault in faults
    ]
    if errors:
        raise InvalidParams("; ".join(f"{error.pointer}: {error.message}" for error in errors[:5]), errors=errors)


@lru_cache(maxsize=512)
def _validator(schema: str) -> Any:
    return jsonschema_rs.validator_for(json.loads(schema), retriever=_never_fetched)


def _never_fetched(uri: str) -> Never:
    raise ValueError(f"{uri} is elsewhere, and schemas are not fetched")


def _escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")

"""Parameters against the JSON Schema of their type."""

import json
from collections.abc import Mapping
from typing import Any, Final

from apps.core import foreign_schemas
from apps.core.errors import FieldError
from apps.tasks.errors import InvalidParams, InvalidSchema, ParamsTooLarge

MAX_PARAMS_BYTES: Final = 262_144


def check_schema(schema: Mapping[str, Any]) -> None:
    """:raises InvalidSchema: if the document can't be used as a schema."""
    if (fault := foreign_schemas.fault_of_schema(schema)) is not None:
        raise InvalidSchema(f"This is no usable JSON Schema: {fault}", errors=[FieldError("/params_schema", fault)])


def check_params(params: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Refuse parameters that do not fit.

    :raises InvalidParams: with a pointer to each fault.
    :raises ParamsTooLarge: if they are over 256 KiB as JSON.
    """
    size = len(json.dumps(params, ensure_ascii=False).encode())
    if size > MAX_PARAMS_BYTES:
        raise ParamsTooLarge(f"The params are {size} bytes, {MAX_PARAMS_BYTES} are allowed.")
    if errors := foreign_schemas.faults(params, schema, under="params"):
        raise InvalidParams("; ".join(f"{error.pointer}: {error.message}" for error in errors[:5]), errors=errors)
